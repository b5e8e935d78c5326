"""Which tests a default run selects."""

from __future__ import annotations

import pytest

from tests.conftest import LONGEST_FIRST, TESTS


def test_longest_files_exist() -> None:
    assert [name for name in LONGEST_FIRST if not (TESTS / name).is_file()] == []


@pytest.mark.default_cases(2)
@pytest.mark.parametrize("case", "abcd")
def test_cases_beyond_the_default_number_are_ci(case: str, request: pytest.FixtureRequest) -> None:
    assert (request.node.get_closest_marker("ci") is not None) == (case in "cd")
