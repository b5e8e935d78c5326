"""Runs an ONNX graph with torch, on a GPU if there is one: the operators of Kokoro's int8 export.

Dynamic quantisation is left out: activations stay as they are, weights become what their integers
stand for. Small integers (shapes, places) stay on the CPU, so that no step waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from recipes.mini_voice.common import DEVICE

Attributes = dict[str, Any]
TYPES = {1: torch.float32, 6: torch.int32, 7: torch.int64, 9: torch.bool}


class OnnxGraph:
    """`graph(tokens=..., ...)` gives the outputs in the file's order, as arrays."""

    def __init__(self, path: Path) -> None:
        import onnx
        from onnx import numpy_helper

        graph = onnx.load(str(path)).graph
        self._constants = {
            item.name: self._place(torch.from_numpy(np.array(numpy_helper.to_array(item))))
            for item in graph.initializer
        }
        self._outputs = [output.name for output in graph.output]
        self._nodes = []
        for node in graph.node:
            attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            if "value" in attributes:
                attributes["value"] = float(numpy_helper.to_array(attributes["value"]).item())
            inputs, outputs = list(node.input), list(node.output)
            if node.op_type == "DynamicQuantizeLSTM":
                run: Callable[..., Any] = self._lstm(node.input)
            elif node.op_type in ("ConvInteger", "MatMulInteger"):
                # Float weights, once: the second input is quantised, the fourth its zero.
                weights, zero = (self._constants[inputs[place]] for place in (1, 3))
                if weights.dtype != torch.float32:
                    weights = weights.to(DEVICE).float()
                    self._constants[inputs[1]] = weights - zero.to(DEVICE).float()
                inputs, run = inputs[:2], OPERATORS[node.op_type]
            else:
                run = OPERATORS[node.op_type]
            self._nodes.append((run, inputs, outputs, attributes))

    @staticmethod
    def _place(tensor: Tensor) -> Tensor:
        return tensor.to(DEVICE) if tensor.is_floating_point() else tensor

    def _lstm(self, names: list[str]) -> Callable[..., Any]:
        """torch's own, of the weights that a DynamicQuantizeLSTM names, scaled and in its order."""
        constants = self._constants
        given = {place: constants[name] for place, name in enumerate(names) if name in constants}
        weights = []
        for direction in range(2):
            parts = []
            for place, scale, zero in ((1, 8, 9), (2, 10, 11)):
                flat = given[place][direction].float().cpu() - given[zero][direction].float().cpu()
                parts.append((flat * given[scale][direction].float().cpu()).T)
            bias = given[3][direction].cpu().chunk(2)
            for part in (*parts, *bias):
                i, o, f, c = part.chunk(4)
                weights.append(torch.cat((i, f, c, o)).contiguous().to(DEVICE))
        hidden = len(weights[0]) // 4
        lstm = torch.nn.LSTM(weights[0].shape[1], hidden, bidirectional=True).to(DEVICE)
        with torch.no_grad():
            for parameter, value in zip(lstm.parameters(), weights, strict=True):
                parameter.copy_(value)

        def run(_: Attributes, x: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            y, (h, c) = lstm(x)  # [T, B, 2 * hidden]
            return y.unflatten(-1, (2, hidden)).transpose(1, 2), h, c

        return run

    @torch.inference_mode()
    def __call__(self, **inputs: np.ndarray) -> list[np.ndarray]:
        values = dict(self._constants)
        values |= {name: self._place(torch.from_numpy(value)) for name, value in inputs.items()}
        for run, names, outputs, attributes in self._nodes:
            made = run(attributes, *(values[name] if name else None for name in names))
            made = made if isinstance(made, (tuple, list)) else (made,)
            values |= zip(outputs, made, strict=False)
        return [values[name].cpu().numpy() for name in self._outputs]


def pair(run: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """Of two tensors, one of which may be on the CPU."""

    def both(_: Attributes, a: Tensor, b: Tensor) -> Tensor:
        if a.device != b.device:
            a, b = a.to(DEVICE), b.to(DEVICE)
        return run(a, b)

    return both


def one(run: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda _, x: run(x)


def divide(a: Tensor, b: Tensor) -> Tensor:
    return a / b if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


def gather(at: Attributes, x: Tensor, index: Tensor) -> Tensor:
    axis = at.get("axis", 0)
    if index.ndim == 0:
        return x.select(axis, int(index))
    picked = x.index_select(axis, index.flatten().to(x.device))
    axis %= x.ndim
    return picked.reshape(*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])


def convolve(at: Attributes, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    pads, sides = at["pads"], len(at["pads"]) // 2
    assert pads[:sides] == pads[sides:]
    run = F.conv1d if sides == 1 else F.conv2d
    return run(x, w, b, at["strides"], pads[:sides], at["dilations"], at["group"])


def unconvolve(at: Attributes, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    more, group = at.get("output_padding", [0]), at["group"]
    return F.conv_transpose1d(
        x, w, b, at["strides"], at["pads"][:1], more, group, at["dilations"]
    )  # fmt: skip


def reshape(at: Attributes, x: Tensor, shape: Tensor) -> Tensor:
    sizes = shape.tolist()
    return x.reshape([x.shape[i] if size == 0 else size for i, size in enumerate(sizes)])


def cut(
    _: Attributes, x: Tensor, begins: Tensor, ends: Tensor, axes: Tensor | None = None,
    steps: Tensor | None = None,
) -> Tensor:  # fmt: skip
    where = list(range(len(begins))) if axes is None else axes.tolist()
    strides = [1] * len(where) if steps is None else steps.tolist()
    for axis, begin, end, step in zip(where, begins.tolist(), ends.tolist(), strides, strict=True):
        assert step > 0
        size = x.shape[axis]
        index = torch.arange(size)[begin:end:step].to(x.device)
        is_plain = step == 1 and len(index)
        x = x.narrow(axis, int(range(size)[begin:end][0]), len(index)) if is_plain else (
            x.index_select(axis, index)
        )  # fmt: skip
    return x


def squeeze(_: Attributes, x: Tensor, axes: Tensor | None = None) -> Tensor:
    return x.squeeze() if axes is None else x.squeeze(tuple(axes.tolist()))


def unsqueeze(_: Attributes, x: Tensor, axes: Tensor) -> Tensor:
    for axis in sorted(axes.tolist()):
        x = x.unsqueeze(axis)
    return x


def reduce_mean(at: Attributes, x: Tensor, axes: Tensor) -> Tensor:
    return x.mean(axes.tolist(), keepdim=bool(at["keepdims"]))


def reduce_sum(at: Attributes, x: Tensor, axes: Tensor) -> Tensor:
    return x.sum(axes.tolist(), keepdim=bool(at["keepdims"]))


def resize(at: Attributes, x: Tensor, _: Tensor | None, scales: Tensor) -> Tensor:
    size = [int(n * float(scale)) for n, scale in zip(x.shape, scales.tolist(), strict=True)][2:]
    if at["mode"] == b"nearest":
        return F.interpolate(x, size=size, mode="nearest")
    return F.interpolate(x, size=size, mode="linear", align_corners=False)


def stft(_: Attributes, x: Tensor, step: Tensor, window: Tensor, length: Tensor) -> Tensor:
    signal = x[..., 0] if x.ndim == 3 else x
    found = torch.stft(
        signal, int(length), int(step), window=window, center=False, return_complex=True
    )
    return torch.view_as_real(found).transpose(1, 2)  # [B, frames, bins, 2]


def scatter(_: Attributes, x: Tensor, places: Tensor, values: Tensor) -> Tensor:
    made = x.clone()
    made[tuple(places.to(x.device).unbind(-1))] = values.to(x)
    return made


def skip_norm(at: Attributes, x: Tensor, skip: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x + skip, gain.shape, gain, bias, at["epsilon"])


def layer_norm(at: Attributes, x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, gain.shape, gain, bias, at["epsilon"])


def matmul_transposed(at: Attributes, a: Tensor, b: Tensor) -> Tensor:
    return at["alpha"] * (a.mT if at["transA"] else a) @ (b.mT if at["transB"] else b)


def dequantise(_: Attributes, x: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    return (x.to(DEVICE).float() - zero.to(DEVICE).float()) * scale


def phase(tangent: Tensor) -> Tensor:
    """Where a bin is empty it is 0 / 0: any angle, as the noise of unvoiced speech would have."""
    angle = torch.pi * (2 * torch.rand_like(tangent) - 1)
    return torch.where(tangent.isnan(), angle, torch.atan(tangent))


def choose(_: Attributes, is_first: Tensor, a: Tensor, b: Tensor) -> Tensor:
    device = DEVICE if DEVICE in (is_first.device, a.device, b.device) else torch.device("cpu")
    return torch.where(is_first.to(device), a.to(device), b.to(device))


OPERATORS: dict[str, Callable[..., Any]] = {
    "Add": pair(torch.add), "Sub": pair(torch.sub), "Mul": pair(torch.mul), "Div": pair(divide),
    "Pow": pair(torch.pow), "MatMul": pair(torch.matmul), "And": pair(torch.logical_and),
    "Equal": pair(torch.eq), "Greater": pair(torch.gt), "Less": pair(torch.lt),
    "GreaterOrEqual": pair(torch.ge), "MatMulInteger": pair(torch.matmul),
    "Atan": one(phase), "Cos": one(torch.cos), "Sin": one(torch.sin), "Exp": one(torch.exp),
    "Floor": one(torch.floor), "Round": one(torch.round), "Sigmoid": one(torch.sigmoid),
    "Sqrt": one(torch.sqrt), "Tanh": one(torch.tanh),
    "Cast": lambda at, x: x.to(TYPES[at["to"]]) if x.dtype != TYPES[at["to"]] else x,
    "Clip": lambda _, x, low=None, high=None: x.clamp(
        None if low is None else float(low), None if high is None else float(high)
    ),
    "Concat": lambda at, *xs: torch.cat(
        [x.to(DEVICE) for x in xs] if len({x.device for x in xs}) > 1 else xs, at["axis"]
    ),
    "ConstantOfShape": lambda at, shape: torch.full(
        shape.tolist(), at.get("value", 0.0), device=DEVICE
    ),
    "Conv": convolve, "ConvInteger": convolve, "ConvTranspose": unconvolve,
    "CumSum": lambda _, x, axis: x.cumsum(int(axis)),
    "DequantizeLinear": dequantise,
    "DynamicQuantizeLinear": lambda _, x: (x, torch.ones((), device=x.device), None),
    "Expand": lambda _, x, shape: x.expand(torch.broadcast_shapes(x.shape, tuple(shape.tolist()))),
    "FastGelu": lambda _, x, bias: F.gelu(x + bias, approximate="tanh"),
    "FusedMatMul": matmul_transposed, "Gather": gather, "LayerNormalization": layer_norm,
    "LeakyRelu": lambda at, x: F.leaky_relu(x, at["alpha"]),
    "NonZero": lambda _, x: x.nonzero().T,
    "Pad": lambda _, x, pads, *rest: F.pad(x, [int(pads[x.ndim - 1]), int(pads[-1])], "reflect"),
    "Range": lambda _, a, b, step: torch.arange(a.item(), b.item(), step.item()),
    "ReduceMean": reduce_mean, "ReduceSum": reduce_sum, "Reshape": reshape, "Resize": resize,
    "STFT": stft, "ScatterND": scatter,
    "Shape": lambda at, x: torch.tensor(x.shape[at.get("start", 0) :]),
    "SkipLayerNormalization": skip_norm, "Slice": cut, "Squeeze": squeeze,
    "Softmax": lambda at, x: x.softmax(at["axis"]),
    "Split": lambda at, x, sizes: x.split(sizes.tolist(), at["axis"]),
    "Transpose": lambda at, x: x.permute(at["perm"]), "Unsqueeze": unsqueeze, "Where": choose,
}  # fmt: skip
