"""Where the watched head attends, reported by every kind of layers on a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from vivace import TTS
from vivace.backends.base import Frames
from vivace.backends.cuda_graph.backend import CudaGraphBackend
from vivace.checkpoint import EMBEDDED, Checkpoint
from vivace.model.codec import Codec
from vivace.model.config import Head
from vivace.model.config_file import parse_model_config
from vivace.model.talker import Qwen3TTS
from vivace.prompt import Prompt, build_prompt
from vivace.speech import SamplingParams
from vivace.timing.attention import TextAttention

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from shapes import load_configs, random_module

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

CUDA = torch.device("cuda")
TEXTS = ("The river babbled inanely to itself.", "Not a morsel of it, and so they went home again.")
TOLERANCE = 0.02  # of a share of attention, in bfloat16


def sampling(seed: int) -> SamplingParams:
    return SamplingParams(seed=seed, min_frames=40, max_frames=40)


def assert_places(model: Qwen3TTS, prompt: Prompt, frames: Frames, row: int, head: Head) -> None:
    """The reported places are those of a separate pass over the same frames."""
    read = TextAttention(model, prompt, [head]).read(frames.of(row), prompt.num_own_ids)[0]
    places = frames.places_of(row)
    assert len(places) == len(read) == 40
    assert places[0][0] == -1  # the prompt's own pass is not watched
    for (place, share), weights in zip(places[1:], read[1:], strict=True):
        assert abs(share - weights.sum()) < TOLERANCE
        assert weights[place] > weights.max() - TOLERANCE


@pytest.mark.parametrize("layers", ["fused", "plain"])
def test_embedded_voice_places_equal_separate_pass(layers: str) -> None:
    checkpoint = Checkpoint.open(EMBEDDED)
    model = checkpoint.load_model(CUDA, torch.bfloat16)
    backend = CudaGraphBackend(model, checkpoint.load_codec(CUDA), max_streams=4, layers=layers)
    tokenizer, head = checkpoint.load_tokenizer(), backend.watched
    assert head is not None
    prompts = [
        build_prompt(
            checkpoint.config,
            tokenizer.encode(text),
            role_ids=tokenizer.role_ids("assistant"),
            layout="whole",
            preset="heart",
        )
        for text in TEXTS
    ]
    slots = backend.admit_many([(p, sampling(seed)) for seed, p in enumerate(prompts)])
    frames = backend.step(slots, 40)  # type: ignore[arg-type]
    for row, prompt in enumerate(prompts):
        assert_places(model, prompt, frames, row, head)
    shares = [share for _, share in frames.places_of(1)[1:20]]
    assert np.median(shares) > 0.8  # the head does follow the text


@pytest.mark.parametrize("layers", ["fused", "megakernel"])
@pytest.mark.parametrize("head", [Head(0, 0), Head(13, 5), Head(27, 15)])
def test_released_shape_places_equal_separate_pass(layers: str, head: Head) -> None:
    torch.manual_seed(0)
    config, codec_config = load_configs("0.6B-CustomVoice")
    parsed = parse_model_config(config)
    model = random_module(Qwen3TTS, parsed, CUDA, torch.bfloat16)
    codec = random_module(Codec, codec_config, CUDA, torch.float32)
    codec.fold()
    backend = CudaGraphBackend(model, codec, max_streams=2, layers=layers)
    slot = {"role_ids": [1, 2, 3], "layout": "whole", "preset": "vivian"}
    prompts = [
        build_prompt(parsed, list(range(100, 100 + size)), **slot)  # type: ignore[arg-type]
        for size in (20, 150)
    ]
    unwatched = backend.step(_admit(backend, prompts), 4)
    assert unwatched.places is None
    backend.watch(head)
    frames = backend.step(_admit(backend, prompts), 40)
    for row, prompt in enumerate(prompts):
        assert_places(model, prompt, frames, row, head)


def _admit(backend: CudaGraphBackend, prompts: list[Prompt]) -> list[int]:
    for slot in list(backend._slots):
        backend.release(slot)
    slots = backend.admit_many([(p, sampling(seed)) for seed, p in enumerate(prompts)])
    assert all(isinstance(slot, int) for slot in slots)
    return slots  # type: ignore[return-value]


def test_early_end_on_gpu_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    with TTS.load(device="cuda", dtype="bfloat16") as tts:
        text = "The river babbled inanely to itself, and nobody came to see it any more."
        whole = tts.speak(text, seed=5)
        assert whole.completeness == 1.0
        step = tts.engine.backend.start_step
        has_ended: set[int] = set()

        def cut(slots: list[int], num_frames: int):  # type: ignore[no-untyped-def]
            wait = step(slots, num_frames)

            def ended() -> Frames:
                frames = wait()
                if slots[0] in has_ended or len(has_ended) or frames.places is None:
                    return frames
                has_ended.add(slots[0])
                return Frames(frames.codes, frames.lengths, ("stop",), frames.places)

            return ended

        monkeypatch.setattr(tts.engine.backend, "start_step", cut)
        repaired = tts.speak(text, seed=5)
        assert has_ended
        assert repaired.usage.retries == 1
        assert repaired.completeness == 1.0
        assert repaired.duration_s > 0.7 * whole.duration_s
