"""Tests of the text options of a request, by checkpoint and options."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.tiny import Tiny
from vivace.model.config import ModelConfig, ReadingConfig
from vivace.options import SpeechOptions
from vivace.script.request import Request
from vivace.script.text_settings import TextSettings
from vivace.text.lexicon import Lexicon
from vivace.text.options import ScriptOptions

READING = ReadingConfig(
    normalize=True, letter_names={"A": "eh"}, plain_breaks=True, end_stop=True,
    min_utterance_chars=8, max_utterance_chars=120, paragraph_s=0.9, live="sentence",
)  # fmt: skip


@pytest.fixture(scope="module")
def config_of(tiny: Callable[[str], Tiny]) -> Callable[[str], ModelConfig]:
    def of(model_type: str) -> ModelConfig:
        return dataclasses.replace(tiny(model_type).checkpoint.config, reading_config=READING)

    return of


def options_of(config: ModelConfig, text: Any = "Hello.", **given: Any) -> ScriptOptions:
    own = {name: given.pop(name) for name in ("breaks", "lexicons") if name in given}
    request = Request(text=text, voice=None, options=SpeechOptions(**given), **own)
    return TextSettings(config).script_options(request)


def test_line_breaks_count_only_if_the_request_reads_them(
    config_of: Callable[[str], ModelConfig],
) -> None:
    config = config_of("custom_voice")
    unread, read = (options_of(config, breaks=breaks) for breaks in (False, True))
    assert (unread.paragraph_s, unread.plain_breaks, unread.min_chars) == (None, False, 0)
    assert (read.paragraph_s, read.plain_breaks, read.min_chars) == (0.9, True, 8)


def test_paragraphs_end_no_utterance_without_split_or_with_voice_design(
    config_of: Callable[[str], ModelConfig],
) -> None:
    whole = options_of(config_of("custom_voice"), breaks=True, split=False)
    assert (whole.paragraph_s, whole.max_chars) == (None, None)
    assert options_of(config_of("voice_design"), breaks=True).paragraph_s is None


@pytest.mark.parametrize(
    ("given", "normalizes"),
    [
        ({"language": "english"}, True),
        ({"language": "English", "normalize": False}, False),
        ({"language": "german"}, False),  # has no rules
        ({"language": "auto"}, False),  # of a checkpoint with several languages
    ],
)
def test_text_is_normalized_if_the_language_has_rules(
    config_of: Callable[[str], ModelConfig], given: dict[str, Any], normalizes: bool
) -> None:
    found = options_of(config_of("custom_voice"), **given)
    assert found.normalize is normalizes
    assert found.letter_names == ({"A": "eh"} if normalizes else {})
    assert found.plain.parts_letters is normalizes


@pytest.mark.parametrize(
    ("text", "live", "packing"),
    [
        ("Hello.", None, "whole"),
        (iter(["Hello."]), None, "sentences"),  # the checkpoint's default
        (iter(["Hello."]), "word", "words"),
    ],
)
def test_packing_follows_the_kind_of_text(
    config_of: Callable[[str], ModelConfig], text: Any, live: str | None, packing: str
) -> None:
    assert options_of(config_of("custom_voice"), text, live=live).packing == packing


def test_known_options_are_not_mixed_up(config_of: Callable[[str], ModelConfig]) -> None:
    settings = TextSettings(config_of("custom_voice"))

    def found(**given: Any) -> ScriptOptions:
        own = {name: given.pop(name) for name in ("breaks", "lexicons") if name in given}
        options = SpeechOptions(**given)
        return settings.script_options(Request(text="Hi.", voice=None, options=options, **own))

    plain = found(language="english")
    assert found(language="english") is plain
    assert found(language="english", clean=True).clean
    assert found(language="english", keep_emoji=True).keep_emoji
    assert found(language="english", split=False).max_chars is None
    assert found(language="english", breaks=True).plain_breaks
    assert not found(language="english", normalize=False).normalize
    assert found(language="german").language == "german"
    assert found(language="english", lexicons=(Lexicon.of({"Hi": "hey"}),)).lexicon
    assert found(language="english") is plain
