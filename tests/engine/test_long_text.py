"""Texts of any length: nothing lost, nothing repeated, one voice, pauses where asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vivace import TTS
from vivace.engine.long_text import MAX_UTTERANCE_CHARS, SEAM, plan_utterances
from vivace.errors import RequestError
from vivace.text.script import Pause

SENTENCES = [f"This is sentence number {n}, and it says little." for n in range(400)]
BOOK = " ".join(SENTENCES)


def spoken(text: str) -> list[str]:
    return [part for part in plan_utterances(text) if isinstance(part, str)]


@pytest.fixture(scope="module")
def custom(tiny_folder: Path) -> Iterator[TTS]:
    with TTS.load(tiny_folder / "custom_voice", device="cpu") as tts:
        yield tts


@pytest.fixture(scope="module")
def base(tiny_folder: Path) -> Iterator[TTS]:
    with TTS.load(tiny_folder / "base", device="cpu") as tts:
        yield tts


def test_a_short_text_stays_as_it_is() -> None:
    assert plan_utterances("  Two. Sentences. ") == ["  Two. Sentences. "]


def test_a_text_is_left_whole_when_asked() -> None:
    assert plan_utterances(BOOK, split=False) == [BOOK]


def test_a_long_text_is_cut_at_sentence_ends_and_begins_with_one_sentence() -> None:
    utterances = spoken(BOOK)
    assert len(BOOK) > 19_000
    assert utterances[0] == SENTENCES[0]
    assert " ".join(utterances) == BOOK
    assert all(len(utterance) <= MAX_UTTERANCE_CHARS for utterance in utterances)
    assert all(utterance.endswith("little.") for utterance in utterances)
    assert min(map(len, utterances[1:-1])) > MAX_UTTERANCE_CHARS / 2


@given(st.text(alphabet="ab. ,!?\n。", min_size=301, max_size=1200))
@settings(deadline=None, max_examples=60)
def test_nothing_is_lost_or_repeated(text: str) -> None:
    assert "".join("".join(spoken(text)).split()) == "".join(text.split())


def test_pauses_are_taken_out_of_the_text_and_seams_are_not_put_beside_them() -> None:
    assert plan_utterances("One.[pause 0.5s] Two.") == ["One.", Pause(0.5), " Two."]
    plan = plan_utterances(BOOK[:900])
    assert plan[1::2] == [SEAM] * (len(plan) // 2)


def test_markdown_is_cleaned_when_asked() -> None:
    assert plan_utterances("**Bold** move", clean=True) == ["Bold move"]
    assert plan_utterances("**Bold** move") == ["**Bold** move"]


def test_a_pause_is_silence_of_its_length(custom: TTS) -> None:
    options = {"seed": 1, "max_frames": 6, "min_frames": 7}
    first = custom.speak("One.", trim=False, **{**options, "max_frames": 3})
    chunks = list(custom.stream("[pause 0.5s]One.", **options))
    assert len(chunks[0].samples) == 12_000
    assert not chunks[0].samples.any()
    assert np.array_equal(np.concatenate([c.codes for c in chunks])[:3], first.codes)
    assert sum(chunk.is_last for chunk in chunks) == 1
    assert chunks[-1].is_last


def test_a_text_of_pauses_alone_is_refused(custom: TTS) -> None:
    with pytest.raises(RequestError, match="no words"):
        custom.speak("[pause 1s]")
    with pytest.raises(RequestError, match="pause"):
        custom.speak("Now [pause forever] then.")


def stop_after(tts: TTS, monkeypatch: pytest.MonkeyPatch, num_frames: int) -> list[str]:
    """Every utterance ends by itself after so many frames; returns the texts as they are said."""
    backend = tts._open_parts()[2].backend
    said: list[str] = []
    admit, step = backend.admit, backend.step
    left: dict[int, int] = {}

    def watch(prompt, sampling):  # type: ignore[no-untyped-def]
        slot = admit(prompt, sampling)
        left[slot] = num_frames
        said.append(str(prompt))
        return slot

    def short_step(slots, count):  # type: ignore[no-untyped-def]
        frames = step(slots, min(count, left[slots[0]]))
        left[slots[0]] -= frames.lengths[0]
        if left[slots[0]] == 0:
            return type(frames)(frames.codes, frames.lengths, ("stop",))
        return frames

    monkeypatch.setattr(backend, "admit", watch)
    monkeypatch.setattr(backend, "step", short_step)
    return said


def test_a_long_text_streams_as_one_with_seams(
    custom: TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = stop_after(custom, monkeypatch, 4)
    text = " ".join(SENTENCES[:20])
    stream = custom.stream(text, seed=3, min_frames=100, guard=False)
    chunks = list(stream)
    count = len(spoken(text))
    assert len(said) == count == stream.num_utterances
    assert stream.usage.frames == 4 * count
    seam = round(SEAM.seconds * 24_000)
    assert sum(len(c.samples) for c in chunks) == 4 * 1920 * count + seam * (count - 1)
    assert [chunk.is_last for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert stream.finish_reason == "stop"
    starts = [chunk.start_s for chunk in chunks]
    assert starts == sorted(starts)
    whole = custom.speak(text, seed=3, min_frames=100, guard=False, trim=False)
    samples = np.concatenate([chunk.samples for chunk in chunks])
    assert np.allclose(samples, whole.samples, rtol=0, atol=5e-5)
    trimmed = custom.speak(text, seed=3, min_frames=100, guard=False)
    assert len(trimmed.samples) == len(whole.samples)  # noise from the first sample to the last


def test_a_cloned_voice_goes_on_from_its_last_utterance(
    base: TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = stop_after(base, monkeypatch, 5)
    time = np.arange(36_000) / 24_000
    voice = base.clone((np.float32(0.3 * np.sin(2 * np.pi * 200 * time)), 24_000))
    text = " ".join(SENTENCES[:12])
    base.speak(text, voice=voice, seed=3, min_frames=100, guard=False)
    assert "reference 0" not in said[0]
    assert all("reference 4" in prompt and "reference 5" not in prompt for prompt in said[1:])
    assert all("speaker vector" in prompt for prompt in said)


def test_max_frames_holds_for_the_whole_text(custom: TTS) -> None:
    stream = custom.stream(" ".join(SENTENCES[:20]), seed=3, max_frames=30, min_frames=31)
    chunks = list(stream)
    assert sum(len(chunk.codes) for chunk in chunks) == 30
    assert chunks[-1].is_last
    assert chunks[-1].finish_reason == "length"
