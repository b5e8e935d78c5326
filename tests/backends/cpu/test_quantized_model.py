"""Models with int8 and int4 weights in the `cpu` backend."""

from __future__ import annotations

from functools import partial
from typing import get_args

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.support.slots import NUM_FRAMES, PlainBackend, make_prompt, params
from tests.support.tiny import Tiny
from vivace import TTS
from vivace.backends import build_backend
from vivace.backends.cpu.backend import CpuBackend
from vivace.backends.cpu.torch_tensors import TorchTensors
from vivace.backends.eager import EagerBackend
from vivace.model.config import IntWeights
from vivace.model.quantized import multiply
from vivace.model.quantized_layers import quantized_layers
from vivace.model.talker import Qwen3TTS

TEXTS = ("Hay.", "More hay than anyone can use.", "1, 2, 3!")
NUM_SEEDS = 4
NUM_COMPARED = 5  # frames of each speech; the reference product is slow


@pytest.fixture(scope="module")
def part(few_codebooks: Tiny) -> Tiny:
    few_codebooks.cpu_backend()  # or skip
    return few_codebooks


@pytest.fixture(scope="module", params=get_args(IntWeights))
def model(part: Tiny, request: pytest.FixtureRequest) -> Qwen3TTS:
    return part.checkpoint.load_model(torch.device("cpu"), torch.float32, request.param)


def speak(
    backend: PlainBackend, part: Tiny, seed: int, num_frames: int = NUM_FRAMES
) -> NDArray[np.int64]:
    slot = backend.admit(make_prompt(part, TEXTS[seed % len(TEXTS)]), params(seed))
    codes = backend.step([slot], num_frames).of(0)
    backend.release(slot)
    return codes


def test_auto_selects_the_backend(part: Tiny, model: Qwen3TTS) -> None:
    backend = build_backend("auto", model, part.codec)
    assert backend.name == "cpu"
    assert backend.shares_work


def test_codes_equal_the_reference_product(part: Tiny, model: Qwen3TTS) -> None:
    """With keys and values in float32, as the eager backend has them.

    Both add floats in different orders. A sum between two integers may be rounded to the other
    one, and every later code of that speech may differ.
    """
    native = CpuBackend(model, part.codec, num_threads=1, has_half_cache=False)
    assert isinstance(native._tensors, TorchTensors)
    native._tensors._rows = None  # prompts as PyTorch rounds them
    found = [speak(native, part, seed, NUM_COMPARED) for seed in range(NUM_SEEDS)]
    eager = EagerBackend(model, part.codec)
    for _, layer in quantized_layers(model):
        layer.use(partial(multiply, linear=layer.linear), max_rows=None)
    wanted = [speak(eager, part, seed, NUM_COMPARED) for seed in range(NUM_SEEDS)]
    others = [*wanted[1:], wanted[0]]
    assert share_of_equal_codes(found, wanted) > 0.5
    assert share_of_equal_codes(found, others) < 0.2


def share_of_equal_codes(found: list[NDArray[np.int64]], wanted: list[NDArray[np.int64]]) -> float:
    """Share of equal codes. Frames after the end of the shorter speech do not count."""
    equal = [
        [np.array_equal(a, b) for a, b in zip(ours, theirs, strict=False)]
        for ours, theirs in zip(found, wanted, strict=True)
    ]
    return float(np.mean(np.concatenate(equal)))


def test_codes_do_not_depend_on_batch_or_threads(part: Tiny, model: Qwen3TTS) -> None:
    alone = [speak(CpuBackend(model, part.codec, num_threads=1), part, seed) for seed in range(3)]
    backend = CpuBackend(model, part.codec, num_threads=2)
    order = [0, 1, 2, 1, 0, 2, 2, 1, 0, 0]  # more than one pass
    slots = [
        backend.admit(make_prompt(part, TEXTS[seed % len(TEXTS)]), params(seed)) for seed in order
    ]
    pieces = [backend.step(slots, num_frames) for num_frames in (1, 5, NUM_FRAMES)]
    for row, seed in enumerate(order):
        codes = np.concatenate([frames.of(row) for frames in pieces])
        assert np.array_equal(codes, alone[seed])


def test_voice_speaks_with_integer_weights() -> None:
    for weights in get_args(IntWeights):
        with TTS.load(device="cpu", weights=weights) as tts:
            audio = tts.speak("Hello there.", seed=3)
            again = tts.speak("Hello there.", seed=3, max_frames=5)
        assert 0.4 < audio.duration_s < 3
        assert np.array_equal(audio.codes[:5], again.codes)
