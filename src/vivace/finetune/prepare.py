"""Prepares the training data: encodes recordings, rejects bad ones, and holds some out.

Every recording is checked before the training begins. The hold-out split is by a hash of the
transcript, so the same recordings are held out on every machine and a repeated sentence is on one
side only.
"""

from __future__ import annotations

import hashlib
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vivace.errors import AudioError, RequestError, TrainingDataError
from vivace.finetune.encoder import RecordingEncoder
from vivace.finetune.examples import ExampleWriter, Transcript
from vivace.finetune.options import DataOptions
from vivace.finetune.sources import Entry, Rejection, Row
from vivace.finetune.store import Encoded
from vivace.recogniser import word_error_rate

Progress = Callable[[str, int, int], None]  # what is done, and how much of how much

RATE_LIMITS = (0.5, 45.0)  # characters a second, for any language
RATE_FACTOR = 2.5  # from the median of all recordings of a language
MIN_FOR_MEDIAN = 8
MAX_HELD_OUT = 200
MIN_RECORDINGS = 2
VARIABLE = re.compile(r"'[^']*'|\S+\.\w{2,5}(?::\d+)?(?= |$)|^[\d.]+(?= s of )")  # names, seconds


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Clip:
    """A recording to train on or to judge with."""

    where: str
    transcript: Transcript
    codes: NDArray[np.int64]  # [frames, codebooks]
    seconds: float
    sha256: str  # of the recording
    speaker_vector: NDArray[np.float32] | None = None
    is_checked: bool = False  # its transcript was compared with a recogniser's


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreparedData:
    train: Sequence[Clip]
    held_out: Sequence[Clip]
    rejections: Sequence[Rejection]
    sha256: str  # of the recordings and transcripts that are used

    @property
    def clips(self) -> list[Clip]:
        return [*self.train, *self.held_out]

    @property
    def speakers(self) -> list[str]:
        names = {clip.transcript.speaker for clip in self.train}
        return sorted(name for name in names if name is not None)

    def describe(self) -> dict[str, object]:
        train_s = sum(clip.seconds for clip in self.train)
        return {
            "recordings": len(self.train),
            "minutes": round(train_s / 60, 2),
            "held_out": len(self.held_out),
            "rejected": len(self.rejections),
            "reasons": count_reasons(self.rejections),
            "speakers": self.speakers,
            "data_sha256": self.sha256,
        }


