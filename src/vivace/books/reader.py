"""Speaks the pieces of a book into a work folder; what is there already is not made again."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vivace.audio.clip import Audio
from vivace.books.pieces import Passage, Piece
from vivace.disk import AtomicFile, sweep, write_whole
from vivace.errors import BatchError, RequestError, RunawayError
from vivace.options import SpeakOptions, SpeechOptions
from vivace.text.markup import remove_markup
from vivace.tts import TTS

MANIFEST = "manifest.json"
FORMAT = 1
MAX_ATTEMPTS = 4  # at a passage that does not end, or lacks words; each with another seed
SEED_STEP = 1_000_003
MAX_TOGETHER = 16  # pieces, each of several passages: what memory holds
SILENT_S = 0.6  # for a passage of nothing that can be said, such as `* * *`
FULL_SCALE = 32_767


@dataclass(frozen=True, slots=True)
class Progress:
    num_done: int  # characters
    num_chars: int
    chapter: int  # the index of the one at hand
    left_s: float | None  # None: not known yet


@dataclass(frozen=True, slots=True)
class WorkFolder:
    """Finished pieces as files of 16-bit samples, and a manifest that says what they are for."""

    path: Path
    sample_rate: int
    identity: dict[str, Any]  # what the sound depends on, besides the words

    @classmethod
    def open(
        cls, path: Path, sample_rate: int, identity: dict[str, Any], pieces: list[Piece]
    ) -> WorkFolder:
        folder = cls(path, sample_rate, identity)
        manifest = path / MANIFEST
        try:
            if path.exists() and not manifest.exists() and any(path.iterdir()):
                raise RequestError(f"{path} is no work folder of a book; move it away")
            path.mkdir(parents=True, exist_ok=True)
            sweep(path)
            names = [piece.key(identity) for piece in pieces]
            told = {"format": FORMAT, "sample_rate": sample_rate, "identity": identity}
            content = json.dumps({**told, "pieces": names}, indent=1)
            write_whole(manifest, content.encode(), replace=True)
        except OSError as error:
            raise RequestError(f"cannot write to {path}: {error.strerror or error}") from error
        return folder

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Two processes would make the same pieces; the second is refused."""
        try:
            claim = AtomicFile(self.path / "lock", replace=False)
        except FileExistsError as error:
            raise RequestError(f"another process is at work in {self.path}") from error
        try:
            yield
        finally:
            claim.discard()

    def file(self, piece: Piece) -> Path:
        return self.path / f"{piece.key(self.identity)}.pcm"

    def has(self, piece: Piece) -> bool:
        return self.file(piece).is_file()

    def num_samples(self, piece: Piece) -> int:
        return self.file(piece).stat().st_size // 2

    def read(self, piece: Piece) -> NDArray[np.float32]:
        stored: NDArray[np.float32] = np.fromfile(self.file(piece), "<i2").astype(np.float32)
        stored /= FULL_SCALE
        return stored

    def missing_words(self, piece: Piece) -> list[str]:
        """Words of a finished piece that were not spoken."""
        try:
            return [str(word) for word in json.loads(self._missing_file(piece).read_text("utf-8"))]
        except FileNotFoundError:
            return []

    def _missing_file(self, piece: Piece) -> Path:
        return self.file(piece).with_suffix(".missing.json")

    def save(
        self, piece: Piece, samples: NDArray[np.float32], missing_words: Sequence[str] = ()
    ) -> None:
        content = (np.clip(samples, -1, 1) * FULL_SCALE).round().astype("<i2").tobytes()
        try:
            if missing_words:  # before the piece, which is finished when its own file exists
                words = json.dumps(list(missing_words)).encode()
                write_whole(self._missing_file(piece), words, replace=True)
            write_whole(self.file(piece), content, replace=True)
        except OSError as error:
            reason = error.strerror or error
            raise RequestError(
                f"cannot write to {self.path}: {reason}; what is made is kept, and the same "
                "command goes on from there"
            ) from error

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class _Spoken:
    samples: NDArray[np.float32]
    missing_words: tuple[str, ...] = ()


