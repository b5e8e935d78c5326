"""Memory of a quantized 0.6B model without its codec, in a process of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from tests.support.cli_harness import run_python
from tests.support.project import ROOT, load_script
from vivace.hub import CODEC
from vivace.model.codec import Codec
from vivace.model.config import IntWeights, parse_codec_config, parse_model_config
from vivace.model.quantized_layers import build_quantized
from vivace.quantize import write_tensors

MODEL = "model.safetensors"
released = load_script(ROOT / "benchmarks" / "released.py")
LOAD = """
import json, sys
from pathlib import Path
import torch
from vivace.checkpoint import Checkpoint

def resident():
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024

empty = resident()
checkpoint = Checkpoint.open(Path(sys.argv[1]))
cpu = torch.device("cpu")
model = checkpoint.load_model(cpu, torch.float32)
for layer in model.modules():  # all weights that a frame reads
    if hasattr(layer, "linear"):
        layer.weight.sum()
loaded = resident()
print(json.dumps({"empty": empty, "loaded": loaded}))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("weights", "limit_gb"), [("int8", 1.5), ("int4", 1.0)])
def test_quantized_model_needs_little_memory(
    tmp_path: Path, weights: IntWeights, limit_gb: float
) -> None:
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
        made = ((name, torch.ones_like(like, device="cpu")) for name, like in likes.items())
        with path.open("wb") as file:
            write_tensors(file, likes, made, lambda done, total: None)
    found = json.loads(run_python(LOAD, str(tmp_path)).stdout)
    assert found["empty"] < found["loaded"] < limit_gb * 1e9, found
