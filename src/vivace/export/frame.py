"""The graph that makes one frame: talker, predictor and all draws.

A call reads rows (the whole prompt, then one row per frame) and draws the codes of the next frame.
Keys and values of earlier rows are an input, those of the new rows an output.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx
import torch

from vivace.backends.frame_maker import bans
from vivace.export.blocks import (
    BlockNodes,
    LinearNodes,
    NormNodes,
    Pass,
    hidden_keys,
    rope_rows,
)
from vivace.export.graph import Graph, StoredWeights
from vivace.export.sampling import SamplingInputs, draw, penalise, shape_scores
from vivace.model.config import SPEAKER
from vivace.model.talker import Qwen3TTS


def build_frame_graph(model: Qwen3TTS, weights: StoredWeights) -> onnx.ModelProto:
    with torch.inference_mode():
        return _FrameBuilder(model, weights).build()


def first_codes(model: Qwen3TTS) -> list[int]:
    """The ids of codebook 0 that can be drawn: its codes and the end of speech."""
    late, _ = bans(model)
    return torch.nonzero(~late)[:, 0].tolist()


@dataclass(frozen=True, slots=True)
class _Draws:
    """The draws of a frame so far."""

    codes: list[str]  # int64 [1] each
    scores: list[str]  # float32 [1] each


class _FrameBuilder:
    def __init__(self, model: Qwen3TTS, weights: StoredWeights) -> None:
        self.graph = Graph("frame", weights)
        self.model, self.talker = model, model.talker
        self.config = model.config.talker_config
        self.inner = self.config.code_predictor_config
        self.first_codes = first_codes(model)
        sizes = [len(table.weight) for table in self.talker.code_tables]
        self.offsets = [sum(sizes[:index]) for index in range(len(sizes))]
        joined = torch.cat([table.weight for table in self.talker.code_tables])
        self.code_table = self.graph.weight(joined)

    def build(self) -> onnx.ModelProto:
        graph = self.graph
        hidden = self._read_rows()  # [1, hidden], of the last row
        noise = graph.input("noise", "float32", [self._num_noise])
        parts = [len(self.first_codes)] + [self.inner.vocab_size] * (self.inner.num_code_groups - 1)
        first_noise, *other_noise = graph.split(noise, parts, 0)
        draws = self._draw_first(hidden, first_noise)
        self._draw_others(hidden, draws, other_noise)
        num_groups = self.config.num_code_groups
        codes = graph.cast(graph.concat(draws.codes, 0), "int32")
        graph.output("next_codes", codes, "int32", [num_groups])
        graph.output("scores", graph.concat(draws.scores, 0), "float32", [num_groups])
        return graph.build()

    @property
    def _num_noise(self) -> int:
        return len(self.first_codes) + self.inner.vocab_size * (self.inner.num_code_groups - 1)

    # -- the talker --------------------------------------------------------------------------

    def _read_rows(self) -> str:
        graph, config = self.graph, self.config
        x = self._embed_rows()
        kv_shape = [config.num_hidden_layers, 2, config.num_key_value_heads, config.head_dim]
        past = graph.input("past", "float32", ["past_rows", *kv_shape])
        num_past, num_rows = graph.size(past, 0), graph.size(x, 0)
        layers = graph.transpose(past, [1, 2, 3, 0, 4])  # [layers, 2, kv_heads, P, head_dim]
        olds = graph.split(layers, [1] * config.num_hidden_layers, 0)
        news: list[str] = []

        def extend_cache(layer: int, keys: str, values: str) -> tuple[str, str]:
            axes = graph.constant([0, 1])
            both = graph.concat([graph.op("Unsqueeze", each, axes) for each in (keys, values)], 1)
            news.append(both)  # [1, 2, kv_heads, T, head_dim]
            joined = graph.concat([olds[layer], both], 3)
            keys, values = graph.split(joined, [1, 1], 1)
            return graph.op("Squeeze", keys, axes), graph.op("Squeeze", values, axes)

        cos, sin = rope_rows(graph, self.talker.rope, num_past, num_rows)
        shared = Pass(cos, sin, self._causal_mask(num_past, num_rows), extend_cache, self._watch)
        for index, layer in enumerate(self.talker.model.layers):
            x = BlockNodes(graph, layer)(index, x, shared)
        new = graph.transpose(graph.concat(news, 0), [3, 0, 1, 2, 4])
        graph.output("new_past", new, "float32", ["rows", *kv_shape])
        return NormNodes.of(graph, self.talker.model.norm)(graph.slice(x, -1, 0))

    def _embed_rows(self) -> str:
        """Text ids and codes to rows [T, hidden]."""
        graph, width = self.graph, self.config.hidden_size
        text_ids = graph.input("text_ids", "int32", ["rows"])
        codes = graph.input("codes", "int32", ["rows", self.config.num_code_groups])
        zero = graph.constant_of(0, "int32")
        offsets = graph.constant_of(self.offsets, "int32")
        places = graph.op("Add", graph.op("Max", codes, zero), offsets)
        vectors = graph.op("Gather", self.code_table, places, axis=0)  # [T, groups, hidden]
        is_absent = graph.op("Unsqueeze", graph.op("Less", codes, zero), graph.constant([2]))
        vectors = graph.op("Where", is_absent, graph.constant(0.0), vectors)
        rows = graph.op("ReduceSum", vectors, graph.constant([1]), keepdims=0)
        if self.model.config.tts_model_type == "base":
            speaker = graph.input("speaker", "float32", [width])
            first = graph.slice(codes, 0, 1, 1)
            is_speaker = graph.op("Equal", first, graph.constant_of(SPEAKER, "int32"))
            rows = graph.op("Where", is_speaker, speaker, rows)
        texts = self.talker.text_vectors(torch.arange(self.config.text_vocab_size))
        return graph.op("Add", rows, graph.op("Gather", graph.weight(texts), text_ids, axis=0))

    def _causal_mask(self, num_past: str, num_rows: str) -> str:
        """[group * T, past + T]: a row sees the past, itself and the rows before it."""
        graph = self.graph
        total = graph.op("Add", num_past, num_rows)
        zero, one = graph.constant_of(0, "int64"), graph.constant_of(1, "int64")
        columns = graph.op("Range", zero, total, one)
        rows = graph.reshape(graph.op("Range", num_past, total, one), [-1, 1])
        mask = hidden_keys(graph, graph.op("LessOrEqual", columns, rows))
        group = self.config.num_attention_heads // self.config.num_key_value_heads
        return graph.concat([mask] * group, 0)

    def _watch(self, layer: int, weights: str) -> None:
        """Output the attention of the last row by the head that follows the text."""
        timing, graph, config = self.model.config.timing_config, self.graph, self.config
        if timing is None or timing.layer != layer:
            return
        sizes = graph.constant([config.num_attention_heads, -1])
        num_keys = graph.op("Shape", weights, start=2, end=3)
        heads = graph.op("Reshape", weights, graph.concat([sizes, num_keys], 0))
        last = graph.slice(graph.slice(heads, timing.head, 0, timing.head + 1), -1, 1)
        graph.output("attention", graph.reshape(last, [-1]), "float32", ["all_rows"])

    # -- draws -------------------------------------------------------------------------------

    def _draw_first(self, hidden: str, noise: str) -> _Draws:
        graph, ids = self.graph, self.first_codes
        shaping = SamplingInputs.inputs(graph)
        history = graph.input("history", "bool", [len(ids)])
        penalty = graph.input("repetition_penalty", "float32", [1])
        is_early = graph.input("is_end_banned", "bool", [1])
        head = LinearNodes(graph, self.talker.codec_head.weight[ids])
        logits = penalise(graph, graph.reshape(head(hidden), [-1]), history, penalty)
        early = bans(self.model)[1][ids].numpy()
        is_banned = graph.op("And", graph.constant(early), is_early)
        logits = graph.op("Where", is_banned, graph.constant(float("-inf")), logits)
        index, score = draw(graph, shape_scores(graph, logits, len(ids), shaping), noise)
        code = graph.op("Gather", graph.constant_of(ids, "int64"), index, axis=0)
        return _Draws([code], [score])

    def _draw_others(self, hidden: str, draws: _Draws, noise: list[str]) -> None:
        graph, predictor = self.graph, self.talker.code_predictor
        shaping = SamplingInputs.inputs(graph, "predictor_")
        stack = _PredictorNodes(graph, self.model)
        x = graph.concat([hidden, self._code_row(draws.codes[0], 0)], 0)  # [2, hidden]
        for group, (head, part) in enumerate(zip(predictor.lm_head, noise, strict=True), start=1):
            assert isinstance(head, torch.nn.Linear)
            logits = graph.reshape(LinearNodes.of(graph, head)(stack(x)), [-1])
            scores = shape_scores(graph, logits, self.inner.vocab_size, shaping)
            code, score = draw(graph, scores, part)
            draws.codes.append(code)
            draws.scores.append(score)
            x = self._code_row(code, group)

    def _code_row(self, code: str, group: int) -> str:
        place = self.graph.op("Add", code, self.graph.constant_of(self.offsets[group], "int64"))
        return self.graph.op("Gather", self.code_table, place, axis=0)  # [1, hidden]


class _PredictorNodes:
    """Sweeps of the predictor over the rows of one frame: two rows, then one at a time."""

    def __init__(self, graph: Graph, model: Qwen3TTS) -> None:
        self._graph, predictor = graph, model.talker.code_predictor
        projection = predictor.small_to_mtp_projection
        self._projection = None
        if isinstance(projection, torch.nn.Linear):
            self._projection = LinearNodes.of(graph, projection)
        self._layers = [BlockNodes(graph, layer) for layer in predictor.model.layers]
        self._norm = NormNodes.of(graph, predictor.model.norm)
        self._rope, inner = predictor.rope, predictor.config
        self._group = inner.num_attention_heads // inner.num_key_value_heads
        self._keys: dict[int, str] = {}
        self._values: dict[int, str] = {}
        self._num_rows = 0

    def __call__(self, x: str) -> str:
        """New rows [T, hidden] to the hidden state of the last one: [1, width]."""
        num_new = 2 if self._num_rows == 0 else 1
        if self._projection is not None:
            x = self._projection(x)
        half = self._rope.head_dim // 2
        tables = self._rope.span(self._num_rows, num_new, torch.empty(0))
        cos, sin = (self._graph.constant(table[None, :, half:].numpy()) for table in tables)
        shared = Pass(cos, sin, self._mask(num_new), self._remember)
        for index, layer in enumerate(self._layers):
            x = layer(index, x, shared)
        self._num_rows += num_new
        return self._norm(self._graph.slice(x, -1, 0) if num_new > 1 else x)

    def _mask(self, num_new: int) -> str | None:
        if num_new == 1:
            return None
        mask = torch.full((num_new, num_new), float("-inf")).triu(1)
        return self._graph.constant(mask.repeat(self._group, 1).numpy())

    def _remember(self, layer: int, keys: str, values: str) -> tuple[str, str]:
        if layer in self._keys:
            keys = self._graph.concat([self._keys[layer], keys], 1)
            values = self._graph.concat([self._values[layer], values], 1)
        self._keys[layer], self._values[layer] = keys, values
        return keys, values
