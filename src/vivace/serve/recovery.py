"""Finds models that hang, fail or are full, and loads broken ones again until that is hopeless."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from vivace.errors import EngineLostError, TTSError
from vivace.serve.deaths import MAX_DEATHS, WINDOW_S, Deaths, Quarantine
from vivace.serve.metrics import Metrics
from vivace.serve.model import Entry, Model, loaded, probe, unload
from vivace.serve.pulse import FULL_TICKS, HANG_TICKS, Fullness, Pulse

log = logging.getLogger(__name__)

BACKOFF_S = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)  # between tries to load a broken model again


class Recovery:
    def __init__(
        self,
        entries: Mapping[str, Entry],
        metrics: Metrics,
        fill: Callable[[Entry], Awaitable[Model]],  # loads a model again
        start: Callable[[Coroutine[Any, Any, None]], None],  # a task that `Models` ends
        max_wait_s: float,  # a request whose estimated wait is longer is refused
    ) -> None:
        self._entries, self._metrics = entries, metrics
        self._fill, self._start, self._max_wait_s = fill, start, max_wait_s
        self.on_lost: Callable[[TTSError], None] | None = None  # a broken model cannot be loaded
        self.deaths, self.quarantine = Deaths(), Quarantine()

    def suspect(self, model: Model, digest: str | None = None) -> None:
        """A stream of this model failed: probe it, and load it again if it stays broken."""
        entry = self._entries[model.name]
        if entry.model is not model:
            return
        if digest is not None:
            entry.suspects.add(digest)
        if entry.is_suspect:
            return
        entry.is_suspect = True
        self._start(self._examine(model))

    async def find_hung(self, limit_s: float) -> None:
        pulses = {name: Pulse() for name in self._entries}
        while True:
            await asyncio.sleep(limit_s / HANG_TICKS)
            for model in loaded(self._entries):
                has_stopped = pulses[model.name].has_stopped(model.tts.engine.busy_since)
                if has_stopped and not self._entries[model.name].is_hung:
                    self._give_up(model, f"a turn did not end within {limit_s:g} s; ask again")

    async def find_full(self, limit_s: float) -> None:
        seen = {name: Fullness() for name in self._entries}
        while True:
            await asyncio.sleep(limit_s / FULL_TICKS)
            for name, entry in self._entries.items():
                load = None if entry.model is None else entry.model.tts.engine.capacity()
                is_full = load is not None and load.refuses(self._max_wait_s)
                entry.is_full = seen[name].has_lasted(is_full)

    def _give_up(self, model: Model, reason: str) -> None:
        log.error("%s hangs: %s", model.name, reason)
        self._entries[model.name].is_hung = True
        model.tts.engine.abandon(reason)
        self.suspect(model)

    async def _examine(self, model: Model) -> None:
        entry = self._entries[model.name]
        async with entry.lock:
            if entry.model is not model:  # it was unloaded
                entry.is_suspect = False
                return
            try:
                await asyncio.to_thread(probe, model.tts)
                if model.tts.engine.num_rebuilds != entry.num_rebuilds:
                    entry.num_rebuilds = model.tts.engine.num_rebuilds
                    self._metrics.count_rebuild(model.name)
                    self._bury(entry, "its backend was rebuilt")
                entry.suspects.clear()
                return
            except Exception as error:
                log.error("%s is broken and is loaded again: %s", model.name, error)
                reason = str(error)
            finally:
                entry.is_suspect = False
            entry.is_broken = True
            needs_process = model.tts.engine.has_lost_device
            unload(entry)
        if self._bury(entry, reason, needs_process=needs_process):
            await asyncio.sleep(self.deaths.pause_s)
            await self._rebuild(entry)

    def _bury(self, entry: Entry, reason: str, *, needs_process: bool = False) -> bool:
        """Count a death, and blame what was there; False: this process makes no engine any more."""
        self.deaths.add()
        self._metrics.count_death(entry.spec.name)
        blamed = entry.suspects | self.quarantine.now_running(entry.spec.name)
        entry.suspects = set()
        if refused := self.quarantine.strike(blamed):
            log.error("%d requests that were there twice are refused", len(refused))
        if self.deaths.are_too_many:
            loss = EngineLostError(
                f"{entry.spec.name} died {MAX_DEATHS} times in {WINDOW_S / 60:g} minutes, the last "
                f"time because: {reason}; look at the device and at the requests"
            )
        elif needs_process:
            loss = EngineLostError(
                f"{entry.spec.name} lost the device ({reason}); a new process is needed",
                needs_process=True,
            )
        else:
            return True
        log.error("%s", loss)
        if self.on_lost is not None:
            self.on_lost(loss)
        return False

    async def _rebuild(self, entry: Entry) -> None:
        """Try until it loads; after the last try it is lost, and a new process may do better."""
        name = entry.spec.name
        for pause_s in (*BACKOFF_S, None):
            try:
                await self._fill(entry)
                self._metrics.count_rebuild(name)
                return
            except Exception as error:
                reason = f"{name} broke and cannot be loaded again: {error}"
            if pause_s is not None:
                log.error("%s; next try in %g s", reason, pause_s)
                await asyncio.sleep(pause_s)
        log.error("%s", reason)
        if self.on_lost is not None:
            self.on_lost(EngineLostError(reason, needs_process=True))
