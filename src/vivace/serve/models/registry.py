"""Loads the configured models in this process, and probes, watches and unloads them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from vivace.serve.models.card import Card
from vivace.serve.models.configured import Models
from vivace.serve.models.gauges import watch_models
from vivace.serve.models.recovery import Recovery
from vivace.serve.models.served_model import ModelEntry, ServedModel, probe, unload
from vivace.serve.observability.metrics import Metrics, TurnMetrics
from vivace.serve.settings import ModelSpec, ServeSettings
from vivace.tts import TTS

log = logging.getLogger(__name__)


class ModelRegistry(Models):
    """Models by name; the first is the default. `load` replaces `TTS.load` and runs in a thread."""

    def __init__(
        self,
        settings: ServeSettings,
        metrics: Metrics,
        load: Callable[[ModelSpec], TTS] | None = None,
    ) -> None:
        super().__init__(settings)
        self._metrics = metrics
        self._load = load or self._load_tts
        self.on_turn: Callable[[str, TurnMetrics], None] = metrics.count_turn  # engine's thread
        self._lexicon: Any = settings.lexicon  # a path until the first load, then its content
        self.recovery = Recovery(
            self._entries, metrics, self._load_entry, self._start_task, settings.max_wait_s
        )
        watch_models(metrics, self)

    async def start(self) -> None:
        for entry in self._entries.values():
            await self._load_entry(entry)
        if self._settings.unload_after_s:
            self._start_task(self._unload_idle(self._settings.unload_after_s))
        if self._settings.turn_timeout_s:
            self._start_task(self.recovery.watch_for_hangs(self._settings.turn_timeout_s))
        if self._settings.full_timeout_s:
            self._start_task(self.recovery.watch_for_full_queues(self._settings.full_timeout_s))

    async def close(self) -> None:
        await super().close()
        for entry in self._entries.values():
            unload(entry)

    # -- loading -----------------------------------------------------------------------------

    async def _load_entry(self, entry: ModelEntry) -> ServedModel:
        async with entry.lock:
            if entry.model is None:
                began = time.perf_counter()
                tts = await asyncio.to_thread(self._load_and_probe, entry.spec)
                name = entry.spec.name
                tts.engine.on_turn = partial(self.on_turn, name)
                entry.model = ServedModel.of(name, tts, Card.of(name, tts), self._library)
                entry.cards = entry.model.cards
                entry.is_broken = entry.is_hung = False
                entry.num_rebuilds = tts.engine.num_rebuilds
                entry.last_used = time.monotonic()
                log.info("%s is ready after %.1f s", entry.spec.name, time.perf_counter() - began)
            return entry.model

    def _load_and_probe(self, spec: ModelSpec) -> TTS:
        tts = self._load(spec)
        try:
            tts.warmup()
            for one in (tts, *tts.adapters.values()):
                probe(one)
        except BaseException:
            tts.close()
            raise
        return tts

    def _load_tts(self, spec: ModelSpec) -> TTS:
        settings = self._settings
        tts = TTS.load(
            spec.source,
            device=settings.device,
            dtype=settings.dtype,
            weights=settings.weights,
            backend=settings.backend,
            threads=settings.threads,
            max_streams=settings.max_streams,
            max_queue=settings.max_queue,
            profile=settings.profile,
            lexicon=self._lexicon,
            revision=settings.revision if spec.source is not None else None,
            offline=settings.offline,
            adapter=spec.adapter,
            adapters=spec.adapter_paths,
        )
        self._lexicon = tts.lexicon
        return tts

    async def _unload_idle(self, after_s: float) -> None:
        while True:
            await asyncio.sleep(min(after_s / 4, 5.0))
            for entry in self._entries.values():
                is_idle = time.monotonic() - entry.last_used > after_s
                if entry.model is None or entry.num_users or not is_idle:
                    continue
                log.info("%s is idle and is unloaded", entry.spec.name)
                unload(entry)
