"""The codec's decoder in C++: codes to samples for one stream at a time.

`native/codec.h` describes the computation. The state of a stream is one array, which belongs to its
slot. Decoding in chunks of any size gives the same samples, bit for bit.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vivace.backends.base import Samples
from vivace.errors import BackendError, BackendUnavailableError
from vivace.model.codec_decoder import CodecDecoder
from vivace.model.quantizer import SplitDecoderQuantizer

KERNELS = ("amx", "avx512", "avx2", "neon", "baseline")  # instruction sets, fastest first
ERRORS = {  # `Result` in native/api.h
    -1: "there is not enough memory",
    -2: "the tensors do not fit the configuration",
    -3: "the system has no more threads",
}


@dataclass(slots=True, eq=False)
class NativeCodecState:
    """The causal state of one stream."""

    tails: NDArray[np.float32]
    num_frames: int = 0

    def copy(self) -> NativeCodecState:
        return NativeCodecState(self.tails.copy(), self.num_frames)


class NativeCodecDecoder:
    """Packs the weights of a folded decoder. Calls of `decode` take turns."""

    def __init__(
        self,
        decoder: CodecDecoder,
        library: ctypes.CDLL,
        num_threads: int,
        kernels: str | None = None,  # the instruction set; None: the fastest one
    ) -> None:
        config = decoder.config
        self._num_quantizers = config.num_quantizers
        self._library = _declare(library)
        tensors = [_to_array(tensor) for tensor in _tensors(decoder)]
        pointers = (ctypes.c_void_p * len(tensors))(*(each.ctypes.data for each in tensors))
        sizes = (ctypes.c_int64 * len(tensors))(*(each.size for each in tensors))
        handle = ctypes.c_void_p()
        result = self._library.vivace_codec_new(
            _shape(decoder),
            (ctypes.c_int64 * len(config.upsampling_ratios))(*config.upsampling_ratios),
            (ctypes.c_int64 * len(config.upsample_rates))(*config.upsample_rates),
            config.rms_norm_eps,
            config.rope_theta,
            pointers,
            sizes,
            len(tensors),
            num_threads,
            kernels.encode() if kernels else None,
            ctypes.byref(handle),
        )
        if result:
            raise BackendUnavailableError(f"the C++ codec cannot be used: {ERRORS[result]}")
        self._handle = handle
        self._state_size = self._library.vivace_codec_state_size(handle)
        self._frame_size = self._library.vivace_codec_frame_size(handle)
        # Not at exit: another thread may still decode.
        weakref.finalize(self, self._library.vivace_codec_free, handle).atexit = False

    @property
    def kernels(self) -> str:
        """The instruction set in use."""
        name: bytes = self._library.vivace_codec_kernels(self._handle)
        return name.decode()

    def apply_snake(
        self, x: NDArray[np.float32], frequency: float, gain: float
    ) -> NDArray[np.float32]:
        """x + sin²(x * frequency) * gain, as inside the decoder."""
        out = np.empty_like(x)
        self._library.vivace_codec_snake(
            self._handle, x.ctypes.data, x.size, frequency, gain, out.ctypes.data
        )
        return out

    def new_state(self) -> NativeCodecState:
        return NativeCodecState(np.zeros(self._state_size, np.float32))

    def decode(self, codes: NDArray[np.int64], state: NativeCodecState) -> Samples:
        """Codes [frames, codebooks] to samples, continuing `state`."""
        codes = np.ascontiguousarray(codes, np.int64)
        if codes.shape[1] != self._num_quantizers:
            raise BackendError(f"a frame has {self._num_quantizers} codes, not {codes.shape[1]}")
        samples = np.empty(len(codes) * self._frame_size, np.float32)
        result = self._library.vivace_codec_decode(
            self._handle,
            state.tails.ctypes.data,
            state.num_frames,
            codes.ctypes.data,
            len(codes),
            samples.ctypes.data,
        )
        if result:
            raise BackendError("codes: a code is outside its codebook")
        state.num_frames += len(codes)
        return samples


def _declare(library: ctypes.CDLL) -> Any:
    """The library, with the types of the functions of native/codec_api.cpp."""
    pointer, number, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
    new = (*(pointer,) * 3, real, real, *(pointer,) * 2, number, ctypes.c_int)
    signatures: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "vivace_codec_new": (ctypes.c_int, (*new, ctypes.c_char_p, pointer)),
        "vivace_codec_free": (None, (pointer,)),
        "vivace_codec_state_size": (number, (pointer,)),
        "vivace_codec_frame_size": (number, (pointer,)),
        "vivace_codec_kernels": (ctypes.c_char_p, (pointer,)),
        "vivace_codec_snake": (None, (pointer, pointer, number, real, real, pointer)),
        "vivace_codec_decode": (
            ctypes.c_int,
            (pointer, pointer, number, pointer, number, pointer),
        ),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _shape(decoder: CodecDecoder) -> ctypes.Array[ctypes.c_int64]:
    """`CodecShape` in native/codec.h."""
    config = decoder.config
    values = (
        config.num_quantizers,
        config.num_semantic_quantizers,
        config.codebook_size,
        config.codebook_dim // 2,
        config.codebook_dim,
        config.latent_dim,
        config.hidden_size,
        config.intermediate_size,
        config.num_hidden_layers,
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
        config.sliding_window,
        config.decoder_dim,
        len(config.upsampling_ratios),
        len(config.upsample_rates),
    )
    return (ctypes.c_int64 * len(values))(*values)


def _to_array(tensor: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = tensor.detach().float().contiguous().numpy()
    return array


# -- the tensors, in the order in which native/codec_weights.cpp takes them ------------------------
# Parts are `Any`: PyTorch's lists and attributes of modules have no types.


def _tensors(decoder: CodecDecoder) -> Iterator[Tensor]:
    yield from _quantizer(decoder.quantizer)
    yield from _weight_and_bias(decoder.pre_conv.conv)
    yield from _transformer(decoder.pre_transformer)
    stages: Any = decoder.upsample
    for widen, conv_next in stages:
        yield from _weight_and_bias(widen.conv)
        yield from _conv_next(conv_next)
    layers: Any = decoder.decoder
    first, *blocks, snake, last = layers
    yield from _weight_and_bias(first.conv)
    for block in blocks:
        yield from _upsample_block(block)
    yield from _snake(snake)
    yield from _weight_and_bias(last.conv)


def _quantizer(quantizer: SplitDecoderQuantizer) -> Iterator[Tensor]:
    parts: tuple[Any, ...] = (quantizer.rvq_first, quantizer.rvq_rest)
    for part in parts:
        for layer in part.vq.layers:
            yield layer._codebook.vectors()
    for part in parts:
        yield part.output_proj.weight


def _transformer(transformer: Any) -> Iterator[Tensor]:
    yield from _weight_and_bias(transformer.input_proj)
    for layer in transformer.layers:
        yield layer.input_layernorm.weight
        yield layer.self_attn.qkv_weight
        yield layer.self_attn.o_proj.weight
        yield layer.self_attn_layer_scale.scale
        yield layer.post_attention_layernorm.weight
        yield layer.mlp.gate_up_weight
        yield layer.mlp.down_proj.weight
        yield layer.mlp_layer_scale.scale
    yield transformer.norm.weight
    yield from _weight_and_bias(transformer.output_proj)


def _conv_next(layer: Any) -> Iterator[Tensor]:
    yield from _weight_and_bias(layer.dwconv.conv)
    yield from _weight_and_bias(layer.norm)
    yield from _weight_and_bias(layer.pwconv1)
    yield from _weight_and_bias(layer.pwconv2)
    yield layer.gamma


def _upsample_block(block: Any) -> Iterator[Tensor]:
    snake, widen, *units = block.block
    yield from _snake(snake)
    yield from _weight_and_bias(widen.conv)
    for unit in units:
        yield from _snake(unit.act1)
        yield from _weight_and_bias(unit.conv1.conv)
        yield from _snake(unit.act2)
        yield from _weight_and_bias(unit.conv2.conv)


def _weight_and_bias(layer: Any) -> Iterator[Tensor]:
    yield layer.weight
    yield layer.bias


def _snake(snake: Any) -> Iterator[Tensor]:
    yield snake.frequency  # computed by `Codec.fold`
    yield snake.inverse_gain
