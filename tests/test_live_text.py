"""The pieces, limit and end of a live text."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from vivace.errors import TextTooLongError
from vivace.live_text import LiveText

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, 60.0))


def test_pending_pieces_are_joined_and_later_ones_follow() -> None:
    async def read() -> list[str]:
        text, pieces = LiveText(100), []
        text.add("Hel")
        text.add("lo ")
        pieces.append(await text.__anext__())
        later = asyncio.ensure_future(text.__anext__())
        await asyncio.sleep(0)
        assert not later.done()
        text.add("there")
        pieces.append(await later)
        text.add(".")
        text.end()
        return [*pieces, *[piece async for piece in text]]

    assert run(read()) == ["Hello ", "there", "."]


def test_has_words_waits_for_the_first_word() -> None:
    async def wait() -> bool:
        text = LiveText(100)
        waiting = asyncio.ensure_future(text.has_words())
        for blank in (" ", "", "\n"):
            text.add(blank)
            await asyncio.sleep(0)
        assert not waiting.done()
        text.add("a")
        return await waiting

    assert run(wait()) is True


@pytest.mark.parametrize("pieces", [[], [" "], ["", "\n", "\t "]])
def test_has_words_is_false_for_a_blank_text(pieces: list[str]) -> None:
    async def wait() -> bool:
        text = LiveText(100)
        for piece in pieces:
            text.add(piece)
        text.end()
        return await text.has_words()

    assert run(wait()) is False


def test_text_beyond_the_limit_fails_for_earlier_pieces_too() -> None:
    async def read() -> None:
        text = LiveText(10)
        text.add("12345")
        assert await text.__anext__() == "12345"
        text.add("678901")
        text.add("2")
        with pytest.raises(TextTooLongError, match="11 characters and the limit is 10"):
            await text.__anext__()
        with pytest.raises(TextTooLongError):
            await text.has_words()

    run(read())


def test_text_at_the_limit_is_accepted() -> None:
    async def read() -> list[str]:
        text = LiveText(10)
        text.add("1234567890")
        text.end()
        return [piece async for piece in text]

    assert run(read()) == ["1234567890"]


def test_empty_pieces_are_ignored() -> None:
    text = LiveText(10)
    for _ in range(1_000):
        text.add("")
    assert text._pieces == []


def test_end_wakes_readers_that_wait() -> None:
    async def wait() -> tuple[bool, list[str]]:
        text = LiveText(100)

        async def read() -> list[str]:
            return [piece async for piece in text]

        waiting = asyncio.ensure_future(text.has_words()), asyncio.ensure_future(read())
        await asyncio.sleep(0)
        text.end()
        await asyncio.wait_for(text.wait_end(), 5.0)
        return await asyncio.wait_for(waiting[0], 5.0), await asyncio.wait_for(waiting[1], 5.0)

    assert run(wait()) == (False, [])
