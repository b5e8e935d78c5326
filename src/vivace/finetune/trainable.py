"""The trained tensors: pairs of matrices (LoRA), whole weights in float32, and speaker vectors.

The forward pass reads `module.weight` as before. A parametrization computes it from the trained
values: the same sum, with the same rounding, as an adapter that is merged when it is loaded.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from vivace.adapter import lora_weight
from vivace.errors import TrainingDataError
from vivace.finetune.options import TrainOptions
from vivace.model.talker import Qwen3TTS

LAYER = r"model\.layers\.\d+\.(self_attn|mlp)\.\w+_proj"
PATTERNS = {  # modules of each target
    "attention": r"talker\.model\.layers\.\d+\.self_attn\.[qkvo]_proj",
    "mlp": r"talker\.model\.layers\.\d+\.mlp\.\w+_proj",
    "predictor": rf"talker\.code_predictor\.({LAYER}|small_to_mtp_projection)",
    "text": r"talker\.text_projection\.linear_fc[12]",
    "heads": r"talker\.(codec_head|code_predictor\.lm_head\.\d+)",
}
CODE_EMBEDDINGS = r"talker\.(model\.codec_embedding|code_predictor\.model\.codec_embedding\.\d+)"
TEXT_EMBEDDING = r"talker\.model\.text_embedding"


class LoraPair(nn.Module):
    """Adds scale * b @ a to a frozen weight."""

    def __init__(self, name: str, weight: Tensor, rank: int, scale: float, seed: int) -> None:
        super().__init__()
        out_size, in_size = weight.shape
        self.scale = scale
        digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:6], "big"))
        bound = 1 / math.sqrt(in_size)
        a = (2 * torch.rand(rank, in_size, generator=generator) - 1) * bound
        self.a = nn.Parameter(a.to(weight.device))
        self.b = nn.Parameter(torch.zeros(out_size, rank, device=weight.device))

    def forward(self, weight: Tensor) -> Tensor:
        return lora_weight(weight, self.a, self.b, self.scale)


class MasterWeight(nn.Module):
    """A weight that is trained in float32 and computed with in the model's dtype."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.master = nn.Parameter(weight.detach().float().clone())
        self._dtype = weight.dtype

    def forward(self, weight: Tensor) -> Tensor:
        return self.master.to(self._dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Trainables:
    """All trained values of a run, by name."""

    pairs: Mapping[str, LoraPair]  # by parameter
    masters: Mapping[str, MasterWeight]  # by parameter
    vectors: Mapping[str, Tensor]  # by speaker; some are constant
    trained_vectors: frozenset[str] = field(default_factory=frozenset)

    def parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that the optimizer changes, by name."""
        found: dict[str, nn.Parameter] = {}
        for name, pair in self.pairs.items():
            found |= {f"lora.{name}.a": pair.a, f"lora.{name}.b": pair.b}
        found |= {f"weight.{name}": one.master for name, one in self.masters.items()}
        for name in sorted(self.trained_vectors):
            vector = self.vectors[name]
            assert isinstance(vector, nn.Parameter)
            found[f"speaker.{name}"] = vector
        return found

    @property
    def num_values(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters().values())


def make_trainable(
    model: Qwen3TTS, options: TrainOptions, vectors: Mapping[str, Tensor], *, trains_vectors: bool
) -> Trainables:
    """Freeze the model and attach what is trained. `vectors` are the first ones of speakers."""
    model.requires_grad_(False)
    wanted = _embeddings(options)
    pairs: dict[str, LoraPair] = {}
    masters: dict[str, MasterWeight] = {}
    if options.full:
        frozen = rf"{CODE_EMBEDDINGS}|{TEXT_EMBEDDING}|speaker_encoder.*"
        for name in _weights(model):
            module = name.rpartition(".")[0]
            if not re.fullmatch(frozen, module) or _matches(wanted, module):
                masters[name] = _attach_master(model, name)
    else:
        targets = "|".join(PATTERNS[one] for one in options.targets)
        for name in _weights(model):
            module, _, leaf = name.rpartition(".")
            if re.fullmatch(targets, module) and leaf == "weight":
                pairs[name] = _attach_pair(model, name, options)
            elif _matches(wanted, module):
                masters[name] = _attach_master(model, name)
        if not pairs:
            raise TrainingDataError(f"this model has no layers for {', '.join(options.targets)}")
    started = {
        name: nn.Parameter(vector.clone().float()) if trains_vectors else vector.float()
        for name, vector in vectors.items()
    }
    trained = frozenset(started) if trains_vectors else frozenset[str]()
    return Trainables(pairs, masters, started, trained)


def _embeddings(options: TrainOptions) -> str:
    parts = {"none": [], "codes": [CODE_EMBEDDINGS], "all": [CODE_EMBEDDINGS, TEXT_EMBEDDING]}
    return "|".join(parts[options.embeddings])


def _matches(pattern: str, name: str) -> bool:
    return bool(pattern) and re.fullmatch(pattern, name) is not None


def _weights(model: Qwen3TTS) -> list[str]:
    return [name for name, _ in model.named_parameters() if not name.startswith("speaker_encoder")]


def _attach_pair(model: Qwen3TTS, name: str, options: TrainOptions) -> LoraPair:
    weight = model.get_parameter(name)
    scale = options.alpha / options.rank
    pair = LoraPair(name, weight, min(options.rank, *weight.shape), scale, options.seed)
    _register(model, name, pair)
    return pair


def _attach_master(model: Qwen3TTS, name: str) -> MasterWeight:
    master = MasterWeight(model.get_parameter(name))
    _register(model, name, master)
    return master


def _register(model: Qwen3TTS, name: str, part: nn.Module) -> None:
    module, _, leaf = name.rpartition(".")
    parametrize.register_parametrization(model.get_submodule(module), leaf, part, unsafe=True)
