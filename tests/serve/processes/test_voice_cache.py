"""The cache of cloned voices in the engine's process."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from vivace.serve.processes import engine_clients
from vivace.serve.processes.engine_clients import VoiceCache


def test_least_recently_used_voice_is_dropped_above_the_limit() -> None:
    made: list[str] = []

    def make(key: str) -> Any:
        made.append(key)
        return key

    async def use() -> None:
        cache = VoiceCache()
        names = [str(number) for number in range(engine_clients.MAX_CLONES)]
        for name in [*names, "0", "new", "0", "1"]:
            found: Any = await cache.get(name, partial(make, name))
            assert found == name

    asyncio.run(use())
    assert made[: engine_clients.MAX_CLONES] == [str(n) for n in range(engine_clients.MAX_CLONES)]
    assert made[engine_clients.MAX_CLONES :] == ["new", "1"]
