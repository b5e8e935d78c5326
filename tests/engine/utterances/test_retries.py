"""Retries of utterances with skipped, repeated or invented words, streamed and offline."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from threading import Event
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.scripted_attention import FRAMES_PER_ID, Course, FollowedBackend, early_end
from tests.support.scripted_backend import script
from vivace import TTS, Audio
from vivace.audio.clip import AudioChunk
from vivace.engine.utterances.follower import TextFollower
from vivace.engine.utterances.look_ahead import num_settled
from vivace.engine.utterances.retry import MAX_MASKED_FRAMES, MAX_RETRIES, RetryState, retry_seed
from vivace.speech import MAX_SEED, SamplingParams

TEXT = "Seven grey herons stood beside the old canal, and none of them moved at all."
OTHER = "A kettle was singing in the kitchen, and nobody had the heart to stop it."
SEED = 5
NUM_5_S = 63  # frames


def skip(places: list[int]) -> list[int]:
    return places[:20] + places[60:]


def loop(places: list[int]) -> list[int]:
    return places[:60] + places[10:]


def stall(places: list[int]) -> list[int]:
    return places[:30] + places[30:31] * NUM_5_S + places[31:]


def tail(places: list[int]) -> list[int]:
    return places + places[-4:-3] * NUM_5_S


def lose(places: list[int]) -> list[int]:
    """End after half of the text, and at once in a retry."""
    return early_end(places) if places and places[0] == 0 else []


COURSES: dict[str, Course] = {
    "early_end": early_end,
    "skip": skip,
    "loop": loop,
    "stall": stall,
    "tail": tail,
}


@pytest.fixture(scope="module")
def backend() -> FollowedBackend:
    return FollowedBackend()


@pytest.fixture(scope="module")
def loaded(backend: FollowedBackend) -> Iterator[TTS]:
    with backend.load() as tts:
        yield tts


@pytest.fixture
def tts(loaded: TTS, backend: FollowedBackend) -> Iterator[TTS]:
    backend.courses, backend.default = {}, lambda places: places
    backend.refuses_continued, backend.on_step = False, lambda: None
    backend.admitted.clear()
    yield loaded
    assert loaded.engine.call(lambda: backend.open_slots) == {}


def whole(tts: TTS, text: str = TEXT, seed: int = SEED) -> Audio:
    return tts.speak(text, seed=seed, trim=False)


def places_of(audio: Audio) -> list[int]:
    return [int(place) for place in audio.codes[:, 1]]


def correct_places(tts: TTS, text: str = TEXT) -> list[int]:
    num_ids = len(tts.tokenizer.encode(text))
    return [place for place in range(num_ids) for _ in range(FRAMES_PER_ID)]


def test_correct_speech_is_spoken_once(tts: TTS, backend: FollowedBackend) -> None:
    audio = whole(tts)
    assert places_of(audio) == correct_places(tts)
    assert (len(backend.admitted), audio.usage.retries, audio.completeness) == (1, 0, 1.0)


@pytest.mark.parametrize("kind", ["early_end", "skip", "loop"])
def test_fault_is_repaired_and_every_id_is_spoken_in_order(
    tts: TTS, backend: FollowedBackend, kind: str
) -> None:
    backend.courses[SEED] = COURSES[kind]
    audio = whole(tts)
    places = places_of(audio)
    assert sorted(set(places)) == sorted(set(correct_places(tts)))
    assert all(after - before <= 1 for before, after in pairwise(places))
    assert (audio.usage.retries, audio.missing_words, audio.finish_reason) == (1, (), "stop")


def test_stall_ends_after_a_retry(tts: TTS, backend: FollowedBackend) -> None:
    backend.courses[SEED] = stall
    audio = whole(tts)
    assert audio.usage.retries == 1
    assert audio.missing_words == ()
    assert len(audio.codes) < len(stall(correct_places(tts)))
    assert set(places_of(audio)) == set(correct_places(tts))


def test_invented_tail_is_dropped(tts: TTS, backend: FollowedBackend) -> None:
    backend.default = tail
    audio = whole(tts)
    assert audio.finish_reason == "stop"
    assert audio.missing_words == ()
    assert len(audio.codes) < len(tail(correct_places(tts)))


def test_retry_continues_from_the_kept_frames_with_a_new_seed_and_masked_end(
    tts: TTS, backend: FollowedBackend
) -> None:
    backend.courses[SEED] = early_end
    whole(tts)
    (first, drawn), (again, redrawn) = backend.admitted
    num_kept = len(early_end(correct_places(tts)))
    assert len(again) == len(first) + num_kept
    assert again.labels[-1] == f"frame {num_kept - 1}"
    np.testing.assert_array_equal(again.codes[-num_kept:, 1], early_end(correct_places(tts)))
    assert redrawn.seed == retry_seed(SEED, 1) != drawn.seed
    assert 0 < redrawn.min_frames <= MAX_MASKED_FRAMES
    assert redrawn.max_frames == drawn.max_frames - num_kept


@pytest.mark.parametrize("kind", COURSES)
@given(ramp=st.lists(st.integers(1, 30), min_size=1, max_size=4))
@settings(deadline=None, max_examples=12)
def test_streamed_audio_with_a_retry_equals_offline_audio(
    loaded: TTS, backend: FollowedBackend, kind: str, ramp: list[int]
) -> None:
    backend.courses = {SEED: COURSES[kind]}
    offline = whole(loaded)
    chunks = list(loaded.stream(TEXT, seed=SEED, chunk_frames=ramp))
    np.testing.assert_array_equal(np.concatenate([c.codes for c in chunks]), offline.codes)
    np.testing.assert_array_equal(np.concatenate([c.samples for c in chunks]), offline.samples)
    usage = chunks[-1].usage
    assert usage is not None
    assert (usage.retries, usage.missing_words) == (offline.usage.retries, offline.missing_words)
    assert usage.retries == (kind != "tail")  # a tail is cut off without a retry


def test_seed_reproduces_the_retry_and_other_seeds_differ(
    tts: TTS, backend: FollowedBackend
) -> None:
    backend.default = lambda places: early_end(places) if places[0] == 0 else places
    one, same, other = (whole(tts, seed=seed) for seed in (1, 1, 2))
    assert one == same
    assert not np.array_equal(one.codes[-5:], other.codes[-5:])


def test_retries_are_bounded_and_the_lost_words_are_reported(
    tts: TTS, backend: FollowedBackend
) -> None:
    backend.default = lose
    audio = whole(tts)
    assert len(backend.admitted) == 1 + MAX_RETRIES
    assert audio.usage.retries == MAX_RETRIES
    assert (audio.finish_reason, audio.missing_words[-1]) == ("stop", "all.")
    assert audio.completeness is not None
    assert audio.completeness == pytest.approx(1 - len(audio.missing_words) / 15)
    assert len({sampling.seed for _, sampling in backend.admitted}) == 1 + MAX_RETRIES


def test_refused_retry_ends_with_missing_words_instead_of_an_error(
    tts: TTS, backend: FollowedBackend
) -> None:
    backend.courses[SEED], backend.refuses_continued = early_end, True
    audio = whole(tts)
    assert places_of(audio) == early_end(correct_places(tts))
    assert (audio.finish_reason, audio.missing_words[-1]) == ("stop", "all.")
    chunks = list(tts.stream(TEXT, seed=SEED, chunk_frames=3))
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.missing_words == audio.missing_words


def test_unguarded_speech_is_not_checked(tts: TTS, backend: FollowedBackend) -> None:
    backend.default = early_end
    audio = tts.speak(TEXT, seed=SEED, trim=False, guard=False)
    assert len(backend.admitted) == 1
    assert (audio.completeness, audio.missing_words) == (None, ())


def test_other_streams_are_unaffected_by_a_retry(tts: TTS, backend: FollowedBackend) -> None:
    alone = np.concatenate([c.codes for c in tts.stream(OTHER, seed=9, chunk_frames=2)])
    backend.courses[SEED] = loop
    broken = tts.stream(TEXT, seed=SEED, chunk_frames=2)
    other = tts.stream(OTHER, seed=9, chunk_frames=2)
    found: dict[bool, list[AudioChunk]] = {True: [], False: []}
    while not all(chunks and chunks[-1].is_last for chunks in found.values()):
        for is_broken, stream in ((True, broken), (False, other)):
            if (chunk := next(stream, None)) is not None:
                found[is_broken].append(chunk)
    np.testing.assert_array_equal(np.concatenate([c.codes for c in found[False]]), alone)
    usages = found[True][-1].usage, found[False][-1].usage
    assert [usage and usage.retries for usage in usages] == [1, 0]


def test_cancelled_retry_releases_its_slot(tts: TTS, backend: FollowedBackend) -> None:
    backend.courses[SEED] = early_end
    in_retry, is_closed = Event(), Event()

    def hold() -> None:
        if len(backend.admitted) > 1:
            in_retry.set()
            is_closed.wait(60)

    backend.on_step = hold
    num_released = backend.num_released
    stream = tts.stream(TEXT, seed=SEED, chunk_frames=50)
    reader = tts.engine  # its thread blocks in the retry
    stream.step()
    assert in_retry.wait(60)
    stream.close()
    is_closed.set()
    assert reader.call(lambda: backend.open_slots) == {}
    assert backend.num_released == num_released + len(backend.admitted)


def test_first_chunk_needs_no_more_frames_than_without_the_check(
    tts: TTS, backend: FollowedBackend
) -> None:
    made: list[int] = []
    backend.on_step = lambda: made.append(
        sum(state.num_made for state in backend.open_slots.values())
    )
    for num_frames in (1, 4):
        made.clear()
        with tts.stream(TEXT, seed=SEED, chunk_frames=num_frames) as stream:
            assert len(next(stream).codes) == num_frames
        assert num_settled(num_frames) == num_frames
        assert made[0] == 0


def test_live_text_without_more_ids_finalizes_all_frames(
    tts: TTS, backend: FollowedBackend
) -> None:
    read: list[int] = []
    at_pulls: list[tuple[int, int]] = []

    def num_made() -> int:
        return sum(state.num_made for state in backend.open_slots.values())

    def pieces() -> Iterator[str]:
        for piece in ("Seven grey herons stood beside ", "the old canal, and none ", "moved."):
            if read:
                at_pulls.append((sum(read), tts.engine.call(num_made)))
            yield piece

    for chunk in tts.stream(pieces(), seed=SEED, chunk_frames=1, live="word"):
        read.append(len(chunk.codes))
    assert at_pulls
    assert all(num_read == made for num_read, made in at_pulls)
    assert backend.admitted[0][0].is_complete is False


def test_retry_seeds_differ_from_each_other_and_from_the_first() -> None:
    assert len({retry_seed(SEED, number) for number in range(MAX_RETRIES + 1)}) == MAX_RETRIES + 1


def test_seed_of_the_first_attempt_is_the_seed_of_the_request() -> None:
    assert [retry_seed(seed, 0) for seed in (0, 5, MAX_SEED)] == [0, 5, MAX_SEED]


def test_second_retry_continues_from_the_kept_frames_of_the_first_one() -> None:
    first, second = np.arange(20).reshape(10, 2), 100 + np.arange(10).reshape(5, 2)
    state = RetryState()
    state.add(first)
    state.keep(6)
    state.add(second)
    state.keep(8)
    assert state.kept is not None
    assert state.kept.tolist() == [*first[:6].tolist(), *second[:2].tolist()]


@pytest.mark.parametrize(("num_ids_left", "min_frames"), [(0, 2), (8, 4), (100, 14)])
def test_frame_limits_of_a_retry_are_those_of_the_frames_that_are_left(
    num_ids_left: int, min_frames: int
) -> None:
    state, limits = RetryState(), SamplingParams(min_frames=8, max_frames=20)
    state.add(np.arange(20).reshape(10, 2))
    follower = Mock(spec=TextFollower, num_left=num_ids_left)
    follower.resume_frame.return_value = 6
    assert state.begin(follower, Mock(), 0) == 6
    state.keep(6)
    _, sampling = state.admission(script(1), limits, max_frames=20, number=1, is_complete=True)
    assert (sampling.min_frames, sampling.max_frames) == (min_frames, 14)
