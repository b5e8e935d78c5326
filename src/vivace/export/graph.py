"""Builds one ONNX graph: nodes, weights in the chosen format, inputs and outputs.

Weights are stored as float32, float16 or int8. Two cheap nodes convert a stored weight to float32.
onnxruntime folds these nodes when it loads the graph, so every product runs in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from vivace._version import __version__
from vivace.model.quantized import quantize

OPSET = 23  # RMSNormalization and RotaryEmbedding
IR_VERSION = 10
MAX_SIZE = 2**62  # beyond the end of every dimension
SMALLEST_COMPRESSED = 4096  # elements; smaller tensors stay float32

StoredWeights = Literal["float32", "float16", "int8"]
Array = NDArray[Any]
Shape = Sequence[int | str]  # a string names a size that varies

TYPES = {
    "float32": TensorProto.FLOAT,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "bool": TensorProto.BOOL,
}


class Graph:
    """A graph under construction. Methods return names of values."""

    def __init__(self, name: str, weights: StoredWeights) -> None:
        self._name, self._weights = name, weights
        self._nodes: list[onnx.NodeProto] = []
        self._tensors: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._num_names = 0

    # -- values ------------------------------------------------------------------------------

    def input(self, name: str, kind: str, shape: Shape) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, TYPES[kind], list(shape)))
        return name

    def output(self, name: str, value: str, kind: str, shape: Shape) -> None:
        self._nodes.append(helper.make_node("Identity", [value], [name]))
        self._outputs.append(helper.make_tensor_value_info(name, TYPES[kind], list(shape)))

    def constant(self, value: Array | Sequence[int] | int | float | bool) -> str:
        """Equal constants are stored once. Python numbers are int64 or float32."""
        array = np.asarray(value)
        if array.dtype == np.float64:
            array = array.astype(np.float32)
        key = str(array.dtype), array.shape, array.tobytes()
        if key not in self._constants:
            self._constants[key] = self._store(array)
        return self._constants[key]

    def constant_of(self, value: int | Sequence[int], kind: str) -> str:
        """An integer constant of the given type."""
        return self.constant(np.asarray(value, dtype=kind))

    def weight(self, tensor: Tensor, *, axis: int = 0, is_sensitive: bool = False) -> str:
        """A weight in float32. In int8, every index of `axis` has its own scale.

        Sensitive weights are stored as float16 where others are int8.
        """
        tensor = tensor.detach().float()
        if self._weights == "float32" or tensor.numel() < SMALLEST_COMPRESSED:
            return self._store(tensor.numpy())
        if self._weights == "float16" or is_sensitive:
            return self.cast(self._store(_as_half(tensor)), "float32")
        rows = tensor.movedim(axis, 0)
        rounded = quantize(rows.flatten(1), 8)
        codes = rounded.weight.view(rows.shape).movedim(0, axis)
        scale_shape = [-1 if place == axis else 1 for place in range(tensor.ndim)]
        scale = self._store(rounded.scale.view(scale_shape).numpy())
        return self.op("Mul", self.cast(self._store(codes.numpy()), "float32"), scale)

    # -- nodes -------------------------------------------------------------------------------

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Append a node with one output."""
        return self.ops(kind, inputs, 1, **attributes)[0]

    def ops(
        self, kind: str, inputs: Sequence[str], num_outputs: int, **attributes: Any
    ) -> list[str]:
        """Append a node with several outputs."""
        outputs = [self._new_name(kind.lower()) for _ in range(num_outputs)]
        self._nodes.append(helper.make_node(kind, list(inputs), outputs, **attributes))
        return outputs

    def cast(self, value: str, kind: str) -> str:
        return self.op("Cast", value, to=TYPES[kind])

    def reshape(self, value: str, shape: Sequence[int]) -> str:
        """0 keeps a size, -1 stands for the rest."""
        return self.op("Reshape", value, self.constant(list(shape)))

    def transpose(self, value: str, order: Sequence[int]) -> str:
        return self.op("Transpose", value, perm=list(order))

    def split(self, value: str, sizes: Sequence[int], axis: int) -> list[str]:
        inputs = [value, self.constant(list(sizes))]
        return self.ops("Split", inputs, len(sizes), axis=axis)

    def concat(self, values: Sequence[str], axis: int) -> str:
        return self.op("Concat", *values, axis=axis) if len(values) > 1 else values[0]

    def slice(self, value: str, start: int, axis: int, end: int = MAX_SIZE) -> str:
        """Negative numbers count from the end."""
        ends = (self.constant([each]) for each in (start, end, axis))
        return self.op("Slice", value, *ends)

    def size(self, value: str, axis: int) -> str:
        """The size of one dimension: int64 scalar."""
        shape = self.op("Shape", value, start=axis, end=axis + 1)
        return self.op("Squeeze", shape, self.constant([0]))

    def build(self) -> onnx.ModelProto:
        graph = helper.make_graph(
            self._nodes, self._name, self._inputs, self._outputs, self._tensors
        )
        model = helper.make_model(
            graph,
            ir_version=IR_VERSION,
            opset_imports=[helper.make_opsetid("", OPSET)],
            producer_name="vivace",
            producer_version=__version__,
        )
        onnx.checker.check_model(model)
        return model

    def prepend_slices(self, value: str, sizes: Sequence[int], names: Sequence[str]) -> None:
        """Cut a vector into named parts before all other nodes.

        A `Split` into all parts would need more buffers than a WebGPU shader may have.
        """
        nodes, start, axis = [], 0, self.constant([0])
        for size, name in zip(sizes, names, strict=True):
            bounds = self.constant([start]), self.constant([start + size])
            nodes.append(helper.make_node("Slice", [value, *bounds, axis], [name]))
            start += size
        self._nodes[:0] = nodes

    def _store(self, array: Array) -> str:
        name = self._new_name("tensor")
        self._tensors.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def _new_name(self, kind: str) -> str:
        self._num_names += 1
        return f"{kind}_{self._num_names}"


def _as_half(tensor: Tensor) -> Array:
    """Raises ValueError if a value exceeds the range of float16."""
    half = tensor.half()
    if not bool(half.isfinite().all()):
        raise ValueError("a weight exceeds the range of float16; use float32 or int8")
    return np.asarray(half.numpy())
