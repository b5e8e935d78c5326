"""Judges an epoch by speech: held-out sentences spoken by the base with the new adapter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from numpy.typing import NDArray

from vivace.audio.clip import Audio
from vivace.audio.files import Recording
from vivace.finetune.encoder import Recognise
from vivace.finetune.prepare import Clip
from vivace.recogniser import word_error_rate
from vivace.tts import TTS

RUNAWAY_FACTOR = 3  # of the frames of the recording

Vector = Callable[[Recording], NDArray[np.float32]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechFigures:
    word_errors: float | None = None
    likeness: float | None = None
    speaking_rate: float | None = None
    runaways: int | None = None
    samples: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SpeechJudge:
    """Speaks held-out sentences and measures the result."""

    base: Path
    clips: Sequence[Clip]
    folder: Path  # for the samples
    device: str
    dtype: torch.dtype
    recognise: Recognise | None = None  # None: no word errors
    languages: frozenset[str] = frozenset()  # that `recognise` understands
    vector: Vector | None = None  # the checkpoint's own speaker encoder

    def judge(self, adapter: Path, epoch: int, is_stopped: Callable[[], bool]) -> SpeechFigures:
        """Speak the sentences of an epoch. No figures if `is_stopped` becomes true."""
        spoken: list[tuple[Clip, Audio]] = []
        with TTS.load(
            self.base, adapter=adapter, device=self.device, dtype=self.dtype, backend="eager"
        ) as tts:
            for number, clip in enumerate(self.clips):
                if is_stopped():
                    return SpeechFigures()
                spoken.append((clip, self._speak(tts, clip, number)))
        self.folder.mkdir(parents=True, exist_ok=True)
        return SpeechFigures(
            word_errors=self._word_errors(spoken),
            likeness=self._likeness(spoken),
            speaking_rate=_speaking_rate(spoken),
            runaways=sum(audio.finish_reason != "stop" for _, audio in spoken),
            samples=[self._save(clip, audio, epoch) for clip, audio in spoken],
        )

    def _speak(self, tts: TTS, clip: Clip, number: int) -> Audio:
        """Speech that is stopped at three times the length of the recording."""
        transcript = clip.transcript
        return tts.speak(
            transcript.text,
            voice=transcript.speaker,
            language=transcript.language,
            instruct=transcript.instruct,
            seed=number,
            max_frames=RUNAWAY_FACTOR * len(clip.codes),
        )

    def _save(self, clip: Clip, audio: Audio, epoch: int) -> str:
        number = self.clips.index(clip)
        path = self.folder / f"epoch-{epoch:03d}-{number}.wav"
        audio.save(path, overwrite=True)
        return f"{self.folder.name}/{path.name}"

    def _word_errors(self, spoken: Sequence[tuple[Clip, Audio]]) -> float | None:
        spoken = [(clip, audio) for clip, audio in spoken if self._is_recognised(clip)]
        if self.recognise is None or not spoken:
            return None
        words = [len(clip.transcript.text.split()) for clip, _ in spoken]
        errors = [
            word_error_rate(clip.transcript.text, self.recognise(audio.samples, audio.sample_rate))
            for clip, audio in spoken
        ]
        return float(np.average(errors, weights=words))

    def _is_recognised(self, clip: Clip) -> bool:
        return clip.transcript.language in self.languages

    def _likeness(self, spoken: Sequence[tuple[Clip, Audio]]) -> float | None:
        if self.vector is None:
            return None
        found = []
        for clip, audio in spoken:
            if clip.speaker_vector is not None and len(audio.samples):
                recording = Recording(
                    samples=audio.samples, sample_rate=audio.sample_rate, sha256=""
                )
                found.append(_cosine(clip.speaker_vector, self.vector(recording)))
        return fmean(found) if found else None


def _speaking_rate(spoken: Sequence[tuple[Clip, Audio]]) -> float | None:
    """Seconds of the recordings per second of speech."""
    seconds = sum(len(audio.samples) / audio.sample_rate for _, audio in spoken)
    return sum(clip.seconds for clip, _ in spoken) / seconds if seconds else None


def _cosine(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    return float(one @ other / max(1e-9, float(np.linalg.norm(one) * np.linalg.norm(other))))
