"""The cache of cloned voices in the engine's process."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from vivace.serve.models.clones import MAX_CLONES
from vivace.serve.processes.engine_clients import VoiceCache


def test_least_recently_used_voice_is_dropped_above_the_limit() -> None:
    made: list[str] = []

    def make(key: str) -> Any:
        made.append(key)
        return key

    async def use() -> None:
        cache = VoiceCache()
        names = [str(number) for number in range(MAX_CLONES)]
        for name in [*names, "0", "new", "0", "1"]:
            found: Any = await cache.get(name, partial(make, name))
            assert found == name

    asyncio.run(use())
    assert made[:MAX_CLONES] == [str(n) for n in range(MAX_CLONES)]
    assert made[MAX_CLONES:] == ["new", "1"]
