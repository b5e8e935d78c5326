"""Sounds without a watermark, for the false detections of `watermark.py`.

`make_noises` and `make_tones` were used to choose the detector's thresholds, and so were sounds of
`KINDS` with the seed 33,000, of which one melody was detected, and with 50,000 and more.
`make_verified` has another seed, whose sounds were made once, after the thresholds were fixed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from vivace.audio.wav import Samples

RATE = 24_000
NUM_NOISES, NUM_TONES = 70, 70
NUM_OF_A_KIND = 40
VERIFIED_SEED = 34_000

Values = NDArray[np.float64]
Make = Callable[[np.random.Generator], Values]


def make_noises() -> Iterator[Samples]:
    rng = np.random.default_rng(1)
    for number in range(NUM_NOISES):
        noise = rng.standard_normal(4 * RATE)
        noise = np.cumsum(noise) / 300 if number % 2 else noise * 10 ** rng.uniform(-4, -0.5)
        yield np.clip(noise, -1, 1).astype(np.float32)


def make_tones() -> Iterator[Samples]:
    """Tones, harmonic sounds, chords and sweeps of 3 s."""
    rng, seconds = np.random.default_rng(2), np.arange(3 * RATE) / RATE
    for number in range(NUM_TONES):
        base = math.exp(rng.uniform(math.log(60), math.log(1_500)))
        pitches = (
            [base],
            [base * k for k in range(1, 1 + min(20, int(10_000 / base)))],
            list(rng.uniform(100, 2_000, 5)),
            [np.geomspace(base, 2 * base, len(seconds))],
        )[number % 4]
        phases = [np.cumsum(np.broadcast_to(pitch, seconds.shape)) / RATE for pitch in pitches]
        sound = sum(np.sin(2 * np.pi * phase) for phase in phases) / (2 * len(pitches))
        yield np.asarray(sound, np.float32)


# -- sounds that verify the thresholds ----------------------------------------------------------


def make_verified() -> dict[str, list[Samples]]:
    """Sounds by kind, each normalized to a random level."""
    return {
        name: [_finish(make, index, number) for number in range(NUM_OF_A_KIND)]
        for index, (name, make) in enumerate(KINDS.items())
    }


def _finish(make: Make, index: int, number: int) -> Samples:
    rng = np.random.default_rng([VERIFIED_SEED, index, number])
    sound = make(rng)
    peak = float(np.abs(sound).max())
    level = 10 ** rng.uniform(-2, -0.05)
    return (sound * (level / peak if peak else 0.0)).astype(np.float32)


def _times(rng: np.random.Generator) -> Values:
    return np.arange(round(rng.uniform(1, 12) * RATE)) / RATE


def _pitch(rng: np.random.Generator, low: float = 40, high: float = 1_900) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def _sine(pitch: float | Values, times: Values) -> Values:
    """A tone whose pitch may change."""
    phases = np.cumsum(np.broadcast_to(pitch, times.shape)) / RATE
    return np.asarray(np.sin(2 * np.pi * phases), np.float64)


def _harmonics(rng: np.random.Generator, pitch: float, times: Values) -> Values:
    """Partials that become weaker."""
    slope, sound = rng.uniform(0.2, 2.0), np.zeros(len(times))
    for partial in range(1, min(60, int(0.45 * RATE / pitch)) + 1):
        phase = rng.uniform(0, 2 * np.pi)
        sound += np.sin(2 * np.pi * partial * pitch * times + phase) / partial**slope
    return sound


def _tone(rng: np.random.Generator) -> Values:
    return _sine(_pitch(rng), _times(rng))


def _harmonic(rng: np.random.Generator) -> Values:
    return _harmonics(rng, _pitch(rng), _times(rng))


def _chord(rng: np.random.Generator) -> Values:
    times, root = _times(rng), _pitch(rng, 80, 500)
    steps = rng.choice(24, size=rng.integers(2, 7), replace=False)
    notes = [_harmonics(rng, root * 2 ** (step / 12), times) for step in steps]
    return np.asarray(np.sum(notes, axis=0), np.float64)


def _noisy_tone(rng: np.random.Generator) -> Values:
    tone = _tone(rng) if rng.random() < 0.5 else _harmonic(rng)
    noise = rng.standard_normal(len(tone)) * 10 ** rng.uniform(-3.5, 0)
    return np.asarray(tone / np.abs(tone).max() + noise)


def _hum(rng: np.random.Generator) -> Values:
    """Mains hum, with noise."""
    times, hertz = _times(rng), float(rng.choice([50.0, 60.0])) + rng.uniform(-0.1, 0.1)
    noise = rng.standard_normal(len(times)) * 10 ** rng.uniform(-4, -1)
    return np.asarray(_harmonics(rng, hertz, times) + noise)


def _colored_noise(rng: np.random.Generator) -> Values:
    """Noise with a spectrum of any slope in a random band."""
    num = len(_times(rng))
    frequencies = np.fft.rfftfreq(num, 1 / RATE)
    low, high = sorted((_pitch(rng, 20, 11_000), _pitch(rng, 20, 11_000)))
    gains = np.maximum(frequencies, 20.0) ** rng.uniform(-1.5, 0.5)
    gains[(frequencies < low) | (frequencies > high)] *= 10 ** rng.uniform(-4, 0)
    return np.fft.irfft(np.fft.rfft(rng.standard_normal(num)) * gains, num)


def _modulated_noise(rng: np.random.Generator) -> Values:
    """Noise that rises and falls at the rate of syllables."""
    noise = _colored_noise(rng)
    swell = 1 + rng.uniform(0.3, 1) * _sine(rng.uniform(1, 12), np.arange(len(noise)) / RATE)
    return np.asarray(noise * swell**2)


def _sweep(rng: np.random.Generator) -> Values:
    times = _times(rng)
    ends = _pitch(rng, 40, 10_000), _pitch(rng, 40, 10_000)
    return _sine(np.geomspace(*ends, len(times)), times)


def _siren(rng: np.random.Generator) -> Values:
    """A pitch that rises and falls, with harmonics."""
    times = _times(rng)
    octaves = rng.uniform(0.1, 1.5) * _sine(rng.uniform(0.2, 8), times)
    pitch = _pitch(rng, 100, 1_500) * 2**octaves
    partials = [_sine(k * pitch, times) / k for k in range(1, 5)]
    return np.asarray(np.sum(partials, axis=0), np.float64)


def _dial(rng: np.random.Generator) -> Values:
    """Keys of a telephone."""
    keys = []
    for _ in range(rng.integers(4, 14)):
        times = np.arange(round(rng.uniform(0.06, 0.4) * RATE)) / RATE
        pair = rng.choice([697.0, 770, 852, 941]), rng.choice([1_209.0, 1_336, 1_477, 1_633])
        keys += [_sine(pair[0], times) + _sine(pair[1], times), np.zeros(len(times) // 2)]
    return np.concatenate(keys)


def _clicks(rng: np.random.Generator) -> Values:
    """Impulses, at a rate or at random, with noise or without."""
    num = len(_times(rng))
    sound = 10 ** rng.uniform(-6, -2) * rng.standard_normal(num) * (rng.random() < 0.5)
    if rng.random() < 0.5:
        sound[:: int(RATE / _pitch(rng, 1, 1_500))] += 1
    else:
        sound[rng.integers(0, num, num // 800)] += rng.uniform(-1, 1, num // 800)
    return sound


def _pluck(rng: np.random.Generator, pitch: float, num: int) -> Values:
    """A string by Karplus and Strong, period by period."""
    period = rng.uniform(-1, 1, max(2, round(RATE / pitch)))
    periods = []
    for _ in range(num // len(period) + 1):
        periods.append(period)
        period = 0.498 * (period + np.roll(period, 1))
    return np.concatenate(periods)[:num]


def _melody(rng: np.random.Generator) -> Values:
    """Plucked strings or decaying organ tones, two voices."""
    beat, root = round(rng.uniform(0.12, 0.5) * RATE), _pitch(rng, 80, 400)
    num_beats = round(rng.uniform(3, 10) * RATE / beat)
    sound, is_plucked = np.zeros((num_beats + 2) * beat), rng.random() < 0.5
    times = np.arange(2 * beat) / RATE
    for number in range(num_beats):
        for octave in (1, 2)[: 1 + number % 2]:
            pitch = octave * root * 2 ** (rng.choice([0, 2, 4, 5, 7, 9, 11]) / 12)
            note = (
                _pluck(rng, pitch, 2 * beat)
                if is_plucked
                else _harmonics(rng, pitch, times) * np.exp(-3 * times)
            )
            sound[number * beat :][: 2 * beat] += note
    return sound


def _drums(rng: np.random.Generator) -> Values:
    """A beat: low falling tones and bursts of noise."""
    beat = round(rng.uniform(0.15, 0.4) * RATE)
    times = np.arange(beat) / RATE
    parts = []
    for number in range(round(rng.uniform(3, 8) * RATE / beat)):
        decay = np.exp(-rng.uniform(8, 40) * times)
        kick = _sine(40 + 120 * np.exp(-30 * times), times)
        parts.append(decay * (rng.standard_normal(beat) if number % 2 else kick))
    return np.concatenate(parts)


def _music(rng: np.random.Generator) -> Values:
    """A melody with a beat."""
    melody, drums = _melody(rng), _drums(rng)
    num = min(len(melody), len(drums))
    return np.asarray(melody[:num] / np.abs(melody).max() + rng.uniform(0.1, 1) * drums[:num])


def _silence(rng: np.random.Generator) -> Values:
    """Digital silence, a constant, and the noise of rounding to 16 bits."""
    num = len(_times(rng))
    kinds = (np.zeros(num), np.full(num, 0.1), np.round(rng.uniform(-0.8, 0.8, num)))
    return kinds[rng.integers(0, len(kinds))]


KINDS: dict[str, Make] = {
    "tones": _tone,
    "harmonic tones": _harmonic,
    "chords": _chord,
    "tones with noise": _noisy_tone,
    "mains hum": _hum,
    "colored noise": _colored_noise,
    "modulated noise": _modulated_noise,
    "sweeps": _sweep,
    "sirens": _siren,
    "telephone keys": _dial,
    "clicks": _clicks,
    "melodies": _melody,
    "drums": _drums,
    "music": _music,
    "silence": _silence,
}
