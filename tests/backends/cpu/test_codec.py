"""The C++ decoder equals the PyTorch decoder, and chunk sizes do not change a bit."""

from __future__ import annotations

import copy
import ctypes
import itertools
import sys
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.project import ROOT
from tests.support.tiny import Tiny
from vivace import TTS
from vivace.backends.base import CodecPrecision
from vivace.backends.cpu import build
from vivace.backends.cpu.codec import KERNELS, NativeCodecDecoder, pack_decoder
from vivace.errors import BackendError, BackendUnavailableError
from vivace.model.codec import Codec
from vivace.model.config_file import parse_codec_config
from vivace.model.conv import CausalState

sys.path.insert(0, str(ROOT / "benchmarks"))

from released import RELEASED_CODEC
from shapes import random_module

# Distance from PyTorch: AMX has 87 dB, float16 40 to 44 dB, int8 and bfloat16 28 to 32 dB.
MIN_DB = dict.fromkeys(KERNELS, 80.0) | {"half": 35.0, "bf16": 24.0, "int8": 24.0}
Codes = NDArray[np.int64]
NUM_CUT = 24  # frames that are decoded in pieces

# Channels that fill no vector, heads that share keys, and a window shorter than a pass.
ODD_DECODER: dict[str, Any] = {
    "latent_dim": 36,
    "codebook_dim": 20,
    "codebook_size": 11,
    "decoder_dim": 56,
    "hidden_size": 24,
    "intermediate_size": 37,
    "head_dim": 6,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "sliding_window": 3,
    "num_quantizers": 5,
    "num_semantic_quantizers": 2,
    "upsample_rates": [3, 2],
    "upsampling_ratios": [3],
}


def load_library() -> ctypes.CDLL:
    try:
        return build.load_library()
    except BackendUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def all_kernels(odd: Codec) -> list[str]:
    """The instruction sets of this machine, fastest first."""
    library, found = load_library(), []
    for name in KERNELS:
        try:
            NativeCodecDecoder(odd.decoder, library, 1, name)
        except BackendUnavailableError:
            continue
        found.append(name)
    assert found
    return found


def odd_codec() -> Codec:
    """A codec of its own for each test that changes weights."""
    return copy.deepcopy(build_odd_codec())


@cache
def build_odd_codec() -> Codec:
    return make_codec(RELEASED_CODEC["decoder_config"] | ODD_DECODER)


def make_codec(decoder_config: dict[str, Any]) -> Codec:
    torch.manual_seed(3)
    raw = RELEASED_CODEC | {"decoder_config": decoder_config}
    codec: Codec = random_module(Codec, parse_codec_config(raw), torch.device("cpu"), torch.float32)
    codec.fold()
    return codec


def draw_codes(codec: Codec, num_frames: int, seed: int = 0) -> Codes:
    config = codec.config.decoder_config
    shape = (num_frames, config.num_quantizers)
    return np.random.default_rng(seed).integers(0, config.codebook_size, shape)


@torch.inference_mode()
def decode_with_pytorch(codec: Codec, codes: Codes) -> NDArray[np.float32]:
    return codec.decode(torch.from_numpy(codes), CausalState()).numpy()


