"""Resamples recordings exactly as the official code does, and streams chunk by chunk."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from vivace.audio.encode import import_package
from vivace.audio.wav import Samples


def resample(samples: Samples, from_rate: int, to_rate: int) -> Samples:
    """Resample [n] samples with the result of librosa.resample: soxr HQ, cut or padded."""
    if from_rate == to_rate:
        return samples
    soxr = import_package("soxr")
    # librosa rounds the ratio before the product, which sometimes adds a sample.
    num_samples = math.ceil(len(samples) * (to_rate / from_rate))
    output = np.zeros(num_samples, np.float32)
    resampled = soxr.resample(samples, from_rate, to_rate, quality="HQ")[:num_samples]
    output[: len(resampled)] = resampled
    return output


class StreamResampler:
    """Resamples a stream: `process` for each chunk, then `finish`.

    The joined output equals `resample` of the joined input, except for padding.
    """

    def __init__(self, from_rate: int, to_rate: int) -> None:
        self._stream: Any = None  # None: the rates are equal
        if from_rate != to_rate:
            soxr = import_package("soxr")
            self._stream = soxr.ResampleStream(from_rate, to_rate, 1, dtype="float32", quality="HQ")

    def process(self, samples: Samples) -> Samples:
        """Add samples [n] and return the output that is ready."""
        if self._stream is None or not len(samples):
            return samples
        output: Samples = self._stream.resample_chunk(samples)
        return output

    def finish(self) -> Samples:
        """Return the rest of the output and end the stream."""
        rest = np.zeros(0, np.float32)
        return rest if self._stream is None else self._stream.resample_chunk(rest, last=True)
