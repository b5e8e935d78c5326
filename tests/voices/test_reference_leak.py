"""Leaks repeat the end of a reference; they are found by their codes and removed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.examples import examples
from tests.support.slots import plain_backend
from vivace import TTS
from vivace.backends.base import Frames
from vivace.engine.utterances.frame_block import FrameBlock
from vivace.engine.utterances.steps import BlockSteps, drop_leak
from vivace.voices.reference_leak import leaked_frames, may_leak, shares_words

Codes = NDArray[np.int64]


def draw(seed: int, num_frames: int, num_codes: int = 2048) -> Codes:
    return np.random.default_rng(seed).integers(0, num_codes, (num_frames, 16))


REFERENCE = draw(0, 60)
SILENCE = np.tile(draw(9, 1), (7, 1))
SPEECH = draw(1, 40)


def with_errors(codes: Codes, *rows: int) -> Codes:
    changed = codes.copy()
    changed[list(rows), 0] = 2047 - changed[list(rows), 0]
    return changed


@pytest.mark.parametrize("num_frames", [3, 4, 8, 25])
def test_repeated_end_is_counted_in_frames(num_frames: int) -> None:
    codes = np.concatenate((REFERENCE[-num_frames:], SPEECH))
    assert leaked_frames(REFERENCE, codes) == num_frames


def test_only_codebook_0_is_compared() -> None:
    tail = REFERENCE[-6:].copy()
    tail[:, 1:] = draw(5, 6)[:, 1:]
    assert leaked_frames(REFERENCE, np.concatenate((tail, SPEECH))) == 6


@pytest.mark.parametrize("rows", [(0,), (3,), (2, 5)])
def test_few_different_codes_in_the_run_are_tolerated(rows: tuple[int, ...]) -> None:
    codes = np.concatenate((with_errors(REFERENCE[-10:], *rows), SPEECH))
    assert leaked_frames(REFERENCE, codes) == 10


@pytest.mark.parametrize("num_silent", [1, 6, 7])
def test_leak_before_appended_silence_is_found(num_silent: int) -> None:
    reference = np.concatenate((REFERENCE, SILENCE[:num_silent]))
    assert leaked_frames(reference, np.concatenate((REFERENCE[-5:], SPEECH))) == 5
    again = np.concatenate((REFERENCE[-5:], SILENCE[:num_silent], SPEECH))
    assert leaked_frames(reference, again) == 5 + num_silent


@pytest.mark.parametrize(
    "codes",
    [
        SPEECH,
        SPEECH[:0],
        REFERENCE[-2:],
        np.concatenate((REFERENCE[-2:], SPEECH)),  # two equal frames are coincidence
        np.concatenate((REFERENCE[:10], SPEECH)),  # the start of the reference
        np.concatenate((REFERENCE[30:40], SPEECH)),  # the middle of the reference
        np.concatenate((SPEECH[:5], REFERENCE[-10:], SPEECH)),  # the end, after other speech
        np.concatenate((REFERENCE[-10:][::-1], SPEECH)),  # backwards
        np.concatenate((with_errors(REFERENCE[-10:], 0, 2, 4, 6, 8), SPEECH)),  # half of the codes
    ],
)
def test_speech_that_does_not_repeat_the_end_has_no_leak(codes: Codes) -> None:
    assert leaked_frames(REFERENCE, codes) == 0


def test_silence_after_silence_is_no_leak() -> None:
    reference = np.concatenate((REFERENCE, SILENCE))
    assert leaked_frames(reference, np.concatenate((SILENCE, SPEECH))) == 0
    two_kinds = np.where(np.arange(8)[:, None] % 2, SILENCE[:1], draw(8, 1))
    reference = np.concatenate((REFERENCE, two_kinds))
    assert leaked_frames(reference, np.concatenate((two_kinds, SPEECH))) == 0


def test_short_reference_is_compared_over_its_length() -> None:
    assert leaked_frames(REFERENCE[:4], np.concatenate((REFERENCE[:4], SPEECH))) == 4
    assert leaked_frames(REFERENCE[:1], SPEECH) == 0
    assert leaked_frames(REFERENCE[:0], SPEECH) == 0


@examples(200)
@given(st.integers(0, 2**32 - 1), st.integers(0, 25))
def test_leaked_frames_finds_exactly_the_repeated_end(seed: int, num_frames: int) -> None:
    codes = np.random.default_rng(seed).permutation(2048)[:80, None].repeat(16, axis=1)
    reference, speech = codes[:50], codes[50:]
    found = leaked_frames(reference, np.concatenate((reference[50 - num_frames :], speech)))
    assert found == (num_frames if num_frames >= 3 else 0)


# --- While it is being made -------------------------------------------------------------------


def as_pieces(codes: Codes, sizes: list[int]) -> BlockSteps:
    edges = np.cumsum([*sizes, len(codes)])
    parts = np.split(codes, edges[edges < len(codes)])
    for index, part in enumerate(parts):
        samples = np.repeat(part[:, 0], 10).astype(np.float32)
        yield FrameBlock(part, samples, "stop" if index == len(parts) - 1 else None)


@given(st.lists(st.integers(1, 9), max_size=12), st.integers(0, 12))
@settings(deadline=None, max_examples=60)
def test_leak_is_removed_for_any_piece_size(sizes: list[int], num_frames: int) -> None:
    codes = np.concatenate((REFERENCE[60 - num_frames :], SPEECH))
    steps = drop_leak(as_pieces(codes, sizes), REFERENCE)
    pieces = [piece for piece in steps if isinstance(piece, FrameBlock)]
    kept = np.concatenate([piece.codes for piece in pieces])
    expected = SPEECH if num_frames >= 3 else codes
    assert np.array_equal(kept, expected)
    assert len(np.concatenate([piece.samples for piece in pieces])) == 10 * len(expected)
    assert [piece.finish_reason for piece in pieces] == [None] * (len(pieces) - 1) + ["stop"]


def test_two_different_frames_decide_that_nothing_leaks() -> None:
    assert may_leak(REFERENCE, SPEECH[:1])
    assert not may_leak(REFERENCE, SPEECH[:2])
    assert may_leak(REFERENCE, REFERENCE[-10:-2])
    assert not may_leak(REFERENCE, REFERENCE[-30:])


@pytest.mark.parametrize(
    ("before", "after", "is_shared"),
    [
        ("It was a good day.", "Day by day it rained.", True),
        ("I said: good day!", "Good day, sir.", True),
        ("It was a good day.", "Tomorrow is another.", False),
        ("It was a good day.", "A day is long.", False),
        ("今天天气很好。", "好的，我们走吧。", True),
        ("今天天气很好。", "我们走吧。", False),
        ("", "Words.", False),
    ],
)
def test_shares_words_finds_texts_that_begin_with_the_last_words(
    before: str, after: str, is_shared: bool
) -> None:
    assert shares_words(before, after) is is_shared


@pytest.fixture(scope="module")
def base(tiny_folder: Path) -> Iterator[TTS]:
    with TTS.load(tiny_folder / "base", device="cpu") as tts:
        yield tts


def test_speak_removes_a_leak_unless_the_text_has_the_words_or_trim_is_off(
    base: TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = np.arange(48_000) / 24_000
    chirp = np.float32(0.3 * np.sin(2 * np.pi * (200 + 150 * time) * time))
    voice = base.clone((chirp, 24_000), "the words of the recording", append_silence=False)
    assert voice.ref_codes is not None
    tail = draw(3, 5, 64)
    codes = np.concatenate((voice.ref_codes[:-5], tail))
    voice = dataclasses.replace(voice, ref_codes=codes)
    backend = plain_backend(base)
    step, begun = backend.step, set[int]()

    def leaking_step(slots: Sequence[int], count: int) -> Frames:
        frames = step(slots, count)
        codes = frames.codes.copy()
        if slots[0] not in begun:  # the first step of an utterance
            begun.add(slots[0])
            codes[0, :5] = tail
        return Frames(codes, frames.lengths, frames.status)

    monkeypatch.setattr(backend, "step", leaking_step)
    options: dict[str, Any] = {"voice": voice, "seed": 3, "max_frames": 12, "min_frames": 12}
    assert len(base.speak("Quite another text.", **options).codes) == 7
    assert len(base.speak("Quite another text.", trim=False, **options).codes) == 12
    assert len(base.speak("Recording is fun.", **options).codes) == 12
    chunks = list(base.stream("Quite another text.", trim=True, chunk_frames=12, **options))
    assert sum(len(chunk.codes) for chunk in chunks) == 7
