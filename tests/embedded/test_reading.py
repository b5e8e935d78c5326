"""Tests of text preparation for the embedded voice."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.support.recording_backend import stop_after
from vivace import TTS
from vivace.errors import RequestError
from vivace.speech import LiveMode

TEXT = "The USA paid $5.50 on 12/25/2024 at 3:30 pm."
SAID = (
    "The U S A paid five dollars and fifty cents on December twenty-fifth, twenty twenty-four at "
    "three thirty P M."
)


def test_english_is_normalized_for_known_and_live_text_unless_disabled(
    embedded: TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = stop_after(embedded, monkeypatch, 3, once_text_is_in=True)
    for text in (TEXT, iter(TEXT), iter(re.findall(r"\s*\S{1,3}", TEXT))):
        embedded.speak(text)
    embedded.speak(TEXT, language="english")
    embedded.speak(TEXT, normalize=False)
    spoken = SAID.replace("U S A", "U S eh")  # `letter_names` of the embedded voice
    assert said.texts(embedded) == [spoken] * 4 + [TEXT]
    assert said.ids[0] == said.ids[1] == said.ids[2]


def test_long_text_is_split_by_the_length_of_normalized_words(
    embedded: TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = stop_after(embedded, monkeypatch, 3, once_text_is_in=True)
    text = " ".join(f"The {n}th of the lines cost ${n}.99 and no more." for n in range(4, 8))
    for written in (text, iter(text)):
        embedded.speak(written)
    texts = said.texts(embedded)
    assert " ".join(" ".join(texts).split()).count("dollars and ninety-nine cents") == 8
    assert max(map(len, texts)) <= 240
    assert len(texts) > 3


@pytest.mark.ci
def test_seams_have_the_length_of_the_voices_own_pauses(embedded: TTS) -> None:
    reading = embedded.checkpoint.config.reading_config
    assert reading.max_utterance_chars == 120
    text = "One sentence is here. " * 7
    chunks = list(embedded.stream(text, seed=1, max_frames=24))
    seams = [len(c.samples) for c in chunks if not len(c.codes) and len(c.samples)]
    assert seams
    assert set(seams) == {round(reading.seam_s * embedded.sample_rate)}
    assert all(np.isfinite(chunk.samples).all() for chunk in chunks)
    again = list(embedded.stream(text, seed=1, max_frames=24, chunk_frames=3))
    streamed, other = (np.concatenate([c.samples for c in made]) for made in (chunks, again))
    assert np.allclose(streamed, other, rtol=0, atol=1e-5), "the noise of a seam is no draw"


def test_pauses_have_the_level_of_the_voices_own_silence(embedded: TTS) -> None:
    level = embedded.checkpoint.config.reading_config.silence_rms
    chunks = list(embedded.stream("Wait. [pause 2s] Now.", seed=1))
    [pause] = [chunk.samples for chunk in chunks if not len(chunk.codes) and len(chunk.samples)]
    assert len(pause) == 2 * embedded.sample_rate
    assert np.sqrt(np.mean(pause**2)) == pytest.approx(level, rel=0.05)
    spoken = np.concatenate([chunk.samples for chunk in chunks if len(chunk.codes)])
    windows = spoken[: len(spoken) // 480 * 480].reshape(-1, 480)
    assert 0.5 * level < np.sqrt(np.mean(windows**2, axis=1)).min() < 2 * level


def test_released_checkpoint_reads_raw_text_unless_normalize_is_set(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TTS.load(tiny_folder / "custom_voice", device="cpu") as tts:
        said = stop_after(tts, monkeypatch, 3, once_text_is_in=True)
        tts.speak(TEXT)
        tts.speak(TEXT, language="english")
        tts.speak(TEXT, language="english", normalize=True)
        assert said.texts(tts) == [TEXT, TEXT, SAID]
        with pytest.raises(RequestError, match="normalize has no rules for the language"):
            tts.speak(TEXT, normalize=True)
        with pytest.raises(RequestError, match="normalize must be"):
            tts.speak(TEXT, normalize="yes")  # type: ignore[call-overload]


@pytest.mark.parametrize("voice", ["heart", pytest.param("michael", marks=pytest.mark.ci)])
@pytest.mark.parametrize(
    "end", [" \n\n", *(pytest.param(end, marks=pytest.mark.ci) for end in (" ", "\n", "\u00a0"))]
)
def test_white_space_at_the_end_does_not_change_the_speech(
    embedded: TTS, end: str, voice: str
) -> None:
    plain = embedded.speak("I am here.", voice=voice, seed=1)
    for normalize in (True, False):
        again = embedded.speak(f"I am here.{end}", voice=voice, seed=1, normalize=normalize)
        assert np.array_equal(again.codes, plain.codes)


@pytest.mark.default_cases(2)
@pytest.mark.parametrize("live", ["word", "sentence"])
@pytest.mark.parametrize(
    "pieces", [("I am here. ",), ("I ", "am ", "here. ", " "), ("I am here", ".\n")]
)
def test_live_text_with_white_space_at_the_end_is_spoken_unchanged(
    embedded: TTS, pieces: tuple[str, ...], live: LiveMode
) -> None:
    plain = embedded.speak(iter(["I am here."]), seed=1, live=live)
    again = embedded.speak(iter(pieces), seed=1, live=live)
    assert np.array_equal(again.codes, plain.codes)


def test_pause_does_not_repeat_the_words_before_it(embedded: TTS) -> None:
    alone = embedded.speak("I am here.", seed=1)
    chunks = list(embedded.stream("I am here. [pause 0.5s] Good night. ", seed=1))
    pause = next(n for n, chunk in enumerate(chunks) if not len(chunk.codes) and len(chunk.samples))
    before = np.concatenate([chunk.codes for chunk in chunks[:pause]])
    assert np.array_equal(before, alone.codes)


@pytest.mark.default_cases(3)
@pytest.mark.parametrize("live", [None, "word", "sentence"])
@pytest.mark.parametrize(("gap", "split"), [("\n\n", True), ("\r\n- ", True), ("\n\t", False)])
def test_embedded_voice_gets_single_spaces_only(
    embedded: TTS, monkeypatch: pytest.MonkeyPatch, gap: str, live: LiveMode | None, split: bool
) -> None:
    said = stop_after(embedded, monkeypatch, 3, once_text_is_in=True)
    text = f"The list{gap}three apples{gap}and\u00a0two pears.{gap}"
    embedded.speak(text if live is None else iter(text), live=live, split=split, guard=False)
    texts = said.texts(embedded)
    assert not any(re.search(r"[^\S ]|  |\A\s|\s\Z", one) for one in texts)
    words = re.findall(r"\w+", " ".join(texts))
    assert words == ["The", "list", "three", "apples", "and", "two", "pears"]


def test_blank_line_between_sentences_does_not_end_the_speech(embedded: TTS) -> None:
    first, second = "The garrison must help.", "One is lame; poor thing, he's got a crutch."
    audio = embedded.speak(f"{first}\n\n{second}", seed=218)
    alone = [embedded.speak(text, seed=218).duration_s for text in (first, second)]
    pause = embedded.checkpoint.config.reading_config.paragraph_s
    assert audio.duration_s > 0.8 * (sum(alone) + pause)
    assert audio.duration_s > 4


def test_released_checkpoint_gets_lines_as_written_and_paragraphs_one_by_one(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TTS.load(tiny_folder / "custom_voice", device="cpu") as tts:
        said = stop_after(tts, monkeypatch, 3, once_text_is_in=True)
        text = "One line\nand two.\n\nThree."
        tts.speak(text)
        tts.speak(text, split=False)
        assert said.texts(tts) == ["One line\nand two.", "Three.", text]


@pytest.mark.parametrize("voice", ["heart", "michael"])
def test_word_after_an_ellipsis_is_spoken(embedded: TTS, voice: str) -> None:
    for seed in range(2):
        assert embedded.speak("Wait… what?", seed=seed, voice=voice).duration_s > 0.8
