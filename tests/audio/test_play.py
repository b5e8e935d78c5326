"""Tests of playback: audio plays while it is generated, stops at once, and errors are raised."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vivace.audio import play
from vivace.audio.play import PROGRAMS, Player, find_output
from vivace.audio.wav import Samples
from vivace.errors import AudioError

RATE = 24_000


class FakeOutput:
    """Records samples. `write` blocks until `gate` is set."""

    def __init__(self, *, is_open: bool = True, error: Exception | None = None) -> None:
        self.blocks: list[Samples] = []
        self.calls: list[str] = []
        self.gate = Event()
        self._error = error
        if is_open:
            self.gate.set()

    def write(self, samples: Samples) -> None:
        self.blocks.append(samples)
        self.gate.wait(300)
        if self._error is not None:
            raise self._error

    def finish(self) -> None:
        self.calls.append("finish")

    def stop(self) -> None:
        self.calls.append("stop")
        self.gate.set()


def noise(seconds: float) -> Samples:
    rng = np.random.default_rng(0)
    return rng.uniform(-0.5, 0.5, round(seconds * RATE)).astype(np.float32)


def test_player_plays_all_samples_in_order() -> None:
    output = FakeOutput()
    signal = noise(1.0)
    with Player(output, RATE) as player:
        for part in np.split(signal, [100, 5000, 5000]):
            player.write(part)
    np.testing.assert_array_equal(np.concatenate(output.blocks), signal)
    assert output.calls[0] == "finish"
    assert max(map(len, output.blocks)) <= 0.05 * RATE  # bounds the delay of `stop`


def test_write_does_not_wait_for_playback() -> None:
    output = FakeOutput(is_open=False)
    player = Player(output, RATE)
    for _ in range(20):
        player.write(noise(0.1))
    assert len(output.blocks) <= 1
    player.stop()


def test_stop_drops_queued_samples() -> None:
    output = FakeOutput(is_open=False)
    player = Player(output, RATE)
    for _ in range(20):
        player.write(noise(1.0))
    player.stop()
    player._thread.join(300)
    assert len(output.blocks) <= 2
    assert output.calls == ["stop"]


def test_error_in_with_block_stops_playback() -> None:
    output = FakeOutput()
    with pytest.raises(KeyboardInterrupt), Player(output, RATE):
        raise KeyboardInterrupt
    assert output.calls == ["stop"]


def test_output_failure_is_raised_by_write_or_finish() -> None:
    output = FakeOutput(error=OSError("unplugged"))
    with pytest.raises(AudioError, match="playback failed: unplugged"), Player(output, RATE) as p:
        p.write(noise(0.1))
    player = Player(FakeOutput(error=OSError("unplugged")), RATE)
    with pytest.raises(AudioError, match="unplugged"):  # noqa: PT012
        for _ in range(100_000):  # more than the queue holds: a failed output does not block
            player.write(noise(0.01))
            time.sleep(0.001)
    player.stop()


# -- sound outputs -----------------------------------------------------------------------------


def fake_sounddevice(**stream: Any) -> Any:
    calls: list[str] = []

    class OutputStream:
        def __init__(self, samplerate: int, channels: int, dtype: str) -> None:
            assert (samplerate, channels, dtype) == (RATE, 1, "float32")
            if "error" in stream:
                raise stream["error"]

        def start(self) -> None:
            calls.append("start")

        def write(self, samples: Samples) -> None:
            assert samples.shape[1] == 1
            calls.append(f"write {len(samples)}")

        def stop(self) -> None:
            calls.append("stop")

        def close(self, ignore_errors: bool = True) -> None:
            calls.append("close")

    return SimpleNamespace(OutputStream=OutputStream, calls=calls)


def test_find_output_prefers_sounddevice(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = fake_sounddevice()
    monkeypatch.setitem(sys.modules, "sounddevice", fake)
    output = find_output()
    assert output.name == "sounddevice"
    fake.calls.clear()
    with output.player(RATE) as player:
        player.write(noise(0.1))
    assert fake.calls[:4] == ["start", "write 1200", "write 1200", "stop"]
    assert fake.calls[-1] == "close"


def test_find_output_without_device_raises_audio_error(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = fake_sounddevice(error=RuntimeError("Error querying device -1"))
    monkeypatch.setitem(sys.modules, "sounddevice", fake)
    with pytest.raises(AudioError, match=r"\(sounddevice: Error querying device -1\); run: pip"):
        find_output()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder in PATH."""
    monkeypatch.setattr(play, "PROGRAMS", PROGRAMS)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def put_program(folder: Path, name: str, code: str) -> None:
    (folder / name).write_text(f"#!{sys.executable}\nimport shutil, sys, time\n{code}\n")
    (folder / name).chmod(0o755)


def test_afplay_receives_complete_file(folder: Path) -> None:
    copy = folder / "played.wav"
    put_program(folder, "afplay", f"shutil.copy(sys.argv[1], {str(copy)!r})")
    output = find_output()
    assert output.name == "afplay"
    with output.player(RATE) as player:
        player.write(noise(0.5))
    assert copy.read_bytes()[:4] == b"RIFF"
    assert copy.stat().st_size == 44 + 2 * 12_000
    with output.player(RATE):
        pass  # playing no samples is not an error


def test_find_output_skips_hanging_program(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(play, "PROBE_TIMEOUT_S", 0.3)
    put_program(folder, "aplay", "time.sleep(9_999)")
    with pytest.raises(AudioError, match="aplay: the player program did not respond"):
        find_output()


@pytest.mark.parametrize(
    ("output", "message"),
    [("", "the player program failed with exit code 3"), ("no card\npcm.c: error\n", "no card")],
)
def test_program_failure_reports_first_line_or_exit_code(
    folder: Path, output: str, message: str
) -> None:
    code = f"sys.stdin.buffer.read(); sys.stderr.write({output!r}); sys.exit(3)"
    put_program(folder, "aplay", code)
    with pytest.raises(AudioError, match=rf"aplay: {message}\)"):
        find_output()
