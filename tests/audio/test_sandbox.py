"""Hostile audio ends in an AudioError, never in the parent."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.processes import find_children
from vivace.audio import sandbox as sandbox_module
from vivace.audio.decode import DEFAULT_LIMITS, MIB, AudioLimits, decode_compressed
from vivace.audio.files import read_audio
from vivace.audio.sandbox import LIMIT_S, SANDBOX, Sandbox
from vivace.errors import AudioError

RATE = 24_000
PRELUDE = "import sys; sys.path[:] = sys.argv[1:]; import vivace.audio.sandbox as s, time, os\n"
NEEDS_PROC = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
READY = "s._send(sys.stdout.buffer, {}, b'')\n"  # what a child says first


def encode(samples: np.ndarray, rate: int = RATE, **kind: str) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, **kind)
    return buffer.getvalue()


def tone(seconds: float) -> np.ndarray:
    return (0.5 * np.sin(np.arange(int(RATE * seconds)) / 9)).astype(np.float32)


FILES = {
    "FLAC": encode(tone(0.5), format="FLAC"),
    "VORBIS": encode(tone(0.5), format="OGG", subtype="VORBIS"),
    "OPUS": encode(tone(0.5), format="OGG", subtype="OPUS"),
    "MP3": encode(tone(0.5), format="MP3"),
}
FLAC = FILES["FLAC"]


def child_that(script: str) -> list[str]:
    """A child whose decoder does something else."""
    return [sys.executable, "-I", "-c", PRELUDE + script, *filter(None, sys.path)]


@pytest.fixture
def pool() -> Iterator[Sandbox]:
    pool = Sandbox()
    yield pool
    pool.close()


def pids(pool: Sandbox) -> set[int]:
    return {child.process.pid for child in pool._idle}


def is_alive(pid: int) -> bool:
    """A zombie would still be there to be signalled."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# The same samples


@pytest.mark.parametrize("kind", list(FILES))
def test_a_child_gives_the_samples_of_the_parent(kind: str) -> None:
    apart, here = read_audio(FILES[kind]), read_audio(FILES[kind], trusted=True)
    np.testing.assert_array_equal(apart.samples, here.samples)
    assert (apart.sample_rate, apart.sha256) == (here.sample_rate, here.sha256)
    assert apart.samples.flags.writeable


def test_a_child_is_used_again(pool: Sandbox) -> None:
    pool.decode(FLAC, DEFAULT_LIMITS)
    first = pids(pool)
    for content in FILES.values():
        pool.decode(content, DEFAULT_LIMITS)
    with pytest.raises(AudioError):
        pool.decode(b"fLaC" + bytes(99), DEFAULT_LIMITS)  # a refusal is no failure
    assert pids(pool) == first
    assert len(first) == 1


def test_wav_starts_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(Sandbox, "decode", refuse)
    read_audio(encode(tone(0.5), format="WAV"))
    read_audio(FLAC, trusted=True)
    with pytest.raises(AssertionError):
        read_audio(FLAC)


def test_the_largest_reference_passes(pool: Sandbox) -> None:
    noise = np.random.default_rng(0).uniform(-0.1, 0.1, (30 * 96_000, 2))
    samples, rate = pool.decode(encode(noise, 96_000, format="FLAC"), AudioLimits(
        max_encoded_bytes=64 * MIB))  # fmt: skip
    assert (len(samples), rate) == (30 * 96_000, 96_000)


def test_twenty_threads_share_the_children(pool: Sandbox) -> None:
    wanted = {
        kind: decode_compressed(content, DEFAULT_LIMITS)[0] for kind, content in FILES.items()
    }

    def work(index: int) -> None:
        for turn in range(5):
            kind = list(FILES)[(index + turn) % len(FILES)]
            samples, _ = pool.decode(FILES[kind], DEFAULT_LIMITS)
            np.testing.assert_array_equal(samples, wanted[kind])

    with ThreadPoolExecutor(20) as threads:
        list(threads.map(work, range(20)))
    assert 1 <= len(pids(pool)) <= 4


def test_a_child_outlives_the_thread_that_started_it(pool: Sandbox) -> None:
    thread = threading.Thread(target=pool.decode, args=(FLAC, DEFAULT_LIMITS))
    thread.start()
    thread.join()
    before = pids(pool)
    pool.decode(FLAC, DEFAULT_LIMITS)
    assert pids(pool) == before


# Bombs and damage


