"""Prepares one recording: trims silence, sets the loudness, checks it and encodes it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vivace.audio.decode import MIB, AudioLimits
from vivace.audio.files import (
    FULL_SCALE,
    MAX_CLIPPED,
    MIN_REFERENCE_DBFS,
    Recording,
    read_audio,
)
from vivace.audio.loudness import LoudnessMeter, limit_peaks
from vivace.audio.sandbox import Sandbox
from vivace.audio.trim import find_sound
from vivace.audio.wav import Samples
from vivace.errors import AudioError
from vivace.finetune.options import DataOptions

LIMITS = AudioLimits(max_encoded_bytes=64 * MIB, max_decoded_bytes=64 * MIB, accepts_cut=False)
LEAD_S, TAIL_S = 0.06, 0.12  # silence kept around the speech
CEILING = 0.98  # highest sample
MAX_GAIN_DB = 40.0


@dataclass(frozen=True, slots=True)
class RecordingReader:
    """Reads recordings as they are trained on. Unusable ones raise AudioError."""

    options: DataOptions
    sandbox: Sandbox

    def read(self, path: Path) -> Recording:
        return self.prepare(read_audio(path, LIMITS, sandbox=self.sandbox))

    def prepare(self, recording: Recording) -> Recording:
        samples, rate = recording.samples, recording.sample_rate
        if rate < self.options.min_sample_rate:
            raise AudioError(
                f"the sample rate is {rate:,} Hz; at least {self.options.min_sample_rate:,} Hz "
                "are needed (--min-sample-rate)"
            )
        _check(samples)
        samples = self._trim(self._set_loudness(samples, rate), rate)
        self._check_length(len(samples) / rate)
        return Recording(samples=samples, sample_rate=rate, sha256=recording.sha256)

    def _set_loudness(self, samples: Samples, rate: int) -> Samples:
        samples = samples - samples.mean(dtype=np.float64).astype(np.float32)
        meter = LoudnessMeter(rate)
        meter.process(samples)
        if not np.isfinite(meter.integrated):
            raise AudioError("too short or too quiet to measure its loudness")
        gain_db = min(self.options.loudness - meter.integrated, MAX_GAIN_DB)
        louder: Samples = samples * np.float32(10 ** (gain_db / 20))
        return limit_peaks(louder, CEILING, rate)

    def _trim(self, samples: Samples, rate: int) -> Samples:
        span, _ = find_sound(samples, rate)
        if span is None:
            raise AudioError("no speech: the recording is silent")
        start = max(0, span[0] - round(LEAD_S * rate))
        return samples[start : span[1] + round(TAIL_S * rate)]

    def _check_length(self, seconds: float) -> None:
        low, high = self.options.min_seconds, self.options.max_seconds
        if not low <= seconds <= high:
            raise AudioError(
                f"too short or too long: {seconds:.2f} s of speech; {low:g} to {high:g} s are used "
                "(--min-seconds, --max-seconds)"
            )


def _check(samples: Samples) -> None:
    if not len(samples):
        raise AudioError("the recording is empty")
    if num_bad := int(np.count_nonzero(~np.isfinite(samples))):
        raise AudioError(f"{num_bad:,} samples are NaN or infinite")
    level = 20 * np.log10(max(float(np.std(samples, dtype=np.float64)), 1e-10))
    if level < MIN_REFERENCE_DBFS:
        raise AudioError(f"no speech: the recording is silent ({level:.0f} dBFS)")
    clipped = float(np.mean(np.abs(samples) >= FULL_SCALE))
    if clipped > MAX_CLIPPED:
        raise AudioError(f"clipped: {clipped:.0%} of the samples are at full scale")
