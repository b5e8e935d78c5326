"""Tests of the sandbox: hostile audio raises AudioError and never harms the parent process."""

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
from vivace.audio.sandbox import LIMIT_S, Sandbox
from vivace.errors import AudioError

RATE = 24_000
PRELUDE = "import sys; sys.path[:] = sys.argv[1:]; import vivace.audio.sandbox as s, time, os\n"
NEEDS_PROC = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
READY = "s._send(sys.stdout.buffer, {}, b'')\n"  # the first message of a child


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


def child_command_of(script: str) -> list[str]:
    """The command of a child that runs `script`."""
    return [sys.executable, "-I", "-c", PRELUDE + script, *filter(None, sys.path)]


@pytest.fixture
def pool() -> Iterator[Sandbox]:
    with Sandbox() as pool:
        yield pool


@pytest.fixture(scope="module")
def shared() -> Iterator[Sandbox]:
    """A pool for tests that do not change its children."""
    with Sandbox() as pool:
        yield pool


def exists(pid: int) -> bool:
    """Whether the process exists, also as a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# -- decoding ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(FILES))
def test_decode_in_child_equals_decode_in_parent(kind: str, shared: Sandbox) -> None:
    in_child = read_audio(FILES[kind], sandbox=shared)
    in_parent = read_audio(FILES[kind], trusted=True)
    np.testing.assert_array_equal(in_child.samples, in_parent.samples)
    assert (in_child.sample_rate, in_child.sha256) == (in_parent.sample_rate, in_parent.sha256)
    assert in_child.samples.flags.writeable


def test_decode_reuses_child_after_rejected_file(pool: Sandbox) -> None:
    pool.decode(FLAC, DEFAULT_LIMITS)
    first = pool.child_pids()
    for content in FILES.values():
        pool.decode(content, DEFAULT_LIMITS)
    with pytest.raises(AudioError):
        pool.decode(b"fLaC" + bytes(99), DEFAULT_LIMITS)  # rejected, not crashed
    assert pool.child_pids() == first
    assert len(first) == 1


def test_read_wav_starts_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(Sandbox, "decode", refuse)
    read_audio(encode(tone(0.5), format="WAV"))
    read_audio(FLAC, trusted=True)
    with pytest.raises(AssertionError):
        read_audio(FLAC)


def test_decode_accepts_largest_reference(pool: Sandbox) -> None:
    noise = np.random.default_rng(0).uniform(-0.1, 0.1, (30 * 96_000, 2))
    samples, rate = pool.decode(encode(noise, 96_000, format="FLAC"), AudioLimits(
        max_encoded_bytes=64 * MIB))  # fmt: skip
    assert (len(samples), rate) == (30 * 96_000, 96_000)


def test_decode_from_twenty_threads_uses_at_most_four_children(pool: Sandbox) -> None:
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
    assert 1 <= len(pool.child_pids()) <= 4


def test_child_survives_thread_that_started_it(pool: Sandbox) -> None:
    thread = threading.Thread(target=pool.decode, args=(FLAC, DEFAULT_LIMITS))
    thread.start()
    thread.join()
    before = pool.child_pids()
    pool.decode(FLAC, DEFAULT_LIMITS)
    assert pool.child_pids() == before


# -- damaged files and decompression bombs -----------------------------------------------------


def forge_flac(*, rate: int = RATE, channels: int = 1, num_samples: int | None = None) -> bytes:
    """Change STREAMINFO: 20 bits of rate, 3 of channels - 1, 5 of bits - 1, 36 of samples."""
    content = bytearray(FLAC)
    fields = int.from_bytes(content[18:26], "big")
    if num_samples is None:
        num_samples = fields & (2**36 - 1)
    packed = rate << 44 | (channels - 1) << 41 | 15 << 36 | num_samples
    content[18:26] = packed.to_bytes(8, "big")
    return bytes(content)


@pytest.mark.parametrize("num_samples", [0, 1, RATE * 3_600 * 3, 2**36 - 1])
def test_forged_flac_length_is_not_decoded_up_to_limit(num_samples: int, shared: Sandbox) -> None:
    content = forge_flac(num_samples=num_samples)
    try:
        assert read_audio(content, sandbox=shared).duration_s <= 0.5
    except AudioError as error:
        assert "cannot be decoded" in str(error)  # noqa: PT017
        assert "longer" not in str(error)  # noqa: PT017


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (forge_flac(rate=655_350), "655,350 Hz; supported: 8,000 to"),
        (forge_flac(rate=1), "1 Hz|cannot be decoded"),
        (forge_flac(channels=8), "8 channels; supported: 1 to 2"),
        (encode(np.zeros((100, 6)), format="FLAC"), "6 channels"),
        (encode(np.zeros(180 * RATE), format="FLAC"), r"longer than 174\.8 s"),
        (encode(np.zeros(1_400 * 8_000), 8_000, format="FLAC"), r"longer than 524\.3 s"),
    ],
)
def test_decompression_bomb_raises_audio_error(
    content: bytes, message: str, shared: Sandbox
) -> None:
    with pytest.raises(AudioError, match=message):
        read_audio(content, sandbox=shared)


@pytest.mark.parametrize("kind", list(FILES))
def test_truncated_file_is_decoded_or_raises_audio_error(kind: str, shared: Sandbox) -> None:
    content = FILES[kind]
    for num_bytes in [*range(4, 200, 13), len(content) // 2, len(content) - 1]:
        with contextlib.suppress(AudioError):
            assert read_audio(content[:num_bytes], sandbox=shared).duration_s < 0.7


edits = st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=12)


@pytest.mark.parametrize("kind", list(FILES))
@settings(max_examples=60, deadline=None)
@given(edits=edits, cut=st.integers(0, 300))
def test_mutated_file_is_decoded_or_raises_audio_error(
    kind: str, edits: list[tuple[int, int]], cut: int, shared: Sandbox
) -> None:
    content = bytearray(FILES[kind])
    for position, value in edits:
        content[position % len(content)] = value
    try:
        recording = read_audio(bytes(content[: len(content) - cut]), sandbox=shared)
    except AudioError:
        return
    assert recording.samples.nbytes <= DEFAULT_LIMITS.max_decoded_bytes


# -- failing children --------------------------------------------------------------------------


def fail(script: str, message: str, **options: float) -> Sandbox:
    """Expect an AudioError, and a pool without a child."""
    pool = Sandbox(command=child_command_of(script), **options)  # type: ignore[arg-type]
    with pytest.raises(AudioError, match=message):
        pool.decode(FLAC, DEFAULT_LIMITS)
    assert not pool.child_pids()
    return pool


def fail_and_recover(script: str, message: str, **options: float) -> None:
    """Expect an AudioError, no remaining child, and a pool that still decodes."""
    pool = fail(script, message, **options)
    pool._command, pool._limit_s = None, LIMIT_S
    assert len(pool.decode(FLAC, DEFAULT_LIMITS)[0]) == RATE // 2
    pool.close()


def test_hanging_decoder_is_stopped_at_time_limit() -> None:
    script = "s.decode_compressed = lambda *_: time.sleep(999)\ns.serve()"
    fail_and_recover(script, "longer than 1 s", limit_s=1)


def test_busy_decoder_is_stopped_at_cpu_limit() -> None:
    script = "s.CPU_LIMIT_S = 0.2\ndef spin(*_):\n    while True: pass\n"
    script += "s.decode_compressed = spin\ns.serve()"
    fail_and_recover(script, "longer than 5 s of CPU time", limit_s=600)


def test_child_that_never_reads_is_stopped_at_time_limit() -> None:
    content = FLAC + bytes(8 * MIB)  # more than a pipe holds
    pool = Sandbox(command=child_command_of(READY + "time.sleep(999)"), limit_s=0.5)
    with pytest.raises(AudioError, match=r"longer than 0\.5 s"):
        pool.decode(content, DEFAULT_LIMITS)


@NEEDS_PROC
@pytest.mark.parametrize(
    ("script", "limit_s"),
    [("time.sleep(999)", 0.5), ("1 / 0", 60), (READY.replace("{}", "{'x': 1}"), 60)],
    ids=["hangs", "exits", "sends an invalid message"],
)
def test_child_that_fails_to_start_raises_audio_error(
    script: str, limit_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox_module, "START_LIMIT_S", limit_s)
    pool = Sandbox(command=child_command_of(script))
    before = find_children()
    with pytest.raises(
        AudioError, match="does not start: the process exited before it was ready; WAV"
    ):
        pool.decode(FLAC, DEFAULT_LIMITS)
    assert find_children() == before


def test_time_limit_excludes_start_of_child(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Sandbox(command=child_command_of("s.serve()"))
    limits, timer = [], threading.Timer

    def start_timer(limit_s: float, stop: Callable[[], None]) -> threading.Timer:
        limits.append(limit_s)
        return timer(limit_s, stop)

    monkeypatch.setattr("vivace.audio.sandbox.threading.Timer", start_timer)
    pool.decode(FLAC, DEFAULT_LIMITS)
    assert limits == [sandbox_module.START_LIMIT_S, sandbox_module.LIMIT_S]
    pool.close()


def test_late_timer_kills_child_before_its_return_to_pool(
    pool: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timer expires as the response arrives: the child is killed before it is given back."""
    pool.decode(FLAC, DEFAULT_LIMITS)
    given_back, events = threading.Event(), []
    give_back = pool._give_back

    class LateTimer(threading.Timer):
        def __init__(self, _: float, function: Callable[[], None]) -> None:
            super().__init__(0, function)
            self.has_fired = threading.Event()

        def run(self) -> None:
            self.has_fired.set()
            given_back.wait(0.5)  # times out, unless `decode` does not join this thread
            events.append("killed")
            self.function()

        def cancel(self) -> None:
            self.has_fired.wait()

    def record(child: sandbox_module._Child) -> None:
        events.append("given back")
        give_back(child)
        given_back.set()

    monkeypatch.setattr("vivace.audio.sandbox.threading.Timer", LateTimer)
    monkeypatch.setattr(pool, "_give_back", record)
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
def test_crashed_decoder_is_replaced(crash: str) -> None:
    script = f"def crash(*_):\n    {crash}\ns.decode_compressed = crash\ns.serve()"
    check = fail_and_recover if crash == "1 / 0" else fail
    check(script, "cannot be decoded: the decoder crashed")


