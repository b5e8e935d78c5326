"""config.json must match the tensors; mismatches are refused before a model is built."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from tests.support import fork_server
from vivace import TTS, Voice
from vivace.checkpoint import Checkpoint
from vivace.errors import CheckpointError
from vivace.model import config

CPU = torch.device("cpu")
MODEL, CODEC = "config.json", "speech_tokenizer/config.json"
# Memory limit for parsers of hostile files; above it, a MemoryError or a kill follows.
CHILD = """
import json, resource, sys, time, torch
from pathlib import Path
from vivace.checkpoint import Checkpoint
from vivace.errors import CheckpointError

def load(folder, file):
    checkpoint = Checkpoint.open(folder)
    if file == "config.json":
        checkpoint.load_model(torch.device("cpu"), torch.float32)
    else:
        checkpoint.load_codec(torch.device("cpu"))

folder = Path(sys.argv[1])
load(folder, "config.json")
size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (256 << 20), resource.RLIM_INFINITY))
resource.setrlimit(resource.RLIMIT_CPU, (600, 600))
for file, keys, value in json.loads(Path(sys.argv[2]).read_text()):
    original = (folder / file).read_text()
    content = section = json.loads(original)
    for key in keys[:-1]:
        section = section[key]
    section[keys[-1]] = value
    (folder / file).write_text(json.dumps(content))
    began = time.process_time()
    try:
        load(folder, file)
        answer = "loaded"
    except CheckpointError as error:
        answer = str(error)
    except Exception as error:
        answer = f"BROKEN {type(error).__name__}: {error}"
    (folder / file).write_text(original)
    print(json.dumps([answer, time.process_time() - began]), flush=True)
