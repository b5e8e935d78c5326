"""Run the output of `convert_graph` (Kokoro, one line at a time) with torch, on a GPU if available.

Activations are floats; weights are dequantised. The host waits for the device once, for the number
of frames. On a GPU, convolutions are matrix products, because cuDNN would spend tens of
milliseconds on every new length.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor

from recipes.mini_voice.common import DEVICE

Attributes = dict[str, Any]
Run = Callable[..., Any]
TYPES = {1: torch.float32, 6: torch.int32, 7: torch.int64, 9: torch.bool}
EMPTY = 1e-6  # rounding error in an empty bin of the source's spectrum


class OnnxGraph:
    """`graph(tokens=..., ...)` returns the outputs as arrays in the order of the file."""

    def __init__(self, path: Path, device: torch.device = DEVICE) -> None:
        with safe_open(path, "pt") as file:
            described = json.loads(file.metadata()["graph"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        self._device = device
        self._constants: dict[str, Any] = dict(described["numbers"])
        for place, name in enumerate(described["tensors"]):
            value = tensors[str(place)].to(device)
            if f"{place}.scale" in tensors:
                scale, zero = (tensors[f"{place}.{kind}"].to(device) for kind in ("scale", "zero"))
                value = (value.float() - zero) * scale
            self._constants[name] = value
        self._outputs: list[str] = described["outputs"]
        self._steps = [self._step(*node) for node in described["nodes"]]
        kept = {name for _, names, _, _ in self._steps for name in names} | set(self._outputs)
        self._constants = {n: v for n, v in self._constants.items() if n in kept}
        self._drop_early()

    def _step(
        self, op: str, inputs: list[str], outputs: list[str], attributes: Attributes
    ) -> tuple[Run, list[str], list[str], list[str]]:
        if op in LAYERS:
            weights = [self._constants[name] for name in inputs[1:]]
            return LAYERS[op](attributes, *weights), inputs[:1], outputs, []
        return OPERATORS[op](attributes), inputs, outputs, []

    def _drop_early(self) -> None:
        """Record the last use of each value, so that memory is freed early."""
        needed = {*self._constants, *self._outputs}
        for _, inputs, outputs, dropped in reversed(self._steps):
            dropped += dict.fromkeys(name for name in (*inputs, *outputs) if name not in needed)
            needed |= {*inputs, *outputs}

    @torch.inference_mode()
    def __call__(self, **inputs: np.ndarray) -> list[np.ndarray]:
        fed = {name: torch.from_numpy(value).to(self._device) for name, value in inputs.items()}
        return [value.cpu().numpy() for value in self.run(fed)]

    def run(self, inputs: dict[str, Tensor]) -> list[Tensor]:
        values = self._constants | inputs
        for run, names, outputs, dropped in self._steps:
            made = run(*[values[name] for name in names])
            if len(outputs) == 1:
                values[outputs[0]] = made
            else:
                values |= zip(outputs, made, strict=True)
            for name in dropped:
                del values[name]
        return [values[name] for name in self._outputs]


def convolution(at: Attributes, weights: Tensor, bias: Tensor | None = None) -> Run:
    assert at["group"] == 1
    assert at["pads"][0] == at["pads"][1]
    build = library_convolution if weights.device.type == "cpu" else product_convolution
    return build(at, weights, bias)


def library_convolution(at: Attributes, weights: Tensor, bias: Tensor | None) -> Run:
    settings = at["strides"], at["pads"][:1], at["dilations"]
    return lambda x: F.conv1d(x, weights, bias, *settings)


def product_convolution(at: Attributes, weights: Tensor, bias: Tensor | None) -> Run:
    """[1, C, T] to [1, O, T']: the product of [O, C * K] and the columns of every window."""
    stride, dilation, pad = ((1, at["strides"][0]), (1, at["dilations"][0]), (0, at["pads"][0]))
    kernel, flat = (1, weights.shape[2]), weights.flatten(1)
    column = None if bias is None else bias[:, None]
    is_plain = (kernel, stride, pad) == ((1, 1), (1, 1), (0, 0))

    def run(x: Tensor) -> Tensor:
        columns = x[0] if is_plain else F.unfold(x[:, :, None], kernel, dilation, pad, stride)[0]
        return (flat @ columns if column is None else torch.addmm(column, flat, columns))[None]

    return run


def transposed_convolution(at: Attributes, weights: Tensor, bias: Tensor | None = None) -> Run:
    """Spread every input over K outputs and sum overlaps, for all channels or per channel."""
    (stride,), pad = at["strides"], at["pads"][0]
    size, _, kernel = weights.shape
    more = at.get("output_padding", [0])[0]
    is_apart = at["group"] > 1
    column = None if bias is None else bias[:, None]
    # One output channel is the inverse Fourier transform, computed in full precision.
    is_wave = not is_apart and weights.shape[1] == 1
    flat = weights.transpose(1, 2) if is_apart else weights.flatten(1).T.contiguous()
    if is_wave:
        flat = flat.double()

    def run(x: Tensor) -> Tensor:
        x = x[0]
        count = x.shape[1]
        if is_apart:
            spread = (x[:, None] * flat).reshape(size * kernel, count)
        else:
            spread = (flat @ x.double()).float() if is_wave else flat @ x
        length = (count - 1) * stride + kernel - 2 * pad + more
        made = F.fold(spread[None], (1, length), (1, kernel), 1, (0, pad), (1, stride))[:, :, 0]
        return made if column is None else made + column

    return run


def linear(_: Attributes, weights: Tensor, bias: Tensor) -> Run:
    turned = weights.T.contiguous()
    return lambda x: F.linear(x, turned, bias)


def lstm(_: Attributes, given: Tensor, recurrent: Tensor, biases: Tensor) -> Run:
    """torch's own, both ways: [T, 1, D] to [T, 1, 2 * hidden]. ONNX has gates i, o, f, c."""
    weights = []
    for direction in range(2):
        parts = given[direction].T, recurrent[direction].T, *biases[direction].chunk(2)
        for part in parts:
            i, o, f, c = part.chunk(4)
            weights.append(torch.cat((i, f, c, o)).contiguous())
    layer = torch.nn.LSTM(given.shape[1], recurrent.shape[1], bidirectional=True).to(given.device)
    with torch.no_grad():
        for parameter, value in zip(layer.parameters(), weights, strict=True):
            parameter.copy_(value)
    layer.requires_grad_(False).eval()
    return lambda x: layer(x)[0]


def spectrum(at: Attributes, window: Tensor) -> Run:
    """[1, T] to [1, frames, bins, 2], in full precision: phases are read from it."""
    step, length = at["step"], at["length"]
    places = torch.arange(length, dtype=torch.float64, device=window.device)
    angles = places[:, None] * places[: length // 2 + 1] * (-2 * torch.pi / length)
    parts = torch.stack((angles.cos(), angles.sin()), -1) * window.double()[:, None, None]
    basis = parts.flatten(1)  # [length, bins * 2]

    def run(x: Tensor) -> Tensor:
        frames = x[0].unfold(0, length, step)
        found = frames.double() @ basis
        return found.masked_fill_(found.abs() < EMPTY, 0).float().view(1, len(frames), -1, 2)

    return run


LAYERS: dict[str, Callable[..., Run]] = {
    "Conv": convolution, "ConvTranspose": transposed_convolution, "LSTM": lstm, "Linear": linear,
    "STFT": spectrum,
}  # fmt: skip


def plain(run: Run) -> Callable[[Attributes], Run]:
    """The step of an operator without settings."""
    return lambda _: run


def gather(at: Attributes) -> Run:
    axis, index = at.get("axis", 0), at.get("index")
    if index is not None:
        return lambda x: x.select(axis, index)

    def run(x: Tensor, places: Tensor) -> Tensor:
        picked = x.index_select(axis, places.flatten())
        return picked.reshape(*x.shape[:axis], *places.shape, *x.shape[axis + 1 :])

    return run


def reshape(at: Attributes) -> Run:
    shape = at["shape"]
    return lambda x: x.reshape([x.shape[i] if size == 0 else size for i, size in enumerate(shape)])


def cut(at: Attributes) -> Run:
    starts, ends = at["begins"], at["ends"]
    parts = list(zip(at.get("axes", range(len(starts))), starts, ends, strict=True))
    assert all(step == 1 for step in at.get("steps", ()))

    def run(x: Tensor) -> Tensor:
        for axis, begin, end in parts:
            where = range(x.shape[axis])[begin:end]
            x = x.narrow(axis, where.start, len(where))
        return x

    return run


def unsqueeze(at: Attributes) -> Run:
    def run(x: Tensor) -> Tensor:
        for axis in sorted(at["axes"]):
            x = x.unsqueeze(axis)
        return x

    return run


def resize(at: Attributes) -> Run:
    (scale,), mode = at["scales"][2:], at["mode"]
    more = {} if mode == "nearest" else {"align_corners": False}
    return lambda x: F.interpolate(x, size=int(x.shape[2] * scale), mode=mode, **more)


def angle(y: Tensor, x: Tensor) -> Tensor:
    """The phase. An empty bin gets a random angle, like the noise of unvoiced speech."""
    anything = torch.pi * (2 * torch.rand_like(x) - 1)
    return torch.where((x == 0) & (y == 0), anything, torch.atan2(y, x))


def scatter(x: Tensor, places: Tensor, values: Tensor) -> Tensor:
    made = x.clone()
    made.index_put_(places.unbind(-1), values)
    return made


def layer_norm(at: Attributes) -> Run:
    epsilon = at["epsilon"]
    return lambda x, gain, bias: F.layer_norm(x, gain.shape, gain, bias, epsilon)


def skip_norm(at: Attributes) -> Run:
    norm = layer_norm(at)
    return lambda x, skip, gain, bias: norm(x + skip, gain, bias)


def instance_norm(at: Attributes) -> Run:
    epsilon = at["epsilon"]
    return lambda x: F.layer_norm(x, x.shape[2:], eps=epsilon)


def snake(x: Tensor, frequency: Tensor, gain: Tensor) -> Tensor:
    return torch.addcmul(x, gain, (x * frequency).sin_().square_())


def attention(at: Attributes) -> Run:
    attend = F.scaled_dot_product_attention
    return lambda q, k, v: attend(q, k.mT, v, scale=at["scale"])


def frames(at: Attributes) -> Run:
    """The only step in which the host waits for the device."""
    return lambda end: torch.arange(at["begin"], end.item(), at["step"], device=end.device)


def product(at: Attributes) -> Run:
    def run(a: Tensor, b: Tensor) -> Tensor:
        return (a.mT if at["transA"] else a) @ (b.mT if at["transB"] else b)

    assert at["alpha"] == 1
    return run


OPERATORS: dict[str, Callable[[Attributes], Run]] = {
    "Add": plain(operator.add), "Sub": plain(operator.sub), "Mul": plain(operator.mul),
    "Div": plain(operator.truediv), "Pow": plain(operator.pow), "MatMul": plain(operator.matmul),
    "And": plain(operator.and_), "Greater": plain(operator.gt), "Less": plain(operator.lt),
    "GreaterOrEqual": plain(operator.ge), "Where": plain(torch.where), "Angle": plain(angle),
    "Cos": plain(torch.cos), "Sin": plain(torch.sin), "Exp": plain(torch.exp),
    "Floor": plain(torch.floor), "Round": plain(torch.round), "Sigmoid": plain(torch.sigmoid),
    "Sqrt": plain(torch.sqrt), "Tanh": plain(torch.tanh), "ScatterND": plain(scatter),
    "MulAdd": plain(torch.addcmul), "Snake": plain(snake),
    "Attention": attention,
    "FirstRows": plain(lambda table, like: table[None, : like.shape[1]]),
    "FastGelu": plain(lambda x, bias: F.gelu(x + bias, approximate="tanh")),
    "Repeat": plain(lambda x, like: x[:, None].expand(-1, like.shape[1], -1)),
    "Cast": lambda at: lambda x: x.to(TYPES[at["to"]]),
    "Clip": lambda at: lambda x: x.clamp(at.get("low"), at.get("high")),
    "Concat": lambda at: lambda *xs: torch.cat(xs, at["axis"]),
    "CumSum": lambda at: lambda x: x.cumsum(at["axis"]),
    "FusedMatMul": product, "Gather": gather, "InstanceNorm": instance_norm,
    "LayerNormalization": layer_norm, "SkipLayerNormalization": skip_norm,
    "LeakyRelu": lambda at: lambda x: F.leaky_relu(x, at["alpha"]),
    "Pad": lambda at: lambda x: F.pad(x, (at["pads"][2], at["pads"][5]), "reflect"),
    "Range": frames, "ReduceMean": lambda at: lambda x: x.mean(at["axes"], bool(at["keepdims"])),
    "ReduceSum": lambda at: lambda x: x.sum(at["axes"], bool(at["keepdims"])),
    "Reshape": reshape, "Resize": resize, "Slice": cut,
    "Softmax": lambda at: lambda x: x.softmax(at["axis"]),
    "Split": lambda at: lambda x: x.split(at["sizes"], at["axis"]),
    "Squeeze": lambda at: lambda x: x.squeeze(at["axes"]),
    "Transpose": lambda at: lambda x: x.permute(at["perm"]), "Unsqueeze": unsqueeze,
}  # fmt: skip
