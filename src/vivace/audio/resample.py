"""Resampling, exactly as the official code does it."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from vivace.errors import AudioError


def resample(samples: NDArray[np.float32], from_rate: int, to_rate: int) -> NDArray[np.float32]:
    """Samples [n] to what librosa.resample gives by default: soxr HQ, cut or filled to a length."""
    if from_rate == to_rate:
        return samples
    try:
        import soxr
    except ImportError as error:
        raise AudioError(
            f"audio at {from_rate:,} Hz must be resampled to {to_rate:,} Hz, which needs soxr: "
            "pip install soxr"
        ) from error
    # The ratio is rounded before the product, as librosa's is: now and then one sample more.
    num_samples = math.ceil(len(samples) * (to_rate / from_rate))
    output = np.zeros(num_samples, np.float32)
    resampled = soxr.resample(samples, from_rate, to_rate, quality="HQ")[:num_samples]
    output[: len(resampled)] = resampled
    return output
