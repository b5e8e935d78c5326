"""The recipe's own runner of ONNX graphs: weights in integers, an LSTM, places and shapes."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from conftest import ROOT

pytest.importorskip("tomllib", reason="the recipe needs Python 3.11")
HIDDEN = 3


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A graph of nodes and constants, without the package that reads files of them."""
    monkeypatch.syspath_prepend(str(ROOT))

    def build(nodes: list[tuple[Any, ...]], constants: dict[str, np.ndarray], outputs: str) -> Any:
        made = [
            SimpleNamespace(
                op_type=kind,
                input=inputs.split(),
                output=[output],
                attribute=[SimpleNamespace(name=n, value=v) for n, v in attributes.items()],
            )
            for kind, inputs, output, attributes in nodes
        ]
        items = [SimpleNamespace(name=name, value=value) for name, value in constants.items()]
        names = [SimpleNamespace(name=name) for name in outputs.split()]
        graph = SimpleNamespace(initializer=items, output=names, node=made)
        onnx = ModuleType("onnx")
        onnx.load = lambda path: SimpleNamespace(graph=graph)  # type: ignore[attr-defined]
        onnx.numpy_helper = SimpleNamespace(to_array=lambda item: item.value)  # type: ignore[attr-defined]
        onnx.helper = SimpleNamespace(get_attribute_value=lambda a: a.value)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "onnx", onnx)
        from recipes.mini_voice.onnx_graph import OnnxGraph

        return OnnxGraph(Path("a.onnx"))

    return build


def test_integer_weights_count_from_their_zero_and_shapes_are_followed(load: Any) -> None:
    rng = np.random.default_rng(0)
    weights = rng.integers(0, 255, (4, 6)).astype(np.uint8)
    constants = {
        "w": weights, "zero": np.array(7, np.uint8), "two": np.array(2), "places": np.array([1, 0]),
        "begin": np.array([1]), "end": np.array([-1]), "axis": np.array([1]),
        "shape": np.array([0, -1, 2]),
    }  # fmt: skip
    nodes = [
        ("DynamicQuantizeLinear", "x", "q", {}),
        ("MatMulInteger", "q w q zero", "product", {}),
        ("Slice", "product begin end axis", "middle", {}),
        ("Gather", "middle places", "turned", {"axis": 0}),
        ("Reshape", "turned shape", "pairs", {}),
        ("Shape", "pairs", "sizes", {}),
        ("Gather", "sizes two", "last", {"axis": 0}),
    ]
    x = rng.normal(size=(2, 4)).astype(np.float32)
    pairs, last = load(nodes, constants, "pairs last")(x=x)
    wanted = (x @ (weights.astype(np.float32) - 7))[:, 1:-1][::-1].reshape(2, 2, 2)
    np.testing.assert_allclose(pairs, wanted, rtol=1e-4, atol=1e-3)
    assert last == 2


def test_an_lstm_reads_both_ways_with_its_gates_in_order(load: Any) -> None:
    """As the standard says: gates in the order input, output, forget, cell."""
    rng = np.random.default_rng(1)
    shapes = {"w": (2, 5, 4 * HIDDEN), "r": (2, HIDDEN, 4 * HIDDEN)}
    constants = {name: rng.integers(-90, 90, s).astype(np.int8) for name, s in shapes.items()}
    constants |= {"b": rng.normal(size=(2, 8 * HIDDEN)).astype(np.float32) * 0.3}
    for name in shapes:
        constants[f"{name}_scale"] = np.array([0.01, 0.02], np.float32)
        constants[f"{name}_zero"] = np.array([1, -2], np.int8)
    inputs = "x w r b n h c p w_scale w_zero r_scale r_zero"
    graph = load([("DynamicQuantizeLSTM", inputs, "y", {})], constants, "y")
    for name in "nhcp":
        graph._constants[name] = None
    x = rng.normal(size=(4, 1, 5)).astype(np.float32)
    (made,) = graph(x=x)
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
            np.testing.assert_allclose(made[step, way, 0], h, rtol=1e-4, atol=1e-5)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))
