"""A model in the library: its weights as C structures, and its slots.

The library reads the tensors of the PyTorch model where they are, in memory or in a mapped file.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from ctypes import byref, c_void_p
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vivace.backends.base import Frames
from vivace.backends.cpu.binding import (
    STATUS,
    LayerSpec,
    Matrix,
    ModelSpec,
    Shape,
    SlotSpec,
    StackSpec,
    array_of,
    check,
    library,
    pointer,
)
from vivace.backends.frame_maker import bans
from vivace.errors import BackendError, BackendUnavailableError
from vivace.model import ops
from vivace.model.code_predictor import CodePredictor
from vivace.model.config import GatedConfig, Head, TalkerConfig
from vivace.model.layers import Block, Linear
from vivace.model.quantized import QuantizedLinear
from vivace.model.talker import Qwen3TTS, Talker
from vivace.speech import SamplingParams

HEAD_STEP = 16  # head dimensions are multiples of the widest vector
MAX_GROUPS = 64  # a page of the predictor's cache


def find_unfit(config: TalkerConfig) -> str | None:
    """Why the library cannot run a model with these dimensions, or None."""
    for stack in (config, config.code_predictor_config):
        if stack.head_dim % HEAD_STEP:
            return f"head_dim is {stack.head_dim}; the C++ kernels need a multiple of {HEAD_STEP}"
        if stack.num_attention_heads % stack.num_key_value_heads:
            return "num_attention_heads is not a multiple of num_key_value_heads"
    if not 2 <= config.num_code_groups <= MAX_GROUPS:
        return f"num_code_groups is {config.num_code_groups}; the C++ kernels run 2 to {MAX_GROUPS}"
    return None


class NativeSlot:
    """A slot of the library; freed with this object."""

    def __init__(self, model: NativeModel, handle: c_void_p) -> None:
        self.handle = handle
        self._model = model  # outlives its slots
        self._close = weakref.finalize(self, library().vivace_slot_free, handle)
        self._close.atexit = False

    @property
    def num_bytes(self) -> int:
        """Of keys and values."""
        return int(library().vivace_slot_bytes(self.handle, self._model.handle))

    def free(self) -> None:
        self._close()


class NativeModel:
    """Runs frames of many slots on `num_threads` threads."""

    def __init__(
        self,
        model: Qwen3TTS,
        num_threads: int,
        instructions: str = "",
        has_half_cache: bool | None = None,  # None: unless the weights are float32
    ) -> None:
        self.config = model.config.talker_config
        self._kept: list[Any] = []  # tensors and structures that the library reads
        spec = self._model_spec(model)
        is_full = model.talker.codec_head.weight.dtype == torch.float32
        spec.has_half_cache = int(not is_full if has_half_cache is None else has_half_cache)
        handle = c_void_p()
        args = (byref(spec), instructions.encode(), num_threads, byref(handle))
        try:
            check(library().vivace_model_new(*args))
        except BackendError as error:
            raise BackendUnavailableError(str(error)) from error
        self.handle = handle
        self._close = weakref.finalize(self, library().vivace_model_free, handle)
        self._close.atexit = False  # threads of the pool end with the process

    def admit(self, spec: SlotSpec, rows: Tensor) -> NativeSlot:
        """Read a prompt's rows, float32 [rows, hidden], into a new slot."""
        handle = c_void_p()
        rows = rows.contiguous()
        args = (self.handle, byref(spec), pointer(rows), len(rows), byref(handle))
        check(library().vivace_slot_new(*args))
        return NativeSlot(self, handle)

    def extend(self, slot: NativeSlot, vectors: Tensor, num_own: int, *, is_complete: bool) -> None:
        """Append text vectors, float32 [ids, hidden]; `num_own` of them are of the request."""
        vectors = vectors.contiguous()
        args = (pointer(vectors), len(vectors), num_own, int(is_complete))
        check(library().vivace_slot_extend(self.handle, slot.handle, *args))

    def step(self, slots: Sequence[NativeSlot], num_frames: int, *, has_places: bool) -> Frames:
        count, groups = len(slots), self.config.num_code_groups
        codes = np.zeros((count, num_frames, groups), np.int64)
        lengths, status = np.zeros(count, np.int32), np.zeros(count, np.int32)
        places = np.zeros((count, num_frames), np.dtype([("index", "<i4"), ("share", "<f4")]))
        handles = (c_void_p * count)(*(slot.handle for slot in slots))
        arrays = (array.ctypes.data for array in (codes, lengths, status, places))
        check(library().vivace_step(self.handle, handles, count, num_frames, *arrays))
        numbers = tuple(lengths.tolist())
        found = [row[:length].tolist() for row, length in zip(places, numbers, strict=True)]
        return Frames(
            codes[:, : max(numbers, default=0)],
            numbers,
            tuple(STATUS[number] for number in status.tolist()),
            tuple(found) if has_places else None,
        )

    # -- weights -----------------------------------------------------------------------------

    def _model_spec(self, model: Qwen3TTS) -> ModelSpec:
        talker, config = model.talker, self.config
        predictor = talker.code_predictor
        pad = torch.tensor([model.config.tts_pad_token_id])
        late, early = (ban.to(torch.uint8) for ban in bans(model))
        projection = predictor.small_to_mtp_projection
        heads = array_of([_matrix(head) for head in predictor.lm_head])
        tables = array_of([Matrix.of(table.weight) for table in talker.code_tables])
        spec = ModelSpec(
            talker=self._stack_spec(talker, config),
            predictor=self._stack_spec(predictor, config.code_predictor_config),
            codec_head=_matrix(talker.codec_head),
            projection=_matrix(projection) if isinstance(projection, Linear) else Matrix(),
            heads=heads,
            tables=tables,
            num_groups=config.num_code_groups,
            vocab=config.vocab_size,
            predictor_vocab=config.code_predictor_config.vocab_size,
            eos=config.codec_eos_token_id,
            banned=self._keep(late),
            early_banned=self._keep(early),
            pad_vector=self._keep(talker.text_vectors(pad)[0].float()),
        )
        self._kept += [model, heads, tables, projection, spec]
        return spec

    def _stack_spec(self, part: Talker | CodePredictor, config: GatedConfig) -> StackSpec:
        layers = array_of([self._layer_spec(layer) for layer in part.model.layers])
        frequencies = ops.rope_frequencies(config.head_dim, config.rope_theta, torch.device("cpu"))
        self._kept.append(layers)
        return StackSpec(
            hidden=config.hidden_size,
            inter=config.intermediate_size,
            num_layers=config.num_hidden_layers,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            eps=config.rms_norm_eps,
            norm=self._keep(part.model.norm.weight.float()),
            frequencies=self._keep(frequencies),
            layers=layers,
        )

    def _layer_spec(self, layer: nn.Module) -> LayerSpec:
        assert isinstance(layer, Block)
        attention, mlp = layer.self_attn, layer.mlp
        assert attention.q_norm is not None
        assert attention.k_norm is not None
        qkv = _weight(attention, "qkv_proj", "qkv_weight")
        gate_up = _weight(mlp, "gate_up_proj", "gate_up_weight")
        inter = len(gate_up.weight if isinstance(gate_up, QuantizedLinear) else gate_up) // 2
        return LayerSpec(
            first_norm=self._keep(layer.input_layernorm.weight.float()),
            second_norm=self._keep(layer.post_attention_layernorm.weight.float()),
            query_norm=self._keep(attention.q_norm.weight.float()),
            key_norm=self._keep(attention.k_norm.weight.float()),
            qkv=self._hold(Matrix.of(qkv)),
            o=self._hold(_matrix(attention.o_proj)),
            gate=self._hold(Matrix.of(_take_rows(gate_up, slice(None, inter)))),
            up=self._hold(Matrix.of(_take_rows(gate_up, slice(inter, None)))),
            down=self._hold(_matrix(mlp.down_proj)),
        )

    def _keep(self, tensor: Tensor) -> int:
        tensor = tensor.detach().contiguous()
        self._kept.append(tensor)
        return pointer(tensor)

    def _hold(self, matrix: Matrix) -> Matrix:
        self._kept.append(matrix)
        return matrix