def test_output_of_library_does_not_corrupt_response() -> None:
    script = (
        "real = s.decode_compressed\n"
        "def chatty(*a):\n    os.write(1, b'x' * 99); os.write(2, b'y' * 99); return real(*a)\n"
        "s.decode_compressed = chatty\ns.serve()"
    )
    pool = Sandbox(command=child_command_of(script))
    assert len(pool.decode(FLAC, DEFAULT_LIMITS)[0]) == RATE // 2
    pool.close()


@pytest.mark.parametrize(
    "response",
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
def test_invalid_response_of_child_raises_audio_error(response: str) -> None:
    script = f"{READY}s._receive(sys.stdin.buffer, 2**40)\nout = sys.stdout.buffer\n{response}"
    check = fail_and_recover if "bytes(3)" in response else fail
    check(script, "cannot be decoded|the sample rate is 1 Hz")


def test_error_message_of_child_loses_control_characters() -> None:
    script = (
        f"{READY}s._receive(sys.stdin.buffer, 2**40)\n"
        "s._send(sys.stdout.buffer, {'error': 'a\\nb\\x1b[31mc'}, b'')\ntime.sleep(9)"
    )
    pool = Sandbox(command=child_command_of(script))
    with pytest.raises(AudioError) as caught:
        pool.decode(FLAC, DEFAULT_LIMITS)
    pool.close()
    assert str(caught.value) == "ab[31mc"


def test_child_without_soundfile_raises_install_hint() -> None:
    pool = Sandbox(command=child_command_of("sys.modules['soundfile'] = None\ns.serve()"))
    with pytest.raises(AudioError, match="pip install soundfile"):
        pool.decode(FLAC, DEFAULT_LIMITS)
    pool.close()


@pytest.mark.skipif(sys.platform != "linux", reason="address space is limited on Linux")
def test_decoder_over_memory_limit_raises_audio_error() -> None:
    script = "s.decode_compressed = lambda *_: bytearray(600 * 2**20)\ns.serve()"
    pool = Sandbox(command=child_command_of(script))
    with pytest.raises(AudioError, match="too much memory"):
        pool.decode(FLAC, DEFAULT_LIMITS)
    pool.close()


def test_child_has_no_environment_variables_of_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "secret")
    script = (
        "def look(*_): raise s.AudioError(str('API_KEY' in os.environ))\n"
        "s.decode_compressed = look\ns.serve()"
    )
    pool = Sandbox(command=child_command_of(script))
    with pytest.raises(AudioError, match="False"):
        pool.decode(FLAC, DEFAULT_LIMITS)
    pool.close()


