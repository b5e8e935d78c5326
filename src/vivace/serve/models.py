"""The served models: loaded, probed, given back when idle, loaded again when they broke."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import re
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from vivace.errors import EngineError, EngineLostError, TTSError
from vivace.serve.card import Card
from vivace.serve.deaths import MAX_DEATHS, WINDOW_S, Deaths, Quarantine
from vivace.serve.errors import RefusedError
from vivace.serve.gauges import watch_models
from vivace.serve.metrics import Metrics
from vivace.serve.pulse import FULL_TICKS, HANG_TICKS, Fullness, Pulse
from vivace.serve.settings import ModelSpec, ServeSettings
from vivace.serve.voices import Voices, voice_key
from vivace.tts import TTS
from vivace.voices.shared import open_library

log = logging.getLogger(__name__)

PROBE_TEXT = "Ready."
PROBE_FRAMES = 6
LOADING_RETRY_S = 2.0
BACKOFF_S = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)  # between tries to load a broken model again


@dataclass(frozen=True, slots=True)
class Model:
    """A loaded model. Ask for it again for every utterance: it may be unloaded when idle."""

    name: str
    tts: TTS
    voices: Voices
    card: Card


@dataclass(slots=True, eq=False)
class Entry:
    """A place of the table: a model that is loaded, idle on disk, or broken."""

    spec: ModelSpec
    model: Model | None = None
    card: Card | None = None  # None: never loaded
    is_broken: bool = False
    is_suspect: bool = False  # it is being probed after a failure
    is_hung: bool = False  # a turn did not end; until it is loaded again
    is_full: bool = False  # requests were refused for long
    num_rebuilds: int = 0  # of its engine's backend, that are known
    suspects: set[str] = field(default_factory=set)  # digests of requests that failed with it
    num_users: int = 0  # streams and enrolments
    last_used: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


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
        self.on_lost: Callable[[TTSError], None] | None = None  # a broken model cannot be loaded
        self.deaths, self.quarantine = Deaths(), Quarantine()
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
        return [entry.model for entry in self._entries.values() if entry.model is not None]

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
            self._start(self._find_hung(self._settings.turn_timeout_s))
        if self._settings.full_timeout_s:
            self._start(self._find_full(self._settings.full_timeout_s))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for entry in self._entries.values():
            _close(entry)

    async def get(
        self, name: object = None, *, voice: object = None, model_type: str | None = None
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

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- choosing ----------------------------------------------------------------------------

    async def _pick(self, name: object, voice: object, model_type: str | None) -> Entry:
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
                _close(entry)

    # -- trouble -----------------------------------------------------------------------------

    async def _find_hung(self, limit_s: float) -> None:
        pulses = {name: Pulse() for name in self._entries}
        while True:
            await asyncio.sleep(limit_s / HANG_TICKS)
            for model in self.loaded():
                has_stopped = pulses[model.name].has_stopped(model.tts.engine.busy_since)
                if has_stopped and not self._entries[model.name].is_hung:
                    self._give_up(model, f"a turn did not end within {limit_s:g} s; ask again")

    async def _find_full(self, limit_s: float) -> None:
        seen = {name: Fullness() for name in self._entries}
        while True:
            await asyncio.sleep(limit_s / FULL_TICKS)
            for name, entry in self._entries.items():
                load = None if entry.model is None else entry.model.tts.engine.capacity()
                entry.is_full = seen[name].has_lasted(load is not None and load.is_full)

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
            _close(entry)
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


def probe(tts: TTS) -> None:
    """Speak a little through every stage; what cannot is an EngineError or the stage's own."""
    options: dict[str, Any] = {"seed": 1, "max_frames": PROBE_FRAMES, "guard": False}
    if tts.model_type == "base":
        noise = np.random.default_rng(1).normal(0, 0.1, tts.sample_rate).astype(np.float32)
        options["voice"] = tts.clone((noise, tts.sample_rate), name="probe")
    elif tts.model_type == "voice_design":
        options["instruct"] = "A calm voice."
    audio = tts.speak(PROBE_TEXT, **options)
    if not len(audio.samples) or not np.isfinite(audio.samples).all():
        raise EngineError("the probe gave no sound")


def _close(entry: Entry) -> None:
    if entry.model is None:
        return
    tts, entry.model = entry.model.tts, None
    with contextlib.suppress(TTSError):
        tts.close()
    del tts
    gc.unfreeze()  # `vivace serve` freezes what was there at its start
    gc.collect()
    if torch.cuda.is_available():
        with contextlib.suppress(RuntimeError):  # the device may be lost
            torch.cuda.empty_cache()
