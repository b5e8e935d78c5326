"""The tensors that the C++ library reads, and the rows of a prompt computed from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vivace.backends.cpu.binding import Matrix, multiply
from vivace.errors import BackendUnavailableError
from vivace.model.config import SPEAKER, ModelConfig
from vivace.prompt import Prompt

MAX_KEPT_BYTES = 8 << 20  # of text vectors; all of the embedded voice have 0.5 MB

Array = NDArray[np.float32]


class ModelTensors(Protocol):
    """The tensors of a talker checkpoint by the checkpoint's names."""

    config: ModelConfig

    def array(self, name: str) -> Array:
        """A tensor as contiguous float32 numbers."""

    def vectors(self, table: str, ids: NDArray[np.int64]) -> Array:
        """Rows of an embedding as float32 numbers: [ids, width]."""

    def matrix(self, layer: str) -> Matrix:
        """The weight and the bias of a linear layer, or an embedding."""

    def qkv(self, attention: str) -> Matrix:
        """The weights of queries, keys and values below each other."""

    def gate_and_up(self, mlp: str) -> tuple[Matrix, Matrix]:
        """The first two matrices of an MLP."""

    def text_vectors(self, ids: Sequence[int]) -> Array:
        """Vectors of text ids: [ids, hidden]."""

    def prompt_rows(self, prompt: Prompt) -> Array:
        """The talker's input embeddings: [rows, hidden]."""

    def memory(self) -> dict[str, int]:
        """Bytes of model and codec."""


class PromptRows:
    """Prompts as rows of vectors. A row does not depend on the other rows."""

    def __init__(self, tensors: ModelTensors, instructions: str = "") -> None:
        config = tensors.config.talker_config
        later = range(config.num_code_groups - 1)
        names = [f"code_predictor.model.codec_embedding.{index}" for index in later]
        self._tables = [f"talker.{name}" for name in ("model.codec_embedding", *names)]
        self._tensors, self._width = tensors, config.hidden_size
        self._first = tensors.matrix("talker.text_projection.linear_fc1")
        self._second = tensors.matrix("talker.text_projection.linear_fc2")
        self._instructions = instructions
        texts = tensors.matrix("talker.model.text_embedding")
        inner = self._first.out
        widths = ((texts.in_, self._first.in_), (inner, self._second.in_))
        if any(a != b for a, b in (*widths, (self._second.out, self._width))):
            raise BackendUnavailableError("talker.text_projection has another shape")
        self._max_kept = MAX_KEPT_BYTES // (4 * self._width)
        self._kept: dict[int, Array] = {}  # vectors of text ids

    def text_vectors(self, ids: Sequence[int]) -> Array:
        kept = self._kept
        missing = {each for each in ids if each not in kept}
        if len(kept) + len(missing) > self._max_kept:  # a new one: another thread may read the old
            kept, missing = {}, set(ids)
        if missing:
            kept.update(zip(missing, self._project(list(missing)), strict=True))
            self._kept = kept
        return np.stack([kept[each] for each in ids]) if ids else self._project(())

    def _project(self, ids: Sequence[int]) -> Array:
        x = self._tensors.vectors("talker.model.text_embedding", np.asarray(ids, np.int64))
        hidden = multiply(x, self._first, self._instructions)
        return multiply(_silu(hidden), self._second, self._instructions)

    def prompt_rows(self, prompt: Prompt) -> Array:
        codes = prompt.codes
        rows = np.zeros((len(codes), self._width), np.float32)
        for table, column in zip(self._tables, codes.T, strict=True):
            if (present := column >= 0).any():
                rows[present] += self._tensors.vectors(table, column[present])
        if prompt.speaker is not None:
            rows[codes[:, 0] == SPEAKER] = prompt.speaker
        rows += self.text_vectors(prompt.text_ids)
        return rows


def _silu(x: Array) -> Array:
    wide = x.astype(np.float64)
    result: Any = wide / (1.0 + np.exp(-wide))
    array: Array = result.astype(np.float32)
    return array
