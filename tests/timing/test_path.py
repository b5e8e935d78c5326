"""Tests of the path through attention weights and of the words on it."""

from __future__ import annotations

import numpy as np
import pytest

from vivace.text.written_words import NO_WORD
from vivace.timing.head_selector import score
from vivace.timing.path import LAG, TextPath
from vivace.timing.words import WINDOWS, IdSpan, WordSpan, WordTimer, find_spans

FRAME = 1920


def staircase(lengths: list[int], noise: float = 0.02, seed: int = 0) -> np.ndarray:
    """Weights of a head that stays at each id for the given number of frames."""
    places = np.repeat(np.arange(len(lengths)), lengths)
    weights = np.random.default_rng(seed).uniform(0, noise, (len(places), len(lengths)))
    weights[np.arange(len(places)), places] += 0.8
    return weights.astype(np.float32)


def walk(weights: np.ndarray) -> TextPath:
    path = TextPath()
    for row in weights:
        path.step(row)
    path.finish()
    return path


def tone(*loud: bool) -> np.ndarray:
    """Samples of loud or silent frames."""
    wave = np.sin(np.arange(FRAME) / 5).astype(np.float32)
    return np.concatenate([wave * is_loud for is_loud in loud])


def test_path_stays_at_an_id_as_long_as_the_attention() -> None:
    path = walk(staircase([3, 1, 4, 2, 5]))
    assert path.places == [0, 0, 0, 1, 2, 2, 2, 2, 3, 3, 4, 4, 4, 4, 4]
    assert path.time_of(2) == pytest.approx(4, abs=0.3)
    assert path.time_of(2.5) == pytest.approx(6, abs=0.3)
    assert path.time_of(5) == pytest.approx(15, abs=0.3)


def test_path_never_goes_back() -> None:
    weights = staircase([3, 3, 3, 3])
    weights[7, 0] = 5.0  # one frame attends to an earlier id
    places = walk(weights).places
    assert places == sorted(places)
    assert places[-1] == 3


def test_place_is_decided_after_lag_frames_and_stays() -> None:
    weights, path = staircase([3, 1, 4, 2, 5]), TextPath()
    for number, row in enumerate(weights):
        path.step(row)
        assert len(path.places) == max(0, number + 1 - LAG)
    decided = list(path.places)
    path.finish()
    assert path.places[: len(decided)] == decided
    assert len(path.places) == len(weights)


def test_path_accepts_ids_that_arrive_later() -> None:
    whole, path = staircase([2, 2, 2, 2, 2, 2]), TextPath()
    for number, row in enumerate(whole):
        path.step(row[: number + 1])
    path.finish()
    assert path.places == walk(whole).places


def test_half_of_the_attention_of_a_frame_is_half_of_its_time() -> None:
    weights = staircase([4, 4], noise=0.0)
    weights[3] = [0.4, 0.4]
    weights[3, 1] += 0.01
    assert walk(weights).time_of(1) == pytest.approx(3.5, abs=0.05)


@pytest.mark.parametrize("step", [1, 2, 5, 30])
def test_word_timer_in_pieces_of_any_size_gives_the_same_words(step: int) -> None:
    weights = staircase([2, 3, 1, 4, 3, 2])
    samples = tone(*[number not in (6, 7) for number in range(len(weights))])
    spans = [IdSpan(0, 0, 1), IdSpan(1, 1, 3), IdSpan(2, 4, 6)]

    def time_words(size: int) -> list[WordSpan]:
        timer, found = WordTimer(), list[WordSpan]()
        timer.spans = spans
        for start in range(0, len(weights), size):
            part = slice(start * FRAME, (start + size) * FRAME)
            found += timer.feed(weights[start : start + size], samples[part])
        return found + timer.finish()

    assert time_words(step) == time_words(100)
    assert [one.word for one in time_words(step)] == [0, 1, 2]


def test_word_ends_and_begins_with_its_sound() -> None:
    weights = staircase([4, 6, 4])  # a word, a comma, a word
    samples = tone(*[True] * 5, *[False] * 5, *[True] * 4)
    timer = WordTimer()
    timer.spans = [IdSpan(0, 0, 1), IdSpan(1, 2, 3)]
    first, second = timer.feed(weights, samples) + timer.finish()
    assert (first.start, first.end) == (0, 5)
    assert second.start == 10
    assert second.end == 14


def test_early_attention_in_a_pause_does_not_move_the_word_into_the_pause() -> None:
    weights = staircase([4, 6])
    samples = tone(*[True] * 5, *[False] * 3, *[True] * 2)
    timer = WordTimer()
    timer.spans = [IdSpan(0, 0, 1), IdSpan(1, 1, 2)]
    first, second = timer.feed(weights, samples) + timer.finish()
    assert first.end == 5
    assert second.start == 8


def test_silence_before_the_first_word_is_not_part_of_the_word() -> None:
    timer = WordTimer()
    timer.spans = [IdSpan(0, 0, 1)]
    [word] = timer.feed(staircase([6]), tone(False, False, *[True] * 4)) + timer.finish()
    assert (word.start, word.end) == (2, 6)


def test_words_that_the_path_never_reaches_are_left_out() -> None:
    weights = np.pad(staircase([3, 4]), ((0, 0), (0, 20)))
    timer = WordTimer()
    timer.spans = [IdSpan(0, 0, 1), IdSpan(1, 1, 2), IdSpan(2, 12, 14)]
    found = timer.feed(weights, tone(*[True] * 7)) + timer.finish()
    assert [one.word for one in found] == [0, 1]


def test_frame_is_divided_into_whole_windows() -> None:
    assert FRAME % WINDOWS == 0


def test_score_separates_heads_that_follow_the_text_from_others() -> None:
    lengths = [3, 1, 4, 2, 5, 1, 2, 3, 4, 2, 3, 2, 4]
    rng = np.random.default_rng(1)
    spread = rng.dirichlet(np.ones(len(lengths)), sum(lengths)).astype(np.float32)
    counting = np.eye(20, dtype=np.float32)[np.minimum(np.arange(40), 19)]  # one id a frame
    assert score(staircase(lengths)) > 0.7
    assert score(spread) < 0.5
    assert score(counting) == 0


def test_find_spans_places_words_in_ids() -> None:
    text = ' "Yes, 你好'
    ids = [(0, 5), (5, 6), (6, 7), (7, 9)]
    numbers = [0] * 7 + [1, 2]  # the word of each character
    assert find_spans(text, numbers, ids) == [IdSpan(0, 0, 1), IdSpan(1, 3, 3.5), IdSpan(2, 3.5, 4)]
    numbers = [0] * 7 + [NO_WORD, 2]  # a character that belongs to no word
    assert find_spans(text, numbers, ids) == [IdSpan(0, 0, 1), IdSpan(2, 3.5, 4)]
    # One character with several ids.
    assert find_spans("é", [0], [(0, 1), (0, 1)]) == [IdSpan(0, 0, 2)]
