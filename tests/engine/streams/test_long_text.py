"""Long texts: splitting into utterances, pauses, memory, progress and trimming."""

from __future__ import annotations

import gc
import re
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.recording_backend import stop_after
from tests.support.text_stages import plan_utterances
from vivace import TTS
from vivace.errors import RequestError
from vivace.text.options import ScriptOptions
from vivace.text.pauses import SILENT_S, Pause

OPTIONS = ScriptOptions()
SEAM = Pause(OPTIONS.seam_s)
MAX_UTTERANCE_CHARS = 300
SENTENCES = [f"This is sentence number {n}, and it says little." for n in range(400)]
BOOK = " ".join(SENTENCES)


def spoken(text: str) -> list[str]:
    return [part for part in plan_utterances(text, OPTIONS) if isinstance(part, str)]


@pytest.fixture(scope="module")
def custom(tiny_folder: Path) -> Iterator[TTS]:
    with TTS.load(tiny_folder / "custom_voice", device="cpu") as tts:
        yield tts


@pytest.fixture(scope="module")
def base(tiny_folder: Path) -> Iterator[TTS]:
    with TTS.load(tiny_folder / "base", device="cpu") as tts:
        yield tts


def test_short_text_is_one_utterance() -> None:
    assert plan_utterances("  Two. Sentences. ", OPTIONS) == ["  Two. Sentences. "]


def test_split_false_keeps_the_text_whole() -> None:
    assert plan_utterances(BOOK, ScriptOptions(max_chars=None)) == [BOOK]


def test_long_text_is_split_at_sentence_ends() -> None:
    utterances = spoken(BOOK)
    assert len(BOOK) > 19_000
    assert utterances[0] == SENTENCES[0]
    assert " ".join(utterances) == BOOK
    assert all(len(utterance) <= MAX_UTTERANCE_CHARS for utterance in utterances)
    assert all(utterance.endswith("little.") for utterance in utterances)
    assert min(map(len, utterances[1:-1])) > MAX_UTTERANCE_CHARS / 2


SILENT = [
    "...",
    "?!",
    "—",
    "🙂",
    "\u0301\u0302",
    "\u200b\u2060",
    "* * *",
    "“”",
    "🙂" * 400,
    "." * 400,
]


@pytest.mark.parametrize("text", SILENT)
def test_text_without_letters_raises_alone_and_is_silent_among_words(
    custom: TTS, text: str
) -> None:
    with pytest.raises(RequestError, match="nothing to speak"):
        custom.stream(text)
    with pytest.raises(RequestError, match="nothing to speak"):
        custom.stream(f"[pause 1s]{text}[pause 1s]")
    plan = plan_utterances(f"One.[pause 1s]{text}[pause 1s]Two.", OPTIONS)
    assert [part for part in plan if isinstance(part, str)] == ["One.", "Two."]
    silences = [part.seconds for part in plan if isinstance(part, Pause)]
    assert set(silences) <= {1.0, SILENT_S}


def test_utterance_without_letters_is_not_sent_to_the_model() -> None:
    text = f"{SENTENCES[0]}\n\n{'. ' * 300}\n\n{SENTENCES[1]}"
    plan = plan_utterances(text, OPTIONS)
    assert [part for part in plan if isinstance(part, str)] == SENTENCES[:2]
    assert Pause(SILENT_S) in plan


@pytest.mark.parametrize("space", [" ", "\n", "\u3000", "\x1f"])
def test_whitespace_beside_a_pause_is_ignored(space: str) -> None:
    for text in (f"Hello.[pause 1s]{space * 301}", f"{space * 500}Hello.{space * 500}[pause 1s]"):
        plan = plan_utterances(text, OPTIONS)
        assert [part.strip() for part in plan if isinstance(part, str)] == ["Hello."]


def test_emoji_need_keep_emoji() -> None:
    text = "Well done 👩\u200d🚀🎉, Ada! 1\ufe0f\u20e3 © 2024™ #1"
    assert plan_utterances(text, OPTIONS) == ["Well done, Ada! 1 © 2024™ #1"]
    assert plan_utterances(text, ScriptOptions(keep_emoji=True)) == [text]


def test_pause_inside_a_sentence_is_short() -> None:
    options = ScriptOptions(max_chars=40, seam_s=0.6)
    text = "A sentence that ends. One with a clause that is long, and one more of these clauses."
    plan = plan_utterances(text, options)
    assert [part.seconds for part in plan if isinstance(part, Pause)] == [0.6, 0.15]


@given(st.text(alphabet="ab. ,!?\n。", min_size=301, max_size=1200))
@settings(deadline=None, max_examples=60)
def test_split_text_loses_and_repeats_nothing(text: str) -> None:
    def letters(text: str) -> list[str]:
        return [letter for letter in text if letter.isalpha()]

    assert letters("".join(spoken(text))) == letters(text)


