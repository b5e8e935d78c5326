"""One served model: its state, the probe that checks it, and unloading."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from vivace.errors import EngineError, TTSError
from vivace.serve.models.card import Card
from vivace.serve.models.voices import Voices
from vivace.serve.settings import ModelSpec
from vivace.tts import TTS
from vivace.voices.library import VoiceLibrary

if TYPE_CHECKING:
    from vivace.remote.engine_figures import EngineClient

PROBE_TEXT = "Ready."
PROBE_FRAMES = 6


@dataclass(frozen=True, slots=True, eq=False)
class ServedModel:
    """A loaded model. Get it from the registry for every request: it may be unloaded when idle.

    A model with an adapter shares name, engine and state with its base; its card has its own name.
    """

    name: str
    tts: TTS
    voices: Voices
    card: Card
    base: ServedModel | None = None  # of a model with an adapter
    adapted: dict[str, ServedModel] = field(default_factory=dict)  # by adapter

    @classmethod
    def of(cls, name: str, tts: TTS, card: Card, library: VoiceLibrary) -> ServedModel:
        """A model with all its adapters."""
        served = cls(name, tts, Voices(card, library), card)
        for adapter, view in tts.adapters.items():
            own = card.with_adapter(adapter, view)
            served.adapted[adapter] = cls(name, view, Voices(own, library), own, base=served)
        return served

    @property
    def cards(self) -> tuple[Card, ...]:
        """Of the model, then of each adapter."""
        return (self.card, *(one.card for one in self.adapted.values()))

    @property
    def engine(self) -> EngineClient:
        """Here or in another process. Raises ClosedError if the model was unloaded."""
        return self.tts.loaded.client


@dataclass(slots=True, eq=False)
class ModelEntry:
    """The state of a configured model: loaded, unloaded or broken. Written by the event loop."""

    spec: ModelSpec
    model: ServedModel | None = None
    cards: tuple[Card, ...] = ()  # of the model and of its adapters; empty: never loaded
    is_broken: bool = False
    is_suspect: bool = False  # a probe after a failure is running
    is_hung: bool = False  # a turn did not end; reset when the model is loaded again
    is_full: bool = False  # the queue has been full for `full_timeout_s`
    num_rebuilds: int = 0  # backend rebuilds that have been counted
    suspects: set[str] = field(default_factory=set)  # digests of failed requests
    num_users: int = 0  # running streams and enrolments
    last_used: float = 0.0  # time.monotonic()
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def card(self) -> Card | None:
        """None: never loaded."""
        return self.cards[0] if self.cards else None


def loaded_models(entries: Mapping[str, ModelEntry]) -> list[ServedModel]:
    return [entry.model for entry in entries.values() if entry.model is not None]


def probe(tts: TTS) -> None:
    """Speak a short text through every stage. Raises EngineError if the audio is not valid."""
    options: dict[str, Any] = {"seed": 1, "max_frames": PROBE_FRAMES, "guard": False}
    if tts.model_type == "base":
        noise = np.random.default_rng(1).normal(0, 0.1, tts.sample_rate).astype(np.float32)
        options["voice"] = tts.clone((noise, tts.sample_rate), name="probe")
    elif tts.model_type == "voice_design":
        options["instruct"] = "A calm voice."
    audio = tts.speak(PROBE_TEXT, **options)
    if not len(audio.samples) or not np.isfinite(audio.samples).all():
        raise EngineError("the probe returned no valid audio")


def unload(entry: ModelEntry) -> None:
    if entry.model is None:
        return
    tts, entry.model = entry.model.tts, None
    with contextlib.suppress(TTSError):
        tts.close()
    del tts
    gc.unfreeze()  # `vivace serve` freezes all objects at start-up
    gc.collect()
    if torch.cuda.is_available():
        with contextlib.suppress(RuntimeError):  # the device may be lost
            torch.cuda.empty_cache()