class Preparation:
    def __init__(
        self, options: DataOptions, writer: ExampleWriter, encoder: RecordingEncoder
    ) -> None:
        self._options, self._writer, self._encoder = options, writer, encoder
        self.rejections: list[Rejection] = []

    def run(self, data: Path, rows: Iterable[Row], progress: Progress) -> PreparedData:
        """Raises TrainingDataError if fewer than two recordings can be used."""
        rows = list(rows)
        clips: list[Clip] = []
        seen: dict[str, str] = {}
        for number, row in enumerate(rows):
            progress("prepare", number, len(rows))
            if isinstance(row, Rejection):
                self.rejections.append(row)
            elif (clip := self._prepare(row)) is not None:
                if (first := seen.setdefault(clip.sha256, clip.where)) != clip.where:
                    self._reject(clip.where, f"the same recording as {first}")
                else:
                    clips.append(clip)
        progress("prepare", len(rows), len(rows))
        clips = self._check_rates(clips)
        if len(clips) < MIN_RECORDINGS:
            raise TrainingDataError(self._why_too_few(data, len(rows), len(clips)))
        train, held_out = split(clips, self._options.held_out)
        return PreparedData(
            train=train, held_out=held_out, rejections=self.rejections, sha256=data_digest(clips)
        )

    def _reject(self, where: str, reason: str) -> None:
        self.rejections.append(Rejection(where, reason))

    def _prepare(self, entry: Entry) -> Clip | None:
        try:
            self._writer.check(entry.transcript)
            encoded, digest = self._encoder.encode(entry)
            if encoded.problem is not None:
                raise AudioError(encoded.problem)
            self._check_words(entry.transcript, encoded)
        except (RequestError, AudioError) as error:
            self._reject(entry.where, str(error))
            return None
        assert encoded.codes is not None
        return Clip(
            where=entry.where,
            transcript=entry.transcript,
            codes=encoded.codes,
            seconds=encoded.seconds,
            sha256=digest,
            speaker_vector=encoded.speaker,
            is_checked=encoded.recognised is not None,
        )

    def _check_words(self, transcript: Transcript, encoded: Encoded) -> None:
        if encoded.recognised is None:
            return
        rate = word_error_rate(transcript.text, encoded.recognised)
        if rate > self._options.max_word_errors:
            raise AudioError(
                f"the transcript does not fit: {rate:.0%} word errors; "
                f"the recogniser's transcript is {encoded.recognised[:80]!r}"
            )

    def _check_rates(self, clips: Sequence[Clip]) -> list[Clip]:
        """Reject recordings whose transcript is far too long or too short for them."""
        by_language: dict[str, list[float]] = {}
        for clip in clips:
            by_language.setdefault(clip.transcript.language, []).append(_rate(clip))
        limits = {language: _rate_limits(rates) for language, rates in by_language.items()}
        kept = []
        for clip in clips:
            low, high = limits[clip.transcript.language]
            if low <= _rate(clip) <= high:
                kept.append(clip)
            else:
                self._reject(
                    clip.where,
                    f"the transcript does not fit: {_rate(clip):.1f} characters a second; "
                    f"{low:.1f} to {high:.1f} are expected",
                )
        return kept

    def _why_too_few(self, data: Path, num_rows: int, num_kept: int) -> str:
        reasons = count_reasons(self.rejections)
        listed = "; ".join(f"{count} × {reason}" for reason, count in reasons.items())
        message = (
            f"{data}: {num_kept} of {num_rows} recordings can be used, and at least "
            f"{MIN_RECORDINGS} are needed: one to train on and one to judge with"
        )
        return f"{message}. Rejected: {listed}" if listed else message


def split(clips: Sequence[Clip], share: float) -> tuple[list[Clip], list[Clip]]:
    """Training and held-out recordings: those with the smallest hashes are held out."""
    wanted = min(MAX_HELD_OUT, max(1, round(share * len(clips))))
    train: list[Clip] = []
    held_out: list[Clip] = []
    by_text: dict[str, list[Clip]] = {}
    for clip in clips:
        by_text.setdefault(clip.transcript.text, []).append(clip)
    left = _count_speakers(clips)
    for text in sorted(by_text, key=_place):
        own = _count_speakers(by_text[text])
        is_last = any(left[speaker] == number for speaker, number in own.items())
        if len(held_out) < wanted and not is_last:  # every speaker keeps a recording to train on
            held_out += by_text[text]
            left -= own
        else:
            train += by_text[text]
    if not held_out:  # one sentence, spoken several times
        spare = [clip for clip in train if left[clip.transcript.speaker] > 1]
        held_out.append((spare or train)[-1])
        train.remove(held_out[0])
    return train, held_out


def _count_speakers(clips: Iterable[Clip]) -> Counter[str | None]:
    return Counter(clip.transcript.speaker for clip in clips)


def data_digest(clips: Iterable[Clip]) -> str:
    rows = sorted(repr((clip.sha256, clip.transcript)) for clip in clips)
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()


def count_reasons(rejections: Iterable[Rejection]) -> dict[str, int]:
    """Rejections by the first words of their reason without names, most frequent first."""
    first = (rejection.reason.split(": ")[0].split(";")[0] for rejection in rejections)
    return dict(Counter(VARIABLE.sub("…", reason) for reason in first).most_common(10))


def _place(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _rate(clip: Clip) -> float:
    return len(clip.transcript.text) / clip.seconds


def _rate_limits(rates: Sequence[float]) -> tuple[float, float]:
    low, high = RATE_LIMITS
    if len(rates) >= MIN_FOR_MEDIAN:
        median = statistics.median(rates)
        low, high = max(low, median / RATE_FACTOR), min(high, median * RATE_FACTOR)
    return low, high
