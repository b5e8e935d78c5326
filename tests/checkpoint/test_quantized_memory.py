"""Memory of quantized models: no tensor is copied, and 0.6B with its codec stays in its limits."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.support.cli_harness import run_python
from tests.support.project import ROOT
from vivace import TTS
from vivace.backends.cpu.build import find_refusal
from vivace.checkpoint import Checkpoint, tensors
from vivace.checkpoint_files import _clean_mappings, release_pages
from vivace.hub import CODEC
from vivace.model.codec import Codec
from vivace.model.config import IntWeights
from vivace.model.config_file import parse_codec_config, parse_model_config
from vivace.model.quantized_layers import build_quantized
from vivace.quantize import quantize_checkpoint, write_tensors

sys.path.insert(0, str(ROOT / "benchmarks"))

import released
import shapes

MODEL = "model.safetensors"
SPEAK = """
import json, sys
from pathlib import Path
from vivace import TTS

def memory(field):
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields[field].split()[0]) * 1024

empty = memory("VmRSS")
with TTS.load(sys.argv[1], device="cpu", threads=2) as tts:
    tts.speak("Hello.", voice=tts.speakers[0], seed=1, min_frames=4, max_frames=4)
    found = {"empty": empty, "spoken": memory("VmRSS"), "peak": memory("VmHWM")}
    found["backend"] = tts.engine.backend.name
print(json.dumps(found))
"""
LIMITS_GB = {"int8": 1.5, "int4": 1.0}  # decimal, also while loading
SMALL = 4096  # bytes; scalars and rotary tables that a module computes may be smaller

reads_proc = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture
def folder(tiny_folder: Path, tmp_path: Path) -> Path:
    target = tmp_path / "int4"
    quantize_checkpoint(Checkpoint.open(tiny_folder / "custom_voice"), target, "int4")
    return target


def ranges_of(path: Path) -> list[tuple[int, int]]:
    return list(_clean_mappings({str(path.resolve())}))


def unmapped(module: nn.Module, path: Path) -> list[str]:
    """Names of the tensors that were copied: their memory is not a mapping of the file."""
    ranges = ranges_of(path)
    tensors = (*module.named_parameters(), *module.named_buffers())
    return [
        name
        for name, tensor in tensors
        if tensor.nbytes > SMALL
        and not any(start <= tensor.data_ptr() < end for start, end in ranges)
    ]


def resident_bytes(path: Path) -> int:
    """Of all mappings of a file in this process."""
    total, is_wanted = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line[0].islower() or line[0].isdigit():
            is_wanted = line.endswith(str(path.resolve()))
        elif is_wanted and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


@reads_proc
def test_speech_copies_no_tensor_of_model_or_codec(folder: Path) -> None:
    if (refusal := find_refusal()) is not None:
        pytest.skip(refusal)
    with TTS.load(folder, device="cpu") as tts:
        assert tts.engine.backend.name == "cpu"
        tts.speak("Hello.", voice=tts.speakers[0], seed=1, max_frames=3)
        model, codec = tts.loaded.runtime.load()
        assert unmapped(model, folder / MODEL) == []
        assert unmapped(codec, folder / CODEC / MODEL) == []
        assert resident_bytes(folder / CODEC / MODEL) == 0  # packed: no longer needed
        assert resident_bytes(folder / MODEL) > 0
        codec.fold()  # a control: fused weights are copies
        assert unmapped(codec, folder / CODEC / MODEL) != []


@reads_proc
def test_released_pages_are_read_again(tmp_path: Path) -> None:
    path, stored = tmp_path / "some.safetensors", torch.randn(300, 300)
    save_file({"weight": stored}, path)
    with safe_open(path, framework="pt") as file:
        mapped = file.get_tensor("weight")
    assert torch.equal(mapped, stored)
    assert resident_bytes(path) > stored.nbytes // 2
    release_pages([path])
    assert resident_bytes(path) == 0
    assert torch.equal(mapped, stored)


@reads_proc
def test_written_pages_are_not_released(tmp_path: Path) -> None:
    path = tmp_path / "some.safetensors"
    save_file({"weight": torch.randn(300, 300)}, path)
    with safe_open(path, framework="pt") as file:
        mapped = file.get_tensor("weight")
    mapped[7] = 5.0  # as training does
    release_pages([path])
    assert torch.equal(mapped[7], torch.full((300,), 5.0))


def test_values_are_checked_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "CHECKED_AT_ONCE", 100)
    sizes: list[int] = []
    table = torch.ones(25, 10, dtype=torch.bfloat16)
    assert tensors._is_finite(table, sizes.append)
    assert sizes == [200, 200, 100]
    table[-1, -1] = torch.inf
    assert not tensors._is_finite(table, sizes.append)


def test_pages_are_freed_while_a_file_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed: list[Path] = []
    monkeypatch.setattr(tensors, "MAX_MAPPED_BYTES", 1000)
    monkeypatch.setattr(tensors, "release_pages", freed.extend)
    limit = tensors.PageLimit(folder)
    for num_bytes in (999, 1, 400, 400, 400):
        limit(num_bytes)
    assert freed == [folder / MODEL] * 2


@pytest.mark.slow
@reads_proc
@pytest.mark.parametrize("weights", LIMITS_GB)
def test_whole_process_of_0_6b_stays_in_its_limits(tmp_path: Path, weights: IntWeights) -> None:
    config = released.released_config("0.6B-CustomVoice")
    config["quantization_config"] = {"quant_method": "vivace", "weights": weights}
    (tmp_path / CODEC).mkdir()
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / CODEC / "config.json").write_text(json.dumps(released.RELEASED_CODEC))
    with torch.device("meta"):
        model = build_quantized(parse_model_config(config), weights)
        codec = Codec(parse_codec_config(released.RELEASED_CODEC))
    for path, module in ((tmp_path / MODEL, model), (tmp_path / CODEC / MODEL, codec)):
        likes = module.state_dict()
        made = ((name, _fill(like)) for name, like in likes.items())
        with path.open("wb") as file:
            write_tensors(file, likes, made, lambda done, total: None)
    shapes._write_tokenizer(tmp_path)
    found = json.loads(run_python(SPEAK, str(tmp_path)).stdout)
    assert found["backend"] == "cpu"
    assert found["empty"] < found["spoken"] <= found["peak"] < LIMITS_GB[weights] * 1e9, found


def _fill(like: Tensor) -> Tensor:
    return torch.full_like(like, 0.01 if like.is_floating_point() else 1, device="cpu")
