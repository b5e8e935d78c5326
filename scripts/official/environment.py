"""Loads the official package once, and writes golden files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("benchmarks", "scripts", "src")]

from official import import_official  # noqa: E402

qwen_tts: Any = import_official()
transformers.utils.logging.set_verbosity_error()

Tensors = dict[str, Tensor]


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """The official model, after checking that each of its tensors came from the files."""
    tts = qwen_tts.Qwen3TTSModel.from_pretrained(str(folder), dtype=dtype)
    for part, model in (("", tts.model), ("speech_tokenizer", tts.model.speech_tokenizer.model)):
        stored = load_file(folder / part / "model.safetensors")
        assert stored.keys() == model.state_dict().keys()
    return tts


def save(path: Path, tensors: Tensors, description: Any = None) -> None:
    """Write tensors, and their description as a JSON file of the same name."""
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(whole, f"{path}.safetensors")
    if description is not None:
        write_json(path, description)
    size = sum(file.stat().st_size for file in path.parent.glob(f"{path.name}.*"))
    print(f"{path.name}: {len(tensors)} tensors, {size / 1e3:.0f} kB")


def write_json(path: Path, value: Any) -> None:
    """Write a JSON object; each entry of its top-level lists has its own line."""
    lines = [f" {json.dumps(key)}: {to_lines(entry)}" for key, entry in value.items()]
    path.with_suffix(".json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def to_lines(entry: Any) -> str:
    if not isinstance(entry, list) or not entry or isinstance(entry[0], int):
        return json.dumps(entry, ensure_ascii=False)
    return "[\n  " + ",\n  ".join(json.dumps(e, ensure_ascii=False) for e in entry) + "\n ]"


def live_ids(tts: Any) -> list[int]:
    """The columns of the talker's logits that can be chosen: the codes, then EOS."""
    config = tts.model.config.talker_config
    return [*range(config.vocab_size - 1024), config.codec_eos_token_id]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
