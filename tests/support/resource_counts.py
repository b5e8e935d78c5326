"""Counts the resources of a server: tasks, threads, open files, streams, queue places and slots."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from dataclasses import asdict, dataclass

from tests.support.scripted_tts import ScriptedSpeech
from tests.support.serving import Running

LIMIT_S = 60.0  # generous: on a busy machine
POOL_THREADS = 8  # a thread pool may grow by this many


@dataclass(frozen=True)
class ResourceCounts:
    tasks: int
    threads: int
    files: int
    streams: int
    running: int
    waiting: int
    slots: int

    @classmethod
    def of(cls, server: Running, backend: ScriptedSpeech) -> ResourceCounts:
        (model,) = server.context.models.loaded()
        tasks = asyncio.run_coroutine_threadsafe(_count_tasks(), server.loop).result(LIMIT_S)
        return cls(
            tasks,
            threading.active_count(),
            len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0,
            server.context.streams.num_active,
            model.tts.engine.num_running,
            model.tts.engine.num_waiting,
            len(backend.active_slots),
        )

    def surplus(self, before: ResourceCounts) -> dict[str, int]:
        """Resources beyond those of `before`. A grown thread pool does not count."""
        then = {**asdict(before), "threads": before.threads + POOL_THREADS}
        return {
            name: count - then[name] for name, count in asdict(self).items() if count > then[name]
        }


async def _count_tasks() -> int:
    return len(asyncio.all_tasks())


def find_leaks(
    server: Running, backend: ScriptedSpeech, before: ResourceCounts, timeout_s: float = LIMIT_S
) -> dict[str, int]:
    """Resources that are still held although the server had time to release them."""
    deadline = time.monotonic() + timeout_s
    while leaks := ResourceCounts.of(server, backend).surplus(before):
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return leaks
