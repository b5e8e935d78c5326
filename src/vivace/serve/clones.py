"""Voices cloned from recordings that are sent with speech requests."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict

from vivace.serve.metrics import Metrics
from vivace.serve.model import Model
from vivace.voices.voice import Voice

MAX_CLONES = 32  # voices that are kept


class Clones:
    """A cache of cloned voices, by the content of their recordings; the least used is evicted.

    A recording that a client sends with every sentence is cloned once. One server has one cache:
    all protocols share it.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._num_asked = 0  # and not yet answered
        metrics.watch_pool("clone", lambda: (self._num_asked, 1))
        self._voices: OrderedDict[tuple[str, bytes, str | None], Voice] = OrderedDict()
        self._lock = asyncio.Lock()  # one after another: they share the processor with speech

    async def get(self, model: Model, recording: bytes, transcript: str | None) -> Voice:
        key = (model.name, hashlib.sha256(recording).digest(), transcript)
        self._num_asked += 1
        try:
            async with self._lock:
                voice = self._voices.pop(key, None)
                if voice is None:
                    voice = await asyncio.to_thread(model.tts.clone, recording, transcript)
                self._voices[key] = voice  # the last used is the last
                if len(self._voices) > MAX_CLONES:
                    self._voices.popitem(last=False)
                return voice
        finally:
            self._num_asked -= 1
