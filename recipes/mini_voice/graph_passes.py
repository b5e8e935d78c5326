"""Graph passes of `convert_graph`: dequantise layers and fuse those that the export split."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Values = dict[str, np.ndarray]

# Inputs that are settings rather than tensors: their positions and names.
SETTINGS: dict[str, dict[int, str]] = {
    "Reshape": {1: "shape"}, "Unsqueeze": {1: "axes"}, "Squeeze": {1: "axes"},
    "Slice": {1: "begins", 2: "ends", 3: "axes", 4: "steps"}, "Split": {1: "sizes"},
    "ReduceMean": {1: "axes"}, "ReduceSum": {1: "axes"}, "CumSum": {1: "axis"},
    "Clip": {1: "low", 2: "high"}, "Pad": {1: "pads"}, "Resize": {2: "scales"},
    "STFT": {1: "step", 3: "length"}, "Range": {0: "begin", 2: "step"},
}  # fmt: skip


@dataclass
class Node:
    op: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass
class Graph:
    nodes: list[Node]
    constants: Values
    outputs: list[str]
    # Integer constants: their float values are (integer - zero) * scale.
    scales: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)

    def makers(self) -> dict[str, Node]:
        return {name: node for node in self.nodes for name in node.outputs}

    def users(self) -> dict[str, list[Node]]:
        found: dict[str, list[Node]] = defaultdict(list)
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                found[name].append(node)
        return found

    def rename(self, names: dict[str, str]) -> None:
        def last(name: str) -> str:
            while name in names:
                name = names[name]
            return name

        for node in self.nodes:
            node.inputs = [last(name) for name in node.inputs]
        self.outputs = [last(name) for name in self.outputs]

    def prune(self) -> None:
        """Remove nodes that no output needs."""
        needed, kept = set(self.outputs), []
        for node in reversed(self.nodes):
            if needed & set(node.outputs):
                kept.append(node)
                needed |= set(node.inputs)
        self.nodes = kept[::-1]
        self.constants = {n: v for n, v in self.constants.items() if n in needed}

    def sort(self) -> None:
        """Order every node after its inputs."""
        made, makers = set(self.constants), self.makers()
        order: list[Node] = []
        stack = [makers[name] for name in reversed(self.outputs)]
        while stack:
            node = stack[-1]
            waits = [makers[n] for n in node.inputs if n in makers and n not in made]
            if not waits:
                stack.pop()
                if node.outputs[0] not in made:
                    order.append(node)
                    made |= set(node.outputs)
            stack += waits
        self.nodes = order


def unquantise(graph: Graph) -> None:
    """Replace layers that quantise their input by layers with float activations."""
    makers, users = graph.makers(), graph.users()
    aliases: dict[str, str] = {}
    made: list[Node] = []
    for node in graph.nodes:
        if node.op == "DynamicQuantizeLinear":
            aliases[node.outputs[0]] = node.inputs[0]
        elif node.op in ("ConvInteger", "MatMulInteger"):
            made.append(_layer(node, graph, makers, users))
        elif node.op == "DequantizeLinear":
            table = makers[node.inputs[0]].inputs[0]
            graph.scales[table] = graph.constants[node.inputs[1]], graph.constants[node.inputs[2]]
            aliases[node.outputs[0]] = node.inputs[0]
        elif node.op == "DynamicQuantizeLSTM":
            for place, scale, zero in ((1, 8, 9), (2, 10, 11)):
                graph.scales[node.inputs[place]] = (
                    graph.constants[node.inputs[scale]].reshape(-1, 1, 1),
                    graph.constants[node.inputs[zero]].reshape(-1, 1, 1),
                )
            made.append(Node("LSTM", node.inputs[:4], node.outputs[:1]))
    replaced = {name for node in made for name in node.outputs} | set(aliases)
    graph.nodes = [node for node in graph.nodes if not replaced & set(node.outputs)] + made
    graph.rename(aliases)
    graph.sort()
    graph.prune()


def _layer(node: Node, graph: Graph, makers: dict[str, Node], users: dict[str, list[Node]]) -> Node:
    """From an integer product: [+ whole bias], to float, * both scales."""
    x, weights, _, zero = node.inputs
    (user,) = users[node.outputs[0]]
    bias = []
    if user.op == "Add":
        steps = []
        name = next(n for n in user.inputs if n != node.outputs[0])
        for op in ("Reshape", "Cast", "Floor", "Div"):
            steps.append(makers[name].op == op)
            name = makers[name].inputs[0]
        assert all(steps)
        bias = [name]
        (user,) = users[user.outputs[0]]
    assert user.op == "Cast"
    (last,) = users[user.outputs[0]]
    (both,) = set(last.inputs) - set(user.outputs)
    (scale,) = set(makers[both].inputs) & set(graph.constants)
    assert (last.op, makers[both].op) == ("Mul", "Mul")
    graph.scales[weights] = graph.constants[scale], graph.constants[zero]
    op = node.op.removesuffix("Integer")
    return Node(op, [x, weights, *bias], last.outputs, node.attributes)


def fuse_biases(graph: Graph) -> None:
    """Fuse a product and a bias into one Linear."""
    users = graph.users()
    gone = []
    for node in graph.nodes:
        if node.op != "MatMul" or node.inputs[1] not in graph.constants:
            continue
        (user,) = users[node.outputs[0]]
        rest = [name for name in user.inputs if name in graph.constants]
        if user.op == "Add" and rest and graph.constants[rest[0]].ndim == 1:
            node.op, node.inputs, node.outputs = "Linear", [*node.inputs, *rest], user.outputs
            gone.append(id(user))
    graph.nodes = [node for node in graph.nodes if id(node) not in gone]


def merge_linears(graph: Graph) -> None:
    """Merge layers with the same input and split the result. A norm's `+ 1` joins the bias."""
    users, groups = graph.users(), defaultdict(list)
    for node in graph.nodes:
        if node.op == "Linear" and node.inputs[1] in graph.scales:
            groups[node.inputs[0]].append(node)
    aliases: dict[str, str] = {}
    for x, group in groups.items():
        if len(group) < 2:
            continue
        outputs, sizes, biases = [], [], []
        for node in group:
            bias = graph.constants[node.inputs[2]].copy()
            halves = _norm_halves(node, graph, users)
            for half, part in zip(halves, np.split(bias, len(halves)), strict=True):
                add = users[half][0]
                is_gain = len(halves) == 2 and half == halves[0] and add.op == "Add"
                if is_gain and any(np.all(graph.constants.get(n) == 1) for n in add.inputs):
                    part += 1
                    aliases[add.outputs[0]] = half
                outputs.append(half)
                sizes.append(len(part))
            biases.append(bias)
        # Layers with equal weights and different inputs share the merged weights.
        name = "merged " + " ".join(node.inputs[1] for node in group)
        weights = [node.inputs[1] for node in group]
        graph.constants[name] = np.concatenate([graph.constants[w] for w in weights], 1)
        scales = [
            np.broadcast_to(graph.scales[w], (2, len(b)))
            for w, b in zip(weights, biases, strict=True)
        ]
        scale, zero = np.concatenate(scales, 1)
        graph.scales[name] = scale.astype(np.float32), zero.astype(graph.constants[name].dtype)
        graph.constants[f"{name} bias"] = np.concatenate(biases)
        sums = Node("Linear", [x, name, f"{name} bias"], [f"{x} merged"])
        tail = [sums]
        if len(outputs) > len(group):
            tail.append(Node("Unsqueeze", [f"{x} merged"], [f"{x} column"], {"axes": [2]}))
        split = {"sizes": sizes, "axis": 1 if len(tail) > 1 else -1}
        tail.append(Node("Split", [*tail[-1].outputs], outputs, split))
        gone = {name for node in group for name in node.outputs} | set(outputs) | set(aliases)
        graph.nodes = [n for n in graph.nodes if not gone & set(n.outputs)] + tail
    graph.rename(aliases)
    graph.sort()
    graph.prune()


