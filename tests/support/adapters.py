"""Adapters with random matrices for a tiny checkpoint, as `vivace finetune` writes them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import torch

from tests.support.tiny import Tiny
from vivace.adapter import Adapter, AdapterInfo, free_speaker_ids
from vivace.adapter_set import AdapterSet
from vivace.finetune.trainable import PATTERNS
from vivace.model.talker import Qwen3TTS

ALL_TARGETS = tuple(PATTERNS)
CPU = torch.device("cpu")


def random_adapter(
    tiny: Tiny,
    seed: int,
    *,
    rank: int = 4,
    targets: Sequence[str] = ALL_TARGETS,
    speakers: Sequence[str] = ("me",),
    size: float = 0.1,
) -> Adapter:
    """An adapter of all layers of these targets, strong enough to change every code."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    config = tiny.checkpoint.config
    pattern = "|".join(rf"{PATTERNS[one]}\.weight" for one in targets)
    pairs = {
        name: (random(rank, weight.shape[1]), size * random(len(weight), rank))
        for name, weight in tiny.model.named_parameters()
        if re.fullmatch(pattern, name)
    }
    info = AdapterInfo(
        name=f"adapter {seed}",
        base=tiny.checkpoint.folder.name,
        base_digest=tiny.checkpoint.digest(),
        rank=rank,
        scale=0.5,
        speakers=free_speaker_ids(config, list(speakers)),
    )
    vectors = {name: random(config.talker_config.hidden_size) for name in speakers}
    return Adapter(info=info, pairs=pairs, vectors=vectors)


def save_adapters(tiny: Tiny, folder: Path, names: Sequence[str]) -> dict[str, Path]:
    """Files of adapters with different ranks and targets; the speaker has the adapter's name."""
    targets = (("attention", "text"), ("mlp", "predictor", "heads"), ALL_TARGETS)
    paths = {}
    for seed, name in enumerate(names):
        parts, rank = targets[seed % len(targets)], (2, 5, 3)[seed % 3]
        adapter = random_adapter(tiny, seed, rank=rank, targets=parts, speakers=[name])
        paths[name] = folder / f"{name}.safetensors"
        adapter.save(paths[name])
    return paths


def mixing_model(tiny: Tiny, adapters: dict[str, Adapter]) -> Qwen3TTS:
    return tiny.checkpoint.load_model(CPU, torch.float32, "full", AdapterSet(adapters).apply)


def merged_model(tiny: Tiny, adapter: Adapter) -> Qwen3TTS:
    return tiny.checkpoint.load_model(CPU, torch.float32, "full", adapter.apply)
