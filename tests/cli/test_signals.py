"""Tests of Ctrl-C during a long text: a complete file, no other files, exit code 130."""

from __future__ import annotations

import itertools
import signal
from pathlib import Path

import pytest

from tests.support.cli_harness import LIMIT_S, LONG_TEXT, Captured, say, start, wait_until
from vivace.audio.clip import AudioChunk
from vivace.audio.files import read_audio
from vivace.engine.streams.stream import Stream


@pytest.mark.parametrize("name", ["x.wav", pytest.param("x.flac", marks=pytest.mark.ci), "x.mp3"])
def test_ctrl_c_while_streaming_finishes_file(tiny_folder: Path, tmp_path: Path, name: str) -> None:
    arguments = ["say", LONG_TEXT, "--model", tiny_folder / "custom_voice", "--stream"]
    process = start([*arguments, "-o", tmp_path / name])
    num_bytes = 16_000 if name.endswith("mp3") else 50_000  # more than a second
    wait_until(lambda: any(p.stat().st_size > num_bytes for p in tmp_path.glob(".*.tmp")), "audio")
    assert not (tmp_path / name).exists()
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    report, interrupted = error.decode().splitlines()
    assert report.startswith(f"{tmp_path / name}: first audio in ")
    assert report.endswith(", cancelled")
    assert interrupted == "vivace: interrupted"
    assert {path.name for path in tmp_path.iterdir()} == {name}
    audio = read_audio(tmp_path / name)
    report = float(report.split(" s of audio")[0].split()[-1])
    assert audio.duration_s == pytest.approx(report, abs=0.1)
    assert audio.duration_s > 1
    assert audio.samples.any()


@pytest.mark.parametrize(("after", "num_frames"), [(1, 8), (2, 8 + 16)])
def test_ctrl_c_without_streaming_keeps_generated_audio(
    tiny_folder: Path,
    tmp_path: Path,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
    after: int,
    num_frames: int,
) -> None:
    """Interrupt after `after` chunks of `engine.chunks.WHOLE`."""
    read, numbers = Stream.__next__, itertools.count()

    def interrupt(stream: Stream) -> AudioChunk:
        if next(numbers) == after:
            raise KeyboardInterrupt
        return read(stream)

    monkeypatch.setattr(Stream, "__next__", interrupt)
    out = tmp_path / "x.wav"
    assert say(tiny_folder / "custom_voice", LONG_TEXT, "-o", out, "--seed=1") == 130
    assert read_audio(out).duration_s == pytest.approx(num_frames * 0.08, abs=0.1)
    assert "cancelled" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["x.wav"]


def test_ctrl_c_before_first_audio_leaves_no_file(
    tiny_folder: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(stream: Stream) -> AudioChunk:
        raise KeyboardInterrupt

    monkeypatch.setattr(Stream, "__next__", interrupt)
    for options in ([], ["--stream"]):
        code = say(tiny_folder / "custom_voice", "Hello.", "-o", tmp_path / "x.wav", *options)
        assert code == 130
        assert capsys.readouterr().err == "vivace: interrupted\n"
    assert list(tmp_path.iterdir()) == []
