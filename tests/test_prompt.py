"""`build_prompt`: rows, labels and the text that follows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from tests.support.tiny import Tiny
from vivace.errors import UnknownLanguageError, UnknownVoiceError
from vivace.model.config import NO_CODE, SPEAKER, ModelConfig
from vivace.prompt import SpokenReference, build_prompt, language_id
from vivace.speech import TextLayout

ROLE = [1, 2, 3]


@pytest.fixture(scope="module")
def config(tiny: Callable[[str], Tiny]) -> ModelConfig:
    return tiny("custom_voice").checkpoint.config


def first_codes(prompt_codes: np.ndarray) -> list[int]:
    return prompt_codes[:, 0].tolist()


def test_whole_layout_has_all_text_before_the_speech(config: ModelConfig) -> None:
    talker = config.talker_config
    prompt = build_prompt(
        config, [10, 11], role_ids=ROLE, layout="whole", language="English", preset="Ryan"
    )
    pad, bos, eos = config.tts_pad_token_id, config.tts_bos_token_id, config.tts_eos_token_id
    assert prompt.text_ids == (*ROLE, pad, pad, pad, pad, pad, bos, 10, 11, eos, pad)
    assert first_codes(prompt.codes) == [
        NO_CODE,
        NO_CODE,
        NO_CODE,
        talker.codec_think_id,
        talker.codec_think_bos_id,
        talker.codec_language_id["english"],
        talker.codec_think_eos_id,
        talker.spk_id["ryan"],
        talker.codec_pad_id,
        talker.codec_pad_id,
        talker.codec_pad_id,
        talker.codec_pad_id,
        talker.codec_bos_id,
    ]
    assert prompt.trailing_ids == ()
    assert (prompt.codes[:, 1:] == NO_CODE).all()


def test_streamed_layout_starts_with_one_text_id(config: ModelConfig) -> None:
    prompt = build_prompt(config, [10, 11, 12], role_ids=ROLE, layout="streamed")
    talker = config.talker_config
    assert prompt.text_ids[-1] == 10
    assert first_codes(prompt.codes)[-1] == talker.codec_bos_id
    assert prompt.trailing_ids == (11, 12, config.tts_eos_token_id)
    assert first_codes(prompt.codes)[3:6] == [
        talker.codec_nothink_id,
        talker.codec_think_bos_id,
        talker.codec_think_eos_id,
    ]


def test_incomplete_prompt_has_no_end_id(config: ModelConfig) -> None:
    prompt = build_prompt(config, [10], role_ids=ROLE, layout="streamed", is_complete=False)
    assert prompt.trailing_ids == ()
    assert not prompt.is_complete


@pytest.mark.parametrize(("speaker", "dialect"), [("eric", "sichuan"), ("dylan", "beijing")])
@pytest.mark.parametrize("language", ["auto", "Chinese", "AUTO"])
def test_dialect_speaker_changes_chinese_to_the_dialect(
    config: ModelConfig, speaker: str, dialect: str, language: str
) -> None:
    prompt = build_prompt(
        config, [1], role_ids=ROLE, layout="whole", language=language, preset=speaker
    )
    code = config.talker_config.codec_language_id[f"{dialect}_dialect"]
    assert code in first_codes(prompt.codes)


def test_dialect_speaker_keeps_other_languages(config: ModelConfig) -> None:
    prompt = build_prompt(
        config, [1], role_ids=ROLE, layout="whole", language="german", preset="eric"
    )
    assert config.talker_config.codec_language_id["german"] in first_codes(prompt.codes)


@pytest.mark.parametrize("value", [True, ""])
def test_dialect_without_a_name_keeps_the_language(config: ModelConfig, value: str | bool) -> None:
    dialects = {**config.talker_config.spk_is_dialect, "eric": value}
    talker = dataclasses.replace(config.talker_config, spk_is_dialect=dialects)
    assert language_id(talker, "auto", "eric") is None
    assert language_id(talker, "Chinese", "eric") == talker.codec_language_id["chinese"]


def test_speaker_vector_replaces_the_embedding_of_the_preset(config: ModelConfig) -> None:
    vector = np.ones(64, dtype=np.float32)
    prompt = build_prompt(config, [1], role_ids=ROLE, layout="whole", preset="ryan", speaker=vector)
    assert SPEAKER in first_codes(prompt.codes)
    assert config.talker_config.spk_id["ryan"] not in first_codes(prompt.codes)
    assert prompt.speaker is vector


def test_reference_longer_than_the_text_is_padded_and_a_shorter_one_leaves_text(
    config: ModelConfig,
) -> None:
    speaker = np.ones(64, dtype=np.float32)
    codes = np.arange(4 * 16).reshape(4, 16) % 64
    short = build_prompt(
        config,
        [20],
        role_ids=ROLE,
        layout="streamed",
        speaker=speaker,
        reference=SpokenReference(text_ids=[10], codes=codes),
    )
    eos, pad = config.tts_eos_token_id, config.tts_pad_token_id
    assert short.text_ids[-5:] == (10, 20, eos, pad, pad)
    assert short.trailing_ids == ()
    assert np.array_equal(short.codes[-4:], codes)
    assert SPEAKER in first_codes(short.codes)
    long = build_prompt(
        config,
        [20, 21, 22, 23, 24, 25],
        role_ids=ROLE,
        layout="streamed",
        speaker=speaker,
        reference=SpokenReference(text_ids=[10], codes=codes),
    )
    assert long.text_ids[-5:] == (10, 20, 21, 22, 23)
    assert long.trailing_ids == (24, 25, eos)


def test_instruction_rows_come_first(config: ModelConfig) -> None:
    prompt = build_prompt(config, [20], role_ids=ROLE, layout="whole", instruct_ids=[7, 8, 9, 6])
    assert prompt.text_ids[:7] == (7, 8, 9, 6, *ROLE)
    assert first_codes(prompt.codes)[:7] == [NO_CODE] * 7


@pytest.mark.parametrize("layout", ["whole", "streamed"])
@pytest.mark.parametrize("transcript", [None, [10, 11], [10, 11, 12, 13, 14, 15, 16]])
def test_shared_rows_do_not_depend_on_the_text(
    config: ModelConfig, layout: TextLayout, transcript: list[int] | None
) -> None:
    codes = np.arange(4 * 16).reshape(4, 16) % 64
    prompts = [
        build_prompt(
            config,
            text_ids,
            role_ids=ROLE,
            layout=layout,
            instruct_ids=[7, 8],
            reference=SpokenReference(text_ids=transcript, codes=codes) if transcript else None,
        )
        for text_ids in ([20], [21, 22, 23])
    ]
    some, others = prompts
    count = some.num_shared_rows
    assert count == others.num_shared_rows <= len(some)
    assert some.text_ids[:count] == others.text_ids[:count]
    assert np.array_equal(some.codes[:count], others.codes[:count])
    if count < len(some):
        assert some.text_ids[count] != others.text_ids[count]
    else:  # the reference is shorter than its transcript
        assert some.text_ids == others.text_ids


def test_unknown_names_raise_with_the_known_ones(config: ModelConfig) -> None:
    with pytest.raises(UnknownLanguageError, match=r"klingon.*auto, .*german"):
        build_prompt(config, [1], role_ids=ROLE, layout="whole", language="klingon")
    with pytest.raises(UnknownVoiceError, match=r"worf.*aiden, .*vivian"):
        build_prompt(config, [1], role_ids=ROLE, layout="whole", preset="worf")


def test_prompt_prints_as_a_table(config: ModelConfig) -> None:
    prompt = build_prompt(
        config, [20, 21], role_ids=ROLE, layout="streamed", language="english", preset="ryan"
    )
    table = str(prompt).splitlines()
    assert len(table) == len(prompt) + 2
    assert table[0].split() == ["row", "text", "codes", "what"]
    assert any("speaker ryan" in line for line in table)
    assert table[-1] == f"then, one per frame: 21 {config.tts_eos_token_id}; then {prompt.pad_id}"


def test_preset_with_capitals_is_found(config: ModelConfig) -> None:
    talker = dataclasses.replace(
        config.talker_config, spk_id={"Ada": 100}, spk_is_dialect={"Ada": "sichuan_dialect"}
    )
    derived = dataclasses.replace(config, talker_config=talker)
    for name in ("Ada", "ada"):
        prompt = build_prompt(derived, [1], role_ids=ROLE, layout="whole", preset=name)
        assert 100 in first_codes(prompt.codes)
        assert talker.codec_language_id["sichuan_dialect"] in first_codes(prompt.codes)


def test_printed_rows_show_the_speaker_and_the_first_codes(config: ModelConfig) -> None:
    reference = SpokenReference(text_ids=[20], codes=np.arange(32).reshape(2, 16))
    prompt = build_prompt(
        config, [10], role_ids=ROLE, layout="streamed", reference=reference,
        speaker=np.ones(config.talker_config.hidden_size, np.float32),
    )  # fmt: skip
    rows = [line.split() for line in str(prompt).splitlines()[1:-1]]
    assert [row[2] for row in rows].count("speaker") == 1
    assert rows[0][2] == "-"  # a row of the role has no codes
    assert [row[2:7] for row in rows[-2:]] == [
        ["0", "1", "2", "3", "…"],
        ["16", "17", "18", "19", "…"],
    ]