"""
VALUES = [0, -1, 10**6, 10**9, 2**63, 1.5, "x", None, []]
CONFIGS = (
    config.ModelConfig,
    config.TalkerConfig,
    config.PredictorConfig,
    config.SpeakerEncoderConfig,
    config.CodecConfig,
    config.CodecDecoderConfig,
    config.CodecEncoderConfig,
)
FIELDS = {field.name for kind in CONFIGS for field in dataclasses.fields(kind)}
TABLES = ("codec_language_id", "spk_id", "spk_is_dialect")
MAX_CPU_S = 20.0  # a load takes about 0.1 s; a million layers took minutes


@pytest.fixture
def folder(few_folder: Callable[[str], Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(few_folder("base"), tmp_path / "base"))


def number_paths(value: Any, *keys: str | int) -> Iterator[tuple[str | int, ...]]:
    """Paths of all numbers in a configuration that loading reads; the first entry of a table."""
    if isinstance(value, dict):
        is_table = bool(keys) and keys[-1] in TABLES
        for key, inner in list(value.items())[: 1 if is_table else None]:
            if is_table or key in FIELDS:
                yield from number_paths(inner, *keys, key)
    elif isinstance(value, list):
        yield keys
        yield from number_paths(value[0], *keys, 0)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield keys


def mutations(folder: Path) -> list[tuple[str, tuple[str | int, ...], Any]]:
    return [
        (file, keys, value)
        for file in (MODEL, CODEC)
        for keys in number_paths(json.loads((folder / file).read_text()))
        for value in VALUES
    ]


@pytest.mark.ci
@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited by RLIMIT_AS")
@pytest.mark.parametrize("stride", [16, pytest.param(1, marks=pytest.mark.slow)])
def test_every_wrong_config_number_is_refused_quickly(
    folder: Path, tmp_path: Path, stride: int
) -> None:
    """A default run tests some wrong values, a full run all."""
    cases = mutations(folder)[::stride]
    assert len(cases) > 600 / stride
    listed = tmp_path / "cases.json"
    listed.write_text(json.dumps(cases))
    child = fork_server.run(CHILD, str(folder), str(listed), timeout_s=3_600.0)
    answers = [json.loads(line) for line in child.stdout.splitlines()]
    last = cases[min(len(answers), len(cases) - 1)]
    assert len(answers) == len(cases), f"the child was terminated by {last}: {child.stderr[-500:]}"
    for case, (answer, cpu_s) in zip(cases, answers, strict=True):
        assert not answer.startswith("BROKEN"), (case, answer)
        assert cpu_s < MAX_CPU_S, (case, answer)
    assert sum(answer == "loaded" for answer, _ in answers) < len(cases) / 2


RATES = ("input_sample_rate", "output_sample_rate")
TALKER, PREDICTOR = ("talker_config",), ("talker_config", "code_predictor_config")
DECODER, ENCODER, SPEAKER = ("decoder_config",), ("encoder_config",), ("speaker_encoder_config",)


@pytest.mark.parametrize("value", [10**9, 2**63, -4])
@pytest.mark.parametrize(
    ("file", "keys", "shown"),
    [
        (MODEL, (*TALKER, "num_hidden_layers"), 3),
        (MODEL, (*TALKER, "hidden_size"), 32),
        (MODEL, (*TALKER, "intermediate_size"), 96),
        (MODEL, (*TALKER, "head_dim"), 16),
        (MODEL, (*TALKER, "text_hidden_size"), 64),
        (MODEL, (*PREDICTOR, "num_hidden_layers"), 2),
        (MODEL, (*SPEAKER, "enc_res2net_scale"), 8),
        (MODEL, (*SPEAKER, "enc_dim"), 32),
        (CODEC, (*DECODER, "num_hidden_layers"), 2),
        (CODEC, (*DECODER, "num_semantic_quantizers"), 1),
        (CODEC, (*DECODER, "decoder_dim"), 32),
        (CODEC, (*ENCODER, "num_quantizers"), 32),
        (CODEC, (*ENCODER, "num_residual_layers"), 1),
        (CODEC, (*ENCODER, "compress"), 2),
        (CODEC, (*ENCODER, "kernel_size"), 7),
    ],
)
def test_dimension_error_names_field_value_and_tensor_size(
    folder: Path, file: str, keys: tuple[str, ...], shown: int, value: int
) -> None:
    change(folder / file, keys, value)
    expected = (
        rf"{folder / file}: {'.'.join(keys)} is {value}; the tensors show {shown} \([\w.*]+\)$"
    )
    with pytest.raises(CheckpointError, match=expected):
        load(folder)


def test_tensor_with_a_wrong_size_is_named(folder: Path) -> None:
    name = "talker.code_predictor.lm_head.0.weight"
    tensors = load_file(folder / "model.safetensors")
    tensors[name] = tensors[name][:-1].clone()
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"vocab_size is 64; .* 63 \({name}\)$"):
        load(folder)


def load(folder: Path) -> None:
    checkpoint = Checkpoint.open(folder)
    checkpoint.load_tokenizer()
    checkpoint.load_model(CPU, torch.float32)
    checkpoint.load_codec(CPU)


@pytest.mark.parametrize("value", [0, 10**7, 10**30])
@pytest.mark.parametrize(
    ("file", "keys"),
    [
        (CODEC, ("output_sample_rate",)),
        (CODEC, ("input_sample_rate",)),
        (CODEC, (*DECODER, "sliding_window")),
        (MODEL, (*TALKER, "max_position_embeddings")),
        (MODEL, (*SPEAKER, "sample_rate")),
    ],
)
def test_config_numbers_without_tensors_have_limits(
    folder: Path, file: str, keys: tuple[str, ...], value: int
) -> None:
    change(folder / file, keys, value)
    with pytest.raises(
        CheckpointError, match=rf"{file}: {keys[-1]} is {value}; it must be from \d"
    ):
        load(folder)


@pytest.mark.parametrize(
    ("file", "keys", "value"),
    [
        *((CODEC, (name,), value) for name in RATES for value in (1, 2, 49, 3_999, 192_001)),
        *((MODEL, (*SPEAKER, "sample_rate"), value) for value in (1, 3_999, 192_001)),
        *((MODEL, (*TALKER, "rope_theta"), value) for value in (1e-300, 0.5, 1e300)),
        *((MODEL, (*PREDICTOR, "rms_norm_eps"), value) for value in (1e-300, 2.0, 1e300)),
        *((CODEC, (*ENCODER, "norm_eps"), value) for value in (1e-300, 2.0)),
        *((CODEC, (*DECODER, "rope_theta"), value) for value in (1e-30, 1e30)),
    ],
)
def test_number_out_of_bounds_is_a_checkpoint_error(
    folder: Path, file: str, keys: tuple[str, ...], value: float
) -> None:
    change(folder / file, keys, value)
    with pytest.raises(CheckpointError, match=rf"{file}: {keys[-1]} is .*; it must be from"):
        load(folder)


@pytest.mark.parametrize("value", [4_000, 192_000])
def test_sample_rate_at_limit_works(folder: Path, value: int) -> None:
    change(folder / CODEC, ("output_sample_rate",), value)
    with TTS.load(folder, device="cpu") as tts:
        voice = Voice(name="me", speaker=np.zeros(32, np.float32))
        audio = tts.speak("Hello.", voice=voice, seed=1, max_frames=3, speed=1.5)
        assert audio.sample_rate == value
        assert audio.to_bytes("wav")
        chunks = list(tts.stream("Hello.", voice=voice, seed=1, max_frames=3, trim=True))
    assert sum(len(chunk.samples) for chunk in chunks)


def change(path: Path, keys: tuple[str, ...], value: float) -> None:
    content = section = json.loads(path.read_text())
    for key in keys[:-1]:
        section = section[key]
    section[keys[-1]] = value
    path.write_text(json.dumps(content))


def test_list_of_100000_rates_has_short_error(folder: Path) -> None:
    content = json.loads((folder / CODEC).read_text())
    content["decoder_config"]["upsample_rates"] = [2] * 100_000
    (folder / CODEC).write_text(json.dumps(content))
    with pytest.raises(
        CheckpointError, match=r"upsample_rates is .*show \(8, 5, 4, 3\) \("
    ) as error:
        load(folder)
    assert len(str(error.value)) < 500


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_random_config_values_load_or_raise_checkpoint_error(
    folder: Path, data: st.DataObject
) -> None:
    file = data.draw(st.sampled_from([MODEL, CODEC]))
    original = (folder / file).read_text()
    try:
        content = json.loads(original)
        for _ in range(data.draw(st.integers(1, 3))):
            section, key = content, data.draw(st.sampled_from(sorted(content)))
            while isinstance(section[key], dict) and section[key] and data.draw(st.booleans()):
                section = section[key]
                key = data.draw(st.sampled_from(sorted(section)))
            section[key] = data.draw(JSON_VALUES)
        (folder / file).write_text(json.dumps(content))
        with suppress(CheckpointError):
            load(folder)
    finally:
        (folder / file).write_text(original)


# --- Files that are no files --------------------------------------------------------------------

TEXT_FILES = [
    MODEL,
    CODEC,
    "generation_config.json",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
@pytest.mark.parametrize("name", [*TEXT_FILES, "model.safetensors"])
def test_named_pipe_is_refused_without_blocking(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(CheckpointError, match=name):
        load(folder)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="there is no endless device")
@pytest.mark.parametrize("name", [*TEXT_FILES, "model.safetensors"])
def test_link_to_device_file_is_refused(folder: Path, name: str) -> None:
    (folder / name).unlink()
    (folder / name).symlink_to("/dev/zero")
    with pytest.raises(CheckpointError, match=name):
        load(folder)


@pytest.mark.parametrize("name", TEXT_FILES)
def test_huge_config_file_is_not_read_whole(folder: Path, name: str) -> None:
    with (folder / name).open("wb") as file:
        file.truncate(3 << 30)  # without a block on disk
    with pytest.raises(CheckpointError, match=f"{name} cannot be read: .*more than 16,777,216"):
        load(folder)


def test_number_with_thousands_of_digits_is_refused(folder: Path) -> None:
    digits = "9" * 5000
    config = folder / "tokenizer_config.json"
    content = json.loads(config.read_text())
    content["added_tokens_decoder"][digits] = {"content": "<far>"}
    config.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json: added_tokens_decoder"):
        load(folder)
    vocab = folder / "vocab.json"
    vocab.write_text(vocab.read_text().replace("{", '{"far": ' + digits + ", ", 1))
    with pytest.raises(CheckpointError, match=r"vocab\.json is not JSON: .*5000 digits"):
        load(folder)


def test_config_with_windows_line_ends_is_accepted(folder: Path) -> None:
    merges = folder / "merges.txt"
    merges.write_bytes(merges.read_bytes().replace(b"\n", b"\r\n"))
    load(folder)
