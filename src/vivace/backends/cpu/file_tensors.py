"""Reads the tensors of a checkpoint without PyTorch. Tensors that need no conversion are used where
they lie in the mapped file.

Only files that are exactly as expected are read. Everything else raises BackendUnavailableError,
and the caller loads the checkpoint with PyTorch, which describes what is wrong.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vivace.backends.cpu.binding import BF16, F16, F32, INT4, INT8, Matrix, address, instructions
from vivace.backends.cpu.tensors import Array, PromptRows
from vivace.checkpoint_files import (
    MAX_MAPPED_BYTES,
    SPEAKER_ENCODER,
    UNREADABLE,
    read_header,
)
from vivace.errors import BackendUnavailableError, CheckpointError
from vivace.hub import CODEC, shard_paths
from vivace.model.config import CodecConfig, CodecDecoderConfig, ModelConfig
from vivace.model.dimensions import TensorShapes, check_codec, check_model
from vivace.prompt import Prompt

DTYPES: dict[str, np.dtype[Any]] = {
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "BF16": np.dtype("<u2"),  # numpy has no bfloat16
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
}
INFINITE = {"F16": 0x7C00, "BF16": 0x7F80, "F32": 0x7F800000}  # bits of infinity; NaN is larger
GROUP = 32  # inputs that share a scale in int4
SMALLEST_INT8 = -127
CHECKED_AT_ONCE = 4 << 20  # numbers
DECODER = "decoder."
QUANTIZERS = ("decoder.quantizer.rvq_first", "decoder.quantizer.rvq_rest")
BIASED = ("linear_fc1", "linear_fc2", "small_to_mtp_projection")  # linear layers with a bias
NOT_QUANTIZED = ("embedding", "text_projection")  # parts of the names of layers
NOT_DECODED = ("encoder.", *(f"{name}.input_proj." for name in QUANTIZERS))

Stored = NDArray[Any]


class FileTensors:
    """The tensors of a folder. All numbers are checked; the pages that are read are released."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.num_bytes = 0  # of the arrays that were read
        self._stored: dict[str, Stored] = {}
        self._types: dict[str, str] = {}
        self._maps: list[mmap.mmap] = []
        self._num_resident = 0  # at most: bytes that were read since pages were released
        try:
            for path in shard_paths(folder):
                self._open(path, stack)
        except UNREADABLE as error:
            raise BackendUnavailableError(f"{folder}: {error}") from error
        self.unread = set(self._stored)

    @property
    def shapes(self) -> TensorShapes:
        shapes = {name: array.shape for name, array in self._stored.items()}
        return TensorShapes(shapes, str(self.folder))

    def __contains__(self, name: str) -> bool:
        return name in self._stored

    def type_of(self, name: str) -> str:
        """The dtype as the file names it."""
        return self._types.get(name, "")

    def stored(self, name: str, *types: str) -> Stored:
        """A tensor as it is stored, with one of these types."""
        if name not in self._stored:
            raise BackendUnavailableError(f"{self.folder} lacks {name}")
        if self._types[name] not in types:
            raise BackendUnavailableError(f"{self.folder}: {name} is {self._types[name]}")
        array = self._stored[name]
        if name in self.unread:
            self.unread.discard(name)
            self.num_bytes += array.nbytes
        return array

    def __getitem__(self, name: str) -> Array:
        """A tensor of float32 or float16 numbers, as float32."""
        stored = self.stored(name, "F16", "F32")
        array: Array = stored.astype(np.float32, copy=False)
        self.num_bytes += array.nbytes - stored.nbytes
        return array

    def check_numbers(self) -> None:
        """Raise BackendUnavailableError for the first tensor with numbers that no file has."""
        for name, array in self._stored.items():
            flat = array.reshape(-1)
            for start in range(0, flat.size, CHECKED_AT_ONCE):
                part = flat[start : start + CHECKED_AT_ONCE]
                if not _is_valid(part, self._types[name]):
                    raise BackendUnavailableError(f"{self.folder}: {name} has invalid numbers")
                self.note_read(part.nbytes)
        self.release_pages()

    def note_read(self, num_bytes: int) -> None:
        """Release the pages after every MAX_MAPPED_BYTES."""
        self._num_resident += num_bytes
        if self._num_resident >= MAX_MAPPED_BYTES:
            self.release_pages()

    def release_pages(self) -> None:
        """Free the resident pages of the files. The next access maps them again."""
        self._num_resident = 0
        for content in self._maps if hasattr(mmap, "MADV_DONTNEED") else ():
            content.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Unmap the files when no array of them is left."""
        self._stored = {}
        self._maps = []

    def _open(self, path: Path, stack: ExitStack) -> None:
        if not path.is_file():
            raise ValueError(f"{path} is not a file")  # opening a pipe would block
        entries, start = read_header(path)
        file = stack.enter_context(path.open("rb"))
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._maps.append(content)
        spans = sorted(tuple(entry["data_offsets"]) for entry in entries.values())
        ends = [0, *(end for _, end in spans)]
        if [begin for begin, _ in spans] != ends[:-1] or start + ends[-1] != len(content):
            raise ValueError(f"the tensors of {path} do not fill it without gaps")
        for name, entry in entries.items():
            if name in self._stored:
                raise ValueError(f"{name} is in two files")
            dtype, shape = DTYPES[entry["dtype"]], tuple(entry["shape"])
            begin, end = entry["data_offsets"]
            size = math.prod(shape)
            if min(shape, default=1) < 0 or end - begin != size * dtype.itemsize:
                raise ValueError(f"{name} has an invalid entry")
            array: Stored = np.frombuffer(content, dtype, size, start + begin)
            if not array.flags.aligned:
                raise ValueError(f"{name} is not aligned")
            self._stored[name] = array.reshape(shape)
            self._types[name] = entry["dtype"]


class FileModel:
    """`ModelTensors` of a folder."""

    def __init__(self, tensors: FileTensors, codec: FileTensors, config: ModelConfig) -> None:
        self.config = config
        self._tensors, self._codec = tensors, codec
        self._is_quantized = config.quantization_config is not None
        self._kept: dict[str, Array] = {}  # read more than once
        self._has_vectors = instructions() != "portable"
        self._rows = PromptRows(self)

    def array(self, name: str) -> Array:
        if name not in self._kept:
            self._kept[name] = self._tensors[name]
        return self._kept[name]

    def vectors(self, table: str, ids: NDArray[np.int64]) -> Array:
        name = f"{table}.weight"
        if self._tensors.type_of(name) == "BF16":
            rows = self._tensors.stored(name, "BF16")[ids]
            return (rows.astype(np.uint32) << 16).view(np.float32)
        found: Array = self._tensors.stored(name, "F16", "F32")[ids].astype(np.float32)
        return found

    def matrix(self, layer: str) -> Matrix:
        added = self.array(f"{layer}.bias") if layer.endswith(BIASED) else None
        if self._is_quantized and not any(part in layer for part in NOT_QUANTIZED):
            return self._integers(layer, added)
        numbers, kind = self._floats(f"{layer}.weight")
        if not (added is None or added.shape == numbers.shape[:1]):
            raise BackendUnavailableError(f"{layer}: weight and bias are not as expected")
        return Matrix.of(numbers, added, kind)

    def qkv(self, attention: str) -> Matrix:
        if self._is_quantized:
            return self._integers(f"{attention}.qkv_proj")
        parts = [self._floats(f"{attention}.{part}_proj.weight") for part in "qkv"]
        is_half = all(kind == F16 for _, kind in parts)
        if not is_half and any(kind == BF16 for _, kind in parts):
            raise BackendUnavailableError(f"{attention} has weights in bfloat16")
        if len({numbers.shape[1:] for numbers, _ in parts}) > 1:
            raise BackendUnavailableError(f"{attention} has matrices of different widths")
        joined = np.concatenate([numbers for numbers, _ in parts])  # float32 if any part is
        return Matrix.of(joined, kind=F16 if is_half else F32)

    def gate_and_up(self, mlp: str) -> tuple[Matrix, Matrix]:
        if not self._is_quantized:
            return self.matrix(f"{mlp}.gate_proj"), self.matrix(f"{mlp}.up_proj")
        joined = f"{mlp}.gate_up_proj"
        inter = self._tensors.shapes.size(f"{joined}.weight") // 2
        gate, up = slice(None, inter), slice(inter, None)
        return self._integers(joined, rows=gate), self._integers(joined, rows=up)

    def text_vectors(self, ids: Sequence[int]) -> Array:
        return self._rows.text_vectors(ids)

    def prompt_rows(self, prompt: Prompt) -> Array:
        return self._rows.prompt_rows(prompt)

    def memory(self) -> dict[str, int]:
        return {"model": self._tensors.num_bytes, "codec": self._codec.num_bytes}

    def _floats(self, name: str) -> tuple[Stored, int]:
        """A matrix as the library reads it. Without vector instructions, float16 numbers are
        converted here: the library would take longer."""
        stored_type = self._tensors.type_of(name)
        numbers: Stored
        if stored_type == "F16" and self._has_vectors:
            numbers, kind = self._tensors.stored(name, "F16"), F16
        elif stored_type == "BF16":
            numbers, kind = self._tensors.stored(name, "BF16"), BF16
        else:
            numbers, kind = self.array(name), F32
        if numbers.ndim != 2:
            raise BackendUnavailableError(f"{name} is not a matrix")
        return numbers, kind

    def _integers(self, layer: str, bias: Array | None = None, rows: slice = slice(None)) -> Matrix:
        """Rows of a matrix in int8 or int4, as `model/quantized.py` describes it."""
        is_int4 = self._tensors.type_of(f"{layer}.weight") == "U8"
        weight = self._tensors.stored(f"{layer}.weight", "U8" if is_int4 else "I8")
        scale = self._tensors.stored(f"{layer}.scale", "F16" if is_int4 else "F32")
        out, inputs = weight.shape if weight.ndim == 2 else (0, 0)
        inputs *= 1 + is_int4
        shape = (out, inputs // GROUP) if is_int4 else (out,)
        fits = out > 0 and scale.shape == shape and (bias is None or bias.shape == (out,))
        if not fits or is_int4 != self._is_int4(layer, inputs) or not (is_int4 or scale.min() >= 0):
            raise BackendUnavailableError(f"{layer}: weight and scale are not as expected")
        weight, scale = weight[rows], scale[rows]
        made = Matrix(INT4 if is_int4 else INT8, len(weight), inputs, address(weight))
        made.scale = address(scale)
        if bias is not None:
            made.bias = address(bias)
        made.kept = (weight, scale, bias)
        return made

    def _is_int4(self, layer: str, inputs: int) -> bool:
        stored = self.config.quantization_config
        is_projection = ".layers." in layer
        return (
            is_projection
            and inputs % GROUP == 0
            and stored is not None
            and stored.weights == "int4"
        )


class FileDecoder:
    """`DecoderTensors` of a codec's folder."""

    def __init__(self, tensors: FileTensors, config: CodecDecoderConfig) -> None:
        self.config = config
        self.note_read = tensors.note_read
        self._tensors = tensors

    def state_dict(self) -> FileDecoder:
        return self

    def __getitem__(self, name: str) -> Array:
        return self._tensors[f"{DECODER}{name}"]