def _norm_halves(node: Node, graph: Graph, users: dict[str, list[Node]]) -> list[str]:
    """Gain and shift if the layer's output is split into them; else the output."""
    after = users[node.outputs[0]]
    if [n.op for n in after] == ["Unsqueeze"]:
        (split,) = users[after[0].outputs[0]]
        if split.op == "Split" and len(split.outputs) == 2:
            return split.outputs
    return node.outputs


def fuse_norms(graph: Graph) -> None:
    """(x - mean) / deviation over time as InstanceNorm; gain * x + shift as MulAdd."""
    makers, users = graph.makers(), graph.users()
    for node in graph.nodes:
        if node.op != "Div" or node.inputs[1] not in makers or node.inputs[0] not in makers:
            continue
        centred, root = makers[node.inputs[0]], makers[node.inputs[1]]
        if (centred.op, root.op) != ("Sub", "Sqrt") or root.inputs[0] not in makers:
            continue
        total = makers[root.inputs[0]]
        (epsilon,) = set(total.inputs) & set(graph.constants)
        assert makers[centred.inputs[1]].op == "ReduceMean"
        node.op, node.inputs = "InstanceNorm", [centred.inputs[0]]
        node.attributes = {"epsilon": float(graph.constants[epsilon])}
    gone = []
    for node in graph.nodes:
        after = users[node.outputs[0]]
        if node.op != "Mul" or len(after) != 1 or after[0].op != "Add":
            continue
        if not any(
            makers[n].op in ("InstanceNorm", "LayerNormalization")
            for n in node.inputs
            if n in makers
        ):
            continue
        (shift,) = set(after[0].inputs) - set(node.outputs)
        node.op, node.inputs, node.outputs = "MulAdd", [shift, *node.inputs], after[0].outputs
        gone.append(id(after[0]))
    graph.nodes = [node for node in graph.nodes if id(node) not in gone]
    graph.sort()
    graph.prune()


