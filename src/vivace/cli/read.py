"""`vivace read BOOK -o book.m4b`: checks a book, then speaks it to an audiobook."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vivace._version import __version__
from vivace.audio.formats import cover_kind
from vivace.books.book import Book
from vivace.books.check import BookCheck, check_segments
from vivace.books.epub import MAX_COVER_BYTES
from vivace.books.open import open_book
from vivace.books.output import AudiobookOutput, choose_output
from vivace.books.reader import BookReader, Progress, WorkFolder, work_path
from vivace.books.segments import Segment, split_book
from vivace.cli.messages import INCOMPLETE, describe_skipped
from vivace.cli.progress import ProgressLine
from vivace.cli.request import check_signature, load_model, model_name, speech_options
from vivace.cli.speak import pick_voice
from vivace.cli.streams import print_json, print_stderr, print_stdout, printable
from vivace.cli.text import read_file
from vivace.errors import RequestError, counted
from vivace.mark.marking import NO_MARKING
from vivace.options import SpeakOptions
from vivace.speech import SAMPLE_RATE, shown

if TYPE_CHECKING:
    from vivace.tts import TTS
    from vivace.voices.voice import Voice

SEED = 1  # without --seed: an interrupted book must continue with the same speech
MIN_LUFS, MAX_LUFS = -40.0, -5.0


def read(arguments: argparse.Namespace) -> int:
    given = speech_options(arguments)
    if arguments.max_frames is not None:
        arguments.fail("--max-frames cannot be used with `read`: it would cut every paragraph")
    book = _apply_metadata(open_book(arguments.book), arguments)
    if arguments.list:
        _list(book, arguments)
        return 0
    path = Path(arguments.output or f"{Path(arguments.book).stem}.m4b")
    output, segments = _output(path, book, arguments), split_book(book)
    check_signature(arguments, output.format)
    _print_counts(book, arguments)
    with ExitStack() as stack:
        tts = stack.enter_context(load_model(arguments, max_streams=None))
        voice = pick_voice(tts, arguments)
        seed = given.sampling.get("seed", SEED)
        options = given.to(SpeakOptions, trim=True, voice=voice, seed=seed, mark=NO_MARKING)
        marking = tts.synthesizer.find_marking(None)
        mark = tts.loaded.file_mark(marking, voice)
        output = dataclasses.replace(output, marking=marking, mark=mark)
        checked = _check(tts, book, segments, options, arguments)
        reader = _open_reader(tts, path, options, _voice_identity(voice), segments, arguments)
        reader.silent = checked.silent
        stack.enter_context(reader.work.locked())
        _speak(reader, book, segments, arguments)
        tts.close()  # frees its memory while the files are written
        gain_db = output.write(book, segments, reader.work)
        audio_s = sum(map(reader.work.num_samples, segments)) / reader.work.sample_rate
        missing = {
            segment: words for segment in segments if (words := reader.work.missing_words(segment))
        }
        if not arguments.keep_parts:
            reader.work.remove()
    _report(path, book, output, audio_s, gain_db, missing, checked, arguments)
    return INCOMPLETE if missing else 0


# -- before the model is loaded ----------------------------------------------------------------


def _apply_metadata(book: Book, arguments: argparse.Namespace) -> Book:
    """The book with --title, --author and --cover."""
    fields = {"title": arguments.title, "author": arguments.author}
    given: dict[str, Any] = {name: value for name, value in fields.items() if value}
    if arguments.cover is not None:
        given["cover"] = read_file(arguments.cover)
        if len(given["cover"]) > MAX_COVER_BYTES or cover_kind(given["cover"]) is None:
            raise RequestError(
                f"--cover {arguments.cover}: must be a JPEG or PNG image of at most 16 MiB"
            )
    elif book.cover is not None and cover_kind(book.cover) is None:
        given["cover"] = None
    return dataclasses.replace(book, **given)


def _list(book: Book, arguments: argparse.Namespace) -> None:
    rows = [
        {"title": each.title, "characters": each.num_chars, "words": each.num_words}
        for each in book.chapters
    ]
    if arguments.json:
        facts = {"title": book.title, "author": book.author, "chapters": rows}
        print_json(facts | _counts(book))
        return
    by = f", by {book.author}" if book.author else ""
    chapters = "1 chapter" if len(rows) == 1 else f"{len(rows)} chapters"
    print_stdout(f"{book.title}{by}: {chapters}, {book.num_chars:,} characters")
    for number, row in enumerate(rows, start=1):
        print_stdout(f"{number:4d}  {row['title']} ({row['characters']:,})")
    _print_counts(book, arguments)


def _print_counts(book: Book, arguments: argparse.Namespace) -> None:
    """Print the number of words to speak, and of words that are left out by category."""
    if arguments.quiet or arguments.json:
        return
    left_out = ", ".join(f"{count:,} in {name}" for name, count in book.left_out.items())
    print_stderr(f"{counted(book.num_words, 'word')} to speak; left out: {left_out or 'none'}")


def _counts(book: Book) -> dict[str, Any]:
    return {"words": book.num_words, "left_out": dict(book.left_out)}


def _output(path: Path, book: Book, arguments: argparse.Namespace) -> AudiobookOutput:
    if not MIN_LUFS <= arguments.loudness <= MAX_LUFS:
        raise RequestError(
            f"--loudness must be {MIN_LUFS:g} to {MAX_LUFS:g} LUFS, not {arguments.loudness:g}"
        )
    output = choose_output(
        path,
        book,
        format=arguments.format,
        loudness=arguments.loudness,
        force=arguments.force,
        bit_rate=arguments.bit_rate,
    )
    output.check(SAMPLE_RATE, book.cover)
    return output


# -- with the model ----------------------------------------------------------------------------


def _check(
    tts: TTS,
    book: Book,
    segments: list[Segment],
    options: SpeakOptions,
    arguments: argparse.Namespace,
) -> BookCheck:
    """Find every passage that the model rejects, before the first one is spoken."""
    with ProgressLine(is_quiet=arguments.quiet or arguments.json) as line:
        line.show("checking all chapters")
        checked = check_segments(tts, book, segments, options)
    if checked.skipped and not arguments.json:
        print_stderr(f"vivace: {printable(arguments.book)}: {describe_skipped(checked.skipped)}")
    return checked


def _open_reader(
    tts: TTS,
    path: Path,
    options: SpeakOptions,
    voice: str | None,
    segments: list[Segment],
    arguments: argparse.Namespace,
) -> BookReader:
    lexicon = b"" if arguments.lexicon is None else read_file(arguments.lexicon)
    identity = {
        **{name: value for name, value in options.changed().items() if name != "mark"},
        "voice": voice,
        "lexicon": hashlib.sha256(lexicon).hexdigest(),
        "model": model_name(arguments) or "embedded",
        "revision": arguments.revision,
        "version": __version__,
    }
    work = WorkFolder.open(work_path(path), tts.sample_rate, identity, segments)
    return BookReader(tts, work, options)


def _voice_identity(voice: str | Voice | None) -> str | None:
    if voice is None or isinstance(voice, str):
        return voice
    codes = b"" if voice.ref_codes is None else voice.ref_codes.tobytes()
    content = voice.speaker.tobytes() + codes + (voice.ref_text or "").encode()
    return hashlib.sha256(content).hexdigest()


def _speak(
    reader: BookReader, book: Book, segments: list[Segment], arguments: argparse.Namespace
) -> None:
    is_quiet, chapter = arguments.quiet or arguments.json, -1
    num_finished, folder = sum(map(reader.work.has, segments)), printable(reader.work.path)
    if num_finished and not is_quiet:
        print_stderr(f"{num_finished} of {len(segments)} segments are already in {folder}")
    with ProgressLine(is_quiet=is_quiet) as line:
        try:
            for progress in reader.read(segments):
                text = _format_progress(progress, book)
                line.show(text)
                if progress.chapter != chapter and not line.is_on and not is_quiet:
                    print_stderr(text)
                chapter = progress.chapter
        except KeyboardInterrupt:
            line.keep()
            if not is_quiet:
                print_stderr(
                    f"finished segments are kept in {folder}; run the same command to continue"
                )
            raise


def _format_progress(progress: Progress, book: Book) -> str:
    percent = 100 * progress.num_done // progress.num_chars
    left = "" if progress.left_s is None else f", {_duration(progress.left_s)} left"
    title = printable(book.chapters[progress.chapter].title)
    return f"{percent} %{left}: chapter {progress.chapter + 1} of {len(book.chapters)}, {title}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def _report(
    path: Path,
    book: Book,
    output: AudiobookOutput,
    audio_s: float,
    gain_db: float,
    missing: Mapping[Segment, list[str]],
    checked: BookCheck,
    arguments: argparse.Namespace,
) -> None:
    if arguments.json:
        files = [str(each) for each in output.paths]
        facts = {"output": files, "audio_s": audio_s, "gain_db": round(gain_db, 2)}
        words = [word for some in missing.values() for word in some]
        facts |= {"missing_words": words, "skipped": list(checked.skipped)}
        print_json(facts | _counts(book))
        return
    for segment, some in missing.items():
        title = printable(book.chapters[segment.chapter].title)
        where = f"chapter {segment.chapter + 1} ({title}), {shown(segment.passages[0].text)}"
        print_stderr(f"vivace: {where}: words not spoken: {printable(', '.join(some))}")
    if not arguments.quiet:
        files_text = f"{len(output.paths)} files" if output.is_split else "one file"
        print_stderr(
            f"{printable(path)}: {files_text}, {_duration(audio_s)} of audio at "
            f"{output.loudness:g} LUFS ({gain_db:+.1f} dB)"
        )
