"""The codec's decoder in C++: codes to samples for one stream at a time.

`native/codec.h` describes the computation. The state of a stream is one array, which belongs to its
slot. Decoding in chunks of any size gives the same samples, bit for bit.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vivace.backends.base import CodecPrecision, Samples
from vivace.errors import BackendError, BackendUnavailableError
from vivace.model.config import CodecDecoderConfig

KERNELS = (
    "bf16",
    "amx",
    "avx512",
    "avx2",
    "int8",
    "half",
    "neon",
    "baseline",
)  # instruction sets, fastest first
INEXACT_KERNELS: dict[CodecPrecision, tuple[str, ...]] = {  # excluded by a precision
    "float32": ("bf16", "amx", "int8", "half"),
    "split": ("bf16", "int8", "half"),
}
ERRORS = {  # `Result` in native/api.h
    -1: "there is not enough memory",
    -2: "the tensors do not fit the configuration",
    -3: "the system has no more threads",
}


ON_TAKE = ctypes.CFUNCTYPE(None, ctypes.c_int64)
SMALLEST_USAGE = 1e-5  # as in model/quantizer.py
NUM_UNITS = 3  # residual units of an upsampling block

Array = NDArray[np.float32]
OnRead = Callable[[int], None]  # called before each tensor is packed, with its number of bytes


class NamedTensors(Protocol):
    def __getitem__(self, name: str, /) -> Any:
        """An array or a CPU tensor by its name in the checkpoint, without `decoder.`."""


class DecoderTensors(Protocol):
    """A `CodecDecoder` of PyTorch, or the tensors of a file."""

    config: CodecDecoderConfig

    def state_dict(self) -> NamedTensors: ...


@dataclass(slots=True, eq=False)
class NativeCodecState:
    """The causal state of one stream."""

    tails: NDArray[np.float32]
    num_frames: int = 0

    def copy(self) -> NativeCodecState:
        return NativeCodecState(self.tails.copy(), self.num_frames)


class NativeCodecDecoder:
    """Packs the weights of a decoder. Calls of `decode` take turns."""

    def __init__(
        self,
        decoder: DecoderTensors,
        library: ctypes.CDLL,
        num_threads: int,
        kernels: str | None = None,  # the instruction set; None: the fastest one
        excluded: Sequence[str] = (),  # instruction sets that None does not select
        has_half_weights: bool = False,  # float16 before the decoder's stages, to save memory
        on_read: OnRead | None = None,
    ) -> None:
        config = decoder.config
        self._num_quantizers = config.num_quantizers
        self._library = _declare(library)
        tensors = [np.ascontiguousarray(each) for each in _Arrays(decoder).in_order()]
        pointers = (ctypes.c_void_p * len(tensors))(*(each.ctypes.data for each in tensors))
        sizes = (ctypes.c_int64 * len(tensors))(*(each.size for each in tensors))
        handle = ctypes.c_void_p()
        result = self._library.vivace_codec_new(
            _shape(config),
            (ctypes.c_int64 * len(config.upsampling_ratios))(*config.upsampling_ratios),
            (ctypes.c_int64 * len(config.upsample_rates))(*config.upsample_rates),
            config.rms_norm_eps,
            config.rope_theta,
            pointers,
            sizes,
            len(tensors),
            num_threads,
            kernels.encode() if kernels else None,
            ",".join(excluded).encode(),
            int(has_half_weights),
            ON_TAKE() if on_read is None else ON_TAKE(on_read),
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


def pack_decoder(
    decoder: DecoderTensors,
    library: ctypes.CDLL,
    num_threads: int,
    precision: CodecPrecision,
    on_read: OnRead | None = None,
) -> NativeCodecDecoder:
    """The decoder with the fastest kernels of at least this precision."""
    excluded = INEXACT_KERNELS.get(precision, ())
    return NativeCodecDecoder(
        decoder, library, num_threads, None, excluded, precision == "half", on_read
    )


def _declare(library: ctypes.CDLL) -> Any:
    """The library, with the types of the functions of native/codec_api.cpp."""
    pointer, number, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
    new = (*(pointer,) * 3, real, real, *(pointer,) * 2, number, ctypes.c_int)
    names = (ctypes.c_char_p,) * 2
    signatures: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "vivace_codec_new": (ctypes.c_int, (*new, *names, ctypes.c_int, ON_TAKE, pointer)),
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


def _shape(config: CodecDecoderConfig) -> ctypes.Array[ctypes.c_int64]:
    """`CodecShape` in native/codec.h."""
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


class _Arrays:
    """The weights in the order in which native/codec_weights.cpp takes them."""

    def __init__(self, decoder: DecoderTensors) -> None:
        self._config = decoder.config
        self._tensors = decoder.state_dict()

    def in_order(self) -> Iterator[Array]:
        config = self._config
        latent, width = config.latent_dim, config.decoder_dim
        yield from self._quantizer()
        yield from self._layer("pre_conv.conv", latent, config.codebook_dim, 3)
        yield from self._transformer("pre_transformer")
        for index, ratio in enumerate(config.upsampling_ratios):
            yield from self._transposed(f"upsample.{index}.0.conv", latent, latent, ratio)
            yield from self._conv_next(f"upsample.{index}.1", latent)
        yield from self._layer("decoder.0.conv", width, latent, 7)
        for index, rate in enumerate(config.upsample_rates, 1):
            yield from self._upsample_block(f"decoder.{index}.block", width, rate)
            width //= 2
        yield from self._snake(f"decoder.{len(config.upsample_rates) + 1}", width)
        yield from self._layer(f"decoder.{len(config.upsample_rates) + 2}.conv", 1, width, 7)

    def _array(self, name: str, *shape: int) -> Array:
        array = np.asarray(self._tensors[name], np.float32)
        if array.shape != shape:
            found, wanted = list(array.shape), list(shape)
            raise BackendUnavailableError(f"{name} has the shape {found}, not {wanted}")
        return array

    def _layer(self, name: str, *shape: int) -> Iterator[Array]:
        """A weight of this shape, outputs first, and its bias."""
        yield self._array(f"{name}.weight", *shape)
        yield self._array(f"{name}.bias", shape[0])

    def _transposed(self, name: str, num_in: int, num_out: int, kernel: int) -> Iterator[Array]:
        yield self._array(f"{name}.weight", num_in, num_out, kernel)
        yield self._array(f"{name}.bias", num_out)

    def _quantizer(self) -> Iterator[Array]:
        config = self._config
        width, num_first = config.codebook_dim // 2, config.num_semantic_quantizers
        sizes = {"rvq_first": num_first, "rvq_rest": config.num_quantizers - num_first}
        for part, size in sizes.items():
            for index in range(size):
                codebook = f"quantizer.{part}.vq.layers.{index}._codebook"
                usage = self._array(f"{codebook}.cluster_usage", config.codebook_size)
                sums = self._array(f"{codebook}.embedding_sum", config.codebook_size, width)
                yield sums / np.maximum(usage, np.float32(SMALLEST_USAGE))[:, None]
        for part in sizes:
            yield self._array(f"quantizer.{part}.output_proj.weight", config.codebook_dim, width, 1)

    def _transformer(self, name: str) -> Iterator[Array]:
        config = self._config
        hidden, inner = config.hidden_size, config.intermediate_size
        width, kv_width = (
            heads * config.head_dim
            for heads in (config.num_attention_heads, config.num_key_value_heads)
        )
        yield from self._layer(f"{name}.input_proj", hidden, config.latent_dim)
        for index in range(config.num_hidden_layers):
            layer = f"{name}.layers.{index}"
            attention, mlp = f"{layer}.self_attn", f"{layer}.mlp"
            yield self._array(f"{layer}.input_layernorm.weight", hidden)
            yield self._joined(attention, hidden, q_proj=width, k_proj=kv_width, v_proj=kv_width)
            yield self._array(f"{attention}.o_proj.weight", hidden, width)
            yield self._array(f"{layer}.self_attn_layer_scale.scale", hidden)
            yield self._array(f"{layer}.post_attention_layernorm.weight", hidden)
            yield self._joined(mlp, hidden, gate_proj=inner, up_proj=inner)
            yield self._array(f"{mlp}.down_proj.weight", hidden, inner)
            yield self._array(f"{layer}.mlp_layer_scale.scale", hidden)
        yield self._array(f"{name}.norm.weight", hidden)
        yield from self._layer(f"{name}.output_proj", config.latent_dim, hidden)

    def _joined(self, parent: str, num_in: int, **layers: int) -> Array:
        """The weights of several layers, by name and number of outputs."""
        shapes = {f"{parent}.{name}.weight": (number, num_in) for name, number in layers.items()}
        return np.concatenate([self._array(name, *shape) for name, shape in shapes.items()])

    def _conv_next(self, name: str, width: int) -> Iterator[Array]:
        yield from self._layer(f"{name}.dwconv.conv", width, 1, 7)
        yield from self._layer(f"{name}.norm", width)
        yield from self._layer(f"{name}.pwconv1", 4 * width, width)
        yield from self._layer(f"{name}.pwconv2", width, 4 * width)
        yield self._array(f"{name}.gamma", width)

    def _upsample_block(self, name: str, num_in: int, rate: int) -> Iterator[Array]:
        width = num_in // 2
        yield from self._snake(f"{name}.0", num_in)
        yield from self._transposed(f"{name}.1.conv", num_in, width, 2 * rate)
        for index in range(2, 2 + NUM_UNITS):
            unit = f"{name}.{index}"
            yield from self._snake(f"{unit}.act1", width)
            yield from self._layer(f"{unit}.conv1.conv", width, width, 7)
            yield from self._snake(f"{unit}.act2", width)
            yield from self._layer(f"{unit}.conv2.conv", width, width, 1)

    def _snake(self, name: str, width: int) -> Iterator[Array]:
        """Frequency and inverse gain, as `SnakeBeta` folds them."""
        yield _exponential(self._array(f"{name}.alpha", width))
        gain = _exponential(self._array(f"{name}.beta", width))
        yield np.float32(1.0) / (gain + np.float32(1e-9))


def _exponential(x: Array) -> Array:
    """Rounded from float64, so that all machines compute the same numbers."""
    array: Array = np.exp(x.astype(np.float64)).astype(np.float32)
    return array
