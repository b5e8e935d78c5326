"""The recipe's ONNX runner and the conversion of exported graphs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.project import ROOT

pytest.importorskip("tomllib", reason="the recipe needs Python 3.11")
HIDDEN = 3
Nodes = list[tuple[str, str, str, dict[str, Any]]]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """Convert a graph of nodes and constants, write it, and load it."""
    monkeypatch.syspath_prepend(str(ROOT))
    from recipes.mini_voice import convert_graph, onnx_graph
    from recipes.mini_voice.graph_passes import Graph, Node

    def build(
        nodes: Nodes, constants: dict[str, np.ndarray], outputs: str, *,
        tried: list[dict[str, np.ndarray]] | None = None, device: str = "cpu",
    ) -> Any:  # fmt: skip
        made = [Node(op, i.split(), o.split(), dict(at)) for op, i, o, at in nodes]
        graph = Graph(made, constants, outputs.split())
        convert_graph.simplify(graph, tried or [{}])
        convert_graph.write(graph, tmp_path / "a.safetensors")
        return onnx_graph.OnnxGraph(tmp_path / "a.safetensors", torch.device(device))

    return build


def quantised(op: str, x: str, w: str, out: str, at: dict[str, Any], bias: str = "") -> Nodes:
    """A layer as exported: integers, with both scales applied at the end."""
    head: Nodes = [
        ("DynamicQuantizeLinear", x, f"{out}_q {out}_s {out}_z", {}),
        (op, f"{out}_q {w} {out}_z {w}_zero", f"{out}_whole", at),
        ("Mul", f"{out}_s {w}_scale", f"{out}_both", {}),
    ]
    whole = f"{out}_whole"
    if bias:
        head += [
            ("Div", f"{bias} {out}_both", f"{out}_1", {}), ("Floor", f"{out}_1", f"{out}_2", {}),
            ("Cast", f"{out}_2", f"{out}_3", {"to": 6}),
            ("Reshape", f"{out}_3 {out}_shape", f"{out}_4", {}),
            ("Add", f"{whole} {out}_4", f"{out}_5", {}),
        ]  # fmt: skip
        whole = f"{out}_5"
    tail: Nodes = [("Cast", whole, f"{out}_6", {"to": 1}), ("Mul", f"{out}_6 {out}_both", out, {})]
    return head + tail


def floats(constants: dict[str, np.ndarray], name: str) -> np.ndarray:
    whole = constants[name].astype(np.float32)
    return (whole - constants[f"{name}_zero"]) * constants[f"{name}_scale"]


def test_quantised_weights_are_dequantised(load: Any) -> None:
    rng = np.random.default_rng(0)
    constants: dict[str, np.ndarray] = {
        "w": rng.integers(0, 255, (4, 6)).astype(np.uint8), "w_zero": np.full(6, 7, np.uint8),
        "w_scale": rng.uniform(0.1, 1, 6).astype(np.float32), "b": np.arange(6, dtype=np.float32),
        "places": np.array([1, 0]), "begin": np.array([1]), "end": np.array([-1]),
        "axis": np.array([1]), "shape": np.array([0, -1, 2]), "one": np.array(1),
    }  # fmt: skip
    nodes = [
        *quantised("MatMulInteger", "x", "w", "product", {}),
        ("Add", "b product", "sum", {}),
        ("Slice", "sum begin end axis", "middle", {}),
        ("Gather", "middle places", "turned", {"axis": 0}),
        ("Reshape", "turned shape", "pairs", {}),
        ("Gather", "pairs one", "second", {"axis": 2}),
    ]
    x = rng.normal(size=(2, 4)).astype(np.float32)
    graph = load(nodes, constants, "pairs second")
    pairs, second = graph(x=x)
    wanted = (x @ floats(constants, "w") + constants["b"])[:, 1:-1][::-1].reshape(2, 2, 2)
    np.testing.assert_allclose(pairs, wanted, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(second, wanted[:, :, 1], rtol=1e-4, atol=1e-3)
    assert len(graph._steps) == 5


def test_input_dependent_shape_stays_dynamic(load: Any) -> None:
    nodes: Nodes = [
        ("Shape", "tokens", "sizes", {}),
        ("Gather", "sizes one", "length", {"axis": 0}),
        ("Unsqueeze", "length first", "row", {}),
        ("Concat", "row two", "shape", {"axis": 0}),
        ("Add", "x mask", "masked", {}),
        ("Reshape", "masked shape", "pairs", {}),
    ]
    constants = {"one": np.array(1), "first": np.array([0]), "two": np.array([2])}
    tried = [{"shape": np.array([n, 2]), "mask": np.zeros((1, 2 * n))} for n in (12, 31, 57)]
    graph = load(nodes, constants, "pairs", tried=tried)
    (pairs,) = graph(x=np.arange(10, dtype=np.float32)[None])
    assert pairs.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert len(graph._steps) == 1


def test_bidirectional_lstm_matches_onnx_gate_order(load: Any) -> None:
    """ONNX orders the gates input, output, forget, cell."""
    rng = np.random.default_rng(1)
    shapes = {"w": (2, 5, 4 * HIDDEN), "r": (2, HIDDEN, 4 * HIDDEN)}
    constants: dict[str, np.ndarray] = {
        name: rng.integers(-90, 90, s).astype(np.int8) for name, s in shapes.items()
    }
    constants |= {"b": rng.normal(size=(2, 8 * HIDDEN)).astype(np.float32) * 0.3}
    constants |= {"shape": np.array([0, 0, -1])}
    for name in shapes:
        constants[f"{name}_scale"] = np.array([0.01, 0.02], np.float32)
        constants[f"{name}_zero"] = np.array([1, -2], np.int8)
    names = "x w r b n h c p w_scale w_zero r_scale r_zero"
    nodes: Nodes = [
        ("DynamicQuantizeLSTM", names, "y", {}),
        ("Transpose", "y", "turned", {"perm": [0, 2, 1, 3]}),
        ("Reshape", "turned shape", "both", {}),
    ]
    x = rng.normal(size=(4, 1, 5)).astype(np.float32)
    (made,) = load(nodes, dict(constants), "both")(x=x)
    for way in range(2):
        weights = {
            n: (constants[n][way] - constants[f"{n}_zero"][way].astype(np.float32))
            * constants[f"{n}_scale"][way]
            for n in shapes
        }
        bias = constants["b"][way].reshape(2, -1).sum(0)
        h = c = np.zeros(HIDDEN)
        for step in range(4) if way == 0 else range(3, -1, -1):
            i, o, f, g = (x[step, 0] @ weights["w"] + h @ weights["r"] + bias).reshape(4, -1)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            found = made[step, 0, way * HIDDEN : (way + 1) * HIDDEN]
            np.testing.assert_allclose(found, h, rtol=1e-4, atol=1e-5)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


CONV = {"strides": [2], "pads": [3, 3], "dilations": [2], "group": 1}


def voice() -> tuple[Nodes, dict[str, np.ndarray]]:
    """Two style layers, a convolution, and a norm with a snake activation for each style."""
    rng = np.random.default_rng(2)
    constants: dict[str, np.ndarray] = {
        "w": rng.integers(0, 255, (4, 3, 5)).astype(np.uint8), "w_zero": np.array(120, np.uint8),
        "w_scale": np.array(0.01, np.float32), "b": rng.normal(size=4).astype(np.float32),
        "x1_shape": np.array([1, -1, 1]), "two": np.array(2.0, np.float32),
        "time": np.array([2]), "sizes": np.array([4, 4]), "one": np.array(1.0, np.float32),
        "epsilon": np.array(1e-5, np.float32),
    }  # fmt: skip
    nodes = quantised("ConvInteger", "x", "w", "x1", CONV, bias="b")
    for name in ("f", "g"):
        constants[name] = rng.integers(-90, 90, (6, 8)).astype(np.int8)
        constants[f"{name}_zero"] = np.zeros(8, np.int8)
        constants[f"{name}_scale"] = rng.uniform(0.001, 0.01, 8).astype(np.float32)
        constants[f"{name}_bias"] = rng.normal(size=8).astype(np.float32)
        constants[f"{name}_a"] = rng.uniform(0.5, 2, (1, 4, 1)).astype(np.float32)
        constants[f"{name}_r"] = 1 / constants[f"{name}_a"]
        nodes += quantised("MatMulInteger", "style", name, f"{name}1", {})
        nodes += [
            ("Add", f"{name}1 {name}_bias", f"{name}2", {}),
            ("Unsqueeze", f"{name}2 time", f"{name}3", {}),
            ("Split", f"{name}3 sizes", f"{name}_gain {name}_shift", {"axis": 1}),
            ("Add", f"{name}_gain one", f"{name}_more", {}),
            ("ReduceMean", "x1 time", f"{name}4", {"keepdims": 1}),
            ("Sub", f"x1 {name}4", f"{name}5", {}),
            ("Mul", f"{name}5 {name}5", f"{name}6", {}),
            ("ReduceMean", f"{name}6 time", f"{name}7", {"keepdims": 1}),
            ("Add", f"{name}7 epsilon", f"{name}8", {}), ("Sqrt", f"{name}8", f"{name}9", {}),
            ("Div", f"{name}5 {name}9", f"{name}10", {}),
            ("Mul", f"{name}_more {name}10", f"{name}11", {}),
            ("Add", f"{name}11 {name}_shift", f"{name}12", {}),
            ("Mul", f"{name}_a {name}12", f"{name}13", {}), ("Sin", f"{name}13", f"{name}14", {}),
            ("Pow", f"{name}14 two", f"{name}15", {}),
            ("Mul", f"{name}_r {name}15", f"{name}16", {}),
            ("Add", f"{name}12 {name}16", f"{name}17", {}),
        ]  # fmt: skip
    return nodes, constants


def test_split_layers_are_fused(load: Any) -> None:
    nodes, constants = voice()
    kept = dict(constants)
    graph = load(nodes, constants, "f17 g17")
    # Both styles as one layer: its sum, a column, the split; the convolution; 3 for each norm.
    assert len(graph._steps) == 3 + 1 + 2 * 3
    rng = np.random.default_rng(4)
    x, style = (rng.normal(size=shape).astype(np.float32) for shape in ((1, 3, 40), (1, 6)))
    weights, bias = torch.from_numpy(floats(kept, "w")), torch.from_numpy(kept["b"])
    y = F.conv1d(torch.from_numpy(x), weights, bias, 2, 3, 2)
    for name, made in zip("fg", graph(x=x, style=style), strict=True):
        gain, shift = np.split(style @ floats(kept, name) + kept[f"{name}_bias"], 2, axis=1)
        normed = F.instance_norm(y).numpy() * (1 + gain[..., None]) + shift[..., None]
        a = kept[f"{name}_a"]
        np.testing.assert_allclose(made, normed + np.sin(a * normed) ** 2 / a, rtol=1e-3, atol=1e-4)


class OnDevice(TorchDispatchMode):
    """Fails when a host tensor is used."""

    def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in torch.utils._pytree.tree_leaves((args, kwargs)):
            assert not isinstance(value, Tensor) or value.device.type == "meta", func
        return func(*args, **(kwargs or {}))


def test_steps_need_no_host_tensor_or_device_sync(load: Any) -> None:
    """Runs on meta tensors, which fail when a value is read."""
    graph = load(*voice(), "f17 g17", device="meta")
    fed = {n: torch.zeros(s, device="meta") for n, s in (("x", (1, 3, 40)), ("style", (1, 6)))}
    with torch.inference_mode(), OnDevice():
        assert [made.shape for made in graph.run(fed)] == [(1, 4, 19)] * 2
        with pytest.raises(AssertionError):
            graph.run({"x": torch.zeros(1, 3, 40), "style": fed["style"]})


@pytest.mark.parametrize("kernel", [1, 5])
def test_convolution_equals_matrix_product(load: Any, kernel: int) -> None:
    from recipes.mini_voice.onnx_graph import library_convolution, product_convolution

    at = CONV if kernel > 1 else CONV | {"strides": [1], "pads": [0, 0], "dilations": [1]}
    weights, bias = torch.randn(4, 3, kernel), torch.randn(4)
    for given in (bias, None):
        one, other = (
            build(at, weights, given) for build in (library_convolution, product_convolution)
        )
        x = torch.randn(1, 40, 3).mT
        torch.testing.assert_close(one(x), other(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("shape", "stride", "pad", "more", "group"),
    [((3, 4, 20), 10, 5, 0, 1), ((3, 1, 3), 2, 1, 1, 3), ((3, 1, 20), 5, 0, 0, 1)],
)
def test_transposed_convolution_sums_overlapping_windows(
    load: Any, shape: tuple[int, ...], stride: int, pad: int, more: int, group: int
) -> None:
    from recipes.mini_voice.onnx_graph import transposed_convolution

    at = {"strides": [stride], "pads": [pad, pad], "output_padding": [more], "group": group}
    weights, bias, x = torch.randn(shape), torch.randn(shape[1] * group), torch.randn(1, 3, 17)
    wanted = F.conv_transpose1d(x, weights, bias, stride, pad, more, group)
    found = transposed_convolution(at, weights, bias)(x)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_spectrum_matches_torch_without_phase_from_rounding(load: Any) -> None:
    from recipes.mini_voice.onnx_graph import spectrum

    window, x = torch.hann_window(20), torch.randn(1, 137)
    run = spectrum({"step": 5, "length": 20}, window)
    wanted = torch.stft(x, 20, 5, window=window, center=False, return_complex=True)
    torch.testing.assert_close(run(x), torch.view_as_real(wanted).transpose(1, 2))
    assert not run(torch.full((1, 40), 0.3))[:, :, 2:].any()


def test_phase_of_negative_number_is_pi(load: Any) -> None:
    nodes: Nodes = [
        ("Div", "y x", "ratio", {}), ("Atan", "ratio", "tangent", {}),
        ("Sub", "tangent pi", "down", {}), ("Add", "tangent pi", "up", {}),
        ("Greater", "y zero", "is_up", {}), ("Where", "is_up up down", "turned", {}),
        ("Less", "x zero", "is_left", {}), ("Where", "is_left turned tangent", "angle", {}),
    ]  # fmt: skip
    numbers = {"pi": np.array(np.pi, np.float32), "zero": np.array(0, np.float32)}
    x, y = np.array([-1, -1, 1, -2, 0, 0], np.float32), np.array([0, 1, 1, -2, 0, 0], np.float32)
    (found,) = load(nodes, numbers, "angle")(x=x, y=y)
    np.testing.assert_allclose(found[:4], np.array([4, 3, 1, -3]) * np.pi / 4, rtol=1e-6)
    assert np.isfinite(found).all()
    assert found[4] != found[5]
