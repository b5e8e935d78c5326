"""A checkpoint whose weights are loaded in the engine's process: config and tokenizer only."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vivace.adapter import Adapter
from vivace.adapter_set import AdapterSet
from vivace.audio.files import Recording
from vivace.checkpoint import Checkpoint
from vivace.engine.checkpoints.adapted import AdapterPaths, view_adapters, with_adapter
from vivace.engine.checkpoints.loaded import LoadedCheckpoint
from vivace.engine.utterances.completeness import OfferUtterance
from vivace.engine.utterances.timings import OpenPass
from vivace.remote.client import RemoteEngine, RemotePass
from vivace.text.lexicon import Lexicon
from vivace.voices.voice import Voice, parse_voice


class RemoteCheckpoint(LoadedCheckpoint):
    """Prepares texts and reads streams here. `parts` raises ClosedError: there are no weights."""

    def __init__(
        self,
        folder: Path,
        engine: RemoteEngine,
        adapter: Path | None = None,  # merged into the weights
        adapters: AdapterPaths | None = None,  # chosen per request, in the order of their numbers
    ) -> None:
        checkpoint = Checkpoint.open(folder)
        if adapter is not None:  # the engine's process has checked that it fits
            checkpoint = with_adapter(checkpoint, Adapter.load(adapter))
        super().__init__(checkpoint, checkpoint.load_tokenizer(), None)
        self._engine = engine
        self.adapted = view_adapters(self, AdapterSet.load(adapters) if adapters else None)

    @property
    def client(self) -> RemoteEngine:
        return self._engine

    def _attention_calls(self) -> tuple[OpenPass, OfferUtterance]:
        return partial(RemotePass, self._engine), self._engine.offer

    def enroll(self, recording: Recording, options: dict[str, Any]) -> Voice:
        """Create a voice in the engine's process. `options` are those of `enroll`."""
        source = {"sample_rate": recording.sample_rate, "sha256": recording.sha256}
        values = {"model": self._engine.model, "recording": source, "options": options}
        samples = np.asarray(recording.samples, np.float32)
        reply = self._engine.open_link.call("enroll", values, [samples]).result()
        return parse_voice(reply.arrays[0].tobytes())


def open_lexicon(path: Path | None) -> Lexicon | None:
    return None if path is None else Lexicon.of(path)
