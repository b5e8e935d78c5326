"""Launches the attention of new tokens on Hopper GPUs; see attention_cuda.cu."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_float, c_int, c_int64, c_uint64
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor

from vivace.backends.cuda import driver
from vivace.backends.cuda.nvrtc import compile_source
from vivace.backends.cuda_graph.hopper.loading import ARCHITECTURE, load_on_hopper

NUM_THREADS = 128
WARPS = NUM_THREADS // 32  # of a block; one KV head of a slot each in the predictor
NUM_POSITIONS = 16  # tokens of a frame
HEAD_DIMS = (64, 128)
FRAME_KERNELS = ("attend_one", "attend_two")  # by the number of new tokens


class FrameArguments(ctypes.Structure):
    """`FrameRequest` of attention_cuda.cu."""

    _fields_ = [
        *((name, c_uint64) for name in ("qkv", "keys", "values", "q_weight", "k_weight")),
        *((name, c_uint64) for name in ("cos", "sin", "out")),
        *((name, c_int) for name in ("num_slots", "first")),
        ("eps", c_float),
        ("scale", c_float),
    ]


class SlotArguments(ctypes.Structure):
    """`SlotRequest` of attention_cuda.cu."""

    _fields_ = [
        *((name, c_uint64) for name in ("qkv", "keys", "values", "pages", "q_weight", "k_weight")),
        *((name, c_uint64) for name in ("cos", "sin", "slots", "positions", "num_keys", "out")),
        *((name, c_uint64) for name in ("part_max", "part_sum", "watch", "scores")),
        ("score_stride", c_int64),
        *((name, c_int) for name in ("pages_stride", "num_spans", "layer")),
        ("eps", c_float),
        ("scale", c_float),
    ]


class CudaAttention:
    """The kernels for one size of heads."""

    def __init__(self, head_dim: int, group: int, num_kv_heads: int) -> None:
        self._module = driver.Module(compile_kernels(head_dim, group, num_kv_heads))
        self._frame = [self._module.function(name) for name in FRAME_KERNELS]
        self._slots = self._module.function("attend_slots")
        self._num_kv_heads, self._scale = num_kv_heads, head_dim**-0.5

    def attend_frame(self, tensors: Sequence[Tensor], first: int, num_new: int, eps: float) -> None:
        """`tensors` in the order of `FrameArguments`."""
        num_slots = len(tensors[0]) // num_new
        request = FrameArguments(*_addresses(tensors), num_slots, first, eps, self._scale)
        grid = (-(-num_slots * self._num_kv_heads // WARPS), 1, 1)
        driver.launch(self._frame[num_new - 1], grid, NUM_THREADS, 0, request, is_dependent=True)

    def attend_slots(
        self, tensors: Sequence[Tensor], num_spans: int, layer: int, eps: float
    ) -> None:
        """`tensors` in the order of `SlotArguments`. Keys and values are contiguous."""
        pages, scores = tensors[3], tensors[-1]
        request = SlotArguments(
            *_addresses(tensors), scores.stride(0), pages.stride(0), num_spans, layer, eps,
            self._scale,
        )  # fmt: skip
        grid = (len(tensors[0]), self._num_kv_heads, num_spans)
        driver.launch(self._slots, grid, NUM_THREADS, 0, request, is_dependent=True)


def compile_kernels(head_dim: int, group: int, num_kv_heads: int) -> bytes:
    options = [f"-DHEAD_DIM={head_dim}", f"-DGROUP={group}", f"-DNUM_KV={num_kv_heads}"]
    return compile_source(Path(__file__).with_suffix(".cu").read_text(), ARCHITECTURE, options)


@cache
def load_attention(
    device: torch.device, head_dim: int, group: int, num_kv_heads: int
) -> CudaAttention | None:
    """None on other GPUs and for heads of other sizes."""
    if head_dim not in HEAD_DIMS:
        return None
    make = partial(CudaAttention, head_dim, group, num_kv_heads)
    instead = "the attention of new tokens runs in Triton's kernels"
    return load_on_hopper(device, make, None, instead)


def _addresses(tensors: Sequence[Tensor]) -> list[int]:
    return [each.data_ptr() for each in tensors]