def forge_flac(*, rate: int = RATE, channels: int = 1, num_samples: int | None = None) -> bytes:
    """The bits of STREAMINFO: rate 20, channels - 1 in 3, bits - 1 in 5, samples 36."""
    content = bytearray(FLAC)
    fields = int.from_bytes(content[18:26], "big")
    if num_samples is None:
        num_samples = fields & (2**36 - 1)
    packed = rate << 44 | (channels - 1) << 41 | 15 << 36 | num_samples
    content[18:26] = packed.to_bytes(8, "big")
    return bytes(content)


@pytest.mark.parametrize("num_samples", [0, 1, RATE * 3_600 * 3, 2**36 - 1])
def test_a_forged_length_costs_nothing(num_samples: int) -> None:
    try:
        assert read_audio(forge_flac(num_samples=num_samples)).duration_s <= 0.5
    except AudioError as error:
        assert "cannot be decoded" in str(error)  # noqa: PT017
        assert "longer" not in str(error)  # noqa: PT017 - it was not decoded up to a limit


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (forge_flac(rate=655_350), "655,350 Hz; 8,000 to"),
        (forge_flac(rate=1), "1 Hz|cannot be decoded"),
        (forge_flac(channels=8), "8 channels; 1 to 2"),
        (encode(np.zeros((100, 6)), format="FLAC"), "6 channels"),
        (encode(np.zeros(180 * RATE), format="FLAC"), r"longer than 174\.8 s"),
        (encode(np.zeros(1_400 * 8_000), 8_000, format="FLAC"), r"longer than 524\.3 s"),
    ],
)
def test_a_decompression_bomb_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(AudioError, match=message):
        read_audio(content)


@pytest.mark.parametrize("kind", list(FILES))
def test_a_truncated_file_is_audio_or_an_audio_error(kind: str) -> None:
    content = FILES[kind]
    for num_bytes in [*range(4, 200, 13), len(content) // 2, len(content) - 1]:
        with contextlib.suppress(AudioError):
            assert read_audio(content[:num_bytes]).duration_s < 0.7


edits = st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=12)


@pytest.mark.parametrize("kind", list(FILES))
@settings(max_examples=60, deadline=None)
@given(edits=edits, cut=st.integers(0, 300))
def test_a_mutant_is_audio_or_an_audio_error(
    kind: str, edits: list[tuple[int, int]], cut: int
) -> None:
    content = bytearray(FILES[kind])
    for position, value in edits:
        content[position % len(content)] = value
    try:
        recording = read_audio(bytes(content[: len(content) - cut]))
    except AudioError:
        return
    assert recording.samples.nbytes <= DEFAULT_LIMITS.max_decoded_bytes


# Children that fail


def fail_and_recover(script: str, message: str, **options: float) -> None:
    """An AudioError; afterwards nothing is left and the pool still answers."""
    pool = Sandbox(command=child_that(script), **options)  # type: ignore[arg-type]
    with pytest.raises(AudioError, match=message):
        pool.decode(FLAC, DEFAULT_LIMITS)
    assert not pool._idle
    pool._command, pool._limit_s = None, LIMIT_S
    assert len(pool.decode(FLAC, DEFAULT_LIMITS)[0]) == RATE // 2
    pool.close()


def test_a_decoder_that_hangs_is_stopped() -> None:
    script = "s.decode_compressed = lambda *_: time.sleep(999)\ns.serve()"
    fail_and_recover(script, "longer than 1 s", limit_s=1)


def test_a_decoder_that_spins_is_ended_by_its_limit_of_the_processor() -> None:
    script = "s.CPU_LIMIT_S = 0.2\ndef spin(*_):\n    while True: pass\n"
    script += "s.decode_compressed = spin\ns.serve()"
    fail_and_recover(script, "longer than 5 s of a processor", limit_s=600)


def test_a_child_that_never_reads_is_stopped() -> None:
    content = FLAC + bytes(8 * MIB)  # more than a pipe holds
    pool = Sandbox(command=child_that(READY + "time.sleep(999)"), limit_s=0.5)
    with pytest.raises(AudioError, match=r"longer than 0\.5 s"):
        pool.decode(content, DEFAULT_LIMITS)


@NEEDS_PROC
@pytest.mark.parametrize(
    ("script", "limit_s"),
    [("time.sleep(999)", 0.5), ("1 / 0", 60), (READY.replace("{}", "{'x': 1}"), 60)],
    ids=["hangs", "ends", "says something else"],
)
def test_a_child_that_does_not_get_ready_is_an_audio_error(
    script: str, limit_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox_module, "START_LIMIT_S", limit_s)
    pool = Sandbox(command=child_that(script))
    before = find_children()
    with pytest.raises(AudioError, match="does not start: it ended before it was ready; WAV is"):
        pool.decode(FLAC, DEFAULT_LIMITS)
    assert find_children() == before


