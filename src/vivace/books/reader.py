"""Speaks the segments of a book into a work folder. Existing segments are not spoken again."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vivace.audio.clip import Audio
from vivace.books.segments import Passage, Segment
from vivace.disk import AtomicFile, sweep, write_whole
from vivace.errors import BatchError, RequestError, RunawayError
from vivace.options import SpeakOptions, SpeechOptions
from vivace.speech import shown
from vivace.text.markup import remove_markup
from vivace.text.pauses import SILENT_S

if TYPE_CHECKING:
    from vivace.tts import TTS

MANIFEST = "manifest.json"
FORMAT = 1
MAX_ATTEMPTS = 4  # for a passage that does not end or misses words; each with another seed
SEED_STEP = 1_000_003
MAX_TOGETHER = 16  # segments in one batch, limited by memory
FULL_SCALE = 32_767


@dataclass(frozen=True, slots=True)
class Progress:
    num_done: int  # characters
    num_chars: int
    chapter: int  # index of the current chapter
    left_s: float | None  # estimate; None: unknown


@dataclass(frozen=True, slots=True)
class WorkFolder:
    """Finished segments as files of 16-bit samples, and a manifest."""

    path: Path
    sample_rate: int
    identity: dict[str, Any]  # everything that the audio depends on, except the text

    @classmethod
    def open(
        cls, path: Path, sample_rate: int, identity: dict[str, Any], segments: list[Segment]
    ) -> WorkFolder:
        folder = cls(path, sample_rate, identity)
        manifest = path / MANIFEST
        try:
            if path.exists() and not manifest.exists() and any(path.iterdir()):
                raise RequestError(f"{path}: not a work folder of a book; rename the folder")
            path.mkdir(parents=True, exist_ok=True)
            sweep(path)
            names = [segment.key(identity) for segment in segments]
            header = {"format": FORMAT, "sample_rate": sample_rate, "identity": identity}
            content = json.dumps({**header, "pieces": names}, indent=1)
            write_whole(manifest, content.encode(), replace=True)
        except OSError as error:
            raise RequestError(f"{path}: cannot be written: {error.strerror or error}") from error
        return folder

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the folder. Raises RequestError if another process holds it."""
        try:
            claim = AtomicFile(self.path / "lock", replace=False)
        except FileExistsError as error:
            raise RequestError(f"{self.path}: in use by another process") from error
        try:
            yield
        finally:
            claim.discard()

    def file(self, segment: Segment) -> Path:
        return self.path / f"{segment.key(self.identity)}.pcm"

    def has(self, segment: Segment) -> bool:
        return self.file(segment).is_file()

    def num_samples(self, segment: Segment) -> int:
        return self.file(segment).stat().st_size // 2

    def read(self, segment: Segment) -> NDArray[np.float32]:
        stored: NDArray[np.float32] = np.fromfile(self.file(segment), "<i2").astype(np.float32)
        stored /= FULL_SCALE
        return stored

    def missing_words(self, segment: Segment) -> list[str]:
        """Words of a finished segment that were not spoken."""
        try:
            words = json.loads(self._missing_file(segment).read_text("utf-8"))
            return [str(word) for word in words]
        except FileNotFoundError:
            return []

    def _missing_file(self, segment: Segment) -> Path:
        return self.file(segment).with_suffix(".missing.json")

    def save(
        self, segment: Segment, samples: NDArray[np.float32], missing_words: Sequence[str] = ()
    ) -> None:
        content = (np.clip(samples, -1, 1) * FULL_SCALE).round().astype("<i2").tobytes()
        try:
            if missing_words:  # written first: the segment counts as finished with its audio file
                words = json.dumps(list(missing_words)).encode()
                write_whole(self._missing_file(segment), words, replace=True)
            write_whole(self.file(segment), content, replace=True)
        except OSError as error:
            reason = error.strerror or error
            raise RequestError(
                f"{self.path}: cannot be written: {reason}; finished segments are kept, run the "
                "same command again to continue"
            ) from error

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


