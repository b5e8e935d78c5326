"""Frame blocks, and the wake-ups of an utterance's reader."""

from __future__ import annotations

import numpy as np

from tests.support.scripted_backend import script
from vivace.engine.utterances.frame_block import NO_FRAMES, FrameBlock, join_blocks
from vivace.engine.utterances.utterance import Utterance
from vivace.speech import SamplingParams

CODES = np.arange(12, dtype=np.int64).reshape(6, 2)
SAMPLES = np.arange(60, dtype=np.float32)


def test_joined_blocks_are_copies_in_order() -> None:
    blocks = [FrameBlock(CODES[:2], SAMPLES[:20]), FrameBlock(CODES[2:], SAMPLES[20:], "stop", 3)]
    joined = join_blocks(blocks)
    np.testing.assert_array_equal(joined.codes, CODES)
    np.testing.assert_array_equal(joined.samples, SAMPLES)
    assert (joined.codes.dtype, joined.samples.dtype) == (np.dtype(np.int64), np.dtype(np.float32))
    assert (joined.finish_reason, joined.num_stalled) == ("stop", 3)
    joined.samples[0] = joined.codes[0, 0] = 7
    assert SAMPLES[0] == CODES[0, 0] == 0


def test_noncontiguous_block_can_be_joined() -> None:
    joined = join_blocks([FrameBlock(CODES[::2], SAMPLES[::2])])
    np.testing.assert_array_equal(joined.codes, CODES[::2])
    np.testing.assert_array_equal(joined.samples, SAMPLES[::2])


def test_empty_block_can_be_joined() -> None:
    joined = join_blocks([NO_FRAMES])
    assert len(joined.codes) == len(joined.samples) == 0


def test_reader_is_woken_once_for_each_request() -> None:
    woken: list[None] = []
    utterance = Utterance(
        prompt=script(4), sampling=SamplingParams(seed=0), wake=lambda: woken.append(None)
    )
    utterance.admit(0, 0.0)

    def give(num_frames: int) -> None:
        utterance.make(num_frames, "running")
        samples, loudness = SAMPLES[: 10 * num_frames], np.ones(num_frames, np.float32)
        utterance.receive(CODES[:num_frames], samples, loudness, "running")

    utterance.request(0, 2, 0.0)
    give(1)
    utterance.wake_if_ready()
    assert not woken
    give(1)
    for _ in range(3):  # turns before the reader's next request
        utterance.wake_if_ready()
    assert len(woken) == 1
    utterance.request(2, 1, 0.0)
    utterance.wake_if_ready()
    assert len(woken) == 1
    give(1)
    utterance.wake_if_ready()
    assert len(woken) == 2
