"""Resampling: of recordings exactly as the official code does it, and of streams chunk by chunk."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vivace.errors import AudioError


def resample(samples: NDArray[np.float32], from_rate: int, to_rate: int) -> NDArray[np.float32]:
    """Samples [n] to what librosa.resample gives by default: soxr HQ, cut or filled to a length."""
    if from_rate == to_rate:
        return samples
    soxr = _import_soxr(from_rate, to_rate)
    # The ratio is rounded before the product, as librosa's is: now and then one sample more.
    num_samples = math.ceil(len(samples) * (to_rate / from_rate))
    output = np.zeros(num_samples, np.float32)
    resampled = soxr.resample(samples, from_rate, to_rate, quality="HQ")[:num_samples]
    output[: len(resampled)] = resampled
    return output


class StreamResampler:
    """Resampling of a stream: `process` chunk by chunk, then `finish`.

    The output is what `resample` gives for the whole, but for its padding.
    """

    def __init__(self, from_rate: int, to_rate: int) -> None:
        self._stream: Any = None  # None: nothing to do
        if from_rate != to_rate:
            soxr = _import_soxr(from_rate, to_rate)
            self._stream = soxr.ResampleStream(from_rate, to_rate, 1, dtype="float32", quality="HQ")

    def process(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Add samples [n]; returns the output that is ready."""
        if self._stream is None or not len(samples):
            return samples
        output: NDArray[np.float32] = self._stream.resample_chunk(samples)
        return output

    def finish(self) -> NDArray[np.float32]:
        """The rest of the output; afterwards nothing can be processed."""
        rest = np.zeros(0, np.float32)
        return rest if self._stream is None else self._stream.resample_chunk(rest, last=True)


def _import_soxr(from_rate: int, to_rate: int) -> Any:
    try:
        import soxr
    except ImportError as error:
        raise AudioError(
            f"audio at {from_rate:,} Hz must be resampled to {to_rate:,} Hz, which needs soxr: "
            "pip install soxr"
        ) from error
    return soxr
