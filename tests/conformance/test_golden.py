"""Golden files: the shipped ones, the choice of sets, and invalid values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.project import ROOT, load_script
from tests.support.tiny import Tiny
from vivace.checkpoint import Checkpoint
from vivace.conformance import observe
from vivace.conformance.checks import signal_to_error_db
from vivace.conformance.golden import (
    SHIPPED,
    GoldenCodec,
    GoldenSet,
    load_golden,
    read_dimensions,
    save_golden,
)
from vivace.errors import RequestError
from vivace.model.config_file import parse_codec_config, parse_model_config
from vivace.text.tokenizer import TextTokenizer

RELEASED = SHIPPED[0]
MAX_SHIPPED_BYTES = 130_000
EXPECTED_SETS = {
    "0.6B-Base": ["0.6B-Base", "12 Hz codec"],
    "0.6B-CustomVoice": ["0.6B-CustomVoice", "12 Hz codec"],
    "1.7B-Base": ["12 Hz codec"],
    "1.7B-CustomVoice": ["12 Hz codec"],
    "1.7B-VoiceDesign": ["12 Hz codec"],
}


def released_checkpoint(name: str) -> Checkpoint:
    """The configuration of a released checkpoint, without weights."""
    released = load_script(ROOT / "benchmarks" / "released.py")
    return Checkpoint(
        folder=Path(name),
        config=parse_model_config(released.released_config(name)),
        codec_config=parse_codec_config(released.RELEASED_CODEC),
        sampling=None,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("name", EXPECTED_SETS)
def test_released_checkpoint_gets_its_sets(name: str) -> None:
    checkpoint = released_checkpoint(name)
    sets = [one for path in SHIPPED for one in load_golden(path) if one.fits(checkpoint)]
    assert [one.name for one in sets] == EXPECTED_SETS[name]
    for one in sets:
        one.check_values(checkpoint)


def test_released_values_are_complete_and_small() -> None:
    base, custom, codec = load_golden(RELEASED)
    assert RELEASED.stat().st_size < MAX_SHIPPED_BYTES
    assert [request.codes.shape for request in base.requests] == [(44, 16), (511, 16)]
    assert [request.codes.shape for request in custom.requests] == [(41, 16)]
    assert base.probe is not None
    assert base.probe.row_states.shape == (3, 1024)
    window = base.dimensions["talker.hidden_size"], codec.dimensions["codec.sliding_window"]
    assert window == (1024, 72)
    assert len(codec.codecs[1].codes) > 72
    assert codec.codecs[0].samples is not None
    assert len(codec.codecs[0].samples) == 4 * 1920


def test_released_token_ids_are_those_of_the_real_vocabulary(real_folder: Path) -> None:
    tokenizer = TextTokenizer.from_folder(real_folder)
    requests = [request for one in load_golden(RELEASED) for request in one.requests]
    assert len(requests) == 3
    for request in requests:
        assert observe.chat_ids(tokenizer, request.text).tolist() == request.text_ids.tolist()
        if request.ref_text is not None and request.ref_ids is not None:
            found = observe.chat_ids(tokenizer, request.ref_text, has_reply=False)
            assert found.tolist() == request.ref_ids.tolist()


def test_saved_set_is_loaded_with_equal_values(tmp_path: Path) -> None:
    [expected] = load_golden(SHIPPED[1])
    save_golden([expected], tmp_path / "golden.npz")
    [found] = load_golden(tmp_path / "golden.npz")
    assert found.dimensions == expected.dimensions
    assert found.probe is not None
    assert expected.probe is not None
    assert np.array_equal(found.probe.step_state, expected.probe.step_state)
    for one, other in zip(found.requests, expected.requests, strict=True):
        assert (one.name, one.text, one.has_end) == (other.name, other.text, other.has_end)
        assert np.array_equal(one.codes, other.codes)


def test_any_other_dimension_does_not_fit(tiny: Callable[[str], Tiny]) -> None:
    checkpoint = tiny("base").checkpoint
    found = read_dimensions(checkpoint)
    assert make_set(found).fits(checkpoint)
    assert found["codec.sliding_window"] > 0
    for name, size in found.items():
        assert not make_set({**found, name: size + 1}).fits(checkpoint)
    assert not dataclasses.replace(make_set(found), kind="custom_voice").fits(checkpoint)


def test_codes_outside_the_codebooks_are_rejected(tiny: Callable[[str], Tiny]) -> None:
    checkpoint = tiny("base").checkpoint
    num_books = checkpoint.config.talker_config.num_code_groups
    for codes in (np.full((2, num_books), 10**6), np.zeros((2, num_books + 1), np.int64)):
        codec = GoldenCodec(name="codec", codes=codes, after_transformer=np.zeros((1, 4), "f4"))
        golden = dataclasses.replace(make_set({}), codecs=[codec])
        with pytest.raises(RequestError, match="golden set"):
            golden.check_values(checkpoint)


def test_values_that_are_not_finite_are_rejected() -> None:
    values = np.full((1, 4), np.nan, np.float32)
    with pytest.raises(ValueError, match="not finite"):
        GoldenCodec(name="codec", codes=np.zeros((2, 2), np.int64), after_transformer=values)


def test_signal_to_error_ratio_in_db() -> None:
    signal = np.ones(100, np.float32)
    assert signal_to_error_db(signal, signal) == np.inf
    assert signal_to_error_db(signal * 1.1, signal) == pytest.approx(20, abs=0.01)
    assert signal_to_error_db(signal[:50], signal) == -np.inf
    assert signal_to_error_db(signal * np.nan, signal) == -np.inf


def make_set(dimensions: dict[str, int]) -> GoldenSet:
    return GoldenSet(name="test", source="test", kind="base", dimensions=dimensions)
