"""Loads models with integer matrices: from a quantized folder, or by quantizing a plain one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from vivace.checkpoint.tensors import (
    PageLimit,
    build_on_meta,
    compare_names,
    load_module,
    needed_names,
    open_shards,
    read_tensor,
    tensor_shapes,
)
from vivace.checkpoint_files import release_pages
from vivace.errors import CheckpointError, RequestError
from vivace.hub import shard_paths
from vivace.model.config import IntWeights, ModelConfig, Weights
from vivace.model.dimensions import check_model
from vivace.model.quantized_layers import (
    build_quantized,
    check_values,
    dequantize_tensors,
    quantize_tensors,
)
from vivace.model.talker import Qwen3TTS

log = logging.getLogger(__name__)

CPU = torch.device("cpu")
Tensors = Iterator[tuple[str, Tensor]]


def load_quantized(
    config: ModelConfig,
    folder: Path,
    device: torch.device,
    dtype: torch.dtype,
    weights: Weights,
    change: Callable[[Qwen3TTS], None] | None,  # of the plain weights
) -> Qwen3TTS:
    """Load a quantized folder, or quantize a plain one while it is read.

    Integer matrices need a CPU and float32. Elsewhere `full` converts a quantized folder.
    """
    stored = config.quantization_config
    if stored is not None and weights not in ("full", stored.weights):
        raise RequestError(
            f"weights must be full or {stored.weights}, not {weights}: {folder} is already "
            f"quantized to {stored.weights}"
        )
    is_on_cpu = device.type == "cpu" and dtype == torch.float32
    if weights != "full" and not is_on_cpu:
        raise RequestError(
            f"weights {weights} needs device cpu and dtype float32, not {device} and {_name(dtype)}"
            "; use full or fp8 there"
        )
    if stored is None:
        assert weights == "int8" or weights == "int4"
        return _quantize(config, folder, weights, change)
    assert change is None
    model = _load_stored(config, folder, stored.weights)
    if is_on_cpu:
        return model
    log.warning("%s is converted to %s, which needs more memory", folder, _name(dtype))
    return _dequantize(model, str(folder / "config.json"), device, dtype)


@contextmanager
def open_quantized(
    config: ModelConfig, folder: Path, weights: IntWeights
) -> Iterator[tuple[Qwen3TTS, Tensors]]:
    """A quantized model on the meta device, and its tensors, computed from a plain folder."""
    path = str(folder / "config.json")
    with ExitStack() as stack:
        sources = open_shards(folder, CPU, stack)
        check_model(config, tensor_shapes(sources, folder), path)
        wanted = build_on_meta(Qwen3TTS, config, path).state_dict()
        model = build_on_meta(partial(build_quantized, weights=weights), config, path)
        compare_names(set(wanted), needed_names(model, sources), folder)
        limit = PageLimit(folder)

        def read(name: str) -> Tensor:
            return read_tensor(sources[name], name, wanted[name], None, folder, on_read=limit)

        try:
            yield model, quantize_tensors(model, read)
        except ValueError as error:
            raise CheckpointError(f"{folder}: {error}") from error


def _quantize(
    config: ModelConfig,
    folder: Path,
    weights: IntWeights,
    change: Callable[[Qwen3TTS], None] | None,
) -> Qwen3TTS:
    with open_quantized(config, folder, weights) as (model, tensors):
        if change is not None:
            plain = load_module(Qwen3TTS, check_model, config, folder, CPU, torch.float32)
            change(plain)
            tensors = quantize_tensors(model, plain.state_dict().__getitem__)
        model.load_state_dict(dict(tensors), assign=True)
    model.requires_grad_(False).eval()
    return model


def _load_stored(config: ModelConfig, folder: Path, weights: IntWeights) -> Qwen3TTS:
    build = partial(build_quantized, weights=weights)
    model = load_module(build, check_model, config, folder, CPU, None)
    try:
        check_values(model)
    except ValueError as error:
        raise CheckpointError(f"{folder}: {error}") from error
    release_pages(shard_paths(folder))
    return model


def _dequantize(model: Qwen3TTS, where: str, device: torch.device, dtype: torch.dtype) -> Qwen3TTS:
    """The plain model with the values of a quantized one."""
    plain = build_on_meta(Qwen3TTS, model.config, where)
    tensors = dequantize_tensors(model)
    plain.load_state_dict({name: each.to(device, dtype) for name, each in tensors}, assign=True)
    plain.requires_grad_(False).eval()
    return plain


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