def test_explicit_pauses_replace_pauses_between_utterances() -> None:
    assert plan_utterances("One.[pause 0.5s] Two.", OPTIONS) == ["One.", Pause(0.5), " Two."]
    plan = plan_utterances(BOOK[:900], OPTIONS)
    assert plan[1::2] == [SEAM] * (len(plan) // 2)


def test_clean_removes_markdown() -> None:
    assert plan_utterances("**Bold** move", ScriptOptions(clean=True)) == ["Bold move"]
    assert plan_utterances("**Bold** move", OPTIONS) == ["**Bold** move"]


def test_pause_is_silence_of_its_length(custom: TTS) -> None:
    options: dict[str, Any] = {"seed": 1, "max_frames": 6, "min_frames": 6}
    first = custom.speak("One.", trim=False, **{**options, "max_frames": 3, "min_frames": 3})
    chunks = list(custom.stream("[pause 0.5s]One.", **options))
    assert len(chunks[0].samples) == 12_000
    assert not chunks[0].samples.any()
    assert np.array_equal(np.concatenate([c.codes for c in chunks])[:3], first.codes)
    assert sum(chunk.is_last for chunk in chunks) == 1
    assert chunks[-1].is_last


def test_text_of_pauses_alone_is_rejected(custom: TTS) -> None:
    with pytest.raises(RequestError, match="no words"):
        custom.speak("[pause 1s]")
    with pytest.raises(RequestError, match="pause lasts"):
        custom.speak("Now [pause 99s] then.")


def test_long_text_streams_with_pauses(custom: TTS, monkeypatch: pytest.MonkeyPatch) -> None:
    said = stop_after(custom, monkeypatch, 4)
    text = " ".join(SENTENCES[:20])
    stream = custom.stream(text, seed=3, min_frames=100, guard=False)
    chunks = list(stream)
    count = len(spoken(text))
    assert said.num_prompts == count == stream.num_utterances
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
    assert len(trimmed.samples) == len(whole.samples)  # the samples are noise, without silence


def test_cloned_voice_continues_its_last_utterance(
    base: TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = stop_after(base, monkeypatch, 5)
    time = np.arange(36_000) / 24_000
    voice = base.clone((np.float32(0.3 * np.sin(2 * np.pi * 200 * time)), 24_000))
    text = " ".join(SENTENCES[:12])
    base.speak(text, voice=voice, seed=3, min_frames=100, guard=False)
    prompts = [str(prompt) for prompt in said.prompts]
    assert "reference 0" not in prompts[0]
    assert all("reference 4" in prompt and "reference 5" not in prompt for prompt in prompts[1:])
    assert all("speaker vector" in prompt for prompt in prompts)


def test_max_frames_applies_to_the_whole_text(custom: TTS) -> None:
    stream = custom.stream(" ".join(SENTENCES[:20]), seed=3, max_frames=30, min_frames=30)
    chunks = list(stream)
    assert sum(len(chunk.codes) for chunk in chunks) == 30
    assert chunks[-1].is_last
    assert chunks[-1].finish_reason == "length"


# -- long texts --------------------------------------------------------------------------------


@pytest.mark.ci
def test_ten_thousand_characters_stream_in_constant_memory(
    custom: TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = " ".join(f"Sentence {n} of the long book is this one." for n in range(240))
    assert len(text) > 10_000
    said = stop_after(custom, monkeypatch, 3)
    peaks: list[int] = []
    frames: list[int] = []
    measured: list[int] = []
    tracemalloc.start()
    stream = custom.stream(text, seed=3, min_frames=100, guard=False)
    for chunk in stream:
        frames.append(len(chunk.codes))
        if stream.num_utterances in (10, 30) and stream.num_utterances not in measured:
            measured.append(stream.num_utterances)
            said.forget()
            gc.collect()  # otherwise the number of dead cycles depends on earlier tests
            peaks.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert said.all_ids() == [tid for part in spoken(text) for tid in custom.tokenizer.encode(part)]
    assert " ".join(spoken(text)) == text
    assert sum(frames) == 3 * len(spoken(text)) == stream.usage.frames
    assert peaks[-1] - peaks[0] < 200_000


@pytest.mark.slow
def test_hundred_thousand_characters_are_spoken_completely(
    custom: TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = " ".join(f"Sentence {n} of the long book is this one." for n in range(2_300))
    assert len(text) > 100_000
    said = stop_after(custom, monkeypatch, 3)
    expected = [tid for part in spoken(text) for tid in custom.tokenizer.encode(part)]
    codes, kept = [], []
    tracemalloc.start()
    stream = custom.stream(text, seed=3, min_frames=100, guard=False)
    for chunk in stream:
        codes.append(chunk.codes.astype(np.int16))  # small, because the test measures memory
        if not len(chunk.codes) and stream.num_utterances % 50 == 0:
            said.forget()
            kept.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert stream.finish_reason == "stop"
    assert said.all_ids() == expected
    assert stream.num_utterances == len(spoken(text)) > 300
    assert kept[-1] - kept[0] < 1_000_000
    audio = custom.speak(text, seed=3, min_frames=100, guard=False, trim=False)
    assert np.array_equal(audio.codes, np.concatenate(codes))
    assert audio.usage.audio_s == pytest.approx(stream.usage.audio_s)
    assert len(audio.samples) == round(audio.usage.audio_s * 24_000)


def test_progress_shows_a_bar(
    custom: TTS, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stop_after(custom, monkeypatch, 2)
    custom.speak(" ".join(SENTENCES[:12]), progress=True, seed=3, min_frames=100, guard=False)
    shown = capsys.readouterr().err
    shares = [int(share) for share in re.findall(r"(\d+)% \|", shown)]
    assert shares[0] == 0
    assert any(20 < share < 90 for share in shares)
    assert shares[-1] == 100
    assert shares == sorted(shares)
    assert shown.endswith("times real time \n")
    custom.speak("Quiet.", seed=3, max_frames=2)
    assert capsys.readouterr().err == ""


# -- trimming ----------------------------------------------------------------------------------


def test_trimmed_stream_equals_speak(custom: TTS) -> None:
    options: dict[str, Any] = {"seed": 4, "max_frames": 12}
    whole = custom.speak("[pause 0.2s]One two.", **options)
    chunks = list(custom.stream("[pause 0.2s]One two.", trim=True, **options))
    assert not whole.samples[:4_800].any()
    samples = np.concatenate([chunk.samples for chunk in chunks])
    assert samples.shape == whole.samples.shape
    assert np.allclose(samples, whole.samples, rtol=0, atol=5e-5)
