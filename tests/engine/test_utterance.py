"""What a reader gets of an utterance: copies of its frames, and one wake-up for each request."""

from __future__ import annotations

import numpy as np

from tests.support.scripted_backend import script
from vivace.engine.utterance import NO_FRAMES, Piece, Utterance, join
from vivace.speech import SamplingParams

CODES = np.arange(12, dtype=np.int64).reshape(6, 2)
SAMPLES = np.arange(60, dtype=np.float32)


def test_joined_pieces_are_copies_in_their_order() -> None:
    pieces = [Piece(CODES[:2], SAMPLES[:20]), Piece(CODES[2:], SAMPLES[20:], "stop", 3)]
    joined = join(pieces)
    np.testing.assert_array_equal(joined.codes, CODES)
    np.testing.assert_array_equal(joined.samples, SAMPLES)
    assert (joined.codes.dtype, joined.samples.dtype) == (np.int64, np.float32)
    assert (joined.finish_reason, joined.num_stalled) == ("stop", 3)
    joined.samples[0] = joined.codes[0, 0] = 7
    assert SAMPLES[0] == CODES[0, 0] == 0


def test_a_piece_that_is_not_contiguous_can_be_joined() -> None:
    joined = join([Piece(CODES[::2], SAMPLES[::2])])
    np.testing.assert_array_equal(joined.codes, CODES[::2])
    np.testing.assert_array_equal(joined.samples, SAMPLES[::2])


def test_no_frames_can_be_joined() -> None:
    joined = join([NO_FRAMES])
    assert len(joined.codes) == len(joined.samples) == 0


def test_a_reader_is_woken_once_for_each_request() -> None:
    woken: list[None] = []
    utterance = Utterance(
        prompt=script(4), sampling=SamplingParams(seed=0), wake=lambda: woken.append(None)
    )
    utterance.admit(0, 0.0)

    def ask(num_frames: int) -> None:
        utterance.num_wanted, utterance.num_asked = num_frames, utterance.num_asked + 1

    def give(num_frames: int) -> None:
        utterance.make(num_frames, "running")
        samples, loudness = SAMPLES[: 10 * num_frames], np.ones(num_frames, np.float32)
        utterance.receive(CODES[:num_frames], samples, loudness, "running")

    ask(2)
    give(1)
    utterance.wake_if_ready()
    assert not woken
    give(1)
    for _ in range(3):  # turns in which it does not come
        utterance.wake_if_ready()
    assert len(woken) == 1
    utterance.take(2)
    ask(1)
    utterance.wake_if_ready()
    assert len(woken) == 1
    give(1)
    utterance.wake_if_ready()
    assert len(woken) == 2
