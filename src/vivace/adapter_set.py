"""Several adapters beside one model: each row of a batch chooses one (`model/lora.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from vivace.adapter import Adapter, check_speaker, find_parameter
from vivace.errors import AdapterError
from vivace.model.config import ModelConfig
from vivace.model.layers import Linear
from vivace.model.lora import Pair, StackedLora
from vivace.model.talker import Qwen3TTS
from vivace.speaker_notes import SpeakerNotes

# Products that join layers: the attribute of the changes, and the layers in their order.
JOINED = {
    "qkv_lora": ("q_proj", "k_proj", "v_proj"),
    "gate_up_lora": ("gate_proj", "up_proj"),
}
SEPARATOR = "/"  # between the names of an adapter and of one of its speakers
TALKER = "talker."  # prefix of the parameters that speech uses


@dataclass(frozen=True, slots=True, eq=False)
class AdapterSet:
    """Adapters of one base by name, in the order of their numbers from 1 on."""

    adapters: Mapping[str, Adapter]

    @classmethod
    def load(cls, paths: Mapping[str, str | Path]) -> AdapterSet:
        """Raises AdapterError for invalid or duplicate names and for adapters that cannot mix."""
        check_names(list(paths))
        found = {name: Adapter.load(path) for name, path in paths.items()}
        for name, adapter in found.items():
            if adapter.weights:
                raise AdapterError(
                    f"adapter {name!r} replaces {len(adapter.weights)} whole tensors, such as "
                    f"{min(adapter.weights)}, and cannot be mixed with others; load it alone with "
                    "adapter="
                )
        return cls(found)

    def check_base(self, digest: str, name: str) -> None:
        """Raise AdapterError unless all adapters were trained for this checkpoint."""
        for adapter in self.adapters.values():
            adapter.check_base(digest, name)

    def extend(self, config: ModelConfig) -> ModelConfig:
        """The configuration, which stays as it is. Raises AdapterError for names and speakers."""
        presets = {preset.lower() for preset in config.talker_config.spk_id}
        for name, adapter in self.adapters.items():
            if name.lower() in presets:
                raise AdapterError(
                    f"adapter {name!r} has the name of a preset voice; choose another name"
                )
            adapter.extend(config)  # raises for ids that are not free
            for vector in adapter.vectors.values():
                check_speaker(vector, config.talker_config.hidden_size)
        return config

    @property
    def notes(self) -> SpeakerNotes:
        """Empty: `extend` adds no speakers to the configuration."""
        return {}

    def apply(self, model: Qwen3TTS) -> None:
        """Attach the matrices of all adapters to a model. Speakers stay in the prompts."""
        for (parent, attribute), names in _sites(self.adapters.values()).items():
            stack = self._stack(model, names)
            setattr(model.get_submodule(parent), attribute, stack)
        model.num_adapters = len(self.adapters)

    def _stack(self, model: Qwen3TTS, names: Sequence[str]) -> StackedLora:
        layers = [_find_layer(model, name) for name in names]
        pairs = [
            [_scaled_pair(model, adapter, name) for name in names]
            for adapter in self.adapters.values()
        ]
        sizes = [layer.out_features for layer in layers]
        return StackedLora.stack(pairs, sizes, layers[0].weight.detach())


def check_names(names: Sequence[str]) -> None:
    """Raise AdapterError for names that cannot be voices, and for names that are equal."""
    seen: set[str] = set()
    for name in names:
        if not isinstance(name, str) or not name.strip() or SEPARATOR in name:
            raise AdapterError(
                f"adapter name {name!r:.80} is not valid: it must be a text without {SEPARATOR!r}"
            )
        if name.lower() in seen:
            raise AdapterError(f"two adapters are named {name!r}; choose another name for one")
        seen.add(name.lower())


def _sites(adapters: Iterable[Adapter]) -> dict[tuple[str, str], list[str]]:
    """Products that adapters change: module and attribute of the changes, and the parameters."""
    sites: dict[tuple[str, str], list[str]] = {}
    for name in sorted({name for adapter in adapters for name in adapter.pairs}):
        module = name.removesuffix(".weight")
        parent, _, layer = module.rpartition(".")
        for attribute, layers in JOINED.items():
            if layer in layers:
                sites[parent, attribute] = [f"{parent}.{one}.weight" for one in layers]
                break
        else:
            sites[module, "lora"] = [name]
    return sites


def _find_layer(model: Qwen3TTS, name: str) -> Linear:
    weight = find_parameter(model, name)
    layer = model.get_submodule(name.rpartition(".")[0])
    is_weight = isinstance(layer, Linear) and layer.weight is weight
    if not is_weight or not name.startswith(TALKER):
        raise AdapterError(
            f"an adapter changes {name}, which is no linear layer of the talker; such an adapter "
            "cannot be mixed with others; load it alone with adapter="
        )
    assert isinstance(layer, Linear)
    return layer


def _scaled_pair(model: Qwen3TTS, adapter: Adapter, name: str) -> Pair | None:
    if name not in adapter.pairs:
        return None
    a, b = adapter.pairs[name]
    weight = find_parameter(model, name, torch.Size((len(b), a.shape[1])))
    return a.to(weight.device), (adapter.info.scale * b).to(weight.device)
