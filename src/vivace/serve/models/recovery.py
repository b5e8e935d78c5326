"""Detects models that hang, fail or stay full, and loads broken models again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from vivace.errors import EngineLostError, TTSError
from vivace.serve.models.crashes import MAX_CRASHES, WINDOW_S, CrashLog, Quarantine
from vivace.serve.models.served_model import ModelEntry, ServedModel, loaded_models, probe, unload
from vivace.serve.models.watchdog import FULL_TICKS, HANG_TICKS, FullQueueDetector, Watchdog
from vivace.serve.observability.metrics import Metrics

log = logging.getLogger(__name__)

BACKOFF_S = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)  # between attempts to load a broken model


class Recovery:
    def __init__(
        self,
        entries: Mapping[str, ModelEntry],
        metrics: Metrics,
        load: Callable[[ModelEntry], Awaitable[ServedModel]],
        start_task: Callable[[Coroutine[Any, Any, None]], None],
        max_wait_s: float,
    ) -> None:
        self._entries, self._metrics = entries, metrics
        self._load, self._start_task, self._max_wait_s = load, start_task, max_wait_s
        self.on_lost: Callable[[TTSError], None] | None = None  # a model cannot be recovered
        self.crashes, self.quarantine = CrashLog(), Quarantine()

    def suspect(self, model: ServedModel, digest: str | None = None) -> None:
        """Probe a model after one of its streams failed, and load it again if it is broken."""
        entry, model = self._entries[model.name], model.base or model
        if entry.model is not model:
            return
        if digest is not None:
            entry.suspects.add(digest)
        if entry.is_suspect:
            return
        entry.is_suspect = True
        self._start_task(self._examine(model))

    async def watch_for_hangs(self, timeout_s: float) -> None:
        watchdogs = {name: Watchdog() for name in self._entries}
        while True:
            await asyncio.sleep(timeout_s / HANG_TICKS)
            for model in loaded_models(self._entries):
                is_hung = watchdogs[model.name].tick(model.tts.engine.busy_since)
                if is_hung and not self._entries[model.name].is_hung:
                    self._abandon(
                        model, f"a turn did not end within {timeout_s:g} s; send the request again"
                    )

    async def watch_for_full_queues(self, timeout_s: float) -> None:
        detectors = {name: FullQueueDetector() for name in self._entries}
        while True:
            await asyncio.sleep(timeout_s / FULL_TICKS)
            for name, entry in self._entries.items():
                load = None if entry.model is None else entry.model.engine.capacity()
                is_full = load is not None and load.refuses(self._max_wait_s)
                entry.is_full = detectors[name].tick(is_full)

    def _abandon(self, model: ServedModel, reason: str) -> None:
        log.error("%s hangs: %s", model.name, reason)
        self._entries[model.name].is_hung = True
        model.tts.engine.abandon(reason)
        self.suspect(model)

    async def _examine(self, model: ServedModel) -> None:
        entry = self._entries[model.name]
        async with entry.lock:
            if entry.model is not model:  # unloaded meanwhile
                entry.is_suspect = False
                return
            try:
                await asyncio.to_thread(probe, model.tts)
                if model.tts.engine.num_rebuilds != entry.num_rebuilds:
                    entry.num_rebuilds = model.tts.engine.num_rebuilds
                    self._metrics.rebuilds.labels(model.name).inc()
                    self._record_crash(entry, "its backend was rebuilt")
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
        if self._record_crash(entry, reason, needs_process=needs_process):
            await asyncio.sleep(self.crashes.pause_s)
            await self._reload(entry)

    def _record_crash(self, entry: ModelEntry, reason: str, *, needs_process: bool = False) -> bool:
        """Count the crash and add a strike to every in-flight request.

        Returns false if this process must not load the model again; `on_lost` has been called then.
        """
        self.crashes.add()
        self._metrics.crashes.labels(entry.spec.name).inc()
        in_flight = entry.suspects | self.quarantine.in_flight(entry.spec.name)
        entry.suspects = set()
        if rejected := self.quarantine.strike(in_flight):
            log.error("%d requests were in flight at two crashes: now rejected", len(rejected))
        if self.crashes.is_limit_reached:
            loss = EngineLostError(
                f"{entry.spec.name} crashed {MAX_CRASHES} times in {WINDOW_S / 60:g} minutes; the "
                f"last reason: {reason}; check the device and the requests"
            )
        elif needs_process:
            loss = EngineLostError(
                f"{entry.spec.name} lost the device ({reason}); a new process is needed",
                needs_process=True,
            )
        else:
            return True
        self._report_loss(loss)
        return False

    async def _reload(self, entry: ModelEntry) -> None:
        name = entry.spec.name
        for pause_s in (*BACKOFF_S, None):
            try:
                await self._load(entry)
                self._metrics.rebuilds.labels(name).inc()
                return
            except Exception as error:
                reason = f"{name} crashed and cannot be loaded again: {error}"
            if pause_s is not None:
                log.error("%s; next attempt in %g s", reason, pause_s)
                await asyncio.sleep(pause_s)
        self._report_loss(EngineLostError(reason, needs_process=True))

    def _report_loss(self, loss: EngineLostError) -> None:
        log.error("%s", loss)
        if self.on_lost is not None:
            self.on_lost(loss)
