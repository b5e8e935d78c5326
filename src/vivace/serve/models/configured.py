"""The configured models as routes see them: their state, and the model for a request.

`ModelRegistry` loads the models in this process. A worker of a server of several processes mirrors
the registry of the engine's process (`processes/remote_models.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterator
from typing import Any

from vivace.errors import UnknownVoiceError
from vivace.serve.errors import RefusedError
from vivace.serve.models.card import Card
from vivace.serve.models.recovery import Recovery
from vivace.serve.models.served_model import ModelEntry, ServedModel, loaded_models
from vivace.serve.models.voices import Voices, voice_key
from vivace.serve.settings import ServeSettings
from vivace.voices.shared import open_library

LOADING_RETRY_S = 2.0
Choice = tuple[ModelEntry, str | None]  # a model, and the name of its adapter


class Models(ABC):
    """Models by name; the first is the default."""

    recovery: Recovery

    def __init__(self, settings: ServeSettings) -> None:
        self._settings = settings
        self._entries = {spec.name: ModelEntry(spec) for spec in settings.served_models}
        self._library = open_library(settings.voices)
        self._tasks: set[asyncio.Task[None]] = set()
        self.created = int(time.time())

    @abstractmethod
    async def start(self) -> None:
        """Return when every model is loaded and probed. Raises the first error."""

    @abstractmethod
    async def _load_entry(self, entry: ModelEntry) -> ServedModel:
        """Load a model that is not loaded."""

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def names(self) -> list[str]:
        return list(self._entries)

    @property
    def known_names(self) -> list[str]:
        """The names of models and, once these are loaded, of their adapters."""
        adapters = [card.name for entry in self._entries.values() for card in entry.cards[1:]]
        return [*self._entries, *adapters]

    @property
    def default(self) -> str:
        return next(iter(self._entries))

    @property
    def is_ready(self) -> bool:
        """Whether every model has been loaded and probed once, and no model is broken."""
        entries = self._entries.values()
        is_sound = self.is_live and not any(
            entry.is_broken or (entry.model is not None and entry.model.engine.is_broken)
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
        """Of all models that have been loaded once, then of their adapters."""
        return [card for _, card in self._choices()]

    def loaded(self) -> list[ServedModel]:
        return loaded_models(self._entries)

    def voices(self, name: str) -> Voices | None:
        """Return the voices of a model that has been loaded once, or of its adapter, or None."""
        card = next((card for card in self.cards() if card.name == name), None)
        return Voices(card, self._library) if card else None

    async def get(
        self, name: object = None, *, voice: str | None = None, model_type: str | None = None
    ) -> ServedModel:
        """Return the model for a request, and load it if it was unloaded.

        Clients may send any name (`tts-1`). For other names than the configured ones, the registry
        selects the first model of `model_type`, or with the voice `voice`. For `base` it selects
        any model that clones if no Base model is served.
        Otherwise it selects the first that speaks without a cloned voice. Raises RefusedError with
        status 503 while the model is broken or loading for the first time.
        """
        entry, adapter = await self._pick(name, voice, model_type)
        entry.last_used = time.monotonic()
        model = entry.model or await self._load_again(entry)
        if adapter is None:
            return model
        if adapter not in model.adapted:  # its file was removed before the model was loaded again
            raise UnknownVoiceError(adapter, self.known_names)
        return model.adapted[adapter]

    async def _load_again(self, entry: ModelEntry) -> ServedModel:
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
        return isinstance(name, str) and name in self.known_names

    @contextlib.contextmanager
    def in_use(self, model: ServedModel) -> Iterator[None]:
        """Prevent the model from being unloaded inside the block."""
        self.use(model.name, 1)
        try:
            yield
        finally:
            self.use(model.name, -1)

    def use(self, name: str, number: int) -> None:
        """Count `number` users of a model, or subtract them if it is negative."""
        entry = self._entries[name]
        entry.num_users += number
        entry.last_used = time.monotonic()

    def entry(self, name: str) -> ModelEntry:
        return self._entries[name]

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- selection ----------------------------------------------------------------------------

    async def _pick(self, name: object, voice: str | None, model_type: str | None) -> Choice:
        """The model for a request, and the adapter, or None."""
        if name is not None and not isinstance(name, str):
            raise RefusedError(f"model must be a name, not {type(name).__name__}", param="model")
        if name is not None and name in self._entries:
            return self._entries[name], None
        choices = self._choices()
        fits = [one for one in choices if one[1].name == name]
        if not fits and model_type is not None:
            fits = [one for one in choices if one[1].serves_task(model_type)]
            fits.sort(key=lambda one: one[1].model_type != model_type)
        elif not fits and max(len(choices), len(self._entries)) > 1:
            fits = await asyncio.to_thread(self._find, voice_key(voice))  # reads files
        return (fits[0][0], fits[0][1].adapter) if fits else (self._entries[self.default], None)

    def _choices(self) -> list[tuple[ModelEntry, Card]]:
        """The models that have been loaded once, then their adapters."""
        entries = self._entries.values()
        models = [(entry, card) for entry in entries for card in entry.cards[:1]]
        return models + [(entry, card) for entry in entries for card in entry.cards[1:]]

    def _find(self, key: str | None) -> list[tuple[ModelEntry, Card]]:
        """The models with a voice, or with the first voice of a mix; else those that can speak."""
        first = re.split(r"[+(]", key or "")[0].strip()
        known = [(one, Voices(one[1], self._library)) for one in self._choices()]
        found = [(one, voices.find(first)) for one, voices in known] if first else []
        fits = [(one, chosen) for one, chosen in found if chosen is not None]
        # A clone of another width gives an error, so a model of its own width comes first.
        fits.sort(key=lambda pair: pair[1].width not in (None, pair[0][1].width))
        return [one for one, _ in fits] or [one for one, voices in known if voices.can_speak]
