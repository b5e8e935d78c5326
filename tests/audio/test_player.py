"""Playback: audio plays while it is generated, stops at once, and device errors are raised."""

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
from vivace.audio.play import PROGRAMS, Player, Samples, find_output
from vivace.errors import AudioError

RATE = 24_000


class FakeDevice:
    """Remembers what it was given; waits in `write` until it is let go."""

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


def test_everything_written_is_played_in_order_and_to_the_end() -> None:
    device = FakeDevice()
    signal = noise(1.0)
    with Player(device, RATE) as player:
        for part in np.split(signal, [100, 5000, 5000]):
            player.write(part)
    np.testing.assert_array_equal(np.concatenate(device.blocks), signal)
    assert device.calls[0] == "finish"
    assert max(map(len, device.blocks)) <= 0.05 * RATE  # so that a stop is soon noticed


def test_writing_does_not_wait_for_what_is_heard() -> None:
    device = FakeDevice(is_open=False)
    player = Player(device, RATE)
    for _ in range(20):
        player.write(noise(0.1))
    assert len(device.blocks) <= 1
    player.stop()


def test_a_stop_drops_what_waits() -> None:
    device = FakeDevice(is_open=False)
    player = Player(device, RATE)
    for _ in range(20):
        player.write(noise(1.0))
    player.stop()
    player._thread.join(300)
    assert len(device.blocks) <= 2
    assert device.calls == ["stop"]


def test_an_error_in_the_block_stops_it() -> None:
    device = FakeDevice()
    with pytest.raises(KeyboardInterrupt), Player(device, RATE):
        raise KeyboardInterrupt
    assert device.calls == ["stop"]


def test_a_device_that_fails_is_told_at_the_next_write_or_at_the_end() -> None:
    device = FakeDevice(error=OSError("unplugged"))
    with pytest.raises(AudioError, match="playing broke off: unplugged"), Player(device, RATE) as p:
        p.write(noise(0.1))
    player = Player(FakeDevice(error=OSError("unplugged")), RATE)
    with pytest.raises(AudioError, match="unplugged"):  # noqa: PT012
        for _ in range(100_000):  # far more than may wait: a dead device does not block
            player.write(noise(0.01))
            time.sleep(0.001)
    player.stop()


# --- Ways to play -----------------------------------------------------------------------------


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


def test_sounddevice_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = fake_sounddevice()
    monkeypatch.setitem(sys.modules, "sounddevice", fake)
    output = find_output()
    assert output.name == "sounddevice"
    fake.calls.clear()
    with output.player(RATE) as player:
        player.write(noise(0.1))
    assert fake.calls[:4] == ["start", "write 1200", "write 1200", "stop"]
    assert fake.calls[-1] == "close"


def test_without_an_audio_device_there_is_no_output(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = fake_sounddevice(error=RuntimeError("Error querying device -1"))
    monkeypatch.setitem(sys.modules, "sounddevice", fake)
    with pytest.raises(AudioError, match=r"\(sounddevice: Error querying device -1\); pip install"):
        find_output()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where programs are found, and no others."""
    monkeypatch.setattr(play, "PROGRAMS", PROGRAMS)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def put_program(folder: Path, name: str, code: str) -> None:
    (folder / name).write_text(f"#!{sys.executable}\nimport shutil, sys, time\n{code}\n")
    (folder / name).chmod(0o755)


def test_afplay_plays_the_whole_as_a_file(folder: Path) -> None:
    copy = folder / "heard.wav"
    put_program(folder, "afplay", f"shutil.copy(sys.argv[1], {str(copy)!r})")
    output = find_output()
    assert output.name == "afplay"
    with output.player(RATE) as player:
        player.write(noise(0.5))
    assert copy.read_bytes()[:4] == b"RIFF"
    assert copy.stat().st_size == 44 + 2 * 12_000
    with output.player(RATE):
        pass  # nothing to play is no error


def test_a_player_that_does_not_answer_is_given_up(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(play, "PROBE_TIMEOUT_S", 0.3)
    put_program(folder, "aplay", "time.sleep(9_999)")
    with pytest.raises(AudioError, match="aplay: it did not answer"):
        find_output()


def test_a_silent_failure_is_told_by_its_exit_code(folder: Path) -> None:
    put_program(folder, "aplay", "sys.stdin.buffer.read(); sys.exit(3)")
    with pytest.raises(AudioError, match="aplay: it ended with exit code 3"):
        find_output()
