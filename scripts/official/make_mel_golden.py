"""Write tests/golden/mel.json: results of librosa and of the official mel_spectrogram.

Run where qwen-tts 0.1.1, librosa and torch are installed:

    python scripts/official/make_mel_golden.py tests/golden/mel.json
"""

from __future__ import annotations

import ast
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import librosa
import numpy as np
import torch

ROWS = (0, 40, 127)
FRAMES = (0, 9, 15)


def official_mel_spectrogram() -> Any:
    """The official function by its source: importing its package needs sox and onnxruntime."""
    spec = find_spec("qwen_tts")
    if spec is None or spec.origin is None:
        raise SystemExit("qwen_tts is not installed: pip install qwen-tts==0.1.1 --no-deps")
    source = Path(spec.origin).parent / "core/models/modeling_qwen3_tts.py"
    wanted = ("dynamic_range_compression_torch", "mel_spectrogram")
    body: list[ast.stmt] = [
        node
        for node in ast.parse(source.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name in wanted
    ]
    names: dict[str, Any] = {"torch": torch, "librosa_mel_fn": librosa.filters.mel}
    exec(compile(ast.Module(body, []), str(source), "exec"), names)
    return names["mel_spectrogram"]


def make_signal() -> torch.Tensor:
    """Noise from whole numbers, so that every machine makes the same, with a silent stretch."""
    index = torch.arange(4096)
    signal = (index * index * 7 % 20011) / 20011 - 0.5
    signal[2048:3072] = 0
    return signal[None]


def main() -> None:
    bank = librosa.filters.mel(sr=24_000, n_fft=1024, n_mels=128, fmin=0, fmax=12_000)
    mel = official_mel_spectrogram()(
        make_signal(),
        n_fft=1024,
        num_mels=128,
        sampling_rate=24_000,
        hop_size=256,
        win_size=1024,
        fmin=0,
        fmax=12_000,
    )[0].T  # [frames, 128]
    golden = {
        "made_with": {
            "librosa": librosa.__version__,
            "torch": torch.__version__,
            "qwen-tts": "0.1.1",
        },
        "filter_bank": {
            "shape": list(bank.shape),
            "row_sums": [float(np.float32(total)) for total in bank.sum(1, dtype=np.float64)],
            "rows": {str(row): _nonzero(bank[row]) for row in ROWS},
        },
        "log_mel": {
            "num_frames": len(mel),
            "frames": {str(frame): [round(float(v), 6) for v in mel[frame]] for frame in FRAMES},
        },
    }
    Path(sys.argv[1]).write_text(json.dumps(golden) + "\n")


def _nonzero(row: np.ndarray) -> dict[str, Any]:
    (where,) = np.nonzero(row)
    return {"start": int(where[0]), "values": [float(v) for v in row[where[0] : where[-1] + 1]]}


if __name__ == "__main__":
    main()
