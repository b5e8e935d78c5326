"""Writes finished segments as an audiobook: one loudness, and one file or one file per chapter."""

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

from vivace.audio.encode import EncoderTags, open_encoder
from vivace.audio.file_mark import FileMark
from vivace.audio.formats import AUDIOBOOK_FORMATS, M4B, check_bit_rate, format_of
from vivace.audio.loudness import LoudnessMeter, limit_peaks
from vivace.audio.m4b import ChapterMark, write_m4b
from vivace.audio.wav import Samples
from vivace.audio.writer import claim_audio_file, sign_file
from vivace.books.book import Book
from vivace.books.reader import WorkFolder
from vivace.books.segments import Segment
from vivace.disk import why_unwritable
from vivace.errors import AudioError, OutputExistsError, RequestError
from vivace.mark.marking import NO_MARKING, Marking, SampleMarker

CEILING = 10 ** (-1 / 20)  # -1 dBFS, for encoders that overshoot
MAX_NAME_CHARS = 80
PATTERN_NAMES = {"n", "title"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AudiobookOutput:
    """The files of an audiobook."""

    paths: tuple[Path, ...]  # one file, or one per chapter if `is_split`
    is_split: bool
    loudness: float  # LUFS
    force: bool = False
    bit_rate: int | None = None
    marking: Marking = NO_MARKING
    mark: FileMark | None = None  # of every file

    def check(self, sample_rate: int, cover: bytes | None = None) -> None:
        """Raise AudioError if the files cannot be written."""
        if not self.is_split and (reason := why_unwritable(self.paths[0])) is not None:
            raise AudioError(f"cannot write {self.paths[0]}: {reason}")
        for path in self.paths:
            if not self.force and path.exists():
                raise OutputExistsError(path, "--force")
        check_bit_rate(self.bit_rate)
        if self.format == M4B.name:
            silence = [np.zeros(4_096, np.float32)]
            write_m4b(io.BytesIO(), silence, sample_rate, marks=[], tags={}, cover=cover)
        else:
            open_encoder(self.format, sample_rate, self.bit_rate).finish()

    def write(self, book: Book, segments: list[Segment], work: WorkFolder) -> float:
        """Write the files and return the applied gain in dB."""
        gain_db = self._gain(segments, work)
        chapters: list[list[Segment]] = [[] for _ in book.chapters]
        for segment in segments:
            chapters[segment.chapter].append(segment)
        numbered = list(enumerate(chapters))
        files = [[each] for each in numbered] if self.is_split else [numbered]
        for path, content in zip(self.paths, files, strict=True):
            self._write(path, book, content, work, gain_db)
        return gain_db

    def _gain(self, segments: list[Segment], work: WorkFolder) -> float:
        meter = LoudnessMeter(work.sample_rate)
        for segment in segments:
            meter.process(work.read(segment))
        measured = meter.integrated
        return self.loudness - measured if math.isfinite(measured) else 0.0

    def _write(
        self,
        path: Path,
        book: Book,
        chapters: list[tuple[int, list[Segment]]],
        work: WorkFolder,
        gain_db: float,
    ) -> None:
        marks = [
            ChapterMark(book.chapters[number].title, sum(map(work.num_samples, segments)))
            for number, segments in chapters
        ]
        tags = {"album": book.title, "artist": book.author or "", "genre": "Audiobook"}
        tags["title"] = marks[0].title if self.is_split else book.title
        if self.is_split:
            tags["track"] = f"{chapters[0][0] + 1}/{len(book.chapters)}"
        tags |= {} if self.mark is None else self.mark.tags
        parts = (segment for _, segments in chapters for segment in segments)
        marker = self.marking.open_stream(work.sample_rate)
        samples = _watermarked(_amplified(parts, work, gain_db), marker)
        try:
            if self.is_split:  # `-o` names the folder
                path.parent.mkdir(parents=True, exist_ok=True)
            claim = claim_audio_file(path, force=self.force)
            try:
                self._encode(claim.file, samples, work.sample_rate, marks, tags, book.cover)
                if self.mark is not None and self.mark.signer is not None:
                    sign_file(self.mark.signer, claim.file, self.format, path.name)
                claim.commit()
            finally:
                claim.discard()
        except OSError as error:
            raise AudioError(f"cannot write {path}: {error.strerror or error}") from error

    @property
    def format(self) -> str:
        return format_of(self.paths[0], AUDIOBOOK_FORMATS)

    def _encode(
        self,
        file: BinaryIO,
        samples: Iterator[Samples],
        rate: int,
        marks: list[ChapterMark],
        tags: dict[str, str],
        cover: bytes | None,
    ) -> None:
        if self.format == M4B.name:
            write_m4b(
                file, samples, rate, marks=marks, tags=tags, cover=cover, bit_rate=self.bit_rate
            )
            return
        own = EncoderTags(fields=tags, cover=cover)
        encoder = open_encoder(self.format, rate, self.bit_rate, own)
        for part in samples:
            file.write(encoder.encode(part))
        file.write(encoder.finish())
        encoder.patch(file)


def choose_output(
    output: Path,
    book: Book,
    *,
    format: str | None,
    loudness: float,
    force: bool,
    bit_rate: int | None,
) -> AudiobookOutput:
    """Interpret -o as a file, a pattern with `{n}` and `{title}`, or a folder.

    A pattern and a folder have one file per chapter.
    """
    text = str(output)
    if "{" in text:
        _check_pattern(text)
        pattern = text
    elif output.suffix and not output.is_dir():
        if format is not None and format != output.suffix[1:].lower():
            raise RequestError(
                f"--format {format} contradicts the file name {output.name!r}; omit one of them"
            )
        return AudiobookOutput(
            paths=(output,), is_split=False, loudness=loudness, force=force, bit_rate=bit_rate
        )
    else:
        pattern = f"{text.replace('{', '{{')}/{{n:02}} {{title}}.{format or 'mp3'}"
    paths = tuple(
        Path(pattern.format(n=number, title=_file_name(chapter.title)))
        for number, chapter in enumerate(book.chapters, start=1)
    )
    if len(set(paths)) < len(paths):
        raise RequestError(f"{text!r} gives two chapters the same file name; add {{n}}")
    return AudiobookOutput(
        paths=paths, is_split=True, loudness=loudness, force=force, bit_rate=bit_rate
    )


def _check_pattern(pattern: str) -> None:
    try:
        parts = list(string.Formatter().parse(pattern))
        names = {name for _, name, _, _ in parts if name is not None}
        pattern.format(n=1, title="x")
    except (ValueError, KeyError, IndexError, AttributeError) as error:
        names = {str(error)}
    if not names <= PATTERN_NAMES:
        raise RequestError(
            f"{pattern!r}: only {{n}} and {{title}} are allowed, for example 'book/{{n:02}}.mp3'"
        )


def _file_name(title: str) -> str:
    """A title as part of a file name that is valid on every system."""
    words = re.sub(r"[^\w .,'()-]", " ", title).strip(" .")
    return re.sub(r"\s+", " ", words)[:MAX_NAME_CHARS].strip(" .") or "chapter"


def _watermarked(samples: Iterator[Samples], marker: SampleMarker | None) -> Iterator[Samples]:
    if marker is None:
        yield from samples
        return
    for part in samples:
        yield marker.feed(part)
    yield marker.finish()


def _amplified(segments: Iterator[Segment], work: WorkFolder, gain_db: float) -> Iterator[Samples]:
    gain = np.float32(10 ** (gain_db / 20))
    for segment in segments:
        yield limit_peaks(work.read(segment) * gain, CEILING, work.sample_rate)
