"""Live text: long texts, pauses, all kinds of voices, errors and unsupported letters."""

from __future__ import annotations

import dataclasses
import itertools
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.recording_backend import stop_after
from vivace import TTS
from vivace.audio.clip import AudioChunk
from vivace.engine.streams.stream import Stream
from vivace.errors import RequestError, UnsupportedRequestError
from vivace.script.request import Request
from vivace.script.text_settings import TextSettings
from vivace.text.options import ScriptOptions
from vivace.text.pauses import SILENT_S

SENTENCES = [f"This is sentence number {n}, and it says little." for n in range(5)]
OPTIONS: dict[str, Any] = {"seed": 3, "min_frames": 4_000, "guard": False}


@pytest.fixture(scope="module")
def load_tts(tiny_folder: Path) -> Iterator[Callable[[str], TTS]]:
    loaded: dict[str, TTS] = {}

    def load(name: str) -> TTS:
        if name not in loaded:
            loaded[name] = TTS.load(tiny_folder / name, device="cpu")
        return loaded[name]

    yield load
    for tts in loaded.values():
        tts.close()


@pytest.fixture
def short_utterances(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = TextSettings.script_options

    def shorter(settings: TextSettings, request: Request) -> ScriptOptions:
        return dataclasses.replace(whole(settings, request), max_chars=60)

    monkeypatch.setattr(TextSettings, "script_options", shorter)


def words(text: str) -> Iterator[str]:
    yield from re.findall(r"\S+\s*", text)


def collect(stream: Stream, chunks: list[AudioChunk]) -> None:
    for chunk in stream:
        chunks.append(chunk)  # kept if the next chunk raises


def tone(seconds: float) -> tuple[np.ndarray, int]:
    time = np.arange(round(24_000 * seconds)) / 24_000
    return np.float32(0.3 * np.sin(2 * np.pi * 200 * time)), 24_000


@pytest.mark.ci
@pytest.mark.usefixtures("short_utterances")
def test_long_live_text_is_split_with_pauses(
    load_tts: Callable[[str], TTS], monkeypatch: pytest.MonkeyPatch
) -> None:
    tts = load_tts("custom_voice")
    said = stop_after(tts, monkeypatch, 4, once_text_is_in=True)
    stream = tts.stream(words(" ".join(SENTENCES)), **OPTIONS)
    chunks = list(stream)
    assert said.texts(tts) == [" ".join(SENTENCES[start : start + 2]) for start in range(0, 5, 2)]
    assert stream.num_utterances == 3
    seams = [chunk for chunk in chunks if not len(chunk.codes) and len(chunk.samples)]
    assert [len(seam.samples) for seam in seams] == [round(ScriptOptions().seam_s * 24_000)] * 2
    assert [chunk.is_last for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert stream.finish_reason == "stop"


@pytest.mark.ci
@pytest.mark.usefixtures("short_utterances")
def test_next_utterance_begins_after_its_text_arrives(
    load_tts: Callable[[str], TTS], monkeypatch: pytest.MonkeyPatch
) -> None:
    tts = load_tts("custom_voice")
    said = stop_after(tts, monkeypatch, 4, once_text_is_in=True)
    written = 0

    def pieces() -> Iterator[str]:
        nonlocal written
        for word in words(" ".join(SENTENCES[:3])):
            written += 1
            yield word

    stream = tts.stream(pieces(), **OPTIONS)
    next(stream)
    assert written <= 3
    assert said.num_prompts == 1
    list(stream)
    assert said.num_prompts == 2


def test_live_text_supports_pauses_and_markdown(
    load_tts: Callable[[str], TTS], monkeypatch: pytest.MonkeyPatch
) -> None:
    tts = load_tts("custom_voice")
    said = stop_after(tts, monkeypatch, 2, once_text_is_in=True)
    text = "**One** thing.[pause 0.25s] See [this](https://a.b/c) 😀 now."
    chunks = list(tts.stream(iter(text), clean=True, **OPTIONS))
    assert said.texts(tts) == ["One thing.", " See this now."]
    silences = [len(chunk.samples) for chunk in chunks if not len(chunk.codes)]
    assert 6_000 in silences


@pytest.mark.default_cases(1)
@pytest.mark.parametrize("name", ["custom_voice", "voice_design", "base", "base_projected"])
def test_live_text_equals_whole_text_for_every_voice_kind(
    load_tts: Callable[[str], TTS], name: str
) -> None:
    tts = load_tts(name)
    options: dict[str, Any] = {"seed": 5, "max_frames": 30}
    if name == "voice_design":
        options["instruct"] = "a calm voice"
    if name.startswith("base"):
        options["voice"] = tts.clone(tone(1.5), "Words of the recording.")
    text = "Live words in the voice that was asked for."
    whole = tts.speak(text, text_layout="streamed", trim=False, **options)
    live = tts.speak(words(text), trim=False, **options)
    assert np.array_equal(live.codes, whole.codes)


def test_slot_without_text_makes_no_frames(load_tts: Callable[[str], TTS]) -> None:
    tts = load_tts("custom_voice")
    go_on = threading.Event()

    def pieces() -> Iterator[str]:
        yield "Wait for "
        go_on.wait(20)
        yield "me."

    chunks: list[AudioChunk] = []
    stream = tts.stream(pieces(), seed=5, max_frames=30, chunk_frames=1)
    reader = threading.Thread(target=lambda: chunks.extend(stream))
    reader.start()
    reader.join(0.5)
    made = len(chunks)
    assert reader.is_alive()
    assert made <= len(tts.tokenizer.encode("Wait for"))
    go_on.set()
    reader.join()
    whole = tts.speak("Wait for me.", text_layout="streamed", seed=5, max_frames=30)
    assert np.array_equal(np.concatenate([c.codes for c in chunks]), whole.codes)


BROKEN = {
    "half a letter": (["Good ", "day ", "\ud83dx", " to you."], "Good day x to you.", "surrogate"),
    "a pause too long": (["One ", "[pause 99s]", "two."], "One two.", "pause lasts"),
    "a pause in pieces": (list("One [pause 0s]two."), "One two.", "pause lasts"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_unsupported_live_text_is_skipped_and_raised_at_the_end(
    load_tts: Callable[[str], TTS], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    pieces, expected, message = BROKEN[name]
    tts = load_tts("custom_voice")
    said = stop_after(tts, monkeypatch, 3, once_text_is_in=True)
    chunks: list[AudioChunk] = []
    with pytest.raises(RequestError, match=message):
        collect(tts.stream(iter(pieces), **OPTIONS), chunks)
    assert said.texts(tts) == [expected]
    assert chunks[-1].is_last


def test_error_of_the_text_iterator_is_raised_after_its_text(
    load_tts: Callable[[str], TTS], monkeypatch: pytest.MonkeyPatch
) -> None:
    def pieces() -> Iterator[str]:
        yield "Good "
        yield "day"
        raise OSError("the line went dead")

    tts = load_tts("custom_voice")
    said = stop_after(tts, monkeypatch, 3, once_text_is_in=True)
    with pytest.raises(OSError, match="went dead"):
        collect(tts.stream(pieces(), **OPTIONS), [])
    assert said.texts(tts) == ["Good day"]


def test_stream_has_a_last_chunk_before_a_late_error_of_the_text_iterator(
    load_tts: Callable[[str], TTS], monkeypatch: pytest.MonkeyPatch
) -> None:
    def pieces() -> Iterator[str]:
        yield from ("Good day.", "[pause 1s]", " ")
        raise OSError("the line went dead")

    tts = load_tts("custom_voice")
    stop_after(tts, monkeypatch, 3, once_text_is_in=True)
    chunks: list[AudioChunk] = []
    with pytest.raises(OSError, match="went dead"):
        collect(tts.stream(pieces(), **OPTIONS), chunks)
    assert [chunk.is_last for chunk in chunks[-2:]] == [False, True]
    assert chunks[-1].usage is not None


def test_each_skipped_part_is_in_one_chunk(
    load_tts: Callable[[str], TTS], monkeypatch: pytest.MonkeyPatch
) -> None:
    tts = load_tts("custom_voice")
    stop_after(tts, monkeypatch, 3, once_text_is_in=True)
    text = "One.[pause 1s]שלום[pause 1s]Two.[pause 1s]מים[pause 1s]Three."
    stream = tts.stream(iter(text), **OPTIONS)
    parts = [part for chunk in stream for part in chunk.skipped]
    assert parts == list(stream.skipped)
    assert "".join(parts) == "שלוםמים"


def test_utterance_without_letters_is_silence(
    load_tts: Callable[[str], TTS], monkeypatch: pytest.MonkeyPatch
) -> None:
    tts = load_tts("custom_voice")
    said = stop_after(tts, monkeypatch, 3, once_text_is_in=True)
    text = "One.[pause 1s]... ?! 🙂[pause 1s]Two 🙂 three."
    chunks = list(tts.stream(iter(text), **OPTIONS))
    assert said.texts(tts) == ["One.", "Two three."]
    silences = [len(chunk.samples) for chunk in chunks if not len(chunk.codes)]
    assert [size for size in silences if size] == [24_000, round(SILENT_S * 24_000), 24_000]


@pytest.mark.parametrize(
    "text", ["", " ", "...", "?!", "🙂", "\u0301", "[pause 1s]", "…[pause 1s]—"]
)
def test_live_text_without_words_raises(load_tts: Callable[[str], TTS], text: str) -> None:
    with pytest.raises(RequestError, match="nothing to speak"):
        collect(load_tts("custom_voice").stream(iter(text), **OPTIONS), [])


def test_emoji_in_live_text_need_keep_emoji(
    load_tts: Callable[[str], TTS], monkeypatch: pytest.MonkeyPatch
) -> None:
    tts = load_tts("custom_voice")
    said = stop_after(tts, monkeypatch, 3, once_text_is_in=True)
    for keep_emoji in (False, True):
        list(tts.stream(iter("Hi 🙂 you"), keep_emoji=keep_emoji, **OPTIONS))
    list(tts.stream(iter("🙂"), keep_emoji=True, **OPTIONS))
    assert said.texts(tts) == ["Hi you", "Hi 🙂 you", "🙂"]


def test_unsupported_utterance_is_skipped_and_quoted_word_kept(
    load_tts: Callable[[str], TTS], monkeypatch: pytest.MonkeyPatch
) -> None:
    tts = load_tts("custom_voice")
    said = stop_after(tts, monkeypatch, 3, once_text_is_in=True)
    list(tts.stream(iter("שלום means peace."), **OPTIONS))
    assert said.texts(tts) == ["שלום means peace."]
    text = "One.[pause 1s]שלום[pause 1s]Two."
    with pytest.raises(UnsupportedRequestError, match="speaks only"):
        collect(tts.stream(iter(text), on_unsupported="error", **OPTIONS), [])
    assert said.texts(tts)[1:] == ["One.", "Two."]
    stream = tts.stream(iter(text), **OPTIONS)
    list(stream)
    assert said.texts(tts)[3:] == ["One.", "Two."]
    assert "".join(stream.skipped) == "שלום"


@pytest.mark.ci
def test_stall_is_not_detected_before_the_text_ends(
    load_tts: Callable[[str], TTS], monkeypatch: pytest.MonkeyPatch
) -> None:
    tts = load_tts("custom_voice")
    monkeypatch.setattr(
        tts.engine.backend,
        "render",
        lambda slots, frames: [np.zeros(1920 * n, np.float32) for n in frames.lengths],
    )
    audio = tts.speak(iter(["word "] * 70), seed=1, min_frames=1_000, max_frames=1_000, split=False)
    assert audio.finish_reason == "stall"
    assert audio.usage.text_tokens >= 70
    assert len(audio.codes) >= audio.usage.text_tokens


@pytest.mark.ci
@pytest.mark.usefixtures("short_utterances")
def test_endless_text_is_spoken_until_closed(
    load_tts: Callable[[str], TTS], monkeypatch: pytest.MonkeyPatch
) -> None:
    tts = load_tts("custom_voice")
    stop_after(tts, monkeypatch, 3, once_text_is_in=True)
    stream = tts.stream(itertools.cycle(["No ", "end. "]), **OPTIONS)
    while stream.num_utterances < 3:
        assert not next(stream).is_last
    stream.close()
    assert stream.finish_reason == "cancelled"


def test_unsupported_letters_are_rejected_in_live_text(tmp_path: Path) -> None:
    with TTS.load() as english, pytest.raises(UnsupportedRequestError, match="Qwen/"):
        list(english.stream(iter(["你好"])))


@pytest.mark.parametrize("text", ["!!!", " \n?!\n"])
def test_live_text_without_words_fails_before_its_first_chunk(
    load_tts: Callable[[str], TTS], text: str
) -> None:
    stream = load_tts("custom_voice").stream(iter([text]), live="sentence")
    with pytest.raises(RequestError, match="no words"):
        next(stream)
    assert stream.finish_reason is None
