"""The workers as the engine's process sees them: what each one holds until it leaves."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator

from vivace.remote.host import HostedConnection
from vivace.remote.wire import Fields
from vivace.serve.models.clones import MAX_CLONES
from vivace.serve.models.crashes import Quarantine
from vivace.serve.models.registry import ModelRegistry
from vivace.voices.voice import Voice

QUIET_METHODS = ("begin", "end")  # wait for another call or for the next publication of the load


class Client:
    """A connected worker, and what it holds until it leaves."""

    def __init__(self, worker: int, connection: HostedConnection) -> None:
        self.worker, self.connection = worker, connection
        self.held: dict[int, asyncio.Lock] = {}
        self.waiting: dict[int, asyncio.Task[None]] = {}
        self._running: Counter[tuple[str, str]] = Counter()  # model, digest
        self._uses: Counter[str] = Counter()  # by model
        self._tasks: set[asyncio.Task[None]] = set()

    def keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def begin(self, call: Fields, quarantine: Quarantine) -> None:
        model, digest = call.values["model"], call.values["digest"]
        self._running[model, digest] += 1
        quarantine.begin(model, digest)

    def end(self, call: Fields, quarantine: Quarantine) -> None:
        model, digest = call.values["model"], call.values["digest"]
        if self._running[model, digest]:
            self._running -= Counter([(model, digest)])
            quarantine.end(model, digest)

    def use(self, call: Fields, registry: ModelRegistry) -> None:
        """Prevent a model from being unloaded while streams of the worker use it."""
        name, number = call.values["model"], call.values["number"]
        self._uses[name] += number
        registry.use(name, number)

    def unlock(self, key: int) -> None:
        task, lock = self.waiting.pop(key, None), self.held.pop(key, None)
        if lock is not None:
            lock.release()
        elif task is not None:
            task.cancel()

    def leave(self, quarantine: Quarantine, registry: ModelRegistry) -> None:
        for key in [*self.held, *self.waiting]:
            self.unlock(key)
        for task in list(self._tasks):
            task.cancel()
        for model, digest in self._running.elements():
            quarantine.end(model, digest)
        for name, number in self._uses.items():
            registry.use(name, -number)


class ReceivedCalls:
    """Calls of workers that wait for the event loop, in the order in which they arrived.

    Threads of connections add calls, and the event loop takes them. Every request sends two notes.
    If each of them woke the event loop, the loop would take the GIL from the engine's thread.
    """

    def __init__(self) -> None:
        self._calls: deque[tuple[HostedConnection, Fields]] = deque()

    def add(self, connection: HostedConnection, calls: Iterable[Fields]) -> bool:
        """Returns whether the event loop must take the calls at once."""
        new = [(connection, call) for call in calls]
        self._calls.extend(new)
        return any(call.values["method"] not in QUIET_METHODS for _, call in new)

    def take(self) -> Iterator[tuple[HostedConnection, Fields]]:
        while self._calls:
            yield self._calls.popleft()


class VoiceCache:
    """Voices of recordings that several workers may send; one recording is enrolled at a time."""

    def __init__(self) -> None:
        self._voices: OrderedDict[str, Voice] = OrderedDict()
        self._lock = asyncio.Lock()

    async def get(self, key: str, make: Callable[[], Voice]) -> Voice:
        async with self._lock:
            voice = self._voices.pop(key, None)
            if voice is None:
                voice = await asyncio.to_thread(make)
            self._voices[key] = voice  # the most recently used is last
            if len(self._voices) > MAX_CLONES:
                self._voices.popitem(last=False)
            return voice


def voice_key(call: Fields) -> str:
    return repr([call.values[name] for name in ("model", "recording", "options")])