def test_child_killed_while_idle_is_replaced(pool: Sandbox) -> None:
    pool.decode(FLAC, DEFAULT_LIMITS)
    (victim,) = pool.child_pids()
    os.kill(victim, signal.SIGKILL)
    os.waitid(os.P_PID, victim, os.WEXITED | os.WNOWAIT)  # exited, and not yet reaped
    pool.decode(FLAC, DEFAULT_LIMITS)
    assert pool.child_pids() != {victim}
    assert not exists(victim)


def test_child_killed_while_decoding_raises_audio_error(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Sandbox(
        command=child_command_of("s.decode_compressed = lambda *_: time.sleep(999)\ns.serve()")
    )
    made: list[int] = []
    request = sandbox_module._Child.request

    def request_and_kill(child: sandbox_module._Child, *arguments: Any) -> Any:
        made.append(child.process.pid)
        threading.Timer(0.2, lambda: os.kill(made[0], signal.SIGKILL)).start()
        return request(child, *arguments)

    monkeypatch.setattr(sandbox_module._Child, "request", request_and_kill)
    with pytest.raises(AudioError, match="the decoder crashed"):
        pool.decode(FLAC, DEFAULT_LIMITS)
    assert not exists(made[0])


def test_missing_command_raises_audio_error() -> None:
    with pytest.raises(AudioError, match=r"does not start: .*; WAV needs no such process"):
        Sandbox(command=["/no/such/python"]).decode(FLAC, DEFAULT_LIMITS)


# -- shutdown ----------------------------------------------------------------------------------


@NEEDS_PROC
def test_close_leaves_no_child_and_no_zombie() -> None:
    before = find_children()
    pool = Sandbox()
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: pool.decode(FLAC, DEFAULT_LIMITS), range(8)))
    assert len(find_children()) > len(before)
    pool.close()
    assert find_children() == before


