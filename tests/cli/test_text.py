"""Tests of `vivace - --stream`: stdin is spoken while it is written."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.support.cli_harness import Captured, num_frames, say
from vivace.audio.files import read_audio
from vivace.cli.text import decode_argument, live_stdin, read_stdin
from vivace.errors import RequestError


class Pieces(io.RawIOBase):
    """A stdin that returns one of these pieces per read."""

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
def test_live_stdin_joins_split_characters(
    monkeypatch: pytest.MonkeyPatch, size: int, end: str
) -> None:
    content = (TEXT + end).encode()
    give(monkeypatch, *(content[i : i + size] for i in range(0, len(content), size)))
    pieces = list(live_stdin())
    assert "".join(pieces) == TEXT
    assert "" not in pieces


def test_live_stdin_yields_text_as_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, b"One \n", b"two")
    live = live_stdin()
    assert next(live) == "One "
    assert sys.stdin.buffer._pieces == [b"two"]  # type: ignore[union-attr]
    assert list(live) == ["\ntwo"]


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([b"Good morning. caf\xe9 au lait"], ["Good morning. caf"]),
        ([b"Good ", b"\xe4\xb8", b"X"], ["Good "]),
        ([b"Good ", b"\xe4\xb8"], ["Good "]),
        ([b"\xff"], []),
    ],
)
def test_live_stdin_with_invalid_bytes_yields_text_before_error(
    monkeypatch: pytest.MonkeyPatch, pieces: list[bytes], expected: list[str]
) -> None:
    give(monkeypatch, *pieces)
    spoken = []
    with pytest.raises(RequestError, match="stdin is not UTF-8"):  # noqa: PT012
        for piece in live_stdin():
            spoken.append(piece)
    assert spoken == expected


def test_live_text_speech_equals_whole_text(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, rest = tiny_folder / "custom_voice", ("--seed=1", "--max-frames=12", "--stream")
    whole, live = tmp_path / "whole.wav", tmp_path / "live.wav"
    text = "Hello there, friend."
    assert say(model, text, "-o", whole, *rest, "--text-layout=streamed") == 0
    give(monkeypatch, b"Hel", b"lo there, ", b"friend.\n")
    assert say(model, "-", "-o", live, *rest) == 0
    samples = [read_audio(path).samples for path in (whole, live)]
    np.testing.assert_allclose(samples[0], samples[1], atol=1e-4)


def test_text_before_invalid_bytes_is_spoken(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    give(monkeypatch, b"Good morning, listeners. ", b"caf\xe9")
    out = tmp_path / "x.wav"
    code = say(tiny_folder / "custom_voice", "-", "--stream", "-o", out, "--seed=1")
    assert code == 1
    *_, kept, error = capsys.readouterr().err.splitlines()
    assert error.startswith("vivace: stdin is not UTF-8")
    assert kept.startswith(f"vivace: {out}: only the first ")
    assert kept.endswith(" s are kept")
    assert num_frames(out) > 0


def test_endless_stdin_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vivace.cli.text.MAX_TEXT_BYTES", 10)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"x" * 10)))
    assert read_stdin() == "x" * 10
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"x" * 11)))
    with pytest.raises(RequestError, match="stdin: larger than"):
        read_stdin()


@pytest.mark.parametrize("text", ["Plain.", "Grüße, 世界! 🎶", "Line\nbreak"])
def test_argument_in_the_c_locale_is_utf8(text: str) -> None:
    escaped = text.encode().decode("ascii", "surrogateescape")
    assert decode_argument(escaped) == decode_argument(text) == text


def test_argument_with_invalid_bytes_is_rejected_as_bytes() -> None:
    with pytest.raises(RequestError, match="TEXT, line 1: not UTF-8: invalid start byte"):
        decode_argument(b"\xff\xfe Hello.".decode("utf-8", "surrogateescape"))


def test_live_stdin_leaves_out_a_byte_order_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, b"\xef", b"\xbb\xbfHel", b"lo.\n")
    assert "".join(live_stdin()) == "Hello."