def test_the_clock_of_a_recording_begins_when_the_child_is_ready() -> None:
    pool = Sandbox(command=child_that("time.sleep(3)\ns.serve()"), limit_s=2)
    assert pool.confinement()
    pool.close()


def test_a_timer_that_fires_late_does_not_kill_a_child_in_the_pool(
    pool: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timer runs out just as the answer comes; the child is killed before it is given back."""
    pool.decode(FLAC, DEFAULT_LIMITS)
    given_back, events = threading.Event(), []
    give_back = pool._give_back

    class LateTimer(threading.Timer):
        def __init__(self, _: float, function: Callable[[], None]) -> None:
            super().__init__(0, function)
            self.has_fired = threading.Event()

        def run(self) -> None:
            self.has_fired.set()
            given_back.wait(0.5)  # runs into the limit, unless nobody waits for this thread
            events.append("killed")
            self.function()

        def cancel(self) -> None:
            self.has_fired.wait()

    def note(child: sandbox_module._Child) -> None:
        events.append("given back")
        give_back(child)
        given_back.set()

    monkeypatch.setattr(sandbox_module.threading, "Timer", LateTimer)
    monkeypatch.setattr(pool, "_give_back", note)
    samples, _ = pool.decode(FLAC, DEFAULT_LIMITS)
    assert len(samples) == RATE // 2
    assert events == ["killed", "given back"]
    monkeypatch.undo()
    assert len(pool.decode(FLAC, DEFAULT_LIMITS)[0]) == RATE // 2


@pytest.mark.parametrize(
    "crash",
    [
        "os.kill(os.getpid(), 11)",
        "os._exit(3)",
        "1 / 0",
        "s.os.abort()",
        "print('x' * 99, flush=True); os.write(1, b'y' * 99); 1 / 0",
    ],
)
def test_a_decoder_that_crashes_is_replaced(crash: str) -> None:
    script = f"def crash(*_):\n    {crash}\ns.decode_compressed = crash\ns.serve()"
    fail_and_recover(script, "cannot be decoded: the decoder failed on it")


def test_a_library_that_prints_does_not_spoil_the_answer() -> None:
    script = (
        "real = s.decode_compressed\n"
        "def chatty(*a):\n    os.write(1, b'x' * 99); os.write(2, b'y' * 99); return real(*a)\n"
        "s.decode_compressed = chatty\ns.serve()"
    )
    pool = Sandbox(command=child_that(script))
    assert len(pool.decode(FLAC, DEFAULT_LIMITS)[0]) == RATE // 2
    pool.close()


@pytest.mark.parametrize(
    "answer",
    [
        "s._send(out, {'sample_rate': 24_000}, bytes(3))",
        "s._send(out, {'sample_rate': 'x'}, bytes(4))",
        "s._send(out, {}, b'')",
        "s._send(out, [1], b'')",
        "s._send(out, {'sample_rate': 1}, bytes(4))",
        "s._send(out, {'sample_rate': 24_000}, bytes(20 * 2**20))",
        "s._send(out, {'error': 'x' * 9_000}, b'')",
        "out.write(b'\\xff' * 99)",
        "out.write(s.LENGTHS.pack(3, 0) + b'{{{'); out.flush()",
        "out.write(s.LENGTHS.pack(9, 9)); out.flush()",
    ],
)
def test_answers_of_a_compromised_child_are_checked(answer: str) -> None:
    script = f"{READY}s._receive(sys.stdin.buffer, 2**40)\nout = sys.stdout.buffer\n{answer}"
    fail_and_recover(script, "cannot be decoded|the sample rate is 1 Hz")


def test_the_words_of_a_child_are_cleaned() -> None:
    script = (
        f"{READY}s._receive(sys.stdin.buffer, 2**40)\n"
        "s._send(sys.stdout.buffer, {'error': 'a\\nb\\x1b[31mc'}, b'')\ntime.sleep(9)"
    )
    pool = Sandbox(command=child_that(script))
    with pytest.raises(AudioError) as caught:
        pool.decode(FLAC, DEFAULT_LIMITS)
    pool.close()
    assert str(caught.value) == "ab[31mc"


def test_a_child_without_soundfile_says_how_to_install_it() -> None:
    pool = Sandbox(command=child_that("sys.modules['soundfile'] = None\ns.serve()"))
    with pytest.raises(AudioError, match="pip install soundfile"):
        pool.decode(FLAC, DEFAULT_LIMITS)
    pool.close()


@pytest.mark.skipif(sys.platform != "linux", reason="address space is limited on Linux")
def test_a_decoder_that_takes_too_much_memory_is_refused() -> None:
    script = "s.decode_compressed = lambda *_: bytearray(600 * 2**20)\ns.serve()"
    pool = Sandbox(command=child_that(script))
    with pytest.raises(AudioError, match="too much memory"):
        pool.decode(FLAC, DEFAULT_LIMITS)
    pool.close()


def test_a_child_does_not_see_our_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "secret")
    script = (
        "def look(*_): raise s.AudioError(str('API_KEY' in os.environ))\n"
        "s.decode_compressed = look\ns.serve()"
    )
    pool = Sandbox(command=child_that(script))
    with pytest.raises(AudioError, match="False"):
        pool.decode(FLAC, DEFAULT_LIMITS)
    pool.close()


def test_a_child_killed_while_idle_is_not_noticed(pool: Sandbox) -> None:
    pool.decode(FLAC, DEFAULT_LIMITS)
    (victim,) = pids(pool)
    os.kill(victim, signal.SIGKILL)
    os.waitid(os.P_PID, victim, os.WEXITED | os.WNOWAIT)  # dead, and for the pool to find
    pool.decode(FLAC, DEFAULT_LIMITS)
    assert pids(pool) != {victim}
    assert not is_alive(victim)


def test_a_child_killed_at_work_is_an_error_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Sandbox(
        command=child_that("s.decode_compressed = lambda *_: time.sleep(999)\ns.serve()")
    )
    made: list[int] = []
    ask = sandbox_module._Child.ask

    def ask_and_kill(child: sandbox_module._Child, *arguments: Any) -> Any:
        made.append(child.process.pid)
        threading.Timer(0.2, lambda: os.kill(made[0], signal.SIGKILL)).start()
        return ask(child, *arguments)

    monkeypatch.setattr(sandbox_module._Child, "ask", ask_and_kill)
    with pytest.raises(AudioError, match="the decoder failed"):
        pool.decode(FLAC, DEFAULT_LIMITS)
    assert not is_alive(made[0])


def test_a_command_that_does_not_start_is_an_audio_error() -> None:
    with pytest.raises(AudioError, match=r"does not start: .*; WAV is read without it"):
        Sandbox(command=["/no/such/python"]).decode(FLAC, DEFAULT_LIMITS)


# Ends


@NEEDS_PROC
def test_closing_leaves_no_child_and_no_zombie() -> None:
    before = find_children()
    pool = Sandbox()
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: pool.decode(FLAC, DEFAULT_LIMITS), range(8)))
    assert len(find_children()) > len(before)
    pool.close()
    assert find_children() == before


LIVES = """
import sys, time
from pathlib import Path
from vivace.audio.files import read_audio
read_audio(Path(sys.argv[1]))
from vivace.audio.sandbox import SANDBOX
print(SANDBOX._idle[0].process.pid, flush=True)
time.sleep(float(sys.argv[2]))
"""


@pytest.mark.parametrize("is_killed", [True, False], ids=["SIGKILL", "exit"])
def test_children_end_with_their_parent(is_killed: bool, tmp_path: Path) -> None:
    (tmp_path / "a.flac").write_bytes(FLAC)
    command = [sys.executable, "-c", LIVES, str(tmp_path / "a.flac"), "99" if is_killed else "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        if is_killed:
            assert is_alive(child)
            parent.kill()
        assert parent.wait(60) == (-signal.SIGKILL if is_killed else 0)
    deadline = time.monotonic() + 60
    while _runs(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _runs(child)


def _runs(pid: int) -> bool:
    """An orphan's zombie is for its new parent to bury, not for us."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_uses_children_of_its_own() -> None:
    read_audio(FLAC)
    mine = pids(SANDBOX)
    receiver, sender = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            count = len(read_audio(FLAC).samples)
            os.write(sender, f"{count} {bool(pids(SANDBOX) & mine)}".encode())
            SANDBOX.close()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(receiver, 99) == f"{RATE // 2} False".encode()
    os.close(receiver)
    os.close(sender)
    assert len(read_audio(FLAC).samples) == RATE // 2
    assert pids(SANDBOX) == mine
