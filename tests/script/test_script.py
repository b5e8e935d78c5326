"""Tests of known and live texts as sequences of utterances and pauses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.script.test_parts import ENGLISH, open_reader
from tests.support.tiny import Tiny
from vivace.errors import RequestError, UnsupportedTextError
from vivace.options import SpeechOptions
from vivace.script.prompts import PromptWriter
from vivace.script.request import Request
from vivace.script.script import Line, Script, plan_parts, split_verbatim
from vivace.text.options import ScriptOptions
from vivace.text.pauses import Pause

Open = Callable[..., Script]


@pytest.fixture
def open_script(tiny: Callable[[str], Tiny]) -> Open:
    one = tiny("custom_voice")
    writer = PromptWriter(one.checkpoint.config, one.checkpoint.load_tokenizer())

    def run(text: str | Iterator[str], *, verbatim: bool = False, **given: Any) -> Script:
        options = SpeechOptions(**given)
        request = Request(text=text, voice="ryan", options=options, verbatim=verbatim, breaks=True)
        return Script(writer, request)

    return run


def parts_of(script: Script) -> list[str | float]:
    found: list[str | float] = []
    while (part := script.next_part()) is not None:
        found.append(part.seconds if isinstance(part, Pause) else part.text)
    return found


def test_known_text_reports_progress_by_characters(open_script: Open) -> None:
    script = open_script("Hello there. [pause 1s] Goodbye.")
    assert (script.progress, script.is_over) == (0.0, False)
    first = script.next_part()
    assert isinstance(first, Line)
    assert first.text.strip() == "Hello there."
    assert script.progress == pytest.approx(12 / 20, abs=0.05)
    assert len(parts_of(script)) == 2
    assert (script.progress, script.is_over, script.next_part()) == (1.0, True, None)


def test_known_text_raises_its_error_before_speech(open_script: Open) -> None:
    with pytest.raises(UnsupportedTextError, match="ש"):
        open_script("שלום עולם. Bye.", on_unsupported="error")
    script = open_script("שלום עולם. Bye.", on_unsupported="skip")
    assert [*script.skipped] == ["שלום", "עולם"]
    assert script.error is None
    assert parts_of(script) == ["Bye."]


def test_text_without_stages_has_no_error_and_skips_nothing(open_script: Open) -> None:
    script = open_script("Hello.", verbatim=True)
    assert (script.error, [*script.skipped]) == (None, [])
    assert parts_of(script) == ["Hello."]


def test_longer_pause_remains_where_an_utterance_was_left_out() -> None:
    parts = plan_parts("One. [pause 1s] Да. [pause 3s] Two.", open_reader(ENGLISH, "whole"))
    assert [part.seconds for part in parts if isinstance(part, Pause)] == [3.0]
    parts = plan_parts("One. [pause 3s] Да. [pause 1s] Two.", open_reader(ENGLISH, "whole"))
    assert [part.seconds for part in parts if isinstance(part, Pause)] == [3.0]


def test_verbatim_text_is_not_changed(open_script: Open) -> None:
    text = "**Hello**  (there) [pause 1s]…  "
    script = open_script(text, verbatim=True, clean=True)
    assert parts_of(script) == [text]


@pytest.mark.parametrize("max_chars", [None, 300, 24])
def test_verbatim_text_that_fits_is_one_utterance(max_chars: int | None) -> None:
    text = "Hello  there.\n\nGoodbye. "
    assert len(text) == 24
    assert split_verbatim(text, ScriptOptions(packing="whole", max_chars=max_chars)) == [text]


def test_long_verbatim_text_keeps_every_character_of_its_words() -> None:
    text = "One sentence here. Another one there. And a third."
    parts = split_verbatim(text, ScriptOptions(packing="whole", max_chars=25))
    spoken = [part for part in parts if isinstance(part, str)]
    assert len(spoken) == 3
    assert " ".join(spoken).split() == text.split()
    assert split_verbatim("\n" * 9, ScriptOptions(packing="whole", max_chars=5))


def test_live_text_ends_with_the_error_of_a_wrong_piece(open_script: Open) -> None:
    script = open_script(iter(["unused"]))
    script.feed("Hello. ")
    script.feed(None)
    script.feed(5)
    assert isinstance(script.error, RequestError)
    assert "text pieces must be strings, not int" in str(script.error)


def test_live_text_by_sentence_gives_whole_sentences(open_script: Open) -> None:
    script = open_script(iter(["unused"]), live="sentence")
    script.feed("Hello there. How are")
    line = script.next_part()
    assert isinstance(line, Line)
    assert (line.text.strip(), line.has(50)) == ("Hello there.", True)  # no text follows
    assert len(line.take()) > 0
    assert line.is_complete


def test_live_line_waits_for_ids(open_script: Open) -> None:
    script = open_script(iter(["unused"]))
    script.feed("Hello there")
    line = script.next_part()
    assert isinstance(line, Line)
    assert line.has(1)
    assert not line.has(50)
    assert not line.is_complete
    script.finish()
    assert line.has(50)  # all that remain
    assert len(line.take()) > 0
    assert line.is_complete
    assert line.take() == []
    assert script.next_part() is None
    assert script.is_over
