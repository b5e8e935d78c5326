"""Tests of the loudness meter against the standard and FFmpeg's ebur128, and of the limiter."""

from __future__ import annotations

import math
from fractions import Fraction

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from vivace.audio.loudness import LoudnessMeter, limit_peaks


def measure(samples: NDArray[np.floating], rate: int, piece: int = 7_777) -> float:
    meter = LoudnessMeter(rate)
    for start in range(0, len(samples), piece):
        meter.process(samples[start : start + piece])
    return meter.integrated


def sine(dbfs: float, seconds: float, hertz: float = 997.0) -> NDArray[np.float64]:
    time_s = np.arange(round(seconds * 48_000)) / 48_000
    return 10 ** (dbfs / 20) * np.sin(2 * np.pi * hertz * time_s)


def measure_by_ffmpeg(samples: NDArray[np.floating], rate: int) -> float:
    graph = av.filter.Graph()
    source = graph.add_abuffer(
        sample_rate=rate, format="flt", layout="mono", time_base=Fraction(1, rate)
    )
    meter, sink = graph.add("ebur128", "metadata=1"), graph.add("abuffersink")
    source.link_to(meter)
    meter.link_to(sink)
    graph.configure()
    found = math.nan
    for start in range(0, len(samples), 4_800):
        block = samples[start : start + 4_800].astype(np.float32)
        frame = av.AudioFrame.from_ndarray(block[None], format="flt", layout="mono")
        frame.sample_rate, frame.pts = rate, start
        source.push(frame)
        while True:
            try:
                made = sink.pull()
            except (av.BlockingIOError, EOFError):
                break
            found = float(made.metadata.get("lavfi.r128.I", found))
    return found


def test_loudness_of_sine_equals_standard() -> None:
    assert measure(sine(0, 5), 48_000) == pytest.approx(-3.01, abs=0.005)
    assert measure(sine(-23, 5), 48_000) == pytest.approx(-26.01, abs=0.005)


def test_quiet_parts_are_gated_out() -> None:
    """EBU Tech 3341, case 3, but shorter and mono, which is 3 LU lower than stereo."""
    parts = [sine(-36, 2, 1_000), sine(-23, 12, 1_000), sine(-36, 2, 1_000)]
    found = measure(np.concatenate(parts), 48_000)
    assert found == pytest.approx(-26.1, abs=0.05)  # 0.1 from blocks at the edges
    padded = np.concatenate([np.zeros(96_000), sine(-20, 5), np.zeros(96_000)])
    assert measure(padded, 48_000) == pytest.approx(measure(sine(-20, 5), 48_000), abs=0.5)


@pytest.mark.parametrize("rate", [16_000, 24_000, 44_100, 48_000])
def test_loudness_equals_ffmpeg_ebur128(rate: int) -> None:
    time_s = np.arange(12 * rate) / rate
    noise = np.random.default_rng(1).normal(0, 0.1, len(time_s))
    signal = noise * (np.sin(2 * np.pi * 0.3 * time_s) > 0)
    assert measure(signal, rate) == pytest.approx(measure_by_ffmpeg(signal, rate), abs=0.02)


def test_loudness_does_not_depend_on_chunks_and_is_minus_infinity_for_silence() -> None:
    signal = np.random.default_rng(2).normal(0, 0.2, 3 * 24_000)
    assert measure(signal, 24_000, 999) == pytest.approx(measure(signal, 24_000, 10**9), abs=1e-9)
    assert measure(np.zeros(24_000), 24_000) == -math.inf
    assert measure(np.zeros(0), 24_000) == -math.inf


def test_limit_peaks_changes_surroundings_of_peaks_only() -> None:
    signal = np.full(24_000, 0.3, np.float32)
    signal[[5, 12_000, 12_050, 23_999]] = [1.5, -2.0, 0.95, 1.1]
    limited = limit_peaks(signal, 0.9, 24_000)
    assert np.abs(limited).max() <= 0.9 + 1e-6
    assert np.array_equal(limited[1_000:11_000], signal[1_000:11_000])
    assert np.abs(np.diff(limited[12_100:12_400])).max() < 0.01  # smooth release
    assert np.array_equal(limit_peaks(signal[1_000:2_000], 0.9, 24_000), signal[1_000:2_000])
