"""sounddevice, as LiveKit's console uses it, with the recorded devices."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.examples.devices import recorded

default = SimpleNamespace(device=(0, 0))
NOW = SimpleNamespace(currentTime=0.0, inputBufferAdcTime=0.0, outputBufferDacTime=0.0)


def query_devices(device: object = None, kind: str | None = None) -> dict[str, str]:
    return {"name": "recorded"}


class InputStream(recorded.Microphone):
    def __init__(self, *, callback: Any, samplerate: int, blocksize: int, **_: Any) -> None:
        def pass_on(content: bytes) -> None:
            callback(np.frombuffer(content, np.int16)[:, None], blocksize, NOW, None)

        super().__init__(samplerate, blocksize, pass_on)


class OutputStream(recorded.Clock):
    def __init__(self, *, callback: Any, samplerate: int, blocksize: int, **_: Any) -> None:
        loudspeaker = recorded.Loudspeaker(samplerate)
        samples = np.zeros((blocksize, 1), np.int16)

        def fetch(_: int) -> None:
            callback(samples, blocksize, NOW, None)
            loudspeaker.write(samples.tobytes())

        super().__init__(blocksize / samplerate, fetch)
        self._loudspeaker = loudspeaker
