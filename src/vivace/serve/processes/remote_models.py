"""The models of a worker: a mirror of the registry in the engine's process.

A worker prepares texts with the config and the tokenizer of a checkpoint and has no weights. While
the engine's process is restarted, requests get the error of a model that is loaded again.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from vivace.errors import ClosedError, EngineError, TTSError
from vivace.remote.checkpoint import RemoteCheckpoint, open_lexicon
from vivace.remote.client import RESTARTING, EngineLink, RemoteEngine
from vivace.remote.wire import Kind
from vivace.serve.models.card import Card
from vivace.serve.models.configured import Models
from vivace.serve.models.crashes import Quarantine
from vivace.serve.models.gauges import watch_models
from vivace.serve.models.recovery import Recovery
from vivace.serve.models.served_model import ModelEntry, ServedModel
from vivace.serve.observability.metrics import Metrics
from vivace.serve.processes.shared_counts import WorkerCounts
from vivace.serve.settings import ServeSettings
from vivace.tts import TTS

log = logging.getLogger(__name__)

RECONNECT_S = 0.05


class LinkHolder:
    """The current link to the engine's process. None: it is being restarted."""

    def __init__(self) -> None:
        self.link: EngineLink | None = None

    def note(self, method: str, **values: Any) -> None:
        """Call a method of the engine's process, unless it is being restarted."""
        if self.link is not None:
            self.link.note(method, **values)

    def note_with_next(self, method: str, **values: Any) -> None:
        """The same, sent together with the next message."""
        if self.link is not None:
            self.link.put_fields(Kind.NOTE, {"method": method, **values})

    async def call(self, method: str, **values: Any) -> None:
        """Raises ClosedError while the engine's process is restarted."""
        if self.link is None:
            raise ClosedError(RESTARTING)
        await asyncio.wrap_future(self.link.call(method, values))


class RemoteLock:
    """A lock in the engine's process, which releases it if this worker ends."""

    def __init__(self, holder: LinkHolder, name: str) -> None:
        self._holder, self._name = holder, name
        self._held: list[tuple[EngineLink, int]] = []

    async def acquire(self) -> None:
        link = self._holder.link
        if link is None:
            raise ClosedError(RESTARTING)
        key = link.next_number()
        try:
            await asyncio.wrap_future(link.call("lock", {"name": self._name, "key": key}))
        except asyncio.CancelledError:
            link.note("unlock", name=self._name, key=key)
            raise
        self._held.append((link, key))

    def release(self) -> None:
        link, key = self._held.pop()
        if link.is_open:
            link.note("unlock", name=self._name, key=key)

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(self, *exception: object) -> None:
        self.release()


class RemoteQuarantine(Quarantine):
    """Reports running requests to the engine's process, which decides about strikes."""

    def __init__(self, holder: LinkHolder) -> None:
        super().__init__()
        self._holder = holder
        self._suspect_lock = RemoteLock(holder, "suspect")

    def begin(self, model: str, digest: str) -> None:
        super().begin(model, digest)
        # Until the request is submitted or ends, which sends a message, the engine lacks it anyway.
        self._holder.note_with_next("begin", model=model, digest=digest)

    def end(self, model: str, digest: str) -> None:
        super().end(model, digest)
        self._holder.note("end", model=model, digest=digest)

    def clear(self, digest: str | None) -> None:
        if digest in self.strikes:
            super().clear(digest)
            self._holder.note("clear", digest=digest)


class RemoteRecovery(Recovery):
    """Reports failed requests. The engine's process probes and reloads its models."""

    def __init__(
        self, entries: dict[str, ModelEntry], metrics: Metrics, holder: LinkHolder
    ) -> None:
        super().__init__(entries, metrics, _no_load, _no_task, 0.0)
        self._holder = holder
        self.quarantine: Quarantine = RemoteQuarantine(holder)
        self._struck: set[str] = set()  # in flight when the engine's process ended; to report
        self._counted: set[str] = set()  # of those, the requests that have not failed yet

    def suspect(self, model: ServedModel, digest: str | None = None) -> None:
        link = self._holder.link
        if digest in self._counted:
            self._counted.discard(digest)
        elif link is not None and link.is_open:
            link.note("suspect", model=model.name, digest=digest)
        elif digest is not None:  # it failed before the loss was noticed
            self._struck.add(digest)

    def note_loss(self) -> None:
        """The engine's process has ended: note the requests in flight."""
        self._counted = set().union(*map(self.quarantine.in_flight, self._entries))
        self._struck |= self._counted

    def report_struck(self) -> None:
        """Report the requests that were in flight when the last engine process ended."""
        if self._struck:
            self._holder.note("strike", digests=sorted(self._struck))
            self._struck.clear()


async def _no_load(entry: ModelEntry) -> ServedModel:
    raise EngineError(f"{entry.spec.name} is loaded by the engine's process")


def _no_task(work: Any) -> None:
    raise EngineError("models are watched by the engine's process")


