"""The C structures and functions of the library (native/model_api.cpp), for ctypes."""

from __future__ import annotations

import ctypes
from ctypes import (
    POINTER,
    Structure,
    byref,
    c_char_p,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_uint64,
    c_void_p,
)
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vivace.backends.base import SlotStatus
from vivace.backends.cpu.build import load_library
from vivace.errors import BackendError

F32, BF16, F16, INT8, INT4 = range(5)  # `Kind` in kernels.h
STATUS: tuple[SlotStatus, ...] = (
    "running",
    "waiting",
    "stop",
    "length",
    "failed",
)  # `Status` in model.h
ERRORS = {
    -1: "the C++ kernels ran out of memory",
    -2: "the C++ kernels rejected an argument",
    -3: "the system has no more threads",
}


class Matrix(Structure):
    """A weight matrix or a table. `kept` holds the arrays or tensors that it points to."""

    _fields_ = [
        ("kind", c_int),
        ("out", c_int),
        ("in_", c_int),
        ("weight", c_void_p),
        ("scale", c_void_p),
        ("bias", c_void_p),
    ]
    kept: tuple[Any, ...] = ()

    @classmethod
    def of(
        cls, weight: NDArray[Any], bias: NDArray[np.float32] | None = None, kind: int = F32
    ) -> Matrix:
        made = cls(kind, *weight.shape, address(weight))
        if bias is not None:
            made.bias = address(bias)
        made.kept = (weight, bias)
        return made


class LayerSpec(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("first_norm", "second_norm", "query_norm", "key_norm")),
        *((name, Matrix) for name in ("qkv", "o", "gate", "up", "down")),
    ]


class StackSpec(Structure):
    _fields_ = [
        *((name, c_int) for name in ("hidden", "inter", "num_layers")),
        *((name, c_int) for name in ("heads", "kv_heads", "head_dim")),
        ("eps", c_float),
        ("norm", c_void_p),
        ("frequencies", c_void_p),
        ("layers", POINTER(LayerSpec)),
    ]


class ModelSpec(Structure):
    _fields_ = [
        ("talker", StackSpec),
        ("predictor", StackSpec),
        ("codec_head", Matrix),
        ("projection", Matrix),
        ("heads", POINTER(Matrix)),
        ("tables", POINTER(Matrix)),
        *((name, c_int) for name in ("num_groups", "vocab", "predictor_vocab", "eos")),
        *((name, c_void_p) for name in ("banned", "early_banned", "pad_vector")),
        ("has_half_cache", c_int),
    ]


class Shape(Structure):
    _fields_ = [("temperature", c_float), ("top_k", c_int32), ("top_p", c_float)]


class SlotSpec(Structure):
    _fields_ = [
        ("talker", Shape),
        ("predictor", Shape),
        ("penalty", c_float),
        *((name, c_int) for name in ("min_frames", "max_frames", "own_row", "num_own")),
        *((name, c_int) for name in ("watched_layer", "watched_head")),
        ("seed", c_uint64),
    ]


def address(array: NDArray[Any]) -> int:
    assert array.flags.c_contiguous
    return array.ctypes.data


@cache
def library() -> Any:
    """The library with the types of its functions."""
    loaded = load_library()
    numbers = (c_int,) * 2
    signatures: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "vivace_instructions": (c_char_p, (c_char_p,)),
        "vivace_model_new": (c_int, (POINTER(ModelSpec), c_char_p, c_int, POINTER(c_void_p))),
        "vivace_model_free": (None, (c_void_p,)),
        "vivace_slot_new": (
            c_int,
            (c_void_p, POINTER(SlotSpec), c_void_p, *numbers, POINTER(c_void_p)),
        ),
        "vivace_slot_free": (None, (c_void_p,)),
        "vivace_slot_bytes": (c_int64, (c_void_p, c_void_p)),
        "vivace_prefix_bytes": (c_int64, (c_void_p,)),
        "vivace_slot_extend": (c_int, (c_void_p, c_void_p, c_void_p, c_int, *numbers)),
        "vivace_attention": (c_int, (c_void_p, c_void_p, *numbers, *numbers, c_void_p)),
        "vivace_step": (c_int, (c_void_p, c_void_p, *numbers, *(c_void_p,) * 4)),
        "vivace_multiply": (c_int, (c_char_p, POINTER(Matrix), c_void_p, c_int, c_void_p)),
        "vivace_draw": (
            c_int,
            (c_void_p, c_int, POINTER(Shape), c_uint64, *numbers, c_void_p, c_float, c_void_p),
        ),
        "vivace_noise": (c_float, (c_uint64, *numbers, c_int)),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


def check(result: int) -> None:
    if result:
        raise BackendError(ERRORS.get(result, f"the C++ kernels failed with {result}"))


def instructions(name: str = "") -> str | None:
    """The instruction set that runs for this name (default: the fastest), or None."""
    found: bytes | None = library().vivace_instructions(name.encode())
    return None if found is None else found.decode()


def multiply(x: NDArray[np.float32], matrix: Matrix, name: str = "") -> NDArray[np.float32]:
    """Rows [rows, in] times a matrix: [rows, out], on one thread. A row's product does not depend
    on the other rows."""
    x = np.ascontiguousarray(x, np.float32)
    out = np.empty((len(x), matrix.out), np.float32)
    args = (name.encode(), byref(matrix), address(x), len(x), address(out))
    if len(x):
        check(library().vivace_multiply(*args))
    return out


def array_of(items: list[Any]) -> ctypes.Array[Any]:
    """A C array of structures. Their arrays stay alive with it."""
    made = (type(items[0]) * len(items))(*items)
    made.kept = items
    return made
