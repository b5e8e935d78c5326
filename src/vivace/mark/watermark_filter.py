"""The filter that adds the watermark to samples.

The encoder of Perth changes the spectrogram of all audio by practically the same gains
(`WatermarkNetwork.gains_db`). Constant gains are a linear filter. Its minimum-phase form needs no
later samples: a stream is marked without delay, and no sound precedes its cause.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from vivace.audio.wav import Samples
from vivace.mark.watermark_network import BIN_HZ, WINDOW_S

FILTER_S = 0.032  # length of the impulse response; 99.998 % of its energy
FADE_SHARE = 0.25  # of the impulse response, at its end
GRID_WINDOWS = 8  # windows in the Fourier transforms; fewer would wrap around


@lru_cache(maxsize=8)
def design_filter(gains_db: tuple[float, ...], rate: int) -> Samples:
    """The impulse response with these gains at multiples of `BIN_HZ`, and 0 dB above. Read-only."""
    num_grid = 1 << (round(rate * WINDOW_S) * GRID_WINDOWS - 1).bit_length()
    response = _minimum_phase(_frequency_response(np.array(gains_db), rate, num_grid))
    taps = response[: round(rate * FILTER_S)]
    num_fade = int(len(taps) * FADE_SHARE)
    taps[-num_fade:] *= 0.5 + 0.5 * np.cos(np.pi * np.arange(num_fade) / num_fade)
    filter: Samples = taps.astype(np.float32)
    filter.setflags(write=False)
    return filter


def _frequency_response(
    gains_db: NDArray[np.float64], rate: int, num_grid: int
) -> NDArray[np.float64]:
    """The real response of gains that are applied to overlapping Hann windows."""
    changes = 10 ** (gains_db / 20) - 1
    changes[0] /= 2  # the cosine of 0 Hz has no counterpart at a negative frequency
    lags_s = np.arange(round(rate * WINDOW_S)) / rate
    cosines = np.cos(2 * np.pi * BIN_HZ * np.outer(lags_s, np.arange(len(changes))))
    half = 2 * BIN_HZ / rate * (cosines @ changes) * _hann_autocorrelation(lags_s / WINDOW_S)
    half[0] += 1
    response = np.zeros(num_grid)
    response[: len(half)] = half
    response[-len(half) + 1 :] = half[:0:-1]
    return np.fft.rfft(response).real


def _hann_autocorrelation(lags: NDArray[np.float64]) -> NDArray[np.float64]:
    """The autocorrelation of a Hann window of length 1, and 1 at lag 0."""
    turns = 2 * np.pi * lags
    found: NDArray[np.float64] = (1 - lags) * (2 + np.cos(turns)) / 3 + np.sin(turns) / (2 * np.pi)
    return found


def _minimum_phase(response: NDArray[np.float64]) -> NDArray[np.float64]:
    """The causal impulse response with the same magnitudes, through the cepstrum."""
    cepstrum = np.fft.irfft(np.log(response))
    num_grid = len(cepstrum)
    cepstrum[1 : num_grid // 2] *= 2
    cepstrum[num_grid // 2 + 1 :] = 0
    return np.fft.irfft(np.exp(np.fft.rfft(cepstrum)))