def slot_spec(
    sampling: SamplingParams, max_frames: int, own_row: int, num_own: int, head: Head | None
) -> SlotSpec:
    """How a slot's codes are drawn; `sampling.seed` must be set."""
    assert sampling.seed is not None
    return SlotSpec(
        talker=Shape(sampling.temperature, sampling.top_k, sampling.top_p),
        predictor=Shape(
            sampling.residual_temperature, sampling.predictor_top_k, sampling.predictor_top_p
        ),
        penalty=sampling.repetition_penalty,
        min_frames=sampling.min_frames,
        max_frames=max_frames,
        own_row=own_row,
        num_own=num_own,
        watched_layer=-1 if head is None else head.layer,
        watched_head=-1 if head is None else head.index,
        seed=sampling.seed,
    )


def _matrix(layer: nn.Module) -> Matrix:
    """The weight and the bias of a linear layer."""
    assert isinstance(layer, Linear)
    return Matrix.of(getattr(layer, "linear", layer.weight), layer.bias)


def _weight(parent: nn.Module, layer: str, buffer: str) -> Tensor | QuantizedLinear:
    """A fused weight: the quantized layer if there is one, or the buffer of a fused module."""
    found = getattr(parent, layer, None)
    weight = getattr(parent, buffer) if found is None else found.linear
    assert weight is not None, "the model was not fused"
    return weight


def _take_rows(weight: Tensor | QuantizedLinear, rows: slice) -> Tensor | QuantizedLinear:
    if isinstance(weight, QuantizedLinear):
        return QuantizedLinear(weight.weight[rows], weight.scale[rows], weight.bits)
    return weight[rows]
