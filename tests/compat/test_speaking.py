"""`vivace.compat.speaking` opens streams; `_ReadAhead` reads their chunks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from vivace.audio.clip import AudioChunk
from vivace.compat.chunks import _ReadAhead
from vivace.compat.speaking import open_stream, request
from vivace.engine.streams.stream import Stream
from vivace.errors import StreamClosedError
from vivace.tts import TTS


@pytest.fixture(scope="module")
def tts(tiny_folder: Path) -> Iterator[TTS]:
    with TTS.load(tiny_folder / "custom_voice", device="cpu") as loaded:
        yield loaded


# -- the guard -----------------------------------------------------------------------------------


def spoken(tts: TTS, **sampling: Any) -> tuple[int, str | None]:
    wanted = request("Stuck.", None, "ryan", None, is_whole=True)
    with open_stream(tts, wanted, {"seed": 1, "min_frames": 30, **sampling}) as stream:
        num_frames = sum(len(chunk.codes) for chunk in stream)
        return num_frames, stream.finish_reason


def test_only_speech_without_a_limit_is_guarded(tts: TTS, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "vivace.engine.utterances.guard.StallDetector.observe",
        lambda self, codes, samples: len(codes),  # every frame is a stall
    )
    assert spoken(tts, max_frames=40) == (40, "length")
    num_frames, reason = spoken(tts)
    assert reason == "stall"
    assert num_frames < 40


# -- reading ahead -------------------------------------------------------------------------------


def chunk(num_frames: int, num_samples: int) -> AudioChunk:
    return AudioChunk(
        samples=np.ones(num_samples, np.float32),
        sample_rate=24_000,
        start_s=0.0,
        is_last=False,
        finish_reason=None,
        codes=np.zeros((num_frames, 16), np.int64),
    )


def reader(*chunks: AudioChunk, error: Exception | None = None) -> _ReadAhead:
    def give() -> Iterator[AudioChunk]:
        yield from chunks
        if error is not None:
            raise error

    return _ReadAhead(cast(Stream, give()))


def test_read_ahead_is_over_before_an_empty_last_part() -> None:
    parts = reader(chunk(4, 10), chunk(0, 0))
    assert len(parts.read(4)) == 1
    assert parts.is_over()


def test_read_ahead_is_over_at_the_end() -> None:
    parts = reader(chunk(4, 10))
    parts.read(4)
    assert parts.is_over()
    assert reader().is_over()


def test_read_ahead_keeps_the_part_it_finds() -> None:
    second = chunk(2, 5)
    parts = reader(chunk(4, 10), second)
    parts.read(4)
    assert not parts.is_over()
    assert not parts.is_over()  # a second call reads nothing
    assert parts.read(2) == [second]


def test_read_ahead_skips_empty_parts() -> None:
    last = chunk(1, 3)
    parts = reader(chunk(4, 10), chunk(0, 0), last)
    parts.read(4)
    assert not parts.is_over()
    assert parts.read(1) == [last]


def test_read_ahead_of_a_closed_stream_is_not_over() -> None:
    parts = reader(chunk(4, 10), error=StreamClosedError("closed"))
    parts.read(4)
    assert not parts.is_over()
