"""True shapes without the weights: configurations by name or folder, and random modules of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from released import RELEASED_CODEC, RELEASED_MODELS, released_config
from torch import nn

from vivace.model.config import CodecConfig, parse_codec_config
from vivace.model.layers import fuse


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
    for name, tensor in module.state_dict().items():
        if tensor.dim() > 1:
            tensor.normal_(0.0, tensor[0].numel() ** -0.5)
        elif name.endswith(("cluster_usage", "norm.weight", "layernorm.weight")):
            tensor.fill_(1.0)
        else:
            tensor.normal_(0.0, 0.05)
        if name.startswith("decoder.decoder.") and tensor.dim() > 1:
            tensor.mul_(0.5)  # sines amplify: keep the random codec away from chaos
    fuse(module)
    return module.requires_grad_(False).eval()
