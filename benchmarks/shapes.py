"""Released shapes with random weights: configurations by name or folder, and modules of them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from released import RELEASED_CODEC, RELEASED_MODELS, released_config
from safetensors.torch import save_file
from torch import nn

from vivace.checkpoint import EMBEDDED
from vivace.model.codec import Codec
from vivace.model.config import CodecConfig
from vivace.model.config_file import parse_codec_config, parse_model_config
from vivace.model.layers import fuse
from vivace.model.talker import Qwen3TTS

NUM_TOKENS = 151_643  # of the released vocabulary, without special tokens
NUM_DRAWN = 1_048_573  # numbers of a large tensor that are drawn; they repeat. A prime: rows differ


def load_configs(shape: str) -> tuple[dict[str, Any], CodecConfig]:
    if shape in RELEASED_MODELS:
        return released_config(shape), parse_codec_config(RELEASED_CODEC)
    folder = Path(shape)
    codec = json.loads((folder / "speech_tokenizer" / "config.json").read_text())
    return json.loads((folder / "config.json").read_text()), parse_codec_config(codec)


def random_module(
    kind: Callable[[Any], Any], config: Any, device: torch.device, dtype: torch.dtype
) -> Any:
    """A module of this configuration whose weights keep signals at their size."""
    with torch.device("meta"):
        module: nn.Module = kind(config)
    module = module.to(dtype).to_empty(device=device)
    fill_randomly(module)
    fuse(module)
    return module.requires_grad_(False).eval()


def fill_randomly(module: nn.Module) -> None:
    for name, tensor in module.state_dict().items():
        if tensor.dim() > 1:
            _fill(tensor, tensor[0].numel() ** -0.5)
        elif name.endswith(("cluster_usage", "norm.weight", "layernorm.weight")):
            tensor.fill_(1.0)
        else:
            tensor.normal_(0.0, 0.05)
        if name.startswith("decoder.decoder.") and tensor.dim() > 1:
            tensor.mul_(0.5)  # sines amplify: limits the sensitivity of the random codec


def _fill(tensor: torch.Tensor, deviation: float) -> None:
    """Normally distributed numbers. Drawing all numbers of a large model takes half a minute."""
    flat = tensor.view(-1)
    drawn = flat[:NUM_DRAWN].normal_(0.0, deviation)
    for start in range(NUM_DRAWN, len(flat), NUM_DRAWN):
        part = flat[start : start + NUM_DRAWN]
        part.copy_(drawn[: len(part)])


def write_checkpoint(shape: str, folder: Path, device: torch.device) -> None:
    """Write a checkpoint folder of a released shape with random weights."""
    config, codec_config = released_config(shape), parse_codec_config(RELEASED_CODEC)
    torch.manual_seed(0)
    model = random_module(Qwen3TTS, parse_model_config(config), device, torch.bfloat16)
    _write_part(folder, config, model)
    codec = random_module(Codec, codec_config, device, torch.float32)
    _write_part(folder / "speech_tokenizer", RELEASED_CODEC, codec)
    _write_tokenizer(folder)
    for name in ("generation_config.json", "preprocessor_config.json"):
        (folder / name).write_bytes((EMBEDDED / name).read_bytes())


def _write_part(folder: Path, config: dict[str, Any], module: nn.Module) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {name: tensor.cpu().clone() for name, tensor in module.state_dict().items()}
    save_file(tensors, folder / "model.safetensors")


def _write_tokenizer(folder: Path) -> None:
    """The embedded voice's tokenizer with as many more merges as the released one has."""
    vocab = json.loads((EMBEDDED / "vocab.json").read_text(encoding="utf-8"))
    lines = (EMBEDDED / "merges.txt").read_text(encoding="utf-8").rstrip("\n").split("\n")
    for left, right in itertools.product(tuple(vocab), repeat=2):
        if len(vocab) < NUM_TOKENS and left + right not in vocab:
            vocab[left + right] = len(vocab)
            lines.append(f"{left} {right}")
    added = json.loads((EMBEDDED / "tokenizer_config.json").read_text(encoding="utf-8"))
    tokens = added["added_tokens_decoder"].values()
    added["added_tokens_decoder"] = {str(NUM_TOKENS + n): token for n, token in enumerate(tokens)}
    (folder / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(added), encoding="utf-8")
