"""Finished pieces to an audiobook: one loudness for all, one file or a file for each chapter."""

from __future__ import annotations

import io
import math
import re
import string
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from vivace.audio.encode import EXTENSIONS, open_encoder
from vivace.audio.id3 import id3_tag
from vivace.audio.loudness import LoudnessMeter, limit_peaks
from vivace.audio.m4b import Mark, write_m4b
from vivace.audio.writer import claim_audio_file
from vivace.books.book import Book
from vivace.books.pieces import Piece
from vivace.books.reader import WorkFolder
from vivace.errors import AudioError, RequestError

M4B = (".m4b", ".m4a")
FORMATS = {**dict.fromkeys(M4B, "m4b"), **EXTENSIONS}  # of a book, by the ending of its file
CEILING = 10 ** (-1 / 20)  # -1 dBFS, for encoders that overshoot
MAX_NAME_CHARS = 80
PATTERN_NAMES = {"n", "title"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Where the audiobook goes: `paths` has one file, or one for each chapter."""

    paths: tuple[Path, ...]
    is_split: bool
    loudness: float  # LUFS
    force: bool = False
    bit_rate: int | None = None

    def check(self, sample_rate: int, cover: bytes | None = None) -> None:
        """What cannot be written is an error before anything is spoken."""
        for path in self.paths:
            if not self.force and path.exists():
                raise AudioError(
                    f"{path} exists; choose another name, or overwrite it with --force"
                )
        if format_of(self.paths[0]) == "m4b":
            silence = [np.zeros(4_096, np.float32)]
            write_m4b(io.BytesIO(), silence, sample_rate, marks=[], tags={}, cover=cover)
        else:
            open_encoder(format_of(self.paths[0]), sample_rate, self.bit_rate).finish()

    def write(self, book: Book, pieces: list[Piece], work: WorkFolder) -> float:
        """Write the files; returns the gain in dB that brought them to the loudness."""
        gain_db = self._gain(pieces, work)
        chapters: list[list[Piece]] = [[] for _ in book.chapters]
        for piece in pieces:
            chapters[piece.chapter].append(piece)
        if not self.is_split:
            self._write(self.paths[0], book, list(enumerate(chapters)), work, gain_db)
        else:
            for number, (path, chapter) in enumerate(zip(self.paths, chapters, strict=True)):
                self._write(path, book, [(number, chapter)], work, gain_db)
        return gain_db

    def _gain(self, pieces: list[Piece], work: WorkFolder) -> float:
        meter = LoudnessMeter(work.sample_rate)
        for piece in pieces:
            meter.process(work.read(piece))
        measured = meter.integrated
        return self.loudness - measured if math.isfinite(measured) else 0.0

    def _write(
        self,
        path: Path,
        book: Book,
        chapters: list[tuple[int, list[Piece]]],
        work: WorkFolder,
        gain_db: float,
    ) -> None:
        marks = [
            Mark(book.chapters[number].title, sum(map(work.num_samples, pieces)))
            for number, pieces in chapters
        ]
        tags = {"album": book.title, "artist": book.author or "", "genre": "Audiobook"}
        tags["title"] = marks[0].title if self.is_split else book.title
        if self.is_split:
            tags["track"] = f"{chapters[0][0] + 1}/{len(book.chapters)}"
        samples = _louder((piece for _, pieces in chapters for piece in pieces), work, gain_db)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            claim = claim_audio_file(path, force=self.force)
            try:
                self._encode(claim.file, path, samples, work.sample_rate, marks, tags, book.cover)
                claim.commit()
            finally:
                claim.discard()
        except OSError as error:
            raise AudioError(f"cannot write {path}: {error.strerror or error}") from error

    def _encode(
        self,
        file: BinaryIO,
        path: Path,
        samples: Iterator[NDArray[np.float32]],
        rate: int,
        marks: list[Mark],
        tags: dict[str, str],
        cover: bytes | None,
    ) -> None:
        if format_of(path) == "m4b":
            write_m4b(
                file, samples, rate, marks=marks, tags=tags, cover=cover, bit_rate=self.bit_rate
            )
            return
        encoder = open_encoder(format_of(path), rate, self.bit_rate)
        start = file.write(id3_tag(tags, cover)) if format_of(path) == "mp3" else 0
        for part in samples:
            file.write(encoder.encode(part))
        file.write(encoder.finish())
        for position, patch in encoder.patches:
            file.seek(start + position)
            file.write(patch)


def format_of(path: Path) -> str:
    """`m4b`, or the name of an audio format, by the file's ending."""
    if path.suffix.lower() not in FORMATS:
        raise AudioError(f"cannot write {path.name!r}; name it with one of: {', '.join(FORMATS)}")
    return FORMATS[path.suffix.lower()]


def choose_output(
    output: Path,
    book: Book,
    *,
    format: str | None,
    loudness: float,
    force: bool,
    bit_rate: int | None,
) -> Output:
    """A file; a pattern with `{n}` and `{title}`; or a folder, for a file of each chapter."""
    text = str(output)
    if "{" in text:
        _check_pattern(text)
        pattern = text
    elif output.suffix and not output.is_dir():
        if format is not None and format != output.suffix[1:].lower():
            raise RequestError(f"--format {format} and the name {output.name!r} differ; give one")
        return Output(
            paths=(output,), is_split=False, loudness=loudness, force=force, bit_rate=bit_rate
        )
    else:
        pattern = f"{text.replace('{', '{{')}/{{n:02}} {{title}}.{format or 'mp3'}"
    paths = tuple(
        Path(pattern.format(n=number, title=_file_name(chapter.title)))
        for number, chapter in enumerate(book.chapters, start=1)
    )
    if len(set(paths)) < len(paths):
        raise RequestError(f"two chapters would have the same name; put {{n}} into {text!r}")
    return Output(paths=paths, is_split=True, loudness=loudness, force=force, bit_rate=bit_rate)


def _check_pattern(pattern: str) -> None:
    try:
        parts = list(string.Formatter().parse(pattern))
        names = {name for _, name, _, _ in parts if name is not None}
        pattern.format(n=1, title="x")
    except (ValueError, KeyError, IndexError, AttributeError) as error:
        names = {str(error)}
    if not names <= PATTERN_NAMES:
        raise RequestError(
            f"a pattern has {{n}} and {{title}}, as in 'book/{{n:02}}.mp3', not {pattern!r}"
        )


def _file_name(title: str) -> str:
    """A title as a part of a file name, on any system."""
    words = re.sub(r"[^\w .,'()-]", " ", title).strip(" .")
    return re.sub(r"\s+", " ", words)[:MAX_NAME_CHARS].strip(" .") or "chapter"


def _louder(
    pieces: Iterator[Piece], work: WorkFolder, gain_db: float
) -> Iterator[NDArray[np.float32]]:
    gain = np.float32(10 ** (gain_db / 20))
    for piece in pieces:
        yield limit_peaks(work.read(piece) * gain, CEILING, work.sample_rate)