class RemoteModels(Models):
    def __init__(
        self, settings: ServeSettings, metrics: Metrics, counts: WorkerCounts, path: Path
    ) -> None:
        super().__init__(settings)
        self._counts, self._path, self.holder = counts, path, LinkHolder()
        self._remote_recovery = RemoteRecovery(self._entries, metrics, self.holder)
        self.recovery = self._remote_recovery
        self._engines = {
            name: RemoteEngine(name, counts.load(index)) for index, name in enumerate(self.names)
        }
        self._opened: dict[str, tuple[object, TTS]] = {}  # source and TTS by model
        self._state: dict[str, Any] | None = None  # the last that was received
        self._is_changed = asyncio.Event()
        self._is_applied = asyncio.Condition()
        watch_models(metrics, self)

    async def start(self) -> None:
        self._start_task(self._stay_connected())
        self._start_task(self._follow())
        await self._wait_until(lambda: self.is_ready)

    async def close(self) -> None:
        await super().close()
        if self.holder.link is not None:
            self.holder.link.close()

    async def _wait_until(self, is_met: Callable[[], bool]) -> None:
        async with self._is_applied:
            await self._is_applied.wait_for(is_met)

    # -- the link ------------------------------------------------------------------------------

    async def _stay_connected(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            lost = asyncio.Event()
            try:
                connection = socket.socket(socket.AF_UNIX)
                await asyncio.to_thread(connection.connect, str(self._path))
            except OSError:
                connection.close()
                await asyncio.sleep(RECONNECT_S)
                continue
            link = EngineLink(
                connection,
                lambda state: _call_in(loop, self._receive, state),
                lambda: _call_in(loop, lost.set),  # noqa: B023  this link's event
            )
            self._use(link)
            await lost.wait()
            await self._lose()

    def _use(self, link: EngineLink) -> None:
        self._counts.counts.reset_submitted(self._counts.worker)
        self.holder.link = link
        for engine in self._engines.values():
            engine.link = link
        link.note("hello", worker=self._counts.worker)
        link.start()
        self._remote_recovery.report_struck()

    async def _lose(self) -> None:
        log.error("the engine's process ended; requests fail until it is started again")
        self._state, self.holder.link = None, None
        self._remote_recovery.note_loss()
        for entry in self._entries.values():
            entry.model, entry.is_broken = None, entry.card is not None
        async with self._is_applied:
            self._is_applied.notify_all()

    def _receive(self, state: dict[str, Any]) -> None:
        self._state = state
        self._is_changed.set()

    # -- the state -----------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Apply each state that arrives."""
        while True:
            await self._is_changed.wait()
            self._is_changed.clear()
            state = self._state
            if state is None:
                continue
            try:
                await self._open_checkpoints(state)
            except TTSError:
                log.exception("the files of a model cannot be read")
                continue
            async with self._is_applied:
                if self._state is not None:  # the link was not lost meanwhile
                    self._apply(state)
                self._is_applied.notify_all()

    async def _open_checkpoints(self, state: dict[str, Any]) -> None:
        """Read configs and tokenizers that are not read yet."""
        for name, one in state["models"].items():
            folder = one["folder"]
            source = folder, list(one["adapters"].items())  # in the order of their numbers
            if folder is None or self._opened.get(name, ("",))[0] == source:
                continue
            opened = await asyncio.to_thread(self._open, name, Path(folder), one["adapters"])
            self._opened[name] = source, opened

    def _open(self, name: str, folder: Path, adapters: dict[str, str]) -> TTS:
        lexicon, adapter = open_lexicon(self._settings.lexicon), self._entries[name].spec.adapter
        return TTS(RemoteCheckpoint(folder, self._engines[name], adapter, adapters), lexicon)

    def _apply(self, state: dict[str, Any]) -> None:
        quarantine = self.recovery.quarantine
        quarantine.strikes = {digest: list(times) for digest, times in state["strikes"].items()}
        self.created = state["created"]
        for name, one in state["models"].items():
            entry, cards = self._entries[name], one["cards"]
            self._engines[name].update(**one["engine"])
            entry.is_broken, entry.is_hung, entry.is_full = (
                one[key] for key in ("is_broken", "is_hung", "is_full")
            )
            entry.is_broken |= not cards and entry.card is not None  # being loaded
            if cards:
                entry.cards = tuple(map(_read_card, cards))
            entry.model = self._served(name, entry.card) if one["is_loaded"] else None

    def _served(self, name: str, card: Card | None) -> ServedModel | None:
        found = self._opened.get(name)
        if found is None or card is None:
            return None
        current = self._entries[name].model
        if current is not None and current.tts is found[1] and current.card == card:
            return current
        return ServedModel.of(name, found[1], card, self._library)

    # -- requests ------------------------------------------------------------------------------

    async def _load_entry(self, entry: ModelEntry) -> ServedModel:
        """Let the engine's process load a model that was unloaded."""
        await self.holder.call("load", model=entry.spec.name)
        await self._wait_until(lambda: entry.model is not None or entry.is_broken)
        if entry.model is None:
            raise ClosedError(f"{entry.spec.name} is being loaded again")
        return entry.model

    @contextmanager
    def in_use(self, model: ServedModel) -> Iterator[None]:
        is_unloaded = bool(self._settings.unload_after_s)
        if is_unloaded:
            self.holder.note("use", model=model.name, number=1)
        try:
            with super().in_use(model):
                yield
        finally:
            if is_unloaded:
                self.holder.note("use", model=model.name, number=-1)


def _read_card(values: dict[str, Any]) -> Card:
    lists = {key: tuple(values[key]) for key in ("speakers", "languages")}
    return Card(**{**values, **lists})


def _call_in(loop: asyncio.AbstractEventLoop, work: Callable[..., None], *values: Any) -> None:
    """Call `work` in the loop's thread, unless the loop is closed."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(work, *values)
