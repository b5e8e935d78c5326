"""Tests of the requests that a checkpoint rejects, and of the reasons."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support.tiny import Tiny
from vivace.checkpoint import EMBEDDED
from vivace.errors import (
    RequestError,
    TextError,
    TextTooLongError,
    UnknownLanguageError,
    UnknownVoiceError,
    UnsupportedRequestError,
)
from vivace.model.config_file import parse_model_config
from vivace.options import SpeechOptions
from vivace.script.checks import RequestChecker
from vivace.script.request import Pieces, Request
from vivace.script.text_settings import TextSettings
from vivace.speech import MAX_INSTRUCT_CHARS
from vivace.text.lexicon import Lexicon
from vivace.text.pipeline import MAX_TEXT_CHARS
from vivace.voices.voice import Voice

Check = Callable[..., None]


@pytest.fixture(scope="module")
def checker(tiny: Callable[[str], Tiny]) -> Callable[[str], RequestChecker]:
    def of(model_type: str) -> RequestChecker:
        config = tiny(model_type).checkpoint.config
        return RequestChecker(config, TextSettings(config))

    return of


@pytest.fixture
def check(checker: Callable[[str], RequestChecker]) -> Check:
    """Check a request of the tiny CustomVoice checkpoint."""

    def run(text: str | Pieces = "Hello.", voice: Any = "ryan", **given: Any) -> None:
        own = {name: given.pop(name) for name in ("lexicons", "verbatim") if name in given}
        options = SpeechOptions(**given)
        checker("custom_voice").check(Request(text=text, voice=voice, options=options, **own))

    return run


def test_supported_requests_pass(check: Check) -> None:
    check()
    check(language="english", text_layout="whole", on_unsupported="skip", normalize=True)
    check(iter(["Hel", "lo."]), live="sentence", text_layout="whole")
    check(iter(["Hel", "lo."]), live="word", text_layout="streamed")
    check("a" * MAX_TEXT_CHARS)


def test_text_over_limit_is_rejected_with_its_length(check: Check) -> None:
    with pytest.raises(TextTooLongError, match=rf"{MAX_TEXT_CHARS + 1:,}"):
        check("a" * (MAX_TEXT_CHARS + 1))


def test_text_without_words_is_rejected_unless_something_may_read_it(check: Check) -> None:
    with pytest.raises(TextError):
        check("…")
    check("…", verbatim=True)
    check("…", lexicons=(Lexicon.of({"…": "and so on"}),))


@pytest.mark.parametrize("live", [None, "word"])
def test_live_text_by_words_cannot_be_laid_out_whole(check: Check, live: str | None) -> None:
    with pytest.raises(RequestError, match="whole word by word"):
        check(iter(["Hello."]), live=live, text_layout="whole")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"live": "letter"}, "live"),
        ({"on_unsupported": "guess"}, "on_unsupported"),
        ({"text_layout": "half"}, "text_layout"),
        ({"language": 5}, "language must be a string, not int"),
        ({"normalize": "yes", "language": "english"}, "normalize"),
        ({"voice": 5}, "voice must be a preset's name or a Voice, not int"),
        ({"language": "german", "normalize": True}, "no rules for the language 'german'"),
    ],
)
def test_wrong_option_is_named(check: Check, given: dict[str, Any], reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        check(**given)


def test_unknown_preset_is_rejected_before_a_prompt_is_written(check: Check) -> None:
    with pytest.raises(UnknownVoiceError, match="nobody"):
        check(voice="nobody")


def test_unknown_language_is_rejected_without_another_checkpoint(check: Check) -> None:
    with pytest.raises(UnknownLanguageError, match="klingon") as found:
        check(language="klingon")
    assert "load" not in str(found.value)


def test_language_of_other_checkpoints_names_one_of_them() -> None:
    config = parse_model_config(json.loads((EMBEDDED / "config.json").read_text()))
    request = Request(text="Hallo.", voice="heart", options=SpeechOptions(language="german"))
    with pytest.raises(UnknownLanguageError, match="CustomVoice"):
        RequestChecker(config, TextSettings(config)).check(request)


def test_instruct_may_have_as_many_characters_as_the_limit(
    checker: Callable[[str], RequestChecker],
) -> None:
    def request(instruct: Any) -> Request:
        return Request(text="Hello.", voice=None, options=SpeechOptions(instruct=instruct))

    design = checker("voice_design")
    design.check(request("a" * MAX_INSTRUCT_CHARS))
    with pytest.raises(RequestError, match=f"{MAX_INSTRUCT_CHARS + 1:,} characters"):
        design.check(request("a" * (MAX_INSTRUCT_CHARS + 1)))
    with pytest.raises(RequestError, match="instruct must be a string, not int"):
        design.check(request(5))


def test_voice_that_the_checkpoint_cannot_use_names_one_that_can(
    checker: Callable[[str], RequestChecker],
) -> None:
    request = Request(text="Hello.", voice="ryan", options=SpeechOptions())
    with pytest.raises(UnsupportedRequestError, match="CustomVoice"):
        checker("base").check(request)
    request = Request(text="Hello.", voice=None, options=SpeechOptions())
    with pytest.raises(RequestError, match="cloned voice"):
        checker("base").check(request)
    with pytest.raises(UnsupportedRequestError, match="Base"):
        checker("custom_voice").require_cloning("clone")


def test_letter_error_names_a_checkpoint_only_if_one_reads_the_letter(
    checker: Callable[[str], RequestChecker],
) -> None:
    released = checker("custom_voice").letter_error("ש")
    assert "no released checkpoint reads it" in str(released)
    assert "load" not in str(checker("custom_voice").letter_error("你"))


def test_cloning_needs_a_voice_of_the_checkpoint(
    checker: Callable[[str], RequestChecker],
) -> None:
    base = checker("base")
    base.require_cloning("clone")
    width = base._config.talker_config.hidden_size
    voice = Voice(name="me", speaker=np.ones(width, np.float32))
    base.check(Request(text="Hello.", voice=voice, options=SpeechOptions()))
    wide = Voice(name="me", speaker=np.ones(width + 1, np.float32))
    with pytest.raises(RequestError, match=str(width + 1)):
        base.check(Request(text="Hello.", voice=wide, options=SpeechOptions()))
    codes = np.full((4, base._config.talker_config.num_code_groups), 10**6)
    with pytest.raises(RequestError, match="1000000"):
        base.settle_voice(dataclasses.replace(voice, ref_codes=codes, ref_text="Hello."))


def test_instruct_is_returned_only_by_a_checkpoint_that_follows_it(
    checker: Callable[[str], RequestChecker],
) -> None:
    assert checker("voice_design").check_follows("Softly.") == "Softly."
    assert checker("base").check_follows(None) is None
    with pytest.raises(UnsupportedRequestError, match=r"1\.7B-CustomVoice"):
        checker("base").check_follows("Softly.")
