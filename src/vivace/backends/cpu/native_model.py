"""A model in the library: its weights as C structures, and its slots.

The library reads the tensors where they are: in a PyTorch model, in a mapped file, or in arrays.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from ctypes import byref, c_void_p
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from vivace.backends.base import Frames
from vivace.backends.cpu.binding import (
    F16,
    F32,
    INT8,
    STATUS,
    LayerSpec,
    Matrix,
    ModelSpec,
    Shape,
    SlotSpec,
    StackSpec,
    address,
    array_of,
    check,
    library,
)
from vivace.backends.cpu.tensors import ModelTensors
from vivace.backends.slots import banned_codes
from vivace.errors import BackendError, BackendUnavailableError
from vivace.model.config import GatedConfig, Head, TalkerConfig
from vivace.speech import SamplingParams

HEAD_STEP = 16  # head dimensions are multiples of the widest vector
MAX_GROUPS = 64  # a page of the predictor's cache
PREDICTOR = "talker.code_predictor"

C = TypeVar("C")


def find_unfit(config: TalkerConfig) -> str | None:
    """Why the library cannot run a model with these dimensions, or None."""
    for stack in (config, config.code_predictor_config):
        if stack.head_dim % HEAD_STEP:
            return f"head_dim is {stack.head_dim}; the C++ kernels need a multiple of {HEAD_STEP}"
        kv_heads = stack.num_key_value_heads
        if kv_heads == 0 or stack.num_attention_heads % kv_heads:
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
        tensors: ModelTensors,
        num_threads: int,
        instructions: str = "",
        has_half_cache: bool | None = None,  # None: unless the weights are float32
    ) -> None:
        self.config = tensors.config.talker_config
        self._tensors = tensors
        self._kept: list[Any] = []  # arrays and structures that the library reads
        spec = self._model_spec()
        self.has_integers = spec.codec_head.kind >= INT8
        is_full = spec.codec_head.kind in (F32, F16)
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

    def admit(self, spec: SlotSpec, rows: NDArray[np.float32], num_shared: int = 0) -> NativeSlot:
        """Read a prompt's rows [rows, hidden] into a new slot. The keys and values of the first
        `num_shared` rows are kept for later prompts that begin with the same rows."""
        handle = c_void_p()
        args = (self.handle, byref(spec), address(rows), len(rows), num_shared, byref(handle))
        check(library().vivace_slot_new(*args))
        return NativeSlot(self, handle)

    @property
    def prefix_bytes(self) -> int:
        """Of the keys and values that are kept for later prompts."""
        return int(library().vivace_prefix_bytes(self.handle))

    def extend(
        self, slot: NativeSlot, vectors: NDArray[np.float32], num_own: int, *, is_complete: bool
    ) -> None:
        """Append text vectors [ids, hidden]; `num_own` of them are of the request."""
        args = (address(vectors), len(vectors), num_own, int(is_complete))
        check(library().vivace_slot_extend(self.handle, slot.handle, *args))

    def read_attention(
        self, rows: NDArray[np.float32], first_query: int, first_key: int, num_keys: int
    ) -> NDArray[np.float32]:
        """Attention of all heads, layer by layer: [heads, queries, keys], for the rows from
        `first_query` on; 0 for a key that a row does not see."""
        num_heads = self.config.num_hidden_layers * self.config.num_attention_heads
        weights = np.zeros((num_heads, len(rows) - first_query, num_keys), np.float32)
        places = (len(rows), first_query, first_key, num_keys)
        check(library().vivace_attention(self.handle, address(rows), *places, address(weights)))
        return weights

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

    def _model_spec(self) -> ModelSpec:
        tensors, config = self._tensors, self.config
        predictor, groups = config.code_predictor_config, config.num_code_groups
        late, early = (ban.astype(np.uint8) for ban in banned_codes(config))
        projection = f"{PREDICTOR}.small_to_mtp_projection"
        inner, size = predictor.hidden_size, predictor.vocab_size
        heads = [self._matrix(f"{PREDICTOR}.lm_head.{i}", size, inner) for i in range(groups - 1)]
        tables = [self._matrix("talker.model.codec_embedding", config.vocab_size)]
        for index in range(groups - 1):
            tables.append(self._matrix(f"{PREDICTOR}.model.codec_embedding.{index}", size))
        return ModelSpec(
            talker=self._stack_spec("talker.model", config),
            predictor=self._stack_spec(f"{PREDICTOR}.model", predictor),
            codec_head=self._matrix("talker.codec_head", config.vocab_size),
            projection=self._matrix(projection, inner) if config.has_projection else Matrix(),
            heads=self._hold(array_of(heads)),
            tables=self._hold(array_of(tables)),
            num_groups=groups,
            vocab=config.vocab_size,
            predictor_vocab=size,
            eos=config.codec_eos_token_id,
            banned=self._keep(late),
            early_banned=self._keep(early),
            pad_vector=self._keep(tensors.text_vectors([tensors.config.tts_pad_token_id])[0]),
        )

    def _stack_spec(self, name: str, config: GatedConfig) -> StackSpec:
        indices = range(config.num_hidden_layers)
        layers = [self._layer_spec(f"{name}.layers.{index}", config) for index in indices]
        frequencies = rope_frequencies(config.head_dim, config.rope_theta)
        return StackSpec(
            hidden=config.hidden_size,
            inter=config.intermediate_size,
            num_layers=config.num_hidden_layers,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            eps=config.rms_norm_eps,
            norm=self._vector(f"{name}.norm", config.hidden_size),
            frequencies=self._keep(frequencies),
            layers=self._hold(array_of(layers)),
        )

    def _layer_spec(self, name: str, config: GatedConfig) -> LayerSpec:
        hidden, head_dim = config.hidden_size, config.head_dim
        width = config.num_attention_heads * head_dim
        num_rows = width + 2 * config.num_key_value_heads * head_dim
        attention, mlp = f"{name}.self_attn", f"{name}.mlp"
        gate, up = self._tensors.gate_and_up(mlp)
        return LayerSpec(
            first_norm=self._vector(f"{name}.input_layernorm", hidden),
            second_norm=self._vector(f"{name}.post_attention_layernorm", hidden),
            query_norm=self._vector(f"{attention}.q_norm", head_dim),
            key_norm=self._vector(f"{attention}.k_norm", head_dim),
            qkv=self._check(self._tensors.qkv(attention), attention, num_rows, hidden),
            o=self._matrix(f"{attention}.o_proj", hidden, width),
            gate=self._check(gate, mlp, config.intermediate_size, hidden),
            up=self._check(up, mlp, config.intermediate_size, hidden),
            down=self._matrix(f"{mlp}.down_proj", hidden, config.intermediate_size),
        )

    def _matrix(self, layer: str, out: int, inputs: int | None = None) -> Matrix:
        """A matrix with the shape that the library expects; `inputs` is by default the talker's
        width."""
        inputs = self.config.hidden_size if inputs is None else inputs
        return self._check(self._tensors.matrix(layer), layer, out, inputs)

    def _check(self, matrix: Matrix, name: str, out: int, inputs: int) -> Matrix:
        if (matrix.out, matrix.in_) != (out, inputs):
            shape = f"[{matrix.out}, {matrix.in_}]"
            raise BackendUnavailableError(f"{name} has the shape {shape}, not [{out}, {inputs}]")
        return self._hold(matrix)

    def _vector(self, layer: str, size: int) -> int:
        vector = self._tensors.array(f"{layer}.weight")
        if vector.shape != (size,):
            shape = list(vector.shape)
            raise BackendUnavailableError(f"{layer} has the shape {shape}, not [{size}]")
        return self._keep(vector)

    def _keep(self, array: NDArray[Any]) -> int:
        self._kept.append(array)
        return address(array)

    def _hold(self, structure: C) -> C:
        self._kept.append(structure)
        return structure


def rope_frequencies(head_dim: int, theta: float) -> NDArray[np.float32]:
    """Radians per position [head_dim / 2]: `model.ops.rope_frequencies` without PyTorch."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    powers = np.power(np.float64(theta), exponents.astype(np.float64)).astype(np.float32)
    frequencies: NDArray[np.float32] = np.float32(1.0) / powers
    return frequencies


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
