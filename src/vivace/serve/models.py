"""The served models: chosen by a name or a voice, loaded and probed, given back when idle."""

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
from vivace.serve.model import Entry, Model, loaded, probe, unload
from vivace.serve.recovery import Recovery
from vivace.serve.settings import ModelSpec, ServeSettings
from vivace.serve.voices import Voices, voice_key
from vivace.tts import TTS
from vivace.voices.shared import open_library

log = logging.getLogger(__name__)

LOADING_RETRY_S = 2.0


class Models:
    """Models by name; the first is the default.

    `load` may be replaced by tests: it makes a TTS of a spec, in a thread.
    """

    def __init__(
        self,
        settings: ServeSettings,
        metrics: Metrics,
        load: Callable[[ModelSpec], TTS] | None = None,
    ) -> None:
        self._settings, self._metrics = settings, metrics
        self._load = load or self._load_tts
        self._entries = {spec.name: Entry(spec) for spec in settings.models}
        self._library = open_library(settings.voices)
        self._lexicon: Any = settings.lexicon  # a path; from the first load on what it holds
        self._tasks: set[asyncio.Task[None]] = set()
        self.created = int(time.time())
        self.recovery = Recovery(
            self._entries, metrics, self._fill, self._start, settings.max_wait_s
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
        """Whether every model was loaded and probed, and none is broken just now."""
        entries = self._entries.values()
        is_whole = self.is_live and not any(
            entry.is_broken or (entry.model is not None and entry.model.tts.engine.is_broken)
            for entry in entries
        )
        return is_whole and all(entry.card is not None for entry in entries)

    @property
    def is_live(self) -> bool:
        """Whether no model hangs in its backend."""
        return not any(entry.is_hung for entry in self._entries.values())

    @property
    def is_full(self) -> bool:
        """Whether a model's queue has been full for long."""
        return any(entry.is_full for entry in self._entries.values())

    def cards(self) -> list[Card]:
        return [entry.card for entry in self._entries.values() if entry.card is not None]

    def loaded(self) -> list[Model]:
        return loaded(self._entries)

    def voices(self, name: str) -> Voices | None:
        """The voices of a served model, loaded or not."""
        entry = self._entries.get(name)
        return Voices(entry.card, self._library) if entry and entry.card else None

    async def start(self) -> None:
        """Load, warm up and probe every model; an error of any is raised."""
        for entry in self._entries.values():
            await self._fill(entry)
        if self._settings.unload_after_s:
            self._start(self._unload_idle(self._settings.unload_after_s))
        if self._settings.turn_timeout_s:
            self._start(self.recovery.find_hung(self._settings.turn_timeout_s))
        if self._settings.full_timeout_s:
            self._start(self.recovery.find_full(self._settings.full_timeout_s))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for entry in self._entries.values():
            unload(entry)

    async def get(
        self, name: object = None, *, voice: str | None = None, model_type: str | None = None
    ) -> Model:
        """The model of that name, loaded if it was given back.

        Clients send names of their own (`tts-1`), so a name that is not served is no error: it
        means the first model of `model_type` where one is asked for (`base` to clone), else the
        first that has a voice of the name `voice`, else the first that can speak without: one that
        only clones cannot before there is a voice. A model that is broken, or not
        ready for the first time, is a RefusedError with status 503.
        """
        entry = await self._pick(name, voice, model_type)
        entry.last_used = time.monotonic()
        if entry.model is not None:
            return entry.model
        if entry.is_broken or entry.card is None:
            state = "failed and is being loaded again" if entry.is_broken else "is being loaded"
            raise RefusedError(
                f"the model {entry.spec.name!r} {state}; try again",
                status=503,
                code="loading",
                retry_s=LOADING_RETRY_S,
            )
        return await self._fill(entry)

    def serves(self, name: object) -> bool:
        return isinstance(name, str) and name in self._entries

    @contextlib.contextmanager
    def in_use(self, model: Model) -> Iterator[None]:
        """Not idle meanwhile, though it may wait for text."""
        entry = self._entries[model.name]
        entry.num_users += 1
        try:
            yield
        finally:
            entry.num_users -= 1
            entry.last_used = time.monotonic()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- choosing ----------------------------------------------------------------------------

    async def _pick(self, name: object, voice: str | None, model_type: str | None) -> Entry:
        if name is not None and not isinstance(name, str):
            raise RefusedError(f"model is a name, not {type(name).__name__}", param="model")
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
        return await asyncio.to_thread(self._find, entries, voice_key(voice))  # it reads files

    def _find(self, entries: list[Entry], key: str | None) -> Entry:
        """The model for a voice's name, or for the first name of a mix."""
        first = re.split(r"[+(]", key or "")[0].strip()
        known = [(entry, voices) for entry in entries if (voices := self.voices(entry.spec.name))]
        fits = [entry for entry, voices in known if first and voices.find(first)]
        fits = fits or [entry for entry, voices in known if voices.can_speak]
        return fits[0] if fits else entries[0]

    # -- loading -----------------------------------------------------------------------------

    async def _fill(self, entry: Entry) -> Model:
        async with entry.lock:
            if entry.model is None:
                began = time.perf_counter()
                tts = await asyncio.to_thread(self._load_and_probe, entry.spec)
                entry.card = Card.of(entry.spec.name, tts)
                tts.engine.on_turn = partial(self._metrics.count_turn, entry.spec.name)
                voices = Voices(entry.card, self._library)
                entry.model = Model(entry.spec.name, tts, voices, entry.card)
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
                log.info("%s was idle and gives its memory back", entry.spec.name)
                unload(entry)
