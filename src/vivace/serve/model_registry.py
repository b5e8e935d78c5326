"""The configured models: selects one for a request, loads, probes and unloads them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any

from vivace.serve.card import Card
from vivace.serve.errors import RefusedError
from vivace.serve.gauges import watch_models
from vivace.serve.metrics import Metrics
from vivace.serve.recovery import Recovery
from vivace.serve.served_model import (
    ModelEntry,
    ServedModel,
    loaded_models,
    probe,
    unload,
)
from vivace.serve.settings import ModelSpec, ServeSettings
from vivace.serve.voices import Voices, voice_key
from vivace.tts import TTS
from vivace.voices.shared import open_library

log = logging.getLogger(__name__)

LOADING_RETRY_S = 2.0


class ModelRegistry:
    """Models by name; the first is the default. `load` replaces `TTS.load` and runs in a thread."""

    def __init__(
        self,
        settings: ServeSettings,
        metrics: Metrics,
        load: Callable[[ModelSpec], TTS] | None = None,
    ) -> None:
        self._settings, self._metrics = settings, metrics
        self._load = load or self._load_tts
        self._entries = {spec.name: ModelEntry(spec) for spec in settings.served_models}
        self._library = open_library(settings.voices)
        self._lexicon: Any = settings.lexicon  # a path until the first load, then its content
        self._tasks: set[asyncio.Task[None]] = set()
        self.created = int(time.time())
        self.recovery = Recovery(
            self._entries, metrics, self._load_entry, self._start_task, settings.max_wait_s
        )
        watch_models(metrics, self)

    @property
    def names(self) -> list[str]:
        return list(self._entries)

    @property
    def default(self) -> str:
        return next(iter(self._entries))

    @property
    def is_ready(self) -> bool:
        """Whether every model has been loaded and probed once, and no model is broken."""
        entries = self._entries.values()
        is_sound = self.is_live and not any(
            entry.is_broken or (entry.model is not None and entry.model.tts.engine.is_broken)
            for entry in entries
        )
        return is_sound and all(entry.card is not None for entry in entries)

    @property
    def is_live(self) -> bool:
        """Whether no model hangs in its backend."""
        return not any(entry.is_hung for entry in self._entries.values())

    @property
    def is_full(self) -> bool:
        """Whether a model's queue has been full for `full_timeout_s`."""
        return any(entry.is_full for entry in self._entries.values())

    def cards(self) -> list[Card]:
        return [entry.card for entry in self._entries.values() if entry.card is not None]

    def loaded(self) -> list[ServedModel]:
        return loaded_models(self._entries)

    def voices(self, name: str) -> Voices | None:
        """Return the voices of a model that has been loaded once, or None."""
        entry = self._entries.get(name)
        return Voices(entry.card, self._library) if entry and entry.card else None

    async def start(self) -> None:
        """Load, warm up and probe every model. Raises the first error."""
        for entry in self._entries.values():
            await self._load_entry(entry)
        if self._settings.unload_after_s:
            self._start_task(self._unload_idle(self._settings.unload_after_s))
        if self._settings.turn_timeout_s:
            self._start_task(self.recovery.watch_for_hangs(self._settings.turn_timeout_s))
        if self._settings.full_timeout_s:
            self._start_task(self.recovery.watch_for_full_queues(self._settings.full_timeout_s))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for entry in self._entries.values():
            unload(entry)

    async def get(
        self, name: object = None, *, voice: str | None = None, model_type: str | None = None
    ) -> ServedModel:
        """Return the model for a request, and load it if it was unloaded.

        Clients may send any name (`tts-1`). For other names than the configured ones, the registry
        selects the first model of `model_type` (`base` to clone), or with the voice `voice`.
        Otherwise it selects the first that speaks without a cloned voice. Raises RefusedError with
        status 503 while the model is broken or loading for the first time.
        """
        entry = await self._pick(name, voice, model_type)
        entry.last_used = time.monotonic()
        if entry.model is not None:
            return entry.model
        if entry.is_broken or entry.card is None:
            state = "crashed and is being loaded again" if entry.is_broken else "is being loaded"
            raise RefusedError(
                f"model {entry.spec.name!r} {state}; try again",
                status=503,
                code="loading",
                retry_s=LOADING_RETRY_S,
            )
        return await self._load_entry(entry)

    def serves(self, name: object) -> bool:
        return isinstance(name, str) and name in self._entries

    @contextlib.contextmanager
    def in_use(self, model: ServedModel) -> Iterator[None]:
        """Prevent the model from being unloaded inside the block."""
        entry = self._entries[model.name]
        entry.num_users += 1
        try:
            yield
        finally:
            entry.num_users -= 1
            entry.last_used = time.monotonic()

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- selection ----------------------------------------------------------------------------

    async def _pick(self, name: object, voice: str | None, model_type: str | None) -> ModelEntry:
        if name is not None and not isinstance(name, str):
            raise RefusedError(f"model must be a name, not {type(name).__name__}", param="model")
        if name is not None and name in self._entries:
            return self._entries[name]
        entries = list(self._entries.values())
        if model_type is not None:
            fits = [
                entry for entry in entries if entry.card and entry.card.model_type == model_type
            ]
            return fits[0] if fits else entries[0]
        if len(entries) == 1:
            return entries[0]
        return await asyncio.to_thread(self._find, entries, voice_key(voice))  # reads files

    def _find(self, entries: list[ModelEntry], key: str | None) -> ModelEntry:
        """Return the model for a voice, or for the first voice of a mix."""
        first = re.split(r"[+(]", key or "")[0].strip()
        known = [(entry, voices) for entry in entries if (voices := self.voices(entry.spec.name))]
        fits = [entry for entry, voices in known if first and voices.find(first)]
        fits = fits or [entry for entry, voices in known if voices.can_speak]
        return fits[0] if fits else entries[0]

    # -- loading -----------------------------------------------------------------------------

    async def _load_entry(self, entry: ModelEntry) -> ServedModel:
        async with entry.lock:
            if entry.model is None:
                began = time.perf_counter()
                tts = await asyncio.to_thread(self._load_and_probe, entry.spec)
                entry.card = Card.of(entry.spec.name, tts)
                tts.engine.on_turn = partial(self._metrics.count_turn, entry.spec.name)
                voices = Voices(entry.card, self._library)
                entry.model = ServedModel(entry.spec.name, tts, voices, entry.card)
                entry.is_broken = entry.is_hung = False
                entry.num_rebuilds = tts.engine.num_rebuilds
                entry.last_used = time.monotonic()
                log.info("%s is ready after %.1f s", entry.spec.name, time.perf_counter() - began)
            return entry.model

    def _load_and_probe(self, spec: ModelSpec) -> TTS:
        tts = self._load(spec)
        try:
            tts.warmup()
            probe(tts)
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
