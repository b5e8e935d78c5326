"""Whole calls on a GPU: streams equal offline audio, alone and in any batch, and leak nothing."""

from __future__ import annotations

import gc
import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.recording_backend import assert_same_audio, interleave
from vivace import TTS
from vivace.backends.base import CodecPrecision
from vivace.errors import EngineError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

TEXTS = ("One.", "Two, and a little more.", "Three is the longest of them, by far.", "Four?")


@pytest.fixture
def tts(tiny_folder: Path) -> Iterator[TTS]:
    with load(tiny_folder, "bfloat16") as tts:
        yield tts


def load(folder: Path, dtype: str, codec_precision: CodecPrecision = "auto") -> TTS:
    return TTS.load(
        folder / "custom_voice",
        device="cuda",
        dtype=dtype,
        backend="cuda_graph",
        max_streams=8,
        codec_precision=codec_precision,
    )


def wait_until_idle(tts: TTS) -> None:
    """Wait until closed streams have released their slots."""
    deadline = time.monotonic() + 30
    while tts.engine.busy_since is not None:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def length(num_frames: int) -> dict[str, Any]:
    return {"max_frames": num_frames, "min_frames": num_frames, "guard": False}


def test_auto_picks_the_graph_backend_where_dimensions_do_not_fit_the_megakernel(
    tiny_folder: Path,
) -> None:
    with TTS.load(tiny_folder / "custom_voice", device="cuda", max_streams=1) as tts:
        assert tts.engine.backend.name == "cuda_graph"
        assert "float16" in tts.engine.backend.facts()["codec"]
        assert len(tts.speak("Hello.", seed=1, **length(4)).samples) == 4 * 1920


@pytest.mark.parametrize(
    ("dtype", "codec_precision"),
    [("float32", "split"), ("bfloat16", "split"), ("bfloat16", "half")],
)
def test_streams_in_a_batch_equal_offline_audio_bit_for_bit(
    tiny_folder: Path, dtype: str, codec_precision: CodecPrecision
) -> None:
    with load(tiny_folder, dtype, codec_precision) as tts:
        whole = [
            tts.speak(text, seed=seed, trim=False, **length(20 + seed))
            for seed, text in enumerate(TEXTS)
        ]
        for order in range(3):
            streams = [
                tts.stream(
                    text,
                    seed=n,
                    chunk_frames=1 + (order + n) % 5,
                    trim_start=False,
                    **length(20 + n),
                )
                for n, text in enumerate(TEXTS)
            ]
            for chunks, audio in zip(interleave(streams, Random(order)), whole, strict=True):
                assert_same_audio(chunks, audio, atol=0.0)


def test_float32_calls_equal_eager_backend(tiny_folder: Path) -> None:
    folder = tiny_folder / "custom_voice"
    with load(tiny_folder, "float32") as tts:
        found = tts.speak(TEXTS[2], seed=5, trim=False, **length(40))
    with TTS.load(folder, device="cuda", dtype="float32", backend="eager") as tts:
        expected = tts.speak(TEXTS[2], seed=5, trim=False, **length(40))
    assert np.array_equal(found.codes, expected.codes)
    assert np.allclose(found.samples, expected.samples, rtol=0, atol=5e-5)


def test_thousand_joins_leaves_and_cancels_leak_no_slot_or_memory(tts: TTS) -> None:
    tts.warmup()
    seeds = (3, 8)
    alone = {n: tts.speak(TEXTS[n % 4], seed=n, trim=False, **length(12)).codes for n in seeds}
    wrong: list[int] = []

    def live(listener: int, num_calls: int) -> None:
        chance = Random(listener)
        for _ in range(num_calls):
            seed, size, count = (chance.choice(n) for n in (seeds, (1, 2, 5), (0, 1, 2, 99)))
            stream = tts.stream(TEXTS[seed % 4], seed=seed, chunk_frames=size, **length(12))
            codes = [chunk.codes for chunk in itertools.islice(stream, count)]
            stream.close()
            received = np.concatenate(codes) if codes else np.empty((0, 16))
            if not np.array_equal(received, alone[seed][: len(received)]):
                wrong.append(seed)

    def live_together(num_calls: int) -> int:
        threads = [threading.Thread(target=live, args=(n, num_calls)) for n in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait_until_idle(tts)
        gc.collect()
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    before = live_together(20)
    assert live_together(100) == before
    assert not wrong
    assert tts.engine.num_running == tts.engine.num_waiting == 0
    backend: Any = tts.engine.backend
    assert len(backend._reservations.free) == backend.max_streams


def test_gpu_error_fails_requests_in_flight_and_new_engine_works(
    tts: TTS, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = [tts.stream(text, seed=1, **length(40)) for text in TEXTS]
    for stream in streams:
        next(stream)

    def run_out(*_: object) -> None:
        torch.empty(2**50, device="cuda")

    monkeypatch.setattr(tts.engine.backend, "start_step", run_out)
    for stream in streams:
        with pytest.raises(EngineError, match=r"out of memory.*load the model again"):
            list(stream)
    with load(tiny_folder, "bfloat16") as again:
        assert len(again.speak("Again.", seed=1, **length(4)).codes) == 4