def distance_db(found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    error = np.linalg.norm(found.astype(np.float64) - expected)
    return float(20 * np.log10(np.linalg.norm(expected) / error))


@pytest.fixture(scope="module")
def odd() -> Codec:
    return odd_codec()


def test_embedded_voice_equals_pytorch(embedded: TTS, all_kernels: list[str]) -> None:
    codec = embedded.codec
    codes = draw_codes(codec, 20)
    expected = decode_with_pytorch(codec, codes)
    for kernels in all_kernels:
        decoder = NativeCodecDecoder(codec.decoder, load_library(), 1, kernels)
        assert decoder.kernels == kernels
        found = decoder.decode(codes, decoder.new_state())
        assert distance_db(found, expected) > MIN_DB[kernels], kernels


def test_weights_in_float16_change_little(odd: Codec, all_kernels: list[str]) -> None:
    codes = draw_codes(odd, 21)
    expected = decode_with_pytorch(odd, codes)
    for kernels in all_kernels:
        decoder = NativeCodecDecoder(odd.decoder, load_library(), 3, kernels, has_half_weights=True)
        found = decoder.decode(codes, decoder.new_state())
        assert distance_db(found, expected) > min(55.0, MIN_DB[kernels]), kernels
        plain = NativeCodecDecoder(odd.decoder, load_library(), 3, kernels)
        has_half = kernels != "baseline"
        assert np.array_equal(found, plain.decode(codes, plain.new_state())) != has_half


def half_codec(unused: float) -> Codec:
    """Weights that float16 holds, except `unused`: those of a channel that is always zero."""
    codec = odd_codec()
    decoder: Any = codec.decoder
    with torch.no_grad():
        for weight in decoder.parameters():
            weight.copy_(weight.half())
        for part in ("rvq_first", "rvq_rest"):
            getattr(decoder.quantizer, part).output_proj.weight[-1] = 0.0
        decoder.pre_conv.conv.weight[:, -1] = unused
    codec.fold()
    return codec


def test_float16_weights_give_the_bits_of_float32_weights(all_kernels: list[str]) -> None:
    """A layer is stored in float32 if one of its weights would change."""
    codecs = [half_codec(unused) for unused in (0.125, 0.1, 1e-9, 1e6)]
    codes = draw_codes(codecs[0], 9)
    for kernels in all_kernels:
        decoders = [NativeCodecDecoder(each.decoder, load_library(), 1, kernels) for each in codecs]
        found = [each.decode(codes, each.new_state()) for each in decoders]
        assert np.isfinite(found[0]).all()
        assert all(np.array_equal(each, found[0]) for each in found[1:]), kernels


def test_one_weight_beyond_float16_keeps_a_layer_in_float32(all_kernels: list[str]) -> None:
    codec = half_codec(0.125)
    codec.decoder.pre_conv.conv.weight.data[-1, 0, -1] = 70_000.0
    codes = draw_codes(codec, 9)
    expected = decode_with_pytorch(codec, codes)
    for kernels in all_kernels:
        decoder = NativeCodecDecoder(codec.decoder, load_library(), 1, kernels)
        found = decoder.decode(codes, decoder.new_state())
        assert distance_db(found, expected) > min(55.0, MIN_DB[kernels]), kernels


def test_weights_outside_the_range_of_float16_stay_in_float32() -> None:
    codec = odd_codec()
    decoder = codec.decoder
    with torch.inference_mode():
        decoder.pre_conv.conv.weight.mul_(1e6)
        decoder.pre_transformer.input_proj.weight.mul_(1e-6)
    codes = draw_codes(codec, 9)
    native = NativeCodecDecoder(decoder, load_library(), 1, has_half_weights=True)
    found = native.decode(codes, native.new_state())
    assert distance_db(found, decode_with_pytorch(codec, codes)) > 30.0


@pytest.mark.parametrize("num_threads", [1, 3])
def test_odd_dimensions_equal_pytorch(odd: Codec, all_kernels: list[str], num_threads: int) -> None:
    codes = draw_codes(odd, 21)
    expected = decode_with_pytorch(odd, codes)
    for kernels in all_kernels:
        decoder = NativeCodecDecoder(odd.decoder, load_library(), num_threads, kernels)
        found = decoder.decode(codes, decoder.new_state())
        assert distance_db(found, expected) > MIN_DB[kernels], kernels


def test_tiny_checkpoint_beyond_its_window_equals_pytorch(tiny: Callable[[str], Tiny]) -> None:
    codec = tiny("base").codec
    decoder = NativeCodecDecoder(codec.decoder, load_library(), 2)
    codes = draw_codes(codec, codec.config.decoder_config.sliding_window + 9)
    found = decoder.decode(codes, decoder.new_state())
    assert distance_db(found, decode_with_pytorch(codec, codes)) > MIN_DB[decoder.kernels]


@pytest.mark.slow
def test_released_shape_equals_pytorch() -> None:
    codec = make_codec(RELEASED_CODEC["decoder_config"])
    decoder = NativeCodecDecoder(codec.decoder, load_library(), 2)
    codes = draw_codes(codec, 3)
    found = decoder.decode(codes, decoder.new_state())
    assert distance_db(found, decode_with_pytorch(codec, codes)) > MIN_DB[decoder.kernels]


@pytest.fixture(scope="module")
def whole(odd: Codec) -> NDArray[np.float32]:
    """Samples of NUM_CUT frames, decoded in one piece."""
    decoder = NativeCodecDecoder(odd.decoder, load_library(), 1)
    return decoder.decode(draw_codes(odd, NUM_CUT), decoder.new_state())


@given(
    cuts=st.sets(st.integers(1, NUM_CUT - 1), max_size=12), num_threads=st.sampled_from([1, 2, 3])
)
@settings(deadline=None, max_examples=12)
def test_chunks_and_threads_do_not_change_samples(
    odd: Codec, whole: NDArray[np.float32], cuts: set[int], num_threads: int
) -> None:
    codes = draw_codes(odd, NUM_CUT)
    decoder = NativeCodecDecoder(odd.decoder, load_library(), num_threads)
    state = decoder.new_state()
    edges = [0, *sorted(cuts), NUM_CUT]
    pieces = [decoder.decode(codes[a:b], state) for a, b in itertools.pairwise(edges)]
    assert np.array_equal(np.concatenate(pieces), whole)


def test_chunks_do_not_change_samples_with_any_kernels(odd: Codec, all_kernels: list[str]) -> None:
    codes = draw_codes(odd, 21)
    edges = (0, 1, 2, 5, 14, 21)
    for kernels in all_kernels:
        whole_decoder = NativeCodecDecoder(odd.decoder, load_library(), 1, kernels)
        whole = whole_decoder.decode(codes, whole_decoder.new_state())
        decoder = NativeCodecDecoder(odd.decoder, load_library(), 3, kernels)
        state = decoder.new_state()
        pieces = [decoder.decode(codes[a:b], state) for a, b in itertools.pairwise(edges)]
        assert np.array_equal(np.concatenate(pieces), whole), kernels


def test_chunks_of_the_embedded_voice_do_not_change_samples(embedded: TTS) -> None:
    decoder = NativeCodecDecoder(embedded.codec.decoder, load_library(), 1)
    codes = draw_codes(embedded.codec, 30)
    whole = decoder.decode(codes, decoder.new_state())
    state = decoder.new_state()
    pieces = [decoder.decode(codes[i : i + 1], state) for i in range(8)]
    pieces += [decoder.decode(codes[8:11], state), decoder.decode(codes[11:], state)]
    assert np.array_equal(np.concatenate(pieces), whole)


def test_streams_do_not_change_each_other(odd: Codec) -> None:
    decoder = NativeCodecDecoder(odd.decoder, load_library(), 1)
    streams = [draw_codes(odd, 20, seed) for seed in range(2)]
    alone = [decoder.decode(codes, decoder.new_state()) for codes in streams]
    states = [decoder.new_state() for _ in streams]
    pieces: list[list[NDArray[np.float32]]] = [[], []]
    for start in range(0, 20, 4):
        for codes, state, made in zip(streams, states, pieces, strict=True):
            made.append(decoder.decode(codes[start : start + 4], state))
    for made, expected in zip(pieces, alone, strict=True):
        assert np.array_equal(np.concatenate(made), expected)


def test_a_copied_state_continues_independently(odd: Codec) -> None:
    decoder = NativeCodecDecoder(odd.decoder, load_library(), 1)
    codes = draw_codes(odd, 12)
    whole = decoder.decode(codes, decoder.new_state())
    state = decoder.new_state()
    first = decoder.decode(codes[:5], state)
    copied = state.copy()
    decoder.decode(draw_codes(odd, 3, seed=9), state)
    assert np.array_equal(np.concatenate([first, decoder.decode(codes[5:], copied)]), whole)


def test_calls_of_several_threads_take_turns(odd: Codec) -> None:
    decoder = NativeCodecDecoder(odd.decoder, load_library(), 2)
    streams = [draw_codes(odd, 30, seed) for seed in range(4)]
    alone = [decoder.decode(codes, decoder.new_state()) for codes in streams]
    found: dict[int, NDArray[np.float32]] = {}

    def decode(index: int) -> None:
        state = decoder.new_state()
        parts = [decoder.decode(streams[index][i : i + 1], state) for i in range(30)]
        found[index] = np.concatenate(parts)

    threads = [threading.Thread(target=decode, args=(index,)) for index in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert all(np.array_equal(found[index], alone[index]) for index in range(4))


@pytest.mark.parametrize("code", [-1, 11, 2**40])
def test_unknown_code_is_rejected_and_changes_nothing(odd: Codec, code: int) -> None:
    decoder = NativeCodecDecoder(odd.decoder, load_library(), 1)
    codes = draw_codes(odd, 12)
    whole = decoder.decode(codes, decoder.new_state())
    state = decoder.new_state()
    first = decoder.decode(codes[:6], state)
    wrong = codes[6:].copy()
    wrong[-1, -1] = code
    with pytest.raises(BackendError, match="outside its codebook"):
        decoder.decode(wrong, state)
    assert np.array_equal(np.concatenate([first, decoder.decode(codes[6:], state)]), whole)


def test_wrong_number_of_codebooks_is_rejected(odd: Codec) -> None:
    decoder = NativeCodecDecoder(odd.decoder, load_library(), 1)
    with pytest.raises(BackendError, match="a frame has 5 codes, not 4"):
        decoder.decode(draw_codes(odd, 2)[:, :4], decoder.new_state())


def test_no_frames_give_no_samples(odd: Codec) -> None:
    decoder = NativeCodecDecoder(odd.decoder, load_library(), 1)
    state = decoder.new_state()
    assert decoder.decode(np.empty((0, 5), np.int64), state).shape == (0,)
    assert state.num_frames == 0


def test_precision_excludes_less_exact_kernels(odd: Codec, all_kernels: list[str]) -> None:
    def pick(precision: CodecPrecision) -> str:
        return pack_decoder(odd.decoder, load_library(), 1, precision).kernels

    assert pick("auto") == pick("half")
    assert pick("split") not in ("half", "bf16", "int8")
    assert pick("float32") not in ("half", "bf16", "int8", "amx")
    assert {pick("auto"), pick("split"), pick("float32")} <= set(all_kernels)


def scale_stage_weights(codec: Codec, factor: float) -> None:
    """Multiply the weights of the first transposed convolution of the stages."""
    layers: Any = codec.decoder.decoder
    with torch.no_grad():
        list(layers[1].block)[1].conv.weight.mul_(factor)


@pytest.mark.parametrize("kernels", ["half", "int8"])
@pytest.mark.parametrize("factor", [1e-3, 1.0, 1e3])
def test_rounding_follows_the_size_of_weights(
    all_kernels: list[str], kernels: str, factor: float
) -> None:
    if kernels not in all_kernels:
        pytest.skip(f"this CPU does not have the kernels {kernels}")
    codec = odd_codec()
    scale_stage_weights(codec, factor)
    layers: Any = codec.decoder.decoder
    with torch.no_grad():
        layers[0].conv.weight.div_(factor)
        layers[0].conv.bias.div_(factor)
    found, wanted = decode_with(codec, kernels, "neon")
    assert distance_db(found, wanted) > MIN_DB[kernels]


@pytest.mark.parametrize("kernels", ["half", "int8"])
def test_samples_stay_finite_beyond_the_range_of_float16(
    all_kernels: list[str], kernels: str
) -> None:
    if kernels not in all_kernels:
        pytest.skip(f"this CPU does not have the kernels {kernels}")
    codec = odd_codec()
    scale_stage_weights(codec, 1e7)  # weights and inputs of the next layers are above 65,504
    found, wanted = decode_with(codec, kernels, "neon")
    assert np.isfinite(wanted).all()
    assert np.isfinite(found).all()


@pytest.mark.parametrize("limit", [1.0, -1.0])
def test_samples_are_clamped_to_full_scale(all_kernels: list[str], limit: float) -> None:
    codec = odd_codec()
    layers: Any = codec.decoder.decoder
    layers[-1].conv.bias.data.fill_(9 * limit)
    for samples in decode_with(codec, *all_kernels):
        assert (samples == limit).all()


def decode_with(codec: Codec, *kernels: str) -> list[NDArray[np.float32]]:
    codes = draw_codes(codec, 12)
    decoders = [NativeCodecDecoder(codec.decoder, load_library(), 1, name) for name in kernels]
    return [decoder.decode(codes, decoder.new_state()) for decoder in decoders]


def test_unknown_kernels_are_rejected(odd: Codec) -> None:
    with pytest.raises(BackendUnavailableError, match="do not fit"):
        NativeCodecDecoder(odd.decoder, load_library(), 1, "mmx")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_weights_give_non_finite_samples(all_kernels: list[str], value: float) -> None:
    codec = odd_codec()
    codec.decoder.pre_conv.conv.weight[3, 1, 2] = value
    for kernels in all_kernels:
        decoder = NativeCodecDecoder(codec.decoder, load_library(), 1, kernels)
        samples = decoder.decode(draw_codes(codec, 2), decoder.new_state())
        assert not np.isfinite(samples).any(), kernels


def test_snake_has_an_error_below_one_millionth(odd: Codec, all_kernels: list[str]) -> None:
    for kernels in all_kernels:
        check_snake(NativeCodecDecoder(odd.decoder, load_library(), 1, kernels))


def check_snake(decoder: NativeCodecDecoder) -> None:
    rng = np.random.default_rng(0)
    small = np.linspace(-20, 20, 100_003).astype(np.float32)
    phases = np.concatenate([small, rng.uniform(-3e4, 3e4, 100_000).astype(np.float32)])
    gain = np.float32(0.5)
    expected = phases + np.sin(phases.astype(np.float64)) ** 2 * float(gain)
    found = decoder.apply_snake(phases, 1.0, float(gain))
    rounding = np.spacing(np.abs(phases)).astype(np.float64)
    assert (np.abs(found - expected) <= 1e-6 + rounding).all()
    assert np.isnan(decoder.apply_snake(np.array([np.nan, np.inf], np.float32), 1.0, 1.0)).all()
    huge = np.array([3e37, -2e20], np.float32)
    assert np.array_equal(decoder.apply_snake(huge, 1.0, 1.0), huge)  # a wave of at most 1