def fuse_snakes(graph: Graph) -> None:
    """x + gain * sin(frequency * x) ** 2."""
    makers = graph.makers()

    def made_by(name: str, op: str) -> Node | None:
        node = makers.get(name)
        return node if node is not None and node.op == op else None

    for node in graph.nodes:
        if node.op != "Add":
            continue
        x, scaled = node.inputs[0], made_by(node.inputs[1], "Mul")
        power = made_by(scaled.inputs[1], "Pow") if scaled else None
        sine = made_by(power.inputs[0], "Sin") if power else None
        angle = made_by(sine.inputs[0], "Mul") if sine else None
        if angle and scaled and angle.inputs[1] == x:
            node.op, node.inputs = "Snake", [x, angle.inputs[0], scaled.inputs[0]]
    graph.prune()


def fuse_attention(graph: Graph) -> None:
    """softmax(s * q @ s * k) @ v, where s * s is the usual scale."""
    makers = graph.makers()
    for node in graph.nodes:
        weights = makers.get(node.inputs[0]) if node.op == "MatMul" else None
        if weights is None or weights.op != "Softmax":
            continue
        query, key = (makers[name] for name in makers[weights.inputs[0]].inputs)
        assert (query.op, key.op, makers[key.inputs[0]].attributes["perm"]) == (
            "Mul", "Mul", [0, 2, 3, 1],
        )  # fmt: skip
        scales = [float(graph.constants[n.inputs[1]].item()) for n in (query, key)]
        node.op, node.inputs = "Attention", [query.inputs[0], key.inputs[0], node.inputs[1]]
        node.attributes = {"scale": scales[0] * scales[1]}
    graph.prune()


def fuse_angles(graph: Graph) -> None:
    """atan(y / x), half a turn further where x < 0, as one Angle: +pi where y is zero.

    The export's comparison gives -pi there, but for rounding. The model learned +pi, and every
    frame's lowest bin is such a place.
    """
    makers = graph.makers()
    for node in graph.nodes:
        tangent = makers.get(node.inputs[2]) if node.op == "Where" else None
        if tangent is not None and tangent.op == "Atan":
            assert makers[node.inputs[0]].op == "Less"
            node.op, node.inputs = "Angle", makers[tangent.inputs[0]].inputs
    graph.prune()


def fuse_lstms(graph: Graph) -> None:
    """Concatenate both directions, as the next layer expects."""
    users = graph.users()
    for node in [node for node in graph.nodes if node.op == "LSTM"]:
        (turned,) = users[node.outputs[0]]
        assert turned.attributes["perm"] == [0, 2, 1, 3]
        (shaped,) = users[turned.outputs[0]]
        assert graph.constants[shaped.inputs[1]].tolist() == [0, 0, -1]
        shaped.op, shaped.inputs, shaped.attributes = "LSTM", node.inputs, {}
    graph.prune()


def settle(graph: Graph) -> None:
    """Turn constant settings into attributes."""
    for node in graph.nodes:
        places = SETTINGS.get(node.op, {})
        for place, name in places.items():
            if place < len(node.inputs) and node.inputs[place] in graph.constants:
                node.attributes[name] = graph.constants[node.inputs[place]].tolist()
        tensors = [
            n for i, n in enumerate(node.inputs) if i not in places or n not in graph.constants
        ]
        if node.op == "Gather" and graph.constants.get(node.inputs[1], np.zeros(1)).ndim == 0:
            node.attributes["index"] = int(graph.constants[node.inputs[1]])
            tensors = node.inputs[:1]
        node.inputs = [name for name in tensors if name]
    graph.prune()
