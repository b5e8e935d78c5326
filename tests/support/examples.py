"""The number of examples of property tests."""

from __future__ import annotations

from hypothesis import settings


def examples(number: int) -> settings:
    """Settings for `number` examples, and for a quarter of them in a default run and in `.ci/run`.

    These draw the same examples every time, so that many of them find nothing more.
    `pytest --hypothesis-profile search` draws `number` new ones.
    """
    is_search = settings.get_current_profile_name() == "search"
    return settings(deadline=None, max_examples=number if is_search else -(-number // 4))