PARENT_SCRIPT = """
import sys, time
from pathlib import Path
from vivace.audio.files import read_audio
from vivace.audio.sandbox import Sandbox
sandbox = Sandbox()
read_audio(Path(sys.argv[1]), sandbox=sandbox)
print(*sandbox.child_pids(), flush=True)
time.sleep(float(sys.argv[2]))
"""


@pytest.mark.parametrize("is_killed", [True, False], ids=["SIGKILL", "exit"])
def test_children_exit_with_parent(is_killed: bool, tmp_path: Path) -> None:
    (tmp_path / "a.flac").write_bytes(FLAC)
    command = [
        sys.executable,
        "-c",
        PARENT_SCRIPT,
        str(tmp_path / "a.flac"),
        "99" if is_killed else "0",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        if is_killed:
            assert exists(child)
            parent.kill()
        assert parent.wait(60) == (-signal.SIGKILL if is_killed else 0)
    deadline = time.monotonic() + 60
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_running(child)


def is_running(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_process_starts_its_own_children(pool: Sandbox) -> None:
    pool.decode(FLAC, DEFAULT_LIMITS)
    before = pool.child_pids()
    receiver, sender = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            count = len(pool.decode(FLAC, DEFAULT_LIMITS)[0])
            os.write(sender, f"{count} {bool(pool.child_pids() & before)}".encode())
            pool.close()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(receiver, 99) == f"{RATE // 2} False".encode()
    os.close(receiver)
    os.close(sender)
    assert len(pool.decode(FLAC, DEFAULT_LIMITS)[0]) == RATE // 2
    assert pool.child_pids() == before


@NEEDS_PROC
def test_dropped_sandbox_ends_its_children() -> None:
    before = find_children()
    pool = Sandbox()
    pool.decode(FLAC, DEFAULT_LIMITS)
    assert find_children() > before
    del pool
    assert find_children() == before
