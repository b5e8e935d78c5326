"""Streams of a server: what a drain waits for, and what it refuses."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.serving import started_models
from vivace.options import StreamOptions
from vivace.serve.context import ServeContext
from vivace.serve.errors import RefusedError
from vivace.serve.settings import ServeSettings
from vivace.serve.streams.active import Streams

LIMIT_S = 60.0


@pytest.fixture
def streams(tmp_path: Path) -> Streams:
    return ServeContext.create(ServeSettings(voices=tmp_path), ScriptedSpeech().load).streams


async def take_turns(count: int = 50) -> None:
    """Let everything that can run do so."""
    for _ in range(count):
        await asyncio.sleep(0)


def test_drain_waits_for_the_last_of_several_holds(streams: Streams) -> None:
    async def check() -> None:
        last = streams.hold()
        last.__enter__()
        with streams.hold(), streams.hold():
            draining = asyncio.create_task(streams.drain(LIMIT_S))
            await take_turns()
            assert not draining.done()
        await take_turns()
        assert not draining.done(), "the drain ended with a stream running"
        last.__exit__(None, None, None)
        assert await draining

    asyncio.run(check())


def test_drain_without_holds_ends_at_once(streams: Streams) -> None:
    assert asyncio.run(streams.drain(LIMIT_S))


def test_drain_past_its_timeout_reports_that_streams_run(streams: Streams) -> None:
    async def check() -> None:
        with streams.hold():
            assert not await streams.drain(0.01)

    asyncio.run(check())


def test_hold_that_fails_is_released(streams: Streams) -> None:
    async def check() -> None:
        with pytest.raises(RuntimeError), streams.hold():
            raise RuntimeError
        assert await streams.drain(LIMIT_S)

    asyncio.run(check())


def test_drain_finishes_every_running_stream_and_refuses_new_ones(tmp_path: Path) -> None:
    """A short stream ends first; the long one is not cut off."""
    backend = ScriptedSpeech(plans={1: Plan(2), 2: Plan(40)})

    async def read(context: ServeContext, seed: int, has_begun: asyncio.Event) -> int:
        model, num_frames = await context.models.get(), 0
        options = StreamOptions(seed=seed)
        with context.admission.admit(model) as place:
            async with context.streams.open(model, "Hello.", place, options) as chunks:
                async for chunk in chunks:
                    num_frames += len(chunk.codes)
                    has_begun.set()
        return num_frames

    async def check() -> None:
        async with started_models(ServeSettings(voices=tmp_path), backend.load) as context:
            begun = [asyncio.Event(), asyncio.Event()]
            tasks = [asyncio.create_task(read(context, n + 1, begun[n])) for n in (0, 1)]
            await asyncio.gather(*(event.wait() for event in begun))
            assert await context.streams.drain(LIMIT_S)
            assert context.streams.num_active == 0
            assert await asyncio.gather(*tasks) == [2, 40]
            with pytest.raises(RefusedError, match="shutting down") as refused:
                await read(context, 1, asyncio.Event())
            assert (refused.value.status, refused.value.code) == (503, "draining")

    asyncio.run(check())
