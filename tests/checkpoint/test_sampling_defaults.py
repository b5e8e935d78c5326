"""Sampling defaults of generation_config.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.checkpoints import load
from vivace import SamplingParams
from vivace.checkpoint import read_sampling
from vivace.errors import CheckpointError


def test_missing_generation_config_gives_the_official_defaults(tmp_path: Path) -> None:
    assert read_sampling(tmp_path / "generation_config.json") == SamplingParams(
        temperature=0.9,
        top_k=50,
        top_p=1.0,
        repetition_penalty=1.05,
        predictor_temperature=0.9,
        predictor_top_k=50,
        predictor_top_p=1.0,
        max_frames=2047,
    )


def test_generation_config_sets_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "generation_config.json"
    path.write_text(
        json.dumps(
            {
                "temperature": 0.7,
                "top_k": 20,
                "top_p": 0.8,
                "repetition_penalty": 1.1,
                "subtalker_temperature": 0.6,
                "subtalker_top_k": 10,
                "subtalker_top_p": 0.5,
                "max_new_tokens": 100,
                "transformers_version": "4.57.3",
            }
        )
    )
    assert read_sampling(path) == SamplingParams(
        temperature=0.7,
        top_k=20,
        top_p=0.8,
        repetition_penalty=1.1,
        predictor_temperature=0.6,
        predictor_top_k=10,
        predictor_top_p=0.5,
        max_frames=99,
    )


def test_talker_and_predictor_are_greedy_independently(tmp_path: Path) -> None:
    path = tmp_path / "generation_config.json"
    path.write_text('{"do_sample": false}')
    params = read_sampling(path)
    assert (params.temperature, params.residual_temperature) == (0.0, 0.9)
    path.write_text('{"subtalker_dosample": false}')
    params = read_sampling(path)
    assert (params.temperature, params.residual_temperature) == (0.9, 0.0)


def test_null_in_the_generation_config_is_the_default(tmp_path: Path) -> None:
    path = tmp_path / "generation_config.json"
    path.write_text('{"top_k": null, "max_new_tokens": null, "temperature": null}')
    assert read_sampling(path) == read_sampling(tmp_path / "absent.json")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ('{"temperature": -1}', r"temperature must be 0 \(greedy\) or from"),
        ('{"temperature": NaN}', r"temperature must be 0 \(greedy\) or from"),
        ('{"top_k": "many"}', "top_k must be a whole number"),
        ('{"max_new_tokens": "8192"}', "max_new_tokens must be 2 or more, not '8192'"),
        ('{"max_new_tokens": 1}', "max_new_tokens must be 2 or more, not 1"),
        (f'{{"max_new_tokens": {10**30}}}', "max_new_tokens must be at most 2147483647, not 1000"),
        ("[]", "should hold a JSON object"),
    ],
)
def test_invalid_generation_config_raises_checkpoint_error(
    folder: Path, content: str, match: str
) -> None:
    (folder / "generation_config.json").write_text(content)
    with pytest.raises(CheckpointError, match=rf"generation_config\.json.*{match}"):
        load(folder)
