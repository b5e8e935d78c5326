"""G7: an utterance is the same in any batch, and voices do not share state.

Codes are compared exactly, samples within 5e-5: the batch decides how many frames are rendered at
once, which rounds differently. `tests/backends/test_backends.py` tests the backend alone,
`test_prefill.py` the prefix cache, `test_cuda_graph.py` the CUDA graphs. The controls draw from a
shared random generator, and cache enrolled voices by name.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from tests.support.figures import record, seed_of_round
from tests.support.recording_backend import assert_same_audio
from vivace import TTS, Audio
from vivace.audio.clip import AudioChunk
from vivace.backends.eager import EagerBackend
from vivace.engine.streams.stream import Stream
from vivace.sampling import NoiseTable
from vivace.voices.cache import EnrolmentKey
from vivace.voices.voice import Voice

TEXT = "The needle in the haystack."
OPTIONS: dict[str, Any] = {"voice": "ryan", "seed": 5, "min_frames": 10, "max_frames": 10}
HAY = ("Hay.", "More hay than anyone can use, and then some.", "1, 2, 3!", TEXT)
MOST_NEIGHBOURS = 7  # of a backend with a batch of 8
SIZES = pytest.mark.parametrize(
    "num_batches", [2, pytest.param(200, marks=pytest.mark.slow)], ids=["few", "many"]
)


@pytest.fixture(
    scope="module",
    params=[pytest.param(1, marks=pytest.mark.slow), 4],
    ids=["one row a pass", "four rows a pass"],
)
def tts(tiny_folder: Path, request: pytest.FixtureRequest) -> Iterator[TTS]:
    def build(name: object, model: Any, codec: Any, room: object) -> EagerBackend:
        return EagerBackend(model, codec, max_streams=1 + MOST_NEIGHBOURS, pass_rows=request.param)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vivace.engine.checkpoints.loading.build_backend", build)
        with TTS.load(tiny_folder / "custom_voice", device="cpu") as loaded:
            yield loaded


@dataclass
class OtherStreams:
    """Other streams in the batch: they join, are read at random, end and are cancelled."""

    tts: TTS
    chance: random.Random
    streams: list[Stream] = field(default_factory=list)
    num_left: int = 0

    def advance(self) -> None:
        while len(self.streams) < self.chance.randint(0, MOST_NEIGHBOURS):
            self.streams.append(self.join())
        for stream in self.chance.sample(self.streams, len(self.streams) // 2):
            if self.chance.random() < 0.25 or next(stream, None) is None:
                self.leave(stream)

    def join(self) -> Stream:
        return self.tts.stream(
            self.chance.choice(HAY),
            voice=self.chance.choice(self.tts.speakers),
            seed=self.chance.choice(
                (5, self.chance.randrange(2**40))
            ),  # including the tested stream's
            temperature=self.chance.choice((0.0, 0.7, 1.5)),
            chunk_frames=[self.chance.randint(1, 5)],
            max_frames=self.chance.randint(1, 12),
        )

    def leave(self, stream: Stream) -> None:
        stream.close()
        self.streams.remove(stream)
        self.num_left += 1

    def clear(self) -> None:
        for stream in list(self.streams):
            self.leave(stream)


def speak_in_a_batch(tts: TTS, chance: random.Random) -> tuple[list[AudioChunk], int]:
    """Return the chunks of the tested utterance and the number of other streams."""
    hay, chunks = OtherStreams(tts, chance), list[AudioChunk]()
    ramp = [chance.randint(1, 6) for _ in range(3)]
    hay.advance()
    tested = tts.stream(TEXT, chunk_frames=ramp, **OPTIONS)
    try:
        for chunk in tested:
            chunks.append(chunk)
            hay.advance()
    finally:
        hay.clear()
        tested.close()
    return chunks, hay.num_left


def speak_alone(tts: TTS) -> Audio:
    return tts.speak(TEXT, trim=False, **OPTIONS)


@SIZES
def test_utterance_is_identical_in_any_batch(tts: TTS, num_batches: int) -> None:
    alone, num_neighbours = speak_alone(tts), 0
    assert len(alone.codes) == 10
    for number in range(num_batches):
        chance = random.Random(f"{seed_of_round()}/{number}")
        chunks, num_around = speak_in_a_batch(tts, chance)
        num_neighbours += num_around
        assert b"".join(each.codes.tobytes() for each in chunks) == alone.codes.tobytes()
        assert_same_audio(chunks, alone, atol=5e-5)
    assert num_neighbours > num_batches
    if num_batches > 100:
        rows = getattr(tts.engine.backend, "_pass_rows", 0)
        record(f"G7 needle, {rows} rows a pass", cases=num_batches, neighbours=num_neighbours)


def test_control_shared_random_generator_is_detected(
    tts: TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = torch.Generator().manual_seed(1)

    def draw(table: NoiseTable, seeds: torch.Tensor, first: torch.Tensor, num_frames: int) -> Any:
        shape = (len(seeds), num_frames)
        return [torch.rand(*shape, size, generator=shared) for size in table._sizes]

    monkeypatch.setattr(NoiseTable, "frames", draw)
    alone = speak_alone(tts)
    shared.manual_seed(1)
    chunks, _ = speak_in_a_batch(tts, random.Random(0))
    assert not np.array_equal(np.concatenate([each.codes for each in chunks]), alone.codes)


# -- voices with one name-------------------------------------------------------------------------


def record_voice(seed: int, path: Path) -> Path:
    noise = np.random.default_rng(seed).normal(0, 0.1, 30_000).astype(np.float32)
    soundfile.write(path, noise, 24_000)
    return path


def speak_as_both(tts: TTS, folder: Path) -> list[bytes]:
    """Return the codes of two voices with equal name, length and transcript, spoken at once."""
    paths = [record_voice(seed, folder / f"{seed}.wav") for seed in (1, 2)]
    voices = [tts.voice(paths[n], transcript="The same words.") for n in (0, 1, 0)]
    assert {voice.name for voice in voices if isinstance(voice, Voice)} == {"cloned"}
    options: dict[str, Any] = {"seed": 5, "min_frames": 4, "max_frames": 4}
    streams = [tts.stream(TEXT, voice=voice, **options) for voice in voices]
    return [b"".join(chunk.codes.tobytes() for chunk in stream) for stream in streams]


@pytest.fixture
def base(tiny_folder: Path) -> Iterator[TTS]:
    with TTS.load(tiny_folder / "base", device="cpu") as loaded:
        yield loaded


def test_voices_with_one_name_sound_different(base: TTS, tmp_path: Path) -> None:
    first, second, again = speak_as_both(base, tmp_path)
    assert first == again
    assert first != second


def test_control_voice_cache_by_name_is_detected(
    base: TTS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EnrolmentKey, "digest", "me")
    monkeypatch.setattr(EnrolmentKey, "fits", lambda *_: True)
    first, second, _ = speak_as_both(base, tmp_path)
    assert first == second
