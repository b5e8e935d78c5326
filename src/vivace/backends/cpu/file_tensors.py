"""Reads the tensors of a small checkpoint without PyTorch, as float32 arrays.

Only files that are exactly as expected are read. Everything else raises BackendUnavailableError,
and the caller loads the checkpoint with PyTorch, which describes what is wrong.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vivace.backends.cpu.binding import Matrix
from vivace.backends.cpu.tensors import Array, PromptRows
from vivace.checkpoint_files import read_header
from vivace.errors import BackendUnavailableError, CheckpointError
from vivace.hub import CODEC, shard_paths
from vivace.model.config import CodecConfig, CodecDecoderConfig, ModelConfig
from vivace.model.dimensions import TensorShapes, check_codec, check_model
from vivace.prompt import Prompt

DTYPES: dict[str, np.dtype[Any]] = {"F16": np.dtype("<f2"), "F32": np.dtype("<f4")}
DECODER = "decoder."
QUANTIZERS = ("decoder.quantizer.rvq_first", "decoder.quantizer.rvq_rest")
NOT_DECODED = ("encoder.", *(f"{name}.input_proj." for name in QUANTIZERS))


class FileTensors:
    """The tensors of a folder. An array is converted and checked each time it is read."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.num_bytes = 0  # of the arrays that were read
        self._stored: dict[str, NDArray[Any]] = {}
        try:
            for path in shard_paths(folder):
                self._open(path, stack)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, struct.error) as error:
            raise BackendUnavailableError(f"{folder}: {error}") from error
        self.unread = set(self._stored)

    @property
    def shapes(self) -> TensorShapes:
        shapes = {name: array.shape for name, array in self._stored.items()}
        return TensorShapes(shapes, str(self.folder))

    def __getitem__(self, name: str) -> Array:
        if name not in self._stored:
            raise BackendUnavailableError(f"{self.folder} lacks {name}")
        self.unread.discard(name)
        array = self._stored[name].astype(np.float32)
        if not np.isfinite(array).all():
            raise BackendUnavailableError(f"{self.folder}: {name} is not finite")
        self.num_bytes += array.nbytes
        return array

    def __contains__(self, name: str) -> bool:
        return name in self._stored

    def close(self) -> None:
        """Unmap the files."""
        self._stored = {}

    def _open(self, path: Path, stack: ExitStack) -> None:
        entries, start = read_header(path)
        file = stack.enter_context(path.open("rb"))
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        for name, entry in entries.items():
            if name in self._stored:
                raise ValueError(f"{name} is in two files")
            dtype, shape = DTYPES[entry["dtype"]], tuple(entry["shape"])
            begin, end = entry["data_offsets"]
            size = math.prod(shape)
            if min(shape, default=1) < 0 or begin < 0 or end - begin != size * dtype.itemsize:
                raise ValueError(f"{name} has an invalid entry")
            array: NDArray[Any] = np.frombuffer(
                content, dtype, size, start + begin
            )  # ValueError if truncated
            self._stored[name] = array.reshape(shape)


class FileModel:
    """`ModelTensors` of a folder."""

    def __init__(self, tensors: FileTensors, codec: FileTensors, config: ModelConfig) -> None:
        self.config = config
        self._tensors, self._codec = tensors, codec
        self._kept: dict[str, Array] = {}  # read more than once
        self._rows = PromptRows(self)

    def has_layer(self, layer: str) -> bool:
        return f"{layer}.weight" in self._tensors

    def array(self, name: str) -> Array:
        if name not in self._kept:
            self._kept[name] = self._tensors[name]
        return self._kept[name]

    def matrix(self, layer: str) -> Matrix:
        bias = f"{layer}.bias"
        has_bias = bias in self._tensors
        return Matrix.of(self.array(f"{layer}.weight"), self.array(bias) if has_bias else None)

    def qkv(self, attention: str) -> Matrix:
        names = [f"{attention}.{part}_proj.weight" for part in "qkv"]
        return Matrix.of(np.concatenate([self._tensors[name] for name in names]))

    def gate_and_up(self, mlp: str) -> tuple[Matrix, Matrix]:
        return self.matrix(f"{mlp}.gate_proj"), self.matrix(f"{mlp}.up_proj")

    def text_vectors(self, ids: Sequence[int]) -> Array:
        return self._rows.text_vectors(ids)

    def prompt_rows(self, prompt: Prompt) -> Array:
        return self._rows.prompt_rows(prompt)

    def memory(self) -> dict[str, int]:
        return {"model": self._tensors.num_bytes, "codec": self._codec.num_bytes}


class FileDecoder:
    """`DecoderTensors` of a codec's folder."""

    def __init__(self, tensors: FileTensors, config: CodecDecoderConfig) -> None:
        self.config = config
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
    except those of the codec's encoder."""
    with ExitStack() as stack:
        tensors, codec = (FileTensors(each, stack) for each in (folder, folder / CODEC))
        try:
            check_model(config, tensors.shapes, str(folder))
            check_codec(codec_config, codec.shapes, str(folder / CODEC))
        except CheckpointError as error:
            raise BackendUnavailableError(str(error)) from error
        model = FileModel(tensors, codec, config)
        yield model, FileDecoder(codec, codec_config.decoder_config)
        unknown = tensors.unread | {one for one in codec.unread if not one.startswith(NOT_DECODED)}
        if unknown:
            raise BackendUnavailableError(f"{folder} has unknown tensors: {min(unknown)}")
        for each in (tensors, codec):
            each.close()
