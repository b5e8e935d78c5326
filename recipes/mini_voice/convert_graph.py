"""Convert Kokoro's int8 ONNX export to a file that `onnx_graph` runs with torch.

    python -m recipes.mini_voice.convert_graph kokoro_durations.onnx michael.bin

Weights stay integers. Values that depend only on shapes are computed here, from trial inputs of
several lengths. Layers that the export split are fused. Needs `onnx` and `onnxruntime`, not torch.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from recipes.mini_voice import graph_passes as passes
from recipes.mini_voice.graph_passes import Graph, Node, Values

LENGTHS = 12, 31, 57  # phonemes of the trial inputs
TOKENS = "tokens"  # the input whose length is L


def read_onnx(path: Path) -> Graph:
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(str(path)).graph
    constants = {item.name: np.array(numpy_helper.to_array(item)) for item in graph.initializer}
    nodes = []
    for node in graph.node:
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        if "value" in attributes:
            attributes["value"] = float(numpy_helper.to_array(attributes["value"]).item())
        attributes = {k: v.decode() if isinstance(v, bytes) else v for k, v in attributes.items()}
        nodes.append(Node(node.op_type, list(node.input), list(node.output), attributes))
    return Graph(nodes, constants, [output.name for output in graph.output])


def of_shapes(graph: Graph) -> list[str]:
    """Names of values that depend on input shapes only."""
    known = {"", *graph.constants}
    found = []
    for node in graph.nodes:
        if node.op == "Shape" or known.issuperset(node.inputs):
            known |= set(node.outputs)
            found += node.outputs
    return found


def try_inputs(path: Path, names: list[str], styles: np.ndarray) -> list[Values]:
    """The values of `names` for inputs of several lengths, by onnxruntime."""
    import onnx
    import onnxruntime

    model = onnx.load(str(path))
    del model.graph.output[:]
    model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    rng = np.random.default_rng(0)
    tried = []
    for length, speed in zip(LENGTHS, (0.8, 1.0, 1.3), strict=True):
        feed = {
            TOKENS: rng.integers(1, 150, (1, length)),
            "style": styles[length],
            "speed": np.full(1, speed, np.float32),
        }
        tried.append(dict(zip(names, session.run(names, feed), strict=True)))
    return tried


def fold_shapes(graph: Graph, tried: list[Values]) -> None:
    """Replace values that are equal in all trials by constants, with -1 or L for a length."""
    zeros = set()
    for name in tried[0]:
        values = [value[name] for value in tried]
        if all(np.array_equal(values[0], value) for value in values[1:]):
            graph.constants[name] = values[0]
        elif not any(value.any() for value in values):
            zeros.add(name)
    aliases, varying = {}, set(tried[0]) - set(graph.constants)
    for node in graph.nodes:
        if node.op == "Gather" and node.inputs[1] in varying and _is_table(graph, node.inputs[0]):
            _fold_gather(node, graph, [value[node.inputs[1]] for value in tried])
        elif node.outputs[0] in tried[0]:
            continue
        elif node.op == "Reshape" and node.inputs[1] in varying:
            node.inputs[1] = _open_shape(graph, [value[node.inputs[1]] for value in tried])
        elif node.op == "Expand" and node.inputs[1] in varying:
            shape = [1, None, -1]
            for length, value in zip(LENGTHS, tried, strict=True):
                assert value[node.inputs[1]].tolist() in ([1, length, 1], [1, length])
            node.op, node.inputs = "Repeat", [node.inputs[0], TOKENS]
            node.attributes = {"shape": shape}
        elif node.op == "Add" and (zero := zeros & set(node.inputs)):
            (aliases[node.outputs[0]],) = set(node.inputs) - zero
    graph.nodes = [n for n in graph.nodes if not set(n.outputs) & {*graph.constants, *aliases}]
    graph.rename(aliases)
    graph.prune()


def _open_shape(graph: Graph, shapes: list[np.ndarray]) -> str:
    """A constant shape with -1 for the dimension that differs between the trials."""
    differs = np.any([shape != shapes[0] for shape in shapes], axis=0)
    assert differs.sum() == 1, shapes
    made = np.where(differs, -1, shapes[0])
    name = f"shape {made.tolist()}"
    graph.constants[name] = made
    return name


def _is_table(graph: Graph, name: str) -> bool:
    return name in graph.constants and graph.constants[name].ndim == 2


def _fold_gather(node: Node, graph: Graph, places: list[np.ndarray]) -> None:
    if not any(place.any() for place in places):
        name = f"{node.inputs[1]} first"
        graph.constants[name] = np.zeros((1, 1), np.int64)
        node.inputs[1] = name
        return
    for length, place in zip(LENGTHS, places, strict=True):
        assert np.array_equal(place, np.arange(length)[None])
    node.op, node.inputs, node.attributes = "FirstRows", [node.inputs[0], TOKENS], {}


def simplify(graph: Graph, tried: list[Values]) -> None:
    fold_shapes(graph, tried)
    for step in (
        passes.unquantise, passes.fuse_biases, passes.merge_linears, passes.fuse_norms,
        passes.fuse_snakes, passes.fuse_attention, passes.fuse_angles, passes.fuse_lstms,
        passes.settle,
    ):  # fmt: skip
        step(graph)


def write(graph: Graph, path: Path) -> None:
    """Tensors by number; names, numbers and nodes as JSON in the file's metadata."""
    numbers = {name: float(v) for name, v in graph.constants.items() if not v.ndim}
    names = [name for name in graph.constants if name not in numbers]
    tensors = {}
    for place, name in enumerate(names):
        tensors[str(place)] = np.ascontiguousarray(graph.constants[name])
        if name in graph.scales:
            scale, zero = graph.scales[name]
            tensors[f"{place}.scale"] = np.asarray(scale, np.float32)
            tensors[f"{place}.zero"] = np.asarray(zero, np.float32)
    nodes = [(n.op, n.inputs, n.outputs, n.attributes) for n in graph.nodes]
    described = {"tensors": names, "numbers": numbers, "nodes": nodes, "outputs": graph.outputs}
    save_file(tensors, path, metadata={"graph": json.dumps(described)})


def convert(model: Path, style: Path) -> Path:
    graph = read_onnx(model)
    styles = np.fromfile(style, np.float32).reshape(-1, 1, 256)
    before = len(graph.nodes)
    simplify(graph, try_inputs(model, of_shapes(graph), styles))
    path = model.with_suffix(".safetensors")
    write(graph, path)
    print(f"{path}: {len(graph.nodes)} steps of {before}, {path.stat().st_size / 2**20:.1f} MiB")
    return path


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
