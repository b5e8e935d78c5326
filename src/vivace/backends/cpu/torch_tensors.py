"""The tensors of a loaded PyTorch model for the library. Nothing is copied."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from vivace.backends.cpu.binding import BF16, F16, F32, INT4, INT8, Matrix
from vivace.backends.cpu.binding import multiply as multiply_arrays
from vivace.backends.cpu.tensors import PromptRows
from vivace.backends.host import prompt_rows, text_vectors
from vivace.model.codec import Codec
from vivace.model.layers import Attention, GatedMlp, Linear, TextProjection, module_bytes
from vivace.model.quantized import QuantizedLinear
from vivace.model.talker import Qwen3TTS
from vivace.prompt import Prompt

FLOAT_KINDS = {torch.float32: F32, torch.bfloat16: BF16, torch.float16: F16}


class TorchTensors:
    """The tensors of a model whose layers are fused. A bfloat16 model computes the rows of prompts
    in PyTorch."""

    def __init__(self, model: Qwen3TTS, codec: Codec, instructions: str = "") -> None:
        self.config = model.config
        self._model, self._codec = model, codec
        is_projected = isinstance(model.talker.text_projection, TextProjection)
        is_exact = model.dtype == torch.float32 and is_projected
        self._rows = PromptRows(self, instructions) if is_exact else None

    def array(self, name: str) -> NDArray[np.float32]:
        layer, _, field = name.rpartition(".")
        return _to_array(getattr(self._model.get_submodule(layer), field))

    def vectors(self, table: str, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        module = self._model.get_submodule(table)
        assert isinstance(module, nn.Embedding)
        with torch.inference_mode():
            return _to_array(F.embedding(torch.from_numpy(ids), module.weight))

    def matrix(self, layer: str) -> Matrix:
        module = self._model.get_submodule(layer)
        if isinstance(module, Linear):
            return to_matrix(getattr(module, "linear", module.weight), module.bias)
        assert isinstance(module, nn.Embedding)
        return to_matrix(module.weight)

    def qkv(self, attention: str) -> Matrix:
        module = self._model.get_submodule(attention)
        assert isinstance(module, Attention)
        return to_matrix(_fused(module.qkv_proj, module.qkv_weight))

    def gate_and_up(self, mlp: str) -> tuple[Matrix, Matrix]:
        module = self._model.get_submodule(mlp)
        assert isinstance(module, GatedMlp)
        weight = _fused(module.gate_up_proj, module.gate_up_weight)
        inter = len(weight.weight if isinstance(weight, QuantizedLinear) else weight) // 2
        gate, up = slice(None, inter), slice(inter, None)
        return to_matrix(_take_rows(weight, gate)), to_matrix(_take_rows(weight, up))

    def text_vectors(self, ids: Sequence[int]) -> NDArray[np.float32]:
        if self._rows is not None:
            return self._rows.text_vectors(ids)
        with torch.inference_mode():
            return _to_array(text_vectors(self._model, ids))

    def prompt_rows(self, prompt: Prompt) -> NDArray[np.float32]:
        if self._rows is not None:
            return self._rows.prompt_rows(prompt)
        with torch.inference_mode():
            return _to_array(prompt_rows(self._model, prompt))

    def memory(self) -> dict[str, int]:
        return {"model": module_bytes(self._model), "codec": module_bytes(self._codec)}


def to_matrix(weight: Tensor | QuantizedLinear, bias: Tensor | None = None) -> Matrix:
    """The matrix as the library reads it; keeps its tensors alive."""
    scale: Tensor | None = None
    if isinstance(weight, QuantizedLinear):
        kind = INT8 if weight.bits == 8 else INT4
        out, inputs = weight.out_features, weight.in_features
        numbers, scale = weight.weight, weight.scale
    else:
        kind, numbers = FLOAT_KINDS[weight.dtype], weight
        out, inputs = weight.shape
    made = Matrix(kind, out, inputs, _pointer(numbers))
    if scale is not None:
        made.scale = _pointer(scale)
    if bias is not None:
        bias = bias.float()
        made.bias = _pointer(bias)
    made.kept = (numbers, scale, bias)
    return made


def multiply(x: Tensor, weight: Tensor | QuantizedLinear, name: str = "") -> Tensor:
    """Rows [rows, in] times a matrix: [rows, out], on one thread."""
    return torch.from_numpy(multiply_arrays(x.numpy(), to_matrix(weight), name))


def _to_array(tensor: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = tensor.detach().float().contiguous().numpy()
    return array


def _pointer(tensor: Tensor) -> int:
    assert tensor.is_contiguous()
    return tensor.data_ptr()


def _fused(layer: Linear | None, buffer: Tensor | None) -> Tensor | QuantizedLinear:
    """A fused weight: the quantized layer if there is one, or the buffer of a fused module."""
    weight = buffer if layer is None else getattr(layer, "linear", None)
    assert isinstance(weight, Tensor | QuantizedLinear), "the model was not fused"
    return weight


def _take_rows(weight: Tensor | QuantizedLinear, rows: slice) -> Tensor | QuantizedLinear:
    if isinstance(weight, QuantizedLinear):
        return QuantizedLinear(weight.weight[rows], weight.scale[rows], weight.bits)
    return weight[rows]
