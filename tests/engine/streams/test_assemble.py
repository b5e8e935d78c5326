"""`Assembler`: pauses, the start, stalls and times of audio made from blocks of frames."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vivace import Usage, Word
from vivace.audio.clip import AudioChunk
from vivace.engine.streams.assemble import Assembler, join_empty
from vivace.engine.utterances.frame_block import FrameBlock
from vivace.hub import CODEC, EMBEDDED
from vivace.model.config_file import load_codec_config
from vivace.speech import FinishReason
from vivace.text.pauses import Pause

CONFIG = load_codec_config(EMBEDDED / CODEC / "config.json")
NUM_CODEBOOKS = CONFIG.decoder_config.num_quantizers
RATE = 24_000
FRAME = 1_920
PAUSE = Pause(0.1)
USAGE = Usage(text_tokens=1, frames=1, audio_s=0.0, wall_s=0.0, seed=0)


@pytest.fixture
def make() -> Any:
    def build(**options: Any) -> Assembler:
        defaults = {"trim": False, "trim_start": False, "speed": 1.0}
        return Assembler(CONFIG, **defaults | options)

    return build


def block(level: float, num_frames: int = 1, **fields: Any) -> FrameBlock:
    codes = np.zeros((num_frames, NUM_CODEBOOKS), np.int64)
    return FrameBlock(codes, np.full(num_frames * FRAME, level, np.float32), **fields)


def test_pauses_differ_and_do_not_depend_on_chunk_sizes(make: Any) -> None:
    results = []
    for sizes in ([2], [1, 1]):
        made = make(silence_rms=0.01)
        first = made.silence(PAUSE, None).samples
        second = made.silence(PAUSE, None).samples
        for size in sizes:
            made.speech(block(0.1, size), None)
        last = made.silence(PAUSE, "stop").samples
        results.append((first, second, last))
    for one, other in zip(*results, strict=True):
        assert np.array_equal(one, other)
    first, second, last = results[0]
    assert not np.array_equal(first, second)
    assert not np.array_equal(second, last)


@pytest.mark.parametrize("trim", [False, True])
def test_start_is_trimmed_with_either_option(make: Any, trim: bool) -> None:
    made = make(trim=trim, trim_start=not trim)
    chunks = [made.speech(block(0.0), None), made.speech(block(0.1), "stop")]
    assert [len(chunk.samples) for chunk in chunks] == [0, 480 + FRAME]
    assert made.second_of(2 * FRAME) == pytest.approx((480 + FRAME) / RATE)


def test_stall_before_the_end_is_kept(make: Any) -> None:
    made = make(trim=True)
    effects = made.take_effects()
    chunks = [
        made.speech(block(0.1, 3, finish_reason="stall", num_stalled=2), None),
        made.silence(PAUSE, "stop"),
    ]
    audio = made.whole(chunks, effects, "stop", USAGE)
    assert len(audio.samples) == 3 * FRAME + 0.1 * RATE


def test_times_of_first_and_audible_samples_differ(make: Any) -> None:
    made = make()
    made.speech(block(0.0), None)
    first_ms = made.first_audio_ms
    assert first_ms is not None
    assert made.audible_ms is None
    made.speech(block(0.1), "stop")
    assert made.first_audio_ms == first_ms
    assert made.audible_ms is not None
    assert made.audible_ms > first_ms


def test_words_of_a_chunk_without_samples_move_to_the_next_chunk() -> None:
    def chunk(size: int, word: str, end: FinishReason | None = None) -> AudioChunk:
        return AudioChunk(
            samples=np.zeros(size, np.float32),
            sample_rate=RATE,
            start_s=0.0,
            is_last=end is not None,
            finish_reason=end,
            codes=np.zeros((1, NUM_CODEBOOKS), np.int64),
            words=(Word(text=word, start_s=0.0, end_s=0.1, start_char=0, end_char=1),),
        )

    steps = [chunk(0, "a"), chunk(5, "b"), chunk(0, "c"), chunk(0, "d", "stop")]
    joined = [one for one in join_empty(one for one in steps) if isinstance(one, AudioChunk)]
    assert [[word.text for word in one.words or ()] for one in joined] == [["a", "b"], ["c", "d"]]
    assert [len(one.codes) for one in joined] == [2, 2]
