"""Tests of the embedded voice with texts in other languages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.recording_backend import stop_after
from vivace import TTS, AudioChunk
from vivace.errors import RequestError, UnknownLanguageError, UnsupportedRequestError
from vivace.text.letters import Letters

FOREIGN = {
    "chinese": "你好，世界。",
    "russian": "Привет, мир.",
    "japanese": "こんにちは",
    "katakana": "カタカナ",
    "korean": "안녕하세요",
}
UNREAD = {"arabic": "مرحبا", "hindi": "हिन्दी", "hebrew": "שלום"}
ONE_WORD = "The Russian name is Москва, they say."
ENGLISH = [
    "Plain words.",
    "A café, naïve and déjà vu.",
    "Ｆｕｌｌ width, ﬁne ligatures, № 5.",
    "Signs: 5 € – 20 °C ½ … “quoted” 👍🏽 ✓ ♪",
    "e\u0301 in two characters",
]
RELEASED = r"load Qwen/Qwen3-TTS-12Hz-0\.6B-CustomVoice"


@pytest.mark.parametrize("text", FOREIGN.values(), ids=FOREIGN)
def test_text_in_other_letters_is_rejected(embedded: TTS, text: str) -> None:
    with pytest.raises(UnsupportedRequestError, match=RELEASED):
        embedded.speak(text)


@pytest.mark.parametrize("text", UNREAD.values(), ids=UNREAD)
def test_error_for_letters_of_no_model_names_no_model(embedded: TTS, text: str) -> None:
    with pytest.raises(UnsupportedRequestError, match="no released checkpoint reads it"):
        embedded.speak(text)


@pytest.mark.parametrize("text", ENGLISH)
def test_english_is_accepted(text: str) -> None:
    assert Letters.of(["english"]).find_foreign(text) is None


def test_letters_removed_by_cleaning_are_not_rejected(embedded: TTS) -> None:
    text = "See [the page](https://example.org/Москва)."
    with pytest.raises(UnsupportedRequestError):
        embedded.stream(text, on_unsupported="error")
    embedded.stream(text, on_unsupported="error", clean=True).close()


def test_foreign_word_is_rejected_with_on_unsupported_error(embedded: TTS) -> None:
    for text in (ONE_WORD, "Greek: καλημέρα"):
        with pytest.raises(UnsupportedRequestError, match="speaks only english"):
            embedded.speak(text, on_unsupported="error")
    with pytest.raises(RequestError, match="on_unsupported must be one of"):
        embedded.speak(ONE_WORD, on_unsupported="ignore")  # type: ignore[call-overload]


@pytest.mark.parametrize("is_live", [False, True])
def test_foreign_words_are_skipped_and_reported_by_default(
    embedded: TTS, monkeypatch: pytest.MonkeyPatch, is_live: bool
) -> None:
    said = stop_after(embedded, monkeypatch, 3, once_text_is_in=True)
    text = f"{ONE_WORD} Also 東京。\n\nПривет, мир.\n\nBye."
    audio = embedded.speak(iter(text) if is_live else text, guard=False)
    spoken = " ".join(" ".join(said.texts(embedded)).split())
    assert spoken == "The Russian name is, they say. Also. Bye."
    assert audio.skipped == audio.usage.skipped == ("Москва", "東京", "Привет", "мир")
    assert embedded.speak("All is read.").skipped == ()


def test_stream_of_a_known_text_reports_skipped_words_before_the_first_chunk(embedded: TTS) -> None:
    with embedded.stream(ONE_WORD, seed=1) as stream:
        assert stream.skipped == ("Москва",)
        assert next(stream).skipped == ("Москва",)
        assert next(stream).skipped == ()


def test_skipped_words_between_pauses_leave_one_pause(
    embedded: TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_after(embedded, monkeypatch, 3)
    chunks = list(embedded.stream("One.[pause 1s]мир[pause 2s]Two.", guard=False))
    pauses = [len(c.samples) for c in chunks if len(c.samples) and not len(c.codes)]
    assert pauses == [2 * embedded.sample_rate]


@pytest.mark.parametrize("language", ["french", "Chinese"])
def test_other_language_name_is_rejected(embedded: TTS, language: str) -> None:
    with pytest.raises(UnknownLanguageError, match=rf"auto, english, or {RELEASED}"):
        embedded.speak("Bonjour.", language=language)


def test_error_for_unknown_language_names_no_checkpoint(embedded: TTS) -> None:
    with pytest.raises(UnknownLanguageError) as caught:
        embedded.speak("Hello.", language="klingon")
    assert "load" not in str(caught.value)


def keep(stream: Iterator[AudioChunk], chunks: list[AudioChunk]) -> None:
    for chunk in stream:
        chunks.append(chunk)  # kept if the next chunk raises


def test_live_text_is_spoken_without_foreign_words_then_raises(
    embedded: TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = stop_after(embedded, monkeypatch, 3, once_text_is_in=True)
    chunks: list[AudioChunk] = []
    pieces = ["Hello ", "there, ", "友人", " of mine."]
    with pytest.raises(UnsupportedRequestError, match=RELEASED):
        keep(embedded.stream(iter(pieces), seed=1, on_unsupported="error"), chunks)
    assert said.texts(embedded)[-1] == "Hello there, of mine."
    assert chunks[-1].is_last
    with pytest.raises(UnsupportedRequestError, match=RELEASED):
        next(embedded.stream(iter(["友人"])))


@pytest.fixture(scope="module")
def released(tiny_folder: Path) -> Iterator[TTS]:
    """A checkpoint with the ten languages of the released checkpoints."""
    with TTS.load(tiny_folder / "custom_voice", device="cpu") as tts:
        yield tts


REFUSED = {
    "hebrew": "שלום עולם.",
    "arabic": "مرحبا بالعالم",
    "hindi": "हिन्दी में",
    "thai": "สวัสดี",
    "greek": "καλημέρα",
}


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_letters_of_unsupported_languages_are_rejected(released: TTS, text: str) -> None:
    with pytest.raises(UnsupportedRequestError, match=r"speaks only .*russian.* spanish") as caught:
        released.stream(text, voice="ryan")
    assert "load" not in str(caught.value)


def test_mostly_foreign_utterance_is_skipped_or_rejected(
    released: TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "שלום עולם is peace"
    with pytest.raises(UnsupportedRequestError, match="speaks only"):
        released.stream(text, voice="ryan", on_unsupported="error")
    said = stop_after(released, monkeypatch, 3, once_text_is_in=True)
    for given in (text, iter(text)):
        audio = released.speak(given, voice="ryan", live="sentence")
        assert audio.skipped == ("שלום", "עולם")
    assert [one.strip() for one in said.texts(released)] == ["is peace"] * 2


ACCEPTED = {
    **{name: FOREIGN[name] for name in ("chinese", "russian", "japanese", "katakana", "korean")},
    "a quoted word": "The Hebrew word שלום means peace.",
    "a symbol": "The angle α is 3 µm.",
    "kanji with an iteration mark": "人々は々",
    "full width": "Ｆｕｌｌ ｗｉｄｔｈ ｶﾀｶﾅ",
}


@pytest.mark.parametrize("text", ACCEPTED.values(), ids=ACCEPTED)
def test_supported_letters_and_quoted_foreign_words_are_accepted(released: TTS, text: str) -> None:
    released.stream(text, voice="ryan").close()


def test_letters_of_unknown_languages_are_accepted() -> None:
    for languages in ([], ["english", "klingon"]):
        assert Letters.of(languages).find_foreign("Москва שלום") is None
    assert Letters.of(["english", "russian"]).find_foreign("Москва") is None
    assert Letters.of(["sichuan_dialect"]).find_foreign("你好") is None
    assert Letters.of(["french", "english"]).find_foreign("Москва") == "М"
