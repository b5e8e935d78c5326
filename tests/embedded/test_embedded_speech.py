"""Tests with the embedded voice that need real speech."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.project import ROOT, load_script
from tests.support.recording_backend import assert_same_audio, interleave
from tests.support.text_stages import plan_utterances
from vivace import TTS, Audio
from vivace.audio.trim import first_audible
from vivace.options import SpeechOptions
from vivace.script.request import Request
from vivace.speech import LiveMode, TextLayout
from vivace.text.pauses import Pause

SENTENCES = [
    "Yes.",
    "Good evening, everyone.",
    "Where did you put the keys?",
    "She sells sea shells by the shore.",
    "It costs 25 dollars.",
    "Call me at 7.",
    "Thank you very much!",
    "The rain has stopped at last.",
    "No, I don't think so.",
    "Doctor Smith is not in today.",
    "One, two, three, four.",
    "Please close the door behind you.",
    "The train leaves in ten minutes.",
    "What a lovely surprise!",
    "He was born in 1984.",
    "Bread, milk, eggs and cheese.",
    "Is anybody there?",
    "My name is Heart.",
    "We walked along the river.",
    "That is all for now.",
]
STORY = (
    "The old man had lived by the sea for most of his life. Every morning he went down to the "
    "harbour to look at the boats. "
    "One day a letter came."
)
SHORT = "Cut it anywhere."
Recogniser = Callable[[np.ndarray, int], str]


NUM_SPOKEN = 8  # sentences of the default run; the others are marked slow


@pytest.mark.default_cases(3)
@pytest.mark.parametrize(
    "index",
    [
        *range(NUM_SPOKEN),
        *(pytest.param(n, marks=pytest.mark.slow) for n in range(NUM_SPOKEN, len(SENTENCES))),
    ],
)
def test_speech_ends_by_itself(embedded: TTS, index: int) -> None:
    text = SENTENCES[index]
    audio = embedded.speak(text, seed=index)
    assert audio.finish_reason == "stop"
    spoken = re.sub(r"\d+", lambda number: "number " * len(number[0]), text)
    assert 0.25 < audio.duration_s < 0.8 + 0.7 * len(spoken.split())
    assert np.abs(audio.samples).max() > 0.05


def test_end_of_speech_is_sampled(embedded: TTS) -> None:
    """Control: without the end code, speech continues until the limit."""
    audio = embedded.speak("Yes.", seed=0, min_frames=60, max_frames=60)
    assert audio.finish_reason == "length"
    assert len(audio.codes) == 60


@pytest.fixture(scope="module")
def whole(embedded: TTS) -> list[Audio]:
    """One short text with three seeds."""
    return [embedded.speak(SHORT, seed=seed, trim=False) for seed in range(3)]


@pytest.mark.ci
@given(
    ramp=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    seeds=st.lists(st.integers(0, 2), min_size=1, max_size=3),
    order=st.randoms(use_true_random=False),
)
@settings(deadline=None, max_examples=4)
def test_streamed_audio_matches_offline_audio_beside_other_streams(
    embedded: TTS, whole: list[Audio], ramp: list[int], seeds: list[int], order: Random
) -> None:
    """Equal except for float32 rounding."""
    options: dict[str, Any] = {"chunk_frames": ramp, "trim_start": False}
    streams = [embedded.stream(SHORT, seed=seed, **options) for seed in seeds]
    for seed, chunks in zip(seeds, interleave(streams, order), strict=True):
        assert_same_audio(chunks, whole[seed], atol=5e-5)


def test_decoding_with_25_context_frames_differs_audibly(embedded: TTS) -> None:
    """Control: decoding with limited context differs by more than rounding."""
    audio = embedded.speak(STORY[:54], seed=5, trim=False, split=False)
    codec = embedded.loaded.runtime.codec
    assert len(audio.codes) > 34
    start = len(audio.codes) - 33
    again = codec.decode(torch.from_numpy(audio.codes[start:]))[25 * 1920 :].numpy()
    assert not np.allclose(again, audio.samples[-8 * 1920 :], rtol=0, atol=1e-5)


@pytest.mark.default_cases(1)
@pytest.mark.parametrize(
    ("mode", "layout"),
    [
        ("word", "streamed"),
        (None, "whole"),
        pytest.param("sentence", "whole", marks=pytest.mark.slow),  # the default of None
    ],
)
def test_live_text_matches_known_text(
    embedded: TTS, mode: LiveMode | None, layout: TextLayout
) -> None:
    text = "Words that are still being written are spoken all the same."
    whole = embedded.speak(text, seed=4, text_layout=layout, trim=False)
    live = embedded.speak(iter(re.findall(r"\s*\S{1,3}", text)), live=mode, seed=4, trim=False)
    assert np.array_equal(live.codes, whole.codes)
    assert live.finish_reason == "stop"


@pytest.mark.ci
def test_long_text_is_its_utterances_with_clean_seams(embedded: TTS) -> None:
    audio = embedded.speak(STORY, seed=5, trim=False)
    request = Request(text=STORY, voice=None, options=SpeechOptions())
    plan = plan_utterances(STORY, embedded.loaded.writer.texts.script_options(request))
    utterances = [part for part in plan if isinstance(part, str)]
    assert len(utterances) >= 2
    alone = [
        embedded.speak(text, seed=5 + index, trim=False) for index, text in enumerate(utterances)
    ]
    parts = iter(alone)
    assert np.array_equal(audio.codes, np.concatenate([each.codes for each in alone]))
    assert audio.finish_reason == "stop"
    rest, level = audio.samples, embedded.checkpoint.config.reading_config.silence_rms
    for part in plan:
        if isinstance(part, Pause):
            wanted = np.zeros(round(part.seconds * audio.sample_rate), np.float32)
        else:
            wanted = next(parts).samples
        piece, rest = rest[: len(wanted)], rest[len(wanted) :]
        if isinstance(part, Pause):  # the level of the voice's own silence
            assert np.sqrt(np.mean(piece**2)) == pytest.approx(level, rel=0.1)
            assert np.abs(piece).max() < 6 * level
        else:
            assert np.allclose(piece, wanted, rtol=0, atol=1e-5)
    assert not len(rest)
    for before, after in itertools.pairwise(alone):
        assert np.abs(before.samples[-240:]).max() < 0.02, "an utterance was cut off"
        assert np.abs(after.samples[:240]).max() < 0.02, "an utterance begins with a click"


@pytest.fixture(scope="module")
def recognise() -> Recogniser:
    """Whisper-base, from the packages of the extra `quality`."""
    judges = load_script(ROOT / "benchmarks" / "judges.py")
    if missing := judges.missing_packages():
        pytest.skip(f"needs the extra `quality`: {', '.join(missing)}")
    return judges.Recogniser()


@pytest.mark.slow
def test_recognized_words_match_the_text(embedded: TTS, recognise: Recogniser) -> None:
    words = load_script(ROOT / "benchmarks" / "words.py")
    wrong = total = 0
    for index, text in enumerate(SENTENCES):
        audio = embedded.speak(text, seed=index)
        count = words.count_errors(text, recognise(audio.samples, audio.sample_rate))
        wrong, total = wrong + count.errors, total + count.words
    assert wrong / total < 0.15


def test_stream_begins_20_ms_before_the_first_sound(embedded: TTS) -> None:
    whole = embedded.speak(SHORT, seed=1, trim=False)
    first = first_audible(whole.samples)
    assert first is not None
    assert first > 1_920, "the first frame is silent"
    stream = embedded.stream(SHORT, seed=1, chunk_frames=(1, 8))
    chunks = list(stream)
    expected = whole.samples[first - 480 :]
    samples = np.concatenate([chunk.samples for chunk in chunks])
    assert np.allclose(samples, expected, rtol=0, atol=1e-5)
    num_frames = first // 1_920 + 1  # one by one, until one of them has sound
    assert len(chunks[0].codes) == num_frames
    assert len(chunks[0].samples) == num_frames * 1_920 - first + 480
    assert len(chunks[1].codes) == 8
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.audible_ms == chunks[-1].usage.first_audio_ms


def test_stream_with_silence_reports_both_times(embedded: TTS) -> None:
    whole = embedded.speak(SHORT, seed=1, trim=False)
    with embedded.stream(SHORT, seed=1, chunk_frames=1, trim_start=False) as stream:
        samples = np.concatenate([chunk.samples for chunk in stream])
        assert np.allclose(samples, whole.samples, rtol=0, atol=1e-5)
        first_ms, audible_ms = stream.usage.first_audio_ms, stream.usage.audible_ms
    assert first_ms is not None
    assert audible_ms is not None
    assert first_ms < audible_ms
