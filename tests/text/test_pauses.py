"""Tests of pause marks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivace.errors import RequestError
from vivace.text.pauses import Pause, parse_pauses


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("One. [pause 0.5s] Two.", ["One. ", Pause(0.5), " Two."]),
        ("[pause 500ms]Go", [Pause(0.5), "Go"]),
        ("Stop[PAUSE 10 s]", ["Stop", Pause(10.0)]),
        ("[pause 1s][pause 2s]", [Pause(1.0), Pause(2.0)]),
        ("[pause 1ms]", [Pause(0.001)]),
        ("No mark [here], no [pauses] and no pause 1s.",) * 2,
        ("",) * 2,
    ],
)
def test_parse_pauses_separates_pauses_from_text(text: str, parts: list[str | Pause] | str) -> None:
    expected = [parts] if isinstance(parts, str) else parts
    assert parse_pauses(text) == [part for part in expected if part != ""]


@pytest.mark.parametrize(
    "mark",
    [
        *("[pause]", "[pause 1]", "[pause s]", "[pause 0,5s]", "[pause -1s]", "[pause 1 min]"),
        *("[pause for effect]", "[pause 1s", "[pause nans]", "[pause 1e3ms]", "[pause: 1s]"),
    ],
)
def test_parse_pauses_keeps_other_brackets(mark: str) -> None:
    assert parse_pauses(f"Wait {mark} here.") == [f"Wait {mark} here."]


@pytest.mark.parametrize("mark", ["[pause 0s]", "[pause 0ms]", "[pause 10.001s]", "[pause 20s]"])
def test_pause_mark_of_invalid_length_is_rejected(mark: str) -> None:
    with pytest.raises(RequestError, match="more than 0 and at most 10 seconds, not"):
        parse_pauses(mark)


@pytest.mark.parametrize("seconds", [0, -1, 10.5, float("nan"), float("inf")])
def test_pause_of_invalid_length_raises_request_error(seconds: float) -> None:
    with pytest.raises(RequestError, match="at most 10 seconds"):
        Pause(seconds)


@given(
    parts=st.lists(
        st.builds(Pause, st.integers(1, 10_000).map(lambda ms: ms / 1000))
        | st.text(st.characters(exclude_characters="["), min_size=1)
    )
)
def test_parse_pauses_returns_pauses_as_written(parts: list[str | Pause]) -> None:
    written = [f"[pause {part.seconds}s]" if isinstance(part, Pause) else part for part in parts]
    read = parse_pauses("".join(written))
    again = [f"[pause {part.seconds}s]" if isinstance(part, Pause) else part for part in read]
    assert "".join(again) == "".join(written)
    assert [p for p in read if isinstance(p, Pause)] == [p for p in parts if isinstance(p, Pause)]