@contextmanager
def open_folder(
    folder: Path, config: ModelConfig, codec_config: CodecConfig
) -> Iterator[tuple[FileModel, FileDecoder]]:
    """The tensors of model and decoder. At the end of the context all tensors must have been read,
    except those that only cloning needs: PyTorch reads them when a voice is cloned."""
    with ExitStack() as stack:
        tensors, codec = (FileTensors(each, stack) for each in (folder, folder / CODEC))
        try:
            check_model(config, tensors.shapes, str(folder))
            check_codec(codec_config, codec.shapes, str(folder / CODEC))
        except CheckpointError as error:
            raise BackendUnavailableError(str(error)) from error
        for each in (tensors, codec):
            each.check_numbers()
        model = FileModel(tensors, codec, config)
        yield model, FileDecoder(codec, codec_config.decoder_config)
        unknown = {one for one in tensors.unread if not one.startswith(SPEAKER_ENCODER)}
        unknown |= {one for one in codec.unread if not one.startswith(NOT_DECODED)}
        if unknown:
            raise BackendUnavailableError(f"{folder} has unknown tensors: {min(unknown)}")
        tensors.release_pages()
        codec.close()


def _is_valid(numbers: Stored, dtype: str) -> bool:
    """Whether floating-point numbers are finite and no int8 number is below -127.

    The bits of a number that is not finite, without the sign, are at least those of infinity. So
    the largest signed and the largest unsigned integer show it, and nothing is copied.
    """
    if dtype == "I8":
        return int(numbers.min()) >= SMALLEST_INT8
    if dtype not in INFINITE:
        return True
    size, limit = numbers.itemsize, INFINITE[dtype]
    sign = 1 << (8 * size - 1)
    is_positive_finite = int(numbers.view(f"<i{size}").max()) < limit
    return is_positive_finite and int(numbers.view(f"<u{size}").max()) < sign + limit
