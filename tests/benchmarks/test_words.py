"""The normalizer of the word error rate: equal readings count as equal."""

from __future__ import annotations

import pytest

from tests.support.project import ROOT, load_script

words = load_script(ROOT / "benchmarks" / "words.py")


@pytest.mark.parametrize(
    ("text", "transcript"),
    [
        ("Hello, world!", "hello world"),
        ("It's a café.", "Its a café"),
        ("He was born in 1984.", "He was born in nineteen eighty-four."),
        ("It cost 1,250 dollars.", "It cost $1,250."),
        ("That is $19.99.", "that is nineteen dollars and ninety nine cents"),
        ("The 21st of May", "the twenty-first of may"),
        ("12.5%", "twelve point five percent"),
        ("At 4:30 p.m.", "At four thirty PM"),
        ("At 6:05", "at six oh five"),
        ("Call 555-0142", "call five five five zero one four two"),
        ("In 2006", "in two thousand six"),
        ("Dr. Smith and Mr. Brown", "doctor smith and mister brown"),
        ("The colour is grey.", "the color is gray"),
        ("1,000,000", "one million"),
        ("In 1900", "in nineteen hundred"),
        ("Send an e-mail", "send an email"),
        ("She sells sea shells.", "She sells seashells."),
        ("Everyone is here.", "Every one is here."),
    ],
)
def test_equal_readings_have_no_errors(text: str, transcript: str) -> None:
    assert words.count_errors(text, transcript).errors == 0


def test_errors_are_counted_in_words() -> None:
    assert words.count_errors("one two three", "one too three four") == words.Count(2, 3)
    assert words.count_errors("one two three", "") == words.Count(3, 3)
    assert words.count_errors("Room 42", "room 24").errors > 0


@pytest.mark.parametrize(
    ("number", "expected"),
    [(0, "zero"), (40, "forty"), (115, "one hundred fifteen"), (2_000_001, "two million one")],
)
def test_numbers_are_spelled_out(number: int, expected: str) -> None:
    assert words.cardinal(number) == expected


def test_hard_lines_are_100_unique_lines() -> None:
    lines = (ROOT / "benchmarks" / "texts" / "hard.txt").read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(set(lines)) == 100
    assert max(len(line.split()) for line in lines) >= 60


@pytest.mark.parametrize(
    ("transcript", "first", "later"),
    [
        ("the quick brown fox jumps over it", 0, 0),
        ("a quick brown fox jumps over it", 1, 0),
        ("the quick brown fox jumps under it", 0, 1),
        ("quick brown fox jumps over", 1, 1),  # a missing word on each side
        ("oh no the quick brown fox jumps over it", 2, 0),  # added words before the first
        ("the quick brown fox jumps over it now", 0, 1),  # after the last
        ("the quick brown a fox jumps over it", 0, 1),
        ("the quickbrown fox jumps over it", 0, 0),
        ("", 3, 4),
    ],
)
def test_errors_are_split_at_third_word(transcript: str, first: int, later: int) -> None:
    text = "The quick brown fox jumps over it."
    counts = words.split_errors(text, transcript, 3)
    assert [(count.errors, count.words) for count in counts] == [(first, 3), (later, 4)]
    assert sum(count.errors for count in counts) == words.count_errors(text, transcript).errors


def test_split_of_short_text_and_numbers() -> None:
    one, rest = words.split_errors("Yes.", "yes no", 3)
    assert (one.errors, one.words, rest.errors, rest.words) == (1, 1, 0, 0)
    counts = words.split_errors("In 1984 he left.", "in nineteen eighty four she left", 3)
    assert [(count.errors, count.words) for count in counts] == [(0, 3), (1, 3)]
