"""`vivace - --stream`: stdin is spoken while it is written, like the whole of it."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.support.cli_harness import Captured, num_frames, say
from vivace.audio.files import read_audio
from vivace.cli.text import live_stdin, read_stdin
from vivace.errors import RequestError


class Pieces(io.RawIOBase):
    """A stdin that gives these pieces, one a read."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = list(pieces)

    def read1(self, size: int = -1) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""


class Stdin:
    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.buffer = Pieces(pieces)

    def isatty(self) -> bool:
        return False


def give(monkeypatch: pytest.MonkeyPatch, *pieces: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(pieces))


TEXT = "Grüße, 世界! 🎶\n\nΚαλημέρα."


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n"])
def test_letters_may_be_cut_anywhere(monkeypatch: pytest.MonkeyPatch, size: int, end: str) -> None:
    content = (TEXT + end).encode()
    give(monkeypatch, *(content[i : i + size] for i in range(0, len(content), size)))
    pieces = list(live_stdin())
    assert "".join(pieces) == TEXT
    assert "" not in pieces


def test_a_piece_comes_as_soon_as_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, b"One \n", b"two")
    live = live_stdin()
    assert next(live) == "One "
    assert sys.stdin.buffer._pieces == [b"two"]  # type: ignore[attr-defined]
    assert list(live) == ["\ntwo"]


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        ([b"Good morning. caf\xe9 au lait"], ["Good morning. caf"]),
        ([b"Good ", b"\xe4\xb8", b"X"], ["Good "]),
        ([b"Good ", b"\xe4\xb8"], ["Good "]),
        ([b"\xff"], []),
    ],
)
def test_bytes_that_are_no_text_end_it_after_what_is(
    monkeypatch: pytest.MonkeyPatch, pieces: list[bytes], said: list[str]
) -> None:
    give(monkeypatch, *pieces)
    heard = []
    with pytest.raises(RequestError, match="stdin is not UTF-8"):  # noqa: PT012
        for piece in live_stdin():
            heard.append(piece)
    assert heard == said


def test_live_text_is_spoken_like_the_whole(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, rest = tiny_folder / "custom_voice", ("--seed=1", "--max-frames=12", "--stream")
    whole, live = tmp_path / "whole.wav", tmp_path / "live.wav"
    text = "Hello there, friend."
    assert say(model, text, "-o", whole, *rest, "--text-layout=streamed") == 0
    give(monkeypatch, b"Hel", b"lo there, ", b"friend.\n")
    assert say(model, "-", "-o", live, *rest) == 0
    samples = [read_audio(path).samples for path in (whole, live)]
    np.testing.assert_allclose(*samples, atol=1e-4)


def test_what_came_before_bad_bytes_is_said_and_the_error_is_one_line(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    give(monkeypatch, b"Good morning, listeners. ", b"caf\xe9")
    out = tmp_path / "x.wav"
    code = say(tiny_folder / "custom_voice", "-", "--stream", "-o", out, "--seed=1")
    assert code == 1
    error = capsys.readouterr().err
    assert error.startswith("vivace: stdin is not UTF-8")
    assert error.count("\n") == 1
    assert num_frames(out) > 0


def test_an_endless_stdin_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vivace.cli.text.MAX_STDIN_BYTES", 10)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"x" * 10)))
    assert read_stdin() == "x" * 10
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"x" * 11)))
    with pytest.raises(RequestError, match="split it into parts"):
        read_stdin()
