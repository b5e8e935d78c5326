"""Tests of the lexicon in `TTS`, live text, batches and the command line."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.recording_backend import Watch, stop_after
from vivace import TTS, Lexicon
from vivace.cli.main import main
from vivace.errors import LexiconError, RequestError, TextTooLongError

TEXT = "Vivace makes a GIF, [spell: ok]?"
# Speech does not end before the whole text was read.
ENGLISH: dict[str, Any] = {"language": "English", "seed": 3, "min_frames": 4_000, "guard": False}
SAID = "Vee-VAH-chay makes a Jif, O K?"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "names.toml"
    path.write_text('vivace = "vee-VAH-chay"\n[english]\nGIF = "jif"\n')
    return path


@pytest.fixture
def tts(tiny_folder: Path, file: Path) -> Iterator[TTS]:
    with TTS.load(tiny_folder / "custom_voice", device="cpu", lexicon=file) as loaded:
        yield loaded


@pytest.fixture
def said(tts: TTS, monkeypatch: pytest.MonkeyPatch) -> Watch:
    return stop_after(tts, monkeypatch, 3, once_text_is_in=True)


def test_loaded_lexicon_applies_to_every_way_of_speaking(tts: TTS, said: Watch) -> None:
    async def listen() -> None:
        async def pieces() -> AsyncIterator[str]:
            for letter in TEXT:
                yield letter

        for text in (TEXT, pieces()):
            async for _ in tts.astream(text, **ENGLISH):
                pass

    tts.speak(TEXT, **ENGLISH)
    tts.speak([TEXT, TEXT], **ENGLISH)
    for text in (TEXT, iter(TEXT), iter(re.findall(r"\s*\S{1,3}", TEXT))):
        list(tts.stream(text, **ENGLISH))
    asyncio.run(listen())
    assert said.texts(tts) == [SAID] * 8
    assert len(tts.lexicon or ()) == 2


def test_entries_of_another_language_do_not_apply(tts: TTS, said: Watch) -> None:
    tts.speak(TEXT, language="french")
    tts.speak(TEXT)  # language auto: this checkpoint has several languages
    assert said.texts(tts) == [SAID.replace("Jif", "GIF")] * 2


def test_entries_of_a_request_come_first(tts: TTS, said: Watch, tmp_path: Path) -> None:
    own = tmp_path / "own.csv"
    own.write_text("vivace,lively,\nmakes a,draws the,english\n")
    for lexicon in (own, str(own), Lexicon.load(own)):
        tts.speak(TEXT, language="english", lexicon=lexicon)
    tts.speak([TEXT], language="english", lexicon=own)
    own.unlink()
    tts.speak("Vivace →", lexicon={"→": "arrow"})
    tts.speak("→", lexicon={"→": "arrow"})
    assert said.texts(tts) == [
        *["Lively draws the Jif, O K?"] * 4,
        "Vee-VAH-chay arrow",
        "arrow",
    ]


def test_invalid_lexicon_is_rejected_before_speech(tts: TTS, said: Watch) -> None:
    async def ask() -> None:
        async for _ in tts.astream("Hello.", lexicon={"a": ""}):
            pass

    for bad, reason in [
        ("none.toml", "none.toml: cannot be read"),
        ({"a": 5}, "the lexicon: the respelling of 'a' is a string, not int 5"),
        ({"klingon": {"a": "b"}}, "no language named 'klingon'; try one of: .*english"),
        ({"a": "b" * 201}, "201 characters"),
        (["a"], "not list"),
    ]:
        with pytest.raises(LexiconError, match=reason):
            tts.speak("Hello.", lexicon=bad)  # type: ignore[call-overload]
    with pytest.raises(LexiconError, match="is empty"):
        asyncio.run(ask())
    with pytest.raises(RequestError, match="nothing to speak"):
        tts.speak("→", lexicon={"a": "b"})
    assert said.num_prompts == 0


def test_text_that_its_lexicon_makes_too_long_is_rejected(tts: TTS, said: Watch) -> None:
    with pytest.raises(TextTooLongError, match=r"1,20\d,\d{3} characters, respelled,"):
        tts.speak("a " * 6_000, lexicon={"a": "b" * 200})
    assert said.num_prompts == 0


def test_invalid_lexicon_is_rejected_before_weights_are_loaded(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vivace.checkpoint.Checkpoint.load_model", lambda *_: pytest.fail("read"))
    with pytest.raises(LexiconError, match="no language named 'klingon'"):
        TTS.load(tiny_folder / "custom_voice", lexicon={"klingon": {"a": "b"}})


def test_embedded_voice_normalizes_english_entries(
    embedded: TTS, monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    said = stop_after(embedded, monkeypatch, 3, once_text_is_in=True)
    for text in (TEXT, iter(TEXT)):
        embedded.speak(text, lexicon=file, min_frames=200, guard=False)
    assert said.texts(embedded) == ["Vee-vah-chay makes a Jif, O K?"] * 2


def test_command_applies_its_lexicon(tiny_folder: Path, file: Path, tmp_path: Path) -> None:
    def say(text: str, *options: str) -> bytes:
        path = tmp_path / "x.wav"
        model = ("--model", str(tiny_folder / "custom_voice"), "--device", "cpu", "-q", "--force")
        sampling = ("--seed", "3", "--max-frames", "5", "--language", "english")
        assert main(["say", text, *model, *sampling, "-o", str(path), *options]) == 0
        return path.read_bytes()

    plain = say(SAID)
    assert say(TEXT, "--lexicon", str(file)) == plain
    assert say(TEXT) != plain


def test_command_rejects_invalid_lexicon_before_importing_torch(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("a,b\nc\n")
    monkeypatch.setitem(sys.modules, "vivace.tts", None)  # an import raises
    assert main(["say", "Hello.", "--lexicon", str(bad), "-o", str(tmp_path / "x.wav")]) == 1
    assert re.fullmatch(r"vivace: .*bad\.csv, line 2: a row is .*\n", capsys.readouterr().err)
    assert not (tmp_path / "x.wav").exists()
