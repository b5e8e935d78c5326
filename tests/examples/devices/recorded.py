"""A microphone that plays the file RECORDING and a loudspeaker that writes the file PLAYED.

The microphone is silent for a second, plays the recording and is silent again. One second after
the last sound of the reply, the process receives SIGINT, as if the user pressed Ctrl-C.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import wave
from collections.abc import Callable

import numpy as np
import soxr

QUIET_S = 1.0
LIMIT_S = 120.0
last_sound = 0.0  # time of the last samples that were played and not silent


def read_recording(rate: int) -> bytes:
    with wave.open(os.environ["RECORDING"]) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16)
        speech: bytes = soxr.resample(samples, file.getframerate(), rate).tobytes()
    return bytes(2 * rate) + speech


class Clock:
    """Calls a function with the number of each block, in real time, until `close`."""

    def __init__(self, period_s: float, on_block: Callable[[int], None]) -> None:
        self._period_s, self._on_block, self._is_open = period_s, on_block, True

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()

    def close(self) -> None:
        self._is_open = False

    def _run(self) -> None:
        began, number = time.monotonic(), 0
        while self._is_open:
            self._on_block(number)
            number += 1
            time.sleep(max(0.0, began + number * self._period_s - time.monotonic()))


class Microphone(Clock):
    """Gives blocks of 16-bit samples to a function."""

    def __init__(self, rate: int, num_samples: int, on_samples: Callable[[bytes], None]) -> None:
        super().__init__(num_samples / rate, self._record)
        self._content, self._num_bytes, self._on_samples = (
            read_recording(rate),
            2 * num_samples,
            on_samples,
        )
        self._began = time.monotonic()

    def _record(self, number: int) -> None:
        start = number * self._num_bytes
        block = self._content[start : start + self._num_bytes]
        self._on_samples(block.ljust(self._num_bytes, b"\0"))
        now = time.monotonic()
        is_answered = last_sound and now - last_sound > QUIET_S and start > len(self._content)
        if is_answered or now - self._began > LIMIT_S:
            os.kill(os.getpid(), signal.SIGINT)
            self.close()


class Loudspeaker:
    def __init__(self, rate: int) -> None:
        self._file = wave.open(os.environ["PLAYED"], "wb")  # noqa: SIM115
        self._file.setparams((1, 2, rate, 0, "NONE", ""))

    def write(self, content: bytes) -> None:
        global last_sound
        if any(content):
            last_sound = time.monotonic()
        self._file.writeframes(content)

    def close(self) -> None:
        self._file.close()
