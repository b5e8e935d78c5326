"""Reads tensors of a GGUF file: the formats F32, Q4_K, Q5_0, Q6_K and Q8_0, as float32."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
STRING, ARRAY = 8, 9
Blocks = NDArray[np.uint8]  # [blocks, bytes of a block]


@dataclass(frozen=True, slots=True)
class TensorPlace:
    shape: tuple[int, ...]  # as PyTorch counts dimensions: [out, in]
    kind: int
    offset: int  # bytes from the start of the file


class GgufFile:
    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._at = 4
        if self._bytes[:4] != b"GGUF" or self._scalar("I") != 3:
            raise ValueError(f"{path} is not a GGUF file of version 3")
        num_tensors, num_values = self._scalar("Q"), self._scalar("Q")
        self.values = {self._string(): self._value(self._scalar("I")) for _ in range(num_values)}
        places = {self._string(): self._place() for _ in range(num_tensors)}
        alignment = int(self.values.get("general.alignment", 32))
        start = -(-self._at // alignment) * alignment
        self.places = {
            name: TensorPlace(shape, kind, start + offset)
            for name, (shape, kind, offset) in places.items()
        }

    def tensor(self, name: str) -> Tensor:
        place = self.places[name]
        block_size, block_bytes, read = KINDS[place.kind]
        count = int(np.prod(place.shape)) // block_size
        raw = np.frombuffer(self._bytes, np.uint8, count * block_bytes, place.offset)
        values = read(raw.reshape(count, block_bytes)).astype(np.float32)
        return torch.from_numpy(values.reshape(place.shape))

    def _place(self) -> tuple[tuple[int, ...], int, int]:
        sizes = [self._scalar("Q") for _ in range(self._scalar("I"))]
        return tuple(reversed(sizes)), self._scalar("I"), self._scalar("Q")

    def _scalar(self, code: str) -> Any:
        [value] = struct.unpack_from(f"<{code}", self._bytes, self._at)
        self._at += struct.calcsize(f"<{code}")
        return value

    def _string(self) -> str:
        length = self._scalar("Q")
        self._at += length
        return self._bytes[self._at - length : self._at].decode("utf-8", "replace")

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            inner, length = self._scalar("I"), self._scalar("Q")
            return [self._value(inner) for _ in range(length)]
        return self._scalar(SCALARS[kind])


def _halves(blocks: Blocks) -> NDArray[np.float32]:
    """Two bytes per block as float16: [blocks, 1]."""
    return np.ascontiguousarray(blocks).view(np.float16).astype(np.float32)


def _read_f32(blocks: Blocks) -> NDArray[np.float32]:
    return blocks.view(np.float32)


def _read_q8_0(blocks: Blocks) -> NDArray[np.float32]:
    return _halves(blocks[:, :2]) * blocks[:, 2:].view(np.int8)


def _read_q5_0(blocks: Blocks) -> NDArray[np.float32]:
    high = np.unpackbits(blocks[:, 2:6], axis=1, bitorder="little")  # [blocks, 32]
    low = np.concatenate((blocks[:, 6:] & 15, blocks[:, 6:] >> 4), axis=1)
    values: NDArray[np.float32] = _halves(blocks[:, :2]) * ((low | high << 4).astype(np.int8) - 16)
    return values


def _read_q6_k(blocks: Blocks) -> NDArray[np.float32]:
    """256 numbers: four low bits each, two high bits each, 16 scales and their scale."""
    low, high = blocks[:, :128].reshape(-1, 2, 2, 32), blocks[:, 128:192].reshape(-1, 2, 1, 32)
    low = np.concatenate((low & 15, low >> 4), axis=2)  # [blocks, 2, 4, 32]
    high = np.concatenate([high >> shift & 3 for shift in (0, 2, 4, 6)], axis=2)
    codes = (low | high << 4).astype(np.int8) - 32
    scale = _halves(blocks[:, 208:]) * blocks[:, 192:208].view(np.int8)  # [blocks, 16]
    values: NDArray[np.float32] = (codes.reshape(-1, 16, 16) * scale[..., None]).reshape(-1, 256)
    return values


def _read_q4_k(blocks: Blocks) -> NDArray[np.float32]:
    """256 numbers: eight groups of 32 with a scale and a minimum of six bits each."""
    packed = blocks[:, 4:16]
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scale = np.concatenate((first & 63, third & 15 | (first >> 6) << 4), axis=1)
    least = np.concatenate((second & 63, third >> 4 | (second >> 6) << 4), axis=1)
    pairs = blocks[:, 16:].reshape(-1, 4, 1, 32)
    codes = np.concatenate((pairs & 15, pairs >> 4), axis=2).reshape(-1, 8, 32)
    scaled = (_halves(blocks[:, :2]) * scale)[..., None] * codes
    values: NDArray[np.float32] = scaled - (_halves(blocks[:, 2:4]) * least)[..., None]
    return values.reshape(-1, 256)


KINDS: dict[int, tuple[int, int, Callable[[Blocks], NDArray[np.float32]]]] = {
    0: (1, 4, _read_f32),
    6: (32, 22, _read_q5_0),
    8: (32, 34, _read_q8_0),
    12: (256, 144, _read_q4_k),
    14: (256, 210, _read_q6_k),
}  # numbers and bytes per block