@dataclass(slots=True)
class BookReader:
    tts: TTS
    work: WorkFolder
    options: SpeakOptions  # with a seed
    silent: frozenset[str] = frozenset()  # passages that are not spoken

    def read(self, pieces: list[Piece]) -> Iterator[Progress]:
        """Make what is missing; progress before every step and after the last."""
        num_chars = sum(piece.num_chars for piece in pieces)
        missing = self._missing(pieces)
        num_left = sum(piece.num_chars for piece in missing)
        num_first, began = num_left, time.monotonic()
        together = min(MAX_TOGETHER, max(1, self.tts.engine.num_together // 4))
        for start in range(0, len(missing), together):
            some = missing[start : start + together]
            left_s = None
            if num_left < num_first:
                left_s = (time.monotonic() - began) * num_left / (num_first - num_left)
            yield Progress(num_chars - num_left, num_chars, some[0].chapter, left_s)
            self._make(some)
            num_left -= sum(piece.num_chars for piece in some)
        yield Progress(num_chars, num_chars, pieces[-1].chapter, 0.0)

    def _missing(self, pieces: list[Piece]) -> list[Piece]:
        """What has no file; of pieces with the same words, the first."""
        by_file = {self.work.file(piece): piece for piece in reversed(pieces)}
        return [piece for path, piece in reversed(by_file.items()) if not path.is_file()]

    def _make(self, pieces: list[Piece]) -> None:
        passages = [each for piece in pieces for each in piece.passages]
        spoken = [
            each
            for each in passages
            if each.text not in self.silent and is_spoken(each.text, self.options)
        ]
        made = dict(zip(map(id, spoken), self._speak_all(spoken), strict=True))
        silence = _Spoken(np.zeros(round(SILENT_S * self.work.sample_rate), np.float32))
        for piece in pieces:
            parts: list[NDArray[np.float32]] = []
            missing: list[str] = []
            for each in piece.passages:
                passage = made.get(id(each), silence)
                missing += passage.missing_words
                parts.append(passage.samples)
                parts.append(np.zeros(round(each.gap_s * self.work.sample_rate), np.float32))
            self.work.save(piece, np.concatenate(parts), missing)

    def _speak_all(self, passages: list[Passage]) -> list[_Spoken]:
        if not passages:
            return []
        try:
            audios = self.tts.speak_with([each.text for each in passages], self.options)
        except BatchError as error:
            number, reason = next(iter(error.errors.items()))
            raise RequestError(f"{_shown(passages[number].text)}: {reason}") from error
        return [
            self._accept(passage.text, audio)
            for passage, audio in zip(passages, audios, strict=True)
        ]

    def _accept(self, text: str, audio: Audio) -> _Spoken:
        """The audio, or a better attempt with another seed; the seeds are always the same ones."""
        best: Audio | None = None
        for attempt in range(MAX_ATTEMPTS):
            if attempt:
                seed = self.options.sampling["seed"] + attempt * SEED_STEP
                audio = self.tts.speak_with(text, replace(self.options, seed=seed))
            if audio.finish_reason != "stop":
                continue
            if best is None or len(audio.missing_words) < len(best.missing_words):
                best = audio
            if not best.missing_words:
                break
        if best is None:
            raise RunawayError(
                f"{_shown(text)} did not end by itself in {MAX_ATTEMPTS} attempts; change it a "
                "little, or try another --seed"
            )
        return _Spoken(best.samples, best.missing_words)


def is_spoken(text: str, options: SpeechOptions) -> bool:
    """Whether a passage has anything to say; one without, such as `* * *`, is a silence."""
    text = remove_markup(text) if options.clean else text
    return options.is_speakable(options.remove_emoji(text))


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:79]}…")


def work_path(output: Path) -> Path:
    """The work folder of an output: beside it, with its name."""
    name = os.path.normpath(output)
    return Path(f"{name}.parts")
