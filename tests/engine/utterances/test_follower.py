"""The follower finds lost, repeated and invented speech, and no fault in correct speech."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivace.engine.utterances.follower import (
    LOOP_FRAMES,
    MIN_SHARE,
    STALL_FRAMES,
    TAIL_FRAMES,
    Fault,
    TextFollower,
    TextId,
)
from vivace.engine.utterances.look_ahead import (
    FREE_FRAMES,
    MAX_LOOKAHEAD,
    num_needed,
    num_settled,
)

NUM_IDS = 45
NUM_IDS_PER_SENTENCE = 15
FRAMES_PER_ID = 3
NUM_5_S = 63  # frames
SHARE = 0.9
Places = list[tuple[int, float]]

IDS = [
    TextId(is_word=i % 15 != 14, begins_word=i % 3 == 0 and i % 15 != 14) for i in range(NUM_IDS)
]


def speak(*ranges: range) -> Places:
    """The places of frames that attend to these ids in order."""
    ids = [place for some in ranges for place in some]
    return [(place, SHARE) for place in ids for _ in range(FRAMES_PER_ID)]


def sentences(*numbers: int) -> Places:
    size = NUM_IDS_PER_SENTENCE
    return speak(*(range(number * size, (number + 1) * size) for number in numbers))


STALL: Places = [(NUM_IDS_PER_SENTENCE, SHARE)] * NUM_5_S
TAIL: Places = [(NUM_IDS - 2, SHARE)] * NUM_5_S
NOISE_TAIL: Places = [(0, MIN_SHARE / 2)] * NUM_5_S
FAULTS = {
    "skip": sentences(0, 2),
    "loop": sentences(0, 1, 1, 2),
    "early_end": sentences(0, 1),
    "stall": [*sentences(0), *STALL, *sentences(1, 2)],
    "tail": [*sentences(0, 1, 2), *TAIL],
}


def find_first(places: Places, sizes: list[int] | None = None) -> Fault | None:
    """Return the first fault. `sizes` are the frames of the first turns."""
    follower, start = TextFollower(IDS), 0
    for size in sizes or []:
        if (fault := follower.observe(iter(places[start : start + size]))) is not None:
            return fault
        start += size
    return follower.observe(iter(places[start:])) or follower.end()


def test_correct_speech_has_no_fault() -> None:
    assert find_first(sentences(0, 1, 2)) is None


@pytest.mark.parametrize("frames_per_id", [1, 2, 4, 8])
def test_correct_speech_of_any_pace_has_no_fault(frames_per_id: int) -> None:
    places = [(place, SHARE) for place in range(NUM_IDS) for _ in range(frames_per_id)]
    assert find_first(places) is None


@pytest.mark.parametrize("kind", FAULTS)
def test_induced_fault_is_found_with_its_kind(kind: str) -> None:
    fault = find_first(FAULTS[kind])
    assert fault is not None
    assert fault.kind == kind


def test_invented_tail_with_attention_elsewhere_is_found() -> None:
    fault = find_first([*sentences(0, 1, 2), *NOISE_TAIL])
    assert fault is not None
    assert fault.kind == "tail"


def test_removed_sentence_names_its_ids_and_its_first_frame() -> None:
    fault = find_first(FAULTS["skip"])
    assert fault is not None
    size = NUM_IDS_PER_SENTENCE
    assert fault.frame == size * FRAMES_PER_ID
    assert set(range(size, 2 * size - 1)) <= set(fault.ids) <= set(range(size, 2 * size + 2))


def test_early_end_names_the_ids_that_were_not_reached() -> None:
    fault = find_first(FAULTS["early_end"])
    assert fault is not None
    assert fault.ids == range(2 * NUM_IDS_PER_SENTENCE, NUM_IDS)
    assert fault.frame == len(FAULTS["early_end"])


def test_loop_begins_where_attention_went_back() -> None:
    fault = find_first(FAULTS["loop"])
    assert fault is not None
    assert fault.frame == len(sentences(0, 1))
    assert fault.num_seen == fault.frame + LOOP_FRAMES - 1


def test_jump_is_confirmed_by_a_frame_next_to_its_target() -> None:
    before, target = sentences(0), 2 * NUM_IDS_PER_SENTENCE
    for place, frame in ((target, 0), (target - 1, 0), (target - 2, 1)):
        fault = find_first([*before, (target, SHARE), (place, SHARE), (target, SHARE)])
        assert fault is not None
        assert (fault.kind, fault.frame) == ("skip", len(before) + frame)


@pytest.mark.parametrize("kind", [*FAULTS, None])
@given(sizes=st.lists(st.integers(1, 40), max_size=12))
def test_fault_does_not_depend_on_the_sizes_of_turns(kind: str | None, sizes: list[int]) -> None:
    places = FAULTS[kind] if kind else sentences(0, 1, 2)
    assert find_first(places, sizes) == find_first(places)


def test_limits_of_stall_and_tail_are_exact() -> None:
    before = sentences(0)
    pause = [(NUM_IDS_PER_SENTENCE - 1, SHARE)] * (STALL_FRAMES - FRAMES_PER_ID - 1)
    assert find_first([*before, *pause, *sentences(1, 2)]) is None
    rest = [(NUM_IDS - 1, SHARE)] * (TAIL_FRAMES - 2 * FRAMES_PER_ID - 1)
    assert find_first([*sentences(0, 1, 2), *rest]) is None


@given(seed=st.integers(0, 10_000))
def test_frames_with_little_attention_on_the_text_raise_no_fault(seed: int) -> None:
    chance, places = random.Random(seed), sentences(0, 1, 2)
    for index in range(len(places)):
        if chance.random() < 0.3 and index % FRAMES_PER_ID:
            places[index] = chance.randrange(NUM_IDS), MIN_SHARE * chance.random() * 0.99
    assert find_first(places) is None


@given(seed=st.integers(0, 10_000))
def test_single_outliers_raise_no_fault(seed: int) -> None:
    chance, places = random.Random(seed), sentences(0, 1, 2)
    for index in range(4, len(places) - 4, 4 * FRAMES_PER_ID):
        if chance.random() < 0.5:
            far = places[index][0] + 10  # a shorter step would count as speech
            places[index + 1] = chance.choice([0, 1, min(far, NUM_IDS - 1)]), SHARE
    assert find_first(places) is None


def test_attention_that_is_never_on_the_text_is_not_judged() -> None:
    follower = TextFollower(IDS)
    assert follower.observe(iter([(3, MIN_SHARE / 3)] * 200)) is None
    assert follower.end() is None
    assert not follower.is_useful


def test_pause_before_the_first_word_is_no_fault() -> None:
    assert find_first([(-1, 0.0)] * 100 + sentences(0, 1, 2)) is None


def test_text_that_is_still_being_written_has_no_tail_and_no_end() -> None:
    follower = TextFollower(IDS[:15], is_complete=False)
    assert follower.observe(iter([*sentences(0), *[(14, SHARE)] * (TAIL_FRAMES - 5)])) is None
    follower.extend(IDS[15:], is_last=True)
    assert follower.observe(iter(sentences(1, 2))) is None
    assert follower.end() is None


# -- final frames --------------------------------------------------------------------------------


def test_first_frames_are_final_at_once() -> None:
    assert [num_settled(n) for n in range(FREE_FRAMES + 1)] == list(range(FREE_FRAMES + 1))


def test_lookahead_grows_to_its_maximum_and_final_frames_never_shrink() -> None:
    settled = [num_settled(n) for n in range(400)]
    assert settled == sorted(settled)
    assert max(n - done for n, done in enumerate(settled)) == MAX_LOOKAHEAD
    assert settled[-1] == 399 - MAX_LOOKAHEAD


def test_num_needed_is_the_inverse_of_num_settled() -> None:
    for num_final in range(1, 400):
        num_made = num_needed(num_final)
        assert num_settled(num_made) >= num_final > num_settled(num_made - 1)


# -- after a fault -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FAULTS)
@given(sizes=st.lists(st.integers(1, 40), max_size=8), num_retries=st.integers(0, 5))
def test_resume_frame_is_settled_or_later(kind: str, sizes: list[int], num_retries: int) -> None:
    follower, start = TextFollower(IDS), 0
    fault: Fault | None = None
    for size in [*sizes, 1_000]:
        fault = fault or follower.observe(iter(FAULTS[kind][start : start + size]))
        start += size
    fault = fault or follower.end()
    assert fault is not None
    frame = follower.resume_frame(fault, num_retries)
    if frame is not None:
        assert num_settled(fault.num_seen) <= frame <= fault.num_seen
        assert frame <= fault.frame or fault.kind == "stall"


def test_early_end_resumes_at_the_end_then_further_back() -> None:
    fault = find_first(FAULTS["early_end"])
    assert fault is not None
    frames = []
    for num_retries in range(4):
        follower = TextFollower(IDS)
        follower.observe(iter(FAULTS["early_end"]))
        frames.append(follower.resume_frame(fault, num_retries))
    assert frames[0] == fault.frame
    assert frames == sorted(frames, key=lambda frame: -(frame or 0))


def test_each_retry_resumes_one_word_further_back_down_to_the_final_frames() -> None:
    places: Places = [(place, SHARE) for place in range(40)]
    follower = TextFollower([TextId(is_word=True, begins_word=True)] * 80)
    assert follower.observe(iter(places)) is None
    fault = follower.end()
    assert fault is not None
    frames = [follower.resume_frame(fault, num_retries) for num_retries in (0, 1, 2, 8, 9)]
    assert frames == [40, 39, 38, 40 - MAX_LOOKAHEAD, 40 - MAX_LOOKAHEAD]
    follower.rewind(38)
    assert follower.place == 37
    assert follower.observe(iter(places[38:])) is None


def test_loop_that_a_retry_repeats_is_found_again() -> None:
    follower, repeated = TextFollower(IDS), sentences(1)
    follower.observe(iter(sentences(0, 1)))
    first = follower.observe(iter(repeated))
    assert first is not None
    follower.rewind(first.frame)
    assert follower.observe(iter(repeated)) == first


def test_tail_after_an_accepted_one_is_found_after_as_many_frames() -> None:
    follower, rest = TextFollower(IDS), iter([*sentences(0, 1, 2), *TAIL])
    first = follower.observe(rest)
    assert first is not None
    follower.accept(first)
    second = follower.observe(rest)
    assert second is not None
    assert (second.kind, second.frame) == ("tail", first.num_seen + 1)
    assert second.num_seen == second.frame + TAIL_FRAMES


def test_rewound_follower_judges_as_one_that_saw_only_the_kept_frames() -> None:
    follower = TextFollower(IDS)
    fault = follower.observe(iter(FAULTS["skip"]))
    assert fault is not None
    follower.rewind(fault.frame)
    assert follower.place == NUM_IDS_PER_SENTENCE - 1
    assert follower.observe(iter(sentences(1, 2))) is None
    assert follower.end() is None
    assert not follower.lost


@pytest.mark.parametrize("kind", ["skip", "early_end"])
def test_accepted_loss_is_lost(kind: str) -> None:
    follower = TextFollower(IDS)
    fault = follower.observe(iter(FAULTS[kind])) or follower.end()
    assert fault is not None
    follower.accept(fault)
    assert set(fault.ids) == follower.lost
    assert not follower.doubtful


@pytest.mark.parametrize("kind", ["loop", "stall", "tail"])
def test_accepted_repetition_is_doubtful_and_not_lost(kind: str) -> None:
    follower = TextFollower(IDS)
    fault = follower.observe(iter(FAULTS[kind]))
    assert fault is not None
    follower.accept(fault)
    assert set(fault.ids) == follower.doubtful
    assert not follower.lost


def test_after_an_accepted_skip_the_rest_is_followed() -> None:
    follower, rest = TextFollower(IDS), iter(FAULTS["skip"])
    fault = follower.observe(rest)
    assert fault is not None
    follower.accept(fault)
    assert follower.observe(rest) is None
    assert follower.end() is None
    assert list(follower.unreached) == []
