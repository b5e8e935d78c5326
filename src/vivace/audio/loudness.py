"""A streaming loudness meter (ITU-R BS.1770) and a peak limiter.

The two K-weighting filters are combined and applied by FFT. Their impulse response decays below
double precision within 0.2 s, so the result equals the recursive filters.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from vivace.audio.wav import Samples

OFFSET_LU = -0.691  # from the standard: a full-scale sine of 997 Hz is -3.01 LUFS
ABSOLUTE_GATE, RELATIVE_GATE = -70.0, -10.0  # LUFS; LU below the mean of the remaining blocks
STEPS_PER_S, STEPS_PER_BLOCK = 10, 4  # blocks of 400 ms with 75 % overlap
RESPONSE_S = 0.2
MAX_FFT_SIZE = 65_536
SHELF = (1681.974450955533, 3.999843853973347, 0.7071752369554196)  # Hz, dB, Q
SHELF_SLOPE = 0.4996667741545416
HIGH_PASS = (38.13547087602444, 0.5003270373238773)  # Hz, Q
LIMIT_S = 0.005  # on each side of a peak

Coefficients = tuple[float, float, float]


class LoudnessMeter:
    """Measures one channel, chunk by chunk. Stores ten numbers per second of audio."""

    def __init__(self, sample_rate: int) -> None:
        self._rate = sample_rate
        self._past = np.zeros(round(RESPONSE_S * sample_rate))
        self._step = round(sample_rate / STEPS_PER_S)
        self._rest = np.zeros(0)  # squares of an incomplete step
        self._steps: list[NDArray[np.float64]] = []  # mean squares
        self.peak = 0.0

    def process(self, samples: NDArray[np.floating]) -> None:
        if len(samples):
            self.peak = max(self.peak, float(np.abs(samples).max()))
        most = MAX_FFT_SIZE - len(self._past)
        for start in range(0, len(samples), most):
            self._add(samples[start : start + most].astype(np.float64))

    @property
    def integrated(self) -> float:
        """Loudness of all processed audio in LUFS; minus infinity for silence."""
        steps = np.concatenate([np.zeros(0), *self._steps])
        if len(steps) < STEPS_PER_BLOCK:
            return -math.inf
        blocks = np.convolve(steps, np.ones(STEPS_PER_BLOCK), "valid") / STEPS_PER_BLOCK
        blocks = blocks[blocks > 10 ** ((ABSOLUTE_GATE - OFFSET_LU) / 10)]
        if not len(blocks):
            return -math.inf
        blocks = blocks[blocks > blocks.mean() * 10 ** (RELATIVE_GATE / 10)]
        return OFFSET_LU + 10 * math.log10(float(blocks.mean()))

    def _add(self, samples: NDArray[np.float64]) -> None:
        signal = np.concatenate([self._past, samples])
        size = 1 << (len(signal) - 1).bit_length()
        transfer = _transfer_function(self._rate, size)
        filtered = np.fft.irfft(np.fft.rfft(signal, size) * transfer, size)
        weighted = filtered[len(self._past) : len(signal)]
        self._past = signal[len(signal) - len(self._past) :]
        squares = np.concatenate([self._rest, weighted**2])
        num_steps = len(squares) // self._step
        whole, self._rest = np.split(squares, [num_steps * self._step])
        self._steps.append(whole.reshape(num_steps, self._step).mean(axis=1))


def limit_peaks(samples: Samples, ceiling: float, sample_rate: int) -> Samples:
    """Reduce every peak above `ceiling` with a smooth gain around the peak."""
    loud = np.flatnonzero(np.abs(samples) > ceiling)
    if not len(loud):
        return samples
    reach = round(LIMIT_S * sample_rate)
    window = np.hanning(2 * reach + 3)[1:-1]
    result: Samples = samples.copy()
    # Close peaks share one gain curve.
    for part in np.split(loud, np.flatnonzero(np.diff(loud) > 4 * reach) + 1):
        start, stop = max(0, part[0] - 2 * reach), min(len(samples), part[-1] + 2 * reach + 1)
        needed = ceiling / np.maximum(np.abs(samples[start:stop]), ceiling)
        padded = np.pad(needed, reach, constant_values=1.0)
        lowest = np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1).min(axis=1)
        smooth = np.convolve(np.pad(lowest, reach, "edge"), window, "valid")
        result[start:stop] *= (smooth / window.sum()).astype(np.float32)
    return result


@lru_cache(maxsize=8)  # at most 0.5 MB each
def _transfer_function(rate: int, size: int) -> NDArray[np.complex128]:
    """The response of both filters at the frequencies of an FFT of `size` samples."""
    hertz, gain_db, q = SHELF
    k, high = math.tan(math.pi * hertz / rate), 10 ** (gain_db / 20)
    band = high**SHELF_SLOPE
    shelf = (high + band * k / q + k * k, 2 * (k * k - high), high - band * k / q + k * k)
    response = _response(shelf, _poles(k, q), size)
    k = math.tan(math.pi * HIGH_PASS[0] / rate)
    poles = _poles(k, HIGH_PASS[1])
    return response * _response((poles[0], -2 * poles[0], poles[0]), poles, size)


def _poles(k: float, q: float) -> Coefficients:
    return 1 + k / q + k * k, 2 * (k * k - 1), 1 - k / q + k * k


def _response(zeros: Coefficients, poles: Coefficients, size: int) -> NDArray[np.complex128]:
    delay: NDArray[np.complex128] = np.exp(-2j * np.pi * np.arange(size // 2 + 1) / size)
    return np.polyval(zeros[::-1], delay) / np.polyval(poles[::-1], delay)
