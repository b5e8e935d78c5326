"""A served model and its place in the table; how it is probed, and how its memory is given back."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from vivace.errors import EngineError, TTSError
from vivace.serve.card import Card
from vivace.serve.settings import ModelSpec
from vivace.serve.voices import Voices
from vivace.tts import TTS

PROBE_TEXT = "Ready."
PROBE_FRAMES = 6


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


def loaded(entries: Mapping[str, Entry]) -> list[Model]:
    return [entry.model for entry in entries.values() if entry.model is not None]


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


def unload(entry: Entry) -> None:
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
