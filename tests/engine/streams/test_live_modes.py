"""The option `live`: by words as the text arrives, or by complete sentences."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.recording_backend import stop_after
from tests.support.scripted_backend import SpeakingBackend, wait_until_empty
from vivace import TTS
from vivace.errors import CheckpointError, RequestError
from vivace.model.config import ReadingConfig

SOON_S = 60  # ample on a busy machine
SENTENCES = ["It is 3.14, Dr. Smith.", "“Is it?” he said.", "Yes!"]
TEXT = " ".join(SENTENCES)
NO_GUARD: dict[str, Any] = {"seed": 5, "max_frames": 9, "guard": False, "chunk_frames": 3}


@pytest.fixture(scope="module")
def tiny(tiny_folder: Path) -> Iterator[TTS]:
    with TTS.load(tiny_folder / "custom_voice", device="cpu") as tts:
        yield tts


def test_live_sentences_equal_whole_texts(tiny: TTS, monkeypatch: pytest.MonkeyPatch) -> None:
    said = stop_after(tiny, monkeypatch, 3)
    tiny.speak(iter(TEXT), live="sentence", seed=1, guard=False)
    for sentence in SENTENCES:
        tiny.speak(sentence, seed=1, guard=False)
    assert said.texts(tiny) == SENTENCES * 2
    live, whole = said.prompts[:3], said.prompts[3:]
    assert [prompt.labels for prompt in live] == [prompt.labels for prompt in whole]
    assert [prompt.text_ids for prompt in live] == [prompt.text_ids for prompt in whole]


def test_live_words_are_streamed_unless_the_checkpoint_uses_sentences(
    tiny: TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = stop_after(tiny, monkeypatch, 3, once_text_is_in=True)
    tiny.speak(iter("Yes! No."), seed=1, guard=False)
    tiny.speak(iter("Yes! No."), live="word", seed=1, guard=False)
    assert said.texts(tiny) == ["Yes! No."] * 2
    assert said.prompts[0].labels == said.prompts[1].labels


def test_live_sentences_wait_for_the_sentence_end(tiny: TTS) -> None:
    written: list[str] = []

    def characters() -> Iterator[str]:
        for character in TEXT:
            written.append(character)
            yield character

    with tiny.stream(characters(), live="sentence", **NO_GUARD) as stream:
        next(stream)
    assert "".join(written) == f"{SENTENCES[0]} “I"
    written.clear()
    with tiny.stream(characters(), live="word", **NO_GUARD) as stream:
        next(stream)
    assert len(written) < 6


@settings(max_examples=5, deadline=None)
@given(places=st.lists(st.integers(0, len(TEXT)), max_size=12))
def test_live_audio_does_not_depend_on_text_pieces(tiny: TTS, places: list[int]) -> None:
    def codes(pieces: list[str]) -> list[list[int]]:
        stream = tiny.stream(iter(pieces), live="sentence", **NO_GUARD)
        return np.concatenate([chunk.codes for chunk in stream]).tolist()

    edges = [0, *sorted(places), len(TEXT)]
    assert codes([TEXT[a:b] for a, b in itertools.pairwise(edges)]) == codes([TEXT])


def test_pausing_writer_has_its_sentence_spoken() -> None:
    """Writes more text only after audio arrived. Without `settle_text` this would deadlock."""
    backend = SpeakingBackend()

    async def run(tts: TTS) -> int:
        has_audio = asyncio.Event()

        async def text() -> AsyncIterator[str]:
            yield "One moment, "
            yield "please."
            await has_audio.wait()
            yield " Here it is."

        num_frames = 0
        async for chunk in tts.astream(text(), live="sentence", seed=1, guard=False):
            has_audio.set()
            num_frames += len(chunk.codes)
        return num_frames

    with backend.load() as tts:
        assert asyncio.run(asyncio.wait_for(run(tts), SOON_S)) == 24  # two sentences
        wait_until_empty(tts.engine, backend)


def test_close_ends_the_wait_for_text() -> None:
    backend = SpeakingBackend()

    async def run(tts: TTS) -> None:
        is_ended = asyncio.Event()

        async def text() -> AsyncIterator[str]:
            try:
                yield "One moment, please."
                await asyncio.Event().wait()
            finally:
                is_ended.set()

        async with tts.astream(text(), live="sentence", seed=1, guard=False) as stream:
            await anext(stream)
            assert not is_ended.is_set()
        assert is_ended.is_set()

    with backend.load() as tts:
        asyncio.run(asyncio.wait_for(run(tts), SOON_S))
        wait_until_empty(tts.engine, backend)


def test_text_can_close_its_own_stream() -> None:
    backend = SpeakingBackend(num_frames=200)

    async def run(tts: TTS) -> str | None:
        has_audio = asyncio.Event()

        async def text() -> AsyncIterator[str]:
            yield "One moment, please."
            await has_audio.wait()
            await stream.aclose()
            yield "never"

        stream = tts.astream(text(), live="sentence", seed=1, guard=False)
        async for _ in stream:
            has_audio.set()
        return stream.finish_reason

    with backend.load() as tts:
        assert asyncio.run(asyncio.wait_for(run(tts), SOON_S)) == "cancelled"
        wait_until_empty(tts.engine, backend)


def test_unknown_live_mode_is_rejected(tiny: TTS) -> None:
    with pytest.raises(RequestError, match=r"live must be one of .*, not 'letter'"):
        tiny.stream(iter(TEXT), live="letter")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="live='sentence'"):
        tiny.stream(iter(TEXT), text_layout="whole")
    tiny.stream(iter(TEXT), text_layout="whole", live="sentence").close()
    with pytest.raises(CheckpointError, match="live must be one of"):
        ReadingConfig(live="letter")  # type: ignore[arg-type]
