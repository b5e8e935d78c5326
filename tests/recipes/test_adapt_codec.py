"""`adapt_codec` writes a checkpoint that loads and codes that `vivace finetune` reads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.finetune.recordings import write_ljspeech
from tests.support import warm
from tests.support.project import ROOT
from vivace.checkpoint import EMBEDDED
from vivace.finetune.sources import Defaults, Entry, read_rows

RUN = """
import runpy, sys
sys.path.insert(0, sys.argv.pop(1))
runpy.run_module("recipes.mini_voice.adapt_codec", run_name="__main__")
"""


def test_stage_without_training_writes_codes_of_every_recording(tmp_path: Path) -> None:
    data = write_ljspeech(tmp_path / "data", 2, seconds=1.0)
    out = tmp_path / "base"
    done = warm.run(
        RUN, str(ROOT), "--data", str(data), "--out", str(out), "--shared", str(tmp_path),
        "--seconds", "0", "--no-graph",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = read_rows(out / "data.jsonl", Defaults("me", "english"))
    codes = [row.codes for row in rows if isinstance(row, Entry) and row.codes is not None]
    assert [one.shape for one in codes] == [(13, 6), (14, 6)]
    assert all(one.min() >= 0 and one.max() < 512 for one in codes)
    import torch

    from vivace.checkpoint import load_codec

    codec, shipped = (load_codec(folder, torch.device("cpu")) for folder in (out, EMBEDDED))
    with torch.inference_mode():
        made, expected = (one.decode(torch.from_numpy(codes[0])) for one in (codec, shipped))
    np.testing.assert_allclose(made.numpy(), expected.numpy(), atol=1e-3)
    assert json.loads((out / "config.json").read_text())["tts_model_type"] == "custom_voice"