@dataclass(slots=True)
class BookReader:
    """Speaks segments that are missing in the work folder."""

    tts: TTS
    work: WorkFolder
    options: SpeakOptions  # with a seed
    silent: frozenset[str] = frozenset()  # passages that are not spoken

    def read(self, segments: list[Segment]) -> Iterator[Progress]:
        """Speak missing segments. Yields progress before every batch and after the last."""
        num_chars = sum(segment.num_chars for segment in segments)
        missing = self._missing(segments)
        num_left = sum(segment.num_chars for segment in missing)
        num_first, began = num_left, time.monotonic()
        together = min(MAX_TOGETHER, max(1, self.tts.engine.num_together // 4))
        for start in range(0, len(missing), together):
            some = missing[start : start + together]
            left_s = None
            if num_left < num_first:
                left_s = (time.monotonic() - began) * num_left / (num_first - num_left)
            yield Progress(num_chars - num_left, num_chars, some[0].chapter, left_s)
            self._speak(some)
            num_left -= sum(segment.num_chars for segment in some)
        yield Progress(num_chars, num_chars, segments[-1].chapter, 0.0)

    def _missing(self, segments: list[Segment]) -> list[Segment]:
        """Segments without a file. Segments with equal text share a file."""
        by_file = {self.work.file(segment): segment for segment in reversed(segments)}
        return [segment for path, segment in reversed(by_file.items()) if not path.is_file()]

    def _speak(self, segments: list[Segment]) -> None:
        passages = [each for segment in segments for each in segment.passages]
        spoken = [
            each
            for each in passages
            if each.text not in self.silent and is_spoken(each.text, self.options)
        ]
        results = dict(zip(map(id, spoken), self._speak_passages(spoken), strict=True))
        for segment in segments:
            parts: list[NDArray[np.float32]] = []
            missing: list[str] = []
            for each in segment.passages:
                audio = results.get(id(each))
                if audio is not None:
                    missing += audio.missing_words
                    parts.append(audio.samples)
                silent_s = each.gap_s + (SILENT_S if audio is None else 0)
                parts.append(np.zeros(round(silent_s * self.work.sample_rate), np.float32))
            self.work.save(segment, np.concatenate(parts), missing)

    def _speak_passages(self, passages: list[Passage]) -> list[Audio]:
        if not passages:
            return []
        try:
            audios = self.tts.synthesizer.speak([each.text for each in passages], self.options)
        except BatchError as error:
            number, reason = next(iter(error.errors.items()))
            raise RequestError(f"{shown(passages[number].text)}: {reason}") from error
        return [
            self._complete(passage.text, audio)
            for passage, audio in zip(passages, audios, strict=True)
        ]

    def _complete(self, text: str, audio: Audio) -> Audio:
        """The audio, or the best of further attempts. The seeds are deterministic."""
        best: Audio | None = None
        for attempt in range(MAX_ATTEMPTS):
            if attempt:
                seed = self.options.sampling["seed"] + attempt * SEED_STEP
                audio = self.tts.synthesizer.speak(text, replace(self.options, seed=seed))
            if audio.finish_reason != "stop":
                continue
            if best is None or len(audio.missing_words) < len(best.missing_words):
                best = audio
            if not best.missing_words:
                break
        if best is None:
            raise RunawayError(
                f"{shown(text)}: the speech did not end in {MAX_ATTEMPTS} attempts; change the "
                "text slightly or use another --seed"
            )
        return best


def is_spoken(text: str, options: SpeechOptions) -> bool:
    """Whether a passage has words to speak. A passage such as `* * *` is silent."""
    text = remove_markup(text) if options.clean else text
    return options.is_speakable(options.remove_emoji(text))


def work_path(output: Path) -> Path:
    """The work folder beside an output: its name with `.parts` appended."""
    return Path(f"{os.path.normpath(output)}.parts")
