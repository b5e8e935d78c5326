"""A cache of voices cloned from recordings in speech requests."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict

from vivace.serve.models.served_model import ServedModel
from vivace.serve.observability.metrics import Metrics
from vivace.voices.voice import Voice

MAX_CLONES = 32  # cached voices


class CloneCache:
    """Clones a recording once, even if a client sends it with every sentence.

    Keyed by the recording's content; the least recently used voice is evicted.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._num_pending = 0  # calls of `get` that have not returned
        metrics.watch_pool("clone", lambda: (self._num_pending, 1))
        self._voices: OrderedDict[tuple[str, bytes, str | None], Voice] = OrderedDict()
        self._lock = asyncio.Lock()  # one at a time: cloning shares the processor with speech

    async def get(self, model: ServedModel, recording: bytes, transcript: str | None) -> Voice:
        key = (model.name, hashlib.sha256(recording).digest(), transcript)
        self._num_pending += 1
        try:
            async with self._lock:
                voice = self._voices.pop(key, None)
                if voice is None:
                    voice = await asyncio.to_thread(model.tts.clone, recording, transcript)
                self._voices[key] = voice  # the most recently used is last
                if len(self._voices) > MAX_CLONES:
                    self._voices.popitem(last=False)
                return voice
        finally:
            self._num_pending -= 1
