"""The embedded voice speaks English; other texts are refused with the name of what reads them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from vivace import TTS, AudioChunk
from vivace.errors import UnknownLanguageError, UnsupportedRequestError
from vivace.text.letters import find_foreign_letter

FOREIGN = {
    "chinese": "你好，世界。",
    "russian": "Привет, мир.",
    "japanese": "こんにちは",
    "katakana": "カタカナ",
    "korean": "안녕하세요",
    "arabic": "مرحبا",
    "hindi": "हिन्दी",
    "greek": "καλημέρα",
    "one word of many": "The Russian name is Москва, they say.",
}
ENGLISH = [
    "Plain words.",
    "A café, naïve and déjà vu.",
    "Ｆｕｌｌ width, ﬁne ligatures, № 5.",
    "Signs: 5 € – 20 °C ½ … “quoted” 👍🏽 ✓ ♪",
    "e\u0301 in two characters",
]
RELEASED = r"load Qwen/Qwen3-TTS-12Hz-0\.6B-CustomVoice"


@pytest.mark.parametrize("text", FOREIGN.values(), ids=FOREIGN)
def test_a_text_in_other_letters_is_refused(embedded: TTS, text: str) -> None:
    with pytest.raises(UnsupportedRequestError, match=RELEASED):
        embedded.speak(text)


@pytest.mark.parametrize("text", ENGLISH)
def test_english_is_not_refused(text: str) -> None:
    assert find_foreign_letter(text, ["english"]) is None


def test_what_cleaning_takes_out_is_not_held_against_a_text(embedded: TTS) -> None:
    text = "See [the page](https://example.org/Москва)."
    with pytest.raises(UnsupportedRequestError):
        embedded.stream(text)
    embedded.stream(text, clean=True).close()


@pytest.mark.parametrize("language", ["french", "Chinese"])
def test_another_language_by_name_is_refused(embedded: TTS, language: str) -> None:
    with pytest.raises(UnknownLanguageError, match=rf"auto, english, or {RELEASED}"):
        embedded.speak("Bonjour.", language=language)


def test_a_language_that_nobody_speaks_is_not_promised(embedded: TTS) -> None:
    with pytest.raises(UnknownLanguageError) as caught:
        embedded.speak("Hello.", language="klingon")
    assert "load" not in str(caught.value)


def keep(stream: Iterator[AudioChunk], chunks: list[AudioChunk]) -> None:
    for chunk in stream:
        chunks.append(chunk)  # also if the next one raises


def test_live_text_is_spoken_up_to_the_foreign_piece(embedded: TTS) -> None:
    def pieces() -> Iterator[str]:
        yield from ("Hello ", "there, ", "友人", " of mine.")

    chunks: list[AudioChunk] = []
    with pytest.raises(UnsupportedRequestError, match=RELEASED):
        keep(embedded.stream(pieces(), seed=1), chunks)
    assert sum(len(chunk.codes) for chunk in chunks) > 3
    with pytest.raises(UnsupportedRequestError, match=RELEASED):
        next(embedded.stream(iter(["友人"])))


def test_a_checkpoint_of_many_languages_reads_any_letters(tiny_folder: Path) -> None:
    """The control: the refusal comes from the checkpoint's languages, not from the text."""
    with TTS.load(tiny_folder / "custom_voice", device="cpu") as tts:
        for text in FOREIGN.values():
            tts.stream(text, voice="ryan").close()


def test_languages_unknown_here_or_none_at_all_are_left_alone() -> None:
    for languages in ([], ["english", "russian"], ["english", "klingon"]):
        assert find_foreign_letter("Москва", languages) is None
    assert find_foreign_letter("Москва", ["french", "english"]) == "М"
