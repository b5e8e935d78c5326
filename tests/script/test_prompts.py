"""Tests of the prompts of utterances: voices, references, instructions, adapters and limits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support.tiny import Tiny
from vivace.errors import TextTooLongError
from vivace.options import SpeechOptions
from vivace.prompt import SpokenReference
from vivace.script.prompts import PromptAdapter, PromptWriter, Spoken
from vivace.script.request import Request
from vivace.voices.voice import Voice

NUM_FRAMES = 20
TRANSCRIPT = "Quite other words."


@pytest.fixture(name="writer_of")
def make_writers(tiny: Callable[[str], Tiny]) -> Callable[..., PromptWriter]:
    def of(
        model_type: str, adapter: PromptAdapter | None = None, num_positions: int = 32768
    ) -> PromptWriter:
        checkpoint = tiny(model_type).checkpoint
        config = checkpoint.config
        talker = dataclasses.replace(config.talker_config, max_position_embeddings=num_positions)
        config = dataclasses.replace(config, talker_config=talker)
        return PromptWriter(config, checkpoint.load_tokenizer(), adapter)

    return of


@pytest.fixture(name="voice")
def make_voice(writer_of: Callable[..., PromptWriter]) -> Voice:
    talker = writer_of("base").checker._config.talker_config
    return Voice(
        name="me",
        speaker=np.ones(talker.hidden_size, np.float32),
        ref_codes=np.zeros((NUM_FRAMES, talker.num_code_groups), np.int64),
        ref_text=TRANSCRIPT,
    )


def request(text: Any = "Hello.", voice: Any = None, **given: Any) -> Request:
    verbatim = given.pop("verbatim", False)
    return Request(text=text, voice=voice, options=SpeechOptions(**given), verbatim=verbatim)


def test_prompt_is_complete_by_default(writer_of: Callable[..., PromptWriter]) -> None:
    writer = writer_of("custom_voice")
    ids = writer.encode(request(), "Hello.")
    eos = writer.checker._config.tts_eos_token_id
    streamed = request(voice="ryan", text_layout="streamed")
    prompt, reference = writer.write(streamed, "Hello.", ids)
    assert (prompt.trailing_ids, reference) == ((*ids[1:], eos), None)
    prompt, _ = writer.write(streamed, "Hello.", ids, is_complete=False)
    assert prompt.trailing_ids == (*ids[1:],)


def test_verbatim_empty_text_has_the_end_of_the_turn(
    writer_of: Callable[..., PromptWriter],
) -> None:
    writer = writer_of("custom_voice")
    streamed = request("", "ryan", text_layout="streamed", verbatim=True)
    prompt, _ = writer.write(streamed, "", [])
    end = writer.checker._config.im_end_token_id
    assert prompt.text_ids[-1] == end
    prompt, _ = writer.write(streamed, "", [10])
    assert prompt.text_ids[-1] == 10
    whole = request("", "ryan", text_layout="whole", verbatim=True)
    assert end not in writer.write(whole, "", [])[0].text_ids


def test_prompt_over_positions_of_the_model_is_rejected(
    writer_of: Callable[..., PromptWriter],
) -> None:
    ids = [10] * 50
    prompt, _ = writer_of("custom_voice").write(request(voice="ryan"), "", ids)
    fits = writer_of("custom_voice", num_positions=len(prompt) + 1)
    assert len(fits.write(request(voice="ryan"), "", ids)[0]) == len(prompt)
    short = writer_of("custom_voice", num_positions=len(prompt))
    with pytest.raises(TextTooLongError, match=str(len(prompt))):
        short.write(request(voice="ryan"), "", ids)


def test_adapter_gives_prompts_its_number_and_the_vectors_of_its_speakers(
    writer_of: Callable[..., PromptWriter],
) -> None:
    vector = np.arange(32, dtype=np.float32)
    writer = writer_of("custom_voice", PromptAdapter(3, {"Ryan": vector}))
    prompt, _ = writer.write(request(voice="ryan"), "Hi.", [10])
    assert prompt.adapter == 3
    assert prompt.speaker is not None
    np.testing.assert_array_equal(prompt.speaker, vector)
    other, _ = writer.write(request(voice="vivian"), "Hi.", [10])
    assert (other.adapter, other.speaker) == (3, None)
    plain, _ = writer_of("custom_voice").write(request(voice="ryan"), "Hi.", [10])
    assert (plain.adapter, plain.speaker) == (0, None)


def test_instruction_comes_first_and_an_empty_one_is_none(
    writer_of: Callable[..., PromptWriter],
) -> None:
    writer = writer_of("voice_design")
    plain, empty, given = (
        writer.write(request(instruct=instruct), "Hi.", [10])[0].text_ids
        for instruct in (None, "", "Softly.")
    )
    assert empty == plain
    assert given[-len(plain) :] == plain
    words = tuple(writer.tokenizer.encode("Softly."))
    first = given[: -len(plain)]
    assert any(first[i : i + len(words)] == words for i in range(len(first)))


def test_verbatim_text_is_encoded_with_the_line_break_of_the_role(
    writer_of: Callable[..., PromptWriter],
) -> None:
    writer, text = writer_of("custom_voice"), "\nHello."
    verbatim = writer.encode(request(text, verbatim=True), text)
    assert verbatim == writer.tokenizer.encode_marked("\n" + text)[1:]
    assert writer.encode(request(text), text) == writer.tokenizer.encode(text)


def test_live_text_needs_ids_for_the_rows_of_the_reference(
    writer_of: Callable[..., PromptWriter], voice: Voice
) -> None:
    writer = writer_of("base")
    num_ids = len(writer.tokenizer.encode(TRANSCRIPT))
    assert writer.num_first_ids(request(voice=voice)) == max(1, NUM_FRAMES + 1 - num_ids)
    short = dataclasses.replace(voice, ref_codes=np.zeros((1, 16), np.int64))
    assert writer.num_first_ids(request(voice=short)) == 1
    without = dataclasses.replace(voice, ref_codes=None, ref_text=None)
    assert writer.num_first_ids(request(voice=without)) == 1


@pytest.mark.parametrize(
    ("text", "given", "may_leak"),
    [
        ("Hello.", {"trim": True}, True),
        ("Hello.", {"trim": False}, False),
        (iter(["Hello."]), {"trim": True}, False),
        (TRANSCRIPT, {"trim": True}, False),  # the words of the reference may be part of the speech
    ],
)
def test_reference_may_leak_into_trimmed_speech_of_other_words(
    writer_of: Callable[..., PromptWriter], voice: Voice, text: Any, given: Any, may_leak: bool
) -> None:
    writer = writer_of("base")
    spoken = text if isinstance(text, str) else "Hello."
    ids = writer.tokenizer.encode(spoken)
    prompt, reference = writer.write(request(text, voice, **given), spoken, ids)
    assert len(prompt) > NUM_FRAMES
    assert (reference is not None) is may_leak


def test_utterance_continues_from_the_previous_one(
    writer_of: Callable[..., PromptWriter], voice: Voice
) -> None:
    writer = writer_of("base")
    codes = np.ones((7, 16), np.int64)
    previous = Spoken("Before.", SpokenReference(text_ids=[11, 12], codes=codes))
    trimmed = request(voice=voice, trim=True)
    _, reference = writer.write(trimmed, "Hello.", [10], previous=previous)
    assert reference is previous.reference
    _, reference = writer.write(trimmed, "Before.", [10], previous=previous)
    assert reference is None  # its words are spoken again


def test_voice_without_transcript_has_no_reference(
    writer_of: Callable[..., PromptWriter], voice: Voice
) -> None:
    writer = writer_of("base")
    without = dataclasses.replace(voice, ref_codes=None, ref_text=None)
    long, short = (
        len(writer.write(request(voice=one), "Hello.", [10])[0]) for one in (voice, without)
    )
    assert long > short
    assert writer.write(request(voice=without, trim=True), "Hello.", [10])[1] is None
