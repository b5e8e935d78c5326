"""The draw of one code as ONNX nodes, in the order of `vivace.sampling`.

Noise is an input of the graph, so a draw depends on the same Philox counter as in the package.
"""

from __future__ import annotations

from dataclasses import dataclass

from vivace.export.graph import Graph

INFINITY = float("inf")


@dataclass(frozen=True, slots=True)
class SamplingInputs:
    """Sampling inputs of the graph: one value each."""

    temperature: str  # float32 [1], above 0
    top_k: str  # int32 [1], at least 1; larger values keep every code
    top_p: str  # float32 [1]

    @classmethod
    def inputs(cls, graph: Graph, prefix: str = "") -> SamplingInputs:
        return cls(
            graph.input(f"{prefix}temperature", "float32", [1]),
            graph.input(f"{prefix}top_k", "int32", [1]),
            graph.input(f"{prefix}top_p", "float32", [1]),
        )


def penalise(graph: Graph, logits: str, history: str, penalty: str) -> str:
    """Lower the scores of codes in `history`, bool [codes]."""
    is_negative = graph.op("Less", logits, graph.constant(0.0))
    scaled = graph.op("Mul", logits, penalty), graph.op("Div", logits, penalty)
    return graph.op("Where", history, graph.op("Where", is_negative, *scaled), logits)


def shape_scores(graph: Graph, logits: str, num_codes: int, shaping: SamplingInputs) -> str:
    """Temperature, top-k and top-p of scores [codes]; dropped codes are -inf."""
    scores = graph.op("Div", logits, shaping.temperature)
    top_k = graph.op("Min", shaping.top_k, graph.constant_of([num_codes], "int32"))
    ranked = graph.ops("TopK", [scores, graph.cast(top_k, "int64")], 2, axis=0)[0]
    # Ascending mass, as in the package: a code is dropped if it and all less probable codes have
    # at most 1 - top_p. The first code always stays.
    probable = graph.op("Softmax", ranked, axis=0)
    mass = graph.op("CumSum", probable, graph.constant_of(0, "int64"), reverse=1)
    limit = graph.op("Sub", graph.constant(1.0), shaping.top_p)
    is_kept = graph.op("Greater", mass, limit)
    kept = graph.op("Where", is_kept, ranked, graph.slice(ranked, 0, 0, 1))
    least = graph.op("ReduceMin", kept, keepdims=1)
    is_dropped = graph.op("Less", scores, least)
    return graph.op("Where", is_dropped, graph.constant(-INFINITY), scores)


def draw(graph: Graph, scores: str, noise: str) -> tuple[str, str]:
    """The index of the drawn code, int64 [1], and its score, float32 [1]."""
    noisy = graph.op("Add", scores, noise)
    best = graph.op("ReduceMax", noisy, keepdims=1)
    return graph.op("ArgMax", noisy, axis=0, keepdims=1), best
