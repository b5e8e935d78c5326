"""`vivace serve` for the soak: it reports the number of its asyncio tasks.

    python -m tests.reliability.soak_serve [--scripted] [--leak] FLAGS...

For every line of stdin the process collects garbage and prints the number of tasks of its loop.
`--scripted` uses a backend without a model. `--leak` leaks memory with every speech: the control.
"""

from __future__ import annotations

import asyncio
import gc
import io
import os
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

from tests.support.scripted_tts import Plan, ScriptedSpeech
from vivace.cli.main import main
from vivace.serve.server import Server
from vivace.serve.streams.active import Streams

LEAKED_BYTES = 16_384  # leaked per speech
LEAK_EVERY = 10  # speeches per leaked file, thread and task


class Leak:
    """Leaks resources with every speech."""

    def __init__(self, every: int = LEAK_EVERY) -> None:
        self.every = every
        self.kept: list[Any] = []
        self.is_over = threading.Event()
        self.num_calls = 0

    def wrap(self, opened: Callable[..., Any]) -> Callable[..., Any]:
        def leaky(*args: Any, **options: Any) -> Any:
            self.num_calls += 1
            self.kept.append(os.urandom(LEAKED_BYTES))
            if self.num_calls % self.every == 0:
                self.kept.append(open(os.devnull))  # noqa: SIM115
                threading.Thread(target=self.is_over.wait, daemon=True).start()
                self.kept.append(asyncio.ensure_future(asyncio.Event().wait()))
            return opened(*args, **options)

        return leaky

    def close(self, loop: asyncio.AbstractEventLoop) -> None:
        """Release everything that leaked in this process."""
        self.is_over.set()
        for each in self.kept:
            if isinstance(each, io.IOBase):
                each.close()
            elif isinstance(each, asyncio.Task):
                loop.call_soon_threadsafe(each.cancel)


async def count_tasks() -> int:
    return len(asyncio.all_tasks())


def report_tasks(loop: asyncio.AbstractEventLoop) -> None:
    for _ in sys.stdin:
        gc.collect()
        num_tasks = asyncio.run_coroutine_threadsafe(count_tasks(), loop).result() - 1  # this task
        os.write(1, f"{num_tasks}\n".encode())


def watched(serve: Callable[..., Any]) -> Callable[..., Any]:
    async def serve_and_report(server: Server, *args: Any) -> None:
        loop = asyncio.get_running_loop()
        threading.Thread(target=report_tasks, args=(loop,), daemon=True).start()
        await serve(server, *args)

    return serve_and_report


def run(flags: list[str]) -> int:
    chosen = {flag for flag in flags if flag in ("--scripted", "--leak")}
    if "--leak" in chosen:
        Streams.open = Leak().wrap(Streams.open)  # type: ignore[method-assign]
    backend = ScriptedSpeech(default=Plan(8), step_s=0.002)
    scripted = patch("vivace.engine.checkpoints.loading.build_backend", lambda *_: backend)
    Server.serve = watched(Server.serve)  # type: ignore[method-assign]
    with scripted if "--scripted" in chosen else nullcontext():
        return main(["serve", *(flag for flag in flags if flag not in chosen)])


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
