"""`vivace read BOOK -o book.m4b`: checks a book, then makes an audiobook of it piece by piece."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vivace._version import __version__
from vivace.audio.m4b import cover_kind
from vivace.books.book import Book, open_book
from vivace.cli.messages import CUT_SHORT, LiveLine, describe_skipped
from vivace.cli.request import load_model, model_name, speech_options
from vivace.cli.speak import pick_voice
from vivace.cli.streams import plain, put, tell
from vivace.cli.text import read_file
from vivace.errors import RequestError
from vivace.options import SpeakOptions
from vivace.speech import SAMPLE_RATE, shown

if TYPE_CHECKING:
    from vivace.books.check import BookCheck
    from vivace.books.output import Output
    from vivace.books.pieces import Piece
    from vivace.books.reader import BookReader, Progress
    from vivace.tts import TTS
    from vivace.voices.voice import Voice

SEED = 1  # where none is given: what goes on after a kill has to be the same book
LOUDNESS = (-40.0, -5.0)  # LUFS that make sense
MAX_COVER_BYTES = 16 * 2**20


def read(arguments: argparse.Namespace) -> int:
    given = speech_options(arguments)
    if arguments.max_frames is not None:
        arguments.fail("--max-frames would cut every paragraph; a book is read whole")
    book = _describe(open_book(arguments.book), arguments)
    if arguments.list:
        _list(book, arguments)
        return 0
    from vivace.books.pieces import cut_book

    path = Path(arguments.output or f"{Path(arguments.book).stem}.m4b")
    output, pieces = _output(path, book, arguments), cut_book(book)
    _print_count(book, arguments)
    with ExitStack() as stack:
        tts = stack.enter_context(load_model(arguments, max_streams=None))
        voice = pick_voice(tts, arguments)
        options = given.to(
            SpeakOptions,
            trim=True,
            voice=voice,
            speed=arguments.speed,
            seed=given.sampling.get("seed", SEED),
        )
        checked = _check(tts, book, pieces, options, arguments)
        reader = _open_reader(tts, path, options, _voice_identity(voice), pieces, arguments)
        reader.silent = checked.silent
        stack.enter_context(reader.work.locked())
        _make(reader, book, pieces, arguments)
        tts.close()  # its memory is for others while the file is written
        gain_db = output.write(book, pieces, reader.work)
        audio_s = sum(map(reader.work.num_samples, pieces)) / reader.work.sample_rate
        missing = {piece: words for piece in pieces if (words := reader.work.missing_words(piece))}
        if not arguments.keep_parts:
            reader.work.remove()
    _report(path, book, output, audio_s, gain_db, missing, checked, arguments)
    return CUT_SHORT if missing else 0


# -- before a model is loaded ------------------------------------------------------------------


def _describe(book: Book, arguments: argparse.Namespace) -> Book:
    """The book with what the command line says about it."""
    told = {"title": arguments.title, "author": arguments.author}
    given: dict[str, Any] = {name: value for name, value in told.items() if value}
    if arguments.cover is not None:
        given["cover"] = read_file(arguments.cover)
        if len(given["cover"]) > MAX_COVER_BYTES or cover_kind(given["cover"]) is None:
            raise RequestError(f"{arguments.cover} is no JPEG or PNG image of at most 16 MiB")
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
        put(json.dumps(facts | _counts(book)))
        return
    by = f", by {book.author}" if book.author else ""
    put(f"{book.title}{by}: {len(rows)} chapters, {book.num_chars:,} characters")
    for number, row in enumerate(rows, start=1):
        put(f"{number:4d}  {row['title']} ({row['characters']:,})")
    _print_count(book, arguments)


def _print_count(book: Book, arguments: argparse.Namespace) -> None:
    """Print how many words are spoken, and how many of each category are left out."""
    if arguments.quiet or arguments.json:
        return
    left_out = ", ".join(f"{count:,} in {name}" for name, count in book.left_out.items())
    tell(f"{book.num_words:,} words to speak; left out: {left_out or 'none'}")


def _counts(book: Book) -> dict[str, Any]:
    return {"words": book.num_words, "left_out": dict(book.left_out)}


def _output(path: Path, book: Book, arguments: argparse.Namespace) -> Output:
    from vivace.books.output import choose_output

    if not LOUDNESS[0] <= arguments.loudness <= LOUDNESS[1]:
        raise RequestError(f"--loudness is {LOUDNESS[0]:g} to {LOUDNESS[1]:g} LUFS")
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


# -- with a model ------------------------------------------------------------------------------


def _check(
    tts: TTS,
    book: Book,
    pieces: list[Piece],
    options: SpeakOptions,
    arguments: argparse.Namespace,
) -> BookCheck:
    """Find every passage that the model refuses, before the first one is spoken."""
    from vivace.books.check import check_pieces

    live = LiveLine(is_quiet=arguments.quiet or arguments.json)
    live.show("checking all chapters")
    try:
        checked = check_pieces(tts, book, pieces, options)
    finally:
        live.clear()
    if checked.skipped and not arguments.json:
        tell(f"vivace: {plain(arguments.book)}: {describe_skipped(checked.skipped)}")
    return checked


def _open_reader(
    tts: TTS,
    path: Path,
    options: SpeakOptions,
    voice: str | None,
    pieces: list[Piece],
    arguments: argparse.Namespace,
) -> BookReader:
    from vivace.books.reader import BookReader, WorkFolder, work_path

    lexicon = b"" if arguments.lexicon is None else read_file(arguments.lexicon)
    identity = {
        **options.changed(),
        "voice": voice,
        "lexicon": hashlib.sha256(lexicon).hexdigest(),
        "model": model_name(arguments) or "embedded",
        "revision": arguments.revision,
        "version": __version__,
    }
    work = WorkFolder.open(work_path(path), tts.sample_rate, identity, pieces)
    return BookReader(tts, work, options)


def _voice_identity(voice: str | Voice | None) -> str | None:
    if voice is None or isinstance(voice, str):
        return voice
    codes = b"" if voice.ref_codes is None else voice.ref_codes.tobytes()
    content = voice.speaker.tobytes() + codes + (voice.ref_text or "").encode()
    return hashlib.sha256(content).hexdigest()


def _make(
    reader: BookReader, book: Book, pieces: list[Piece], arguments: argparse.Namespace
) -> None:
    is_quiet = arguments.quiet or arguments.json
    live, last = LiveLine(is_quiet=is_quiet), -1
    num_made = sum(map(reader.work.has, pieces))
    if num_made and not is_quiet:
        tell(f"{num_made} of {len(pieces)} pieces are made already, in {plain(reader.work.path)}")
    try:
        for progress in reader.read(pieces):
            words = _words(progress, book)
            live.show(words)
            if progress.chapter != last and not live.is_on and not is_quiet:
                tell(words)
            last = progress.chapter
    except KeyboardInterrupt:
        live.end()
        if not is_quiet:
            tell(f"what is made is kept in {plain(reader.work.path)}; the same command goes on")
        raise
    finally:
        live.clear()


def _words(progress: Progress, book: Book) -> str:
    percent = 100 * progress.num_done // progress.num_chars
    left = "" if progress.left_s is None else f", {_duration(progress.left_s)} left"
    title = plain(book.chapters[progress.chapter].title)
    return f"{percent} %{left}: {progress.chapter + 1} of {len(book.chapters)}, {title}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def _report(
    path: Path,
    book: Book,
    output: Output,
    audio_s: float,
    gain_db: float,
    missing: Mapping[Piece, list[str]],
    checked: BookCheck,
    arguments: argparse.Namespace,
) -> None:
    if arguments.json:
        files = [str(each) for each in output.paths]
        facts = {"output": files, "audio_s": audio_s, "gain_db": round(gain_db, 2)}
        words = [word for some in missing.values() for word in some]
        facts |= {"missing_words": words, "skipped": list(checked.skipped)}
        put(json.dumps(facts | _counts(book)))
        return
    for piece, some in missing.items():
        title = plain(book.chapters[piece.chapter].title)
        where = f"chapter {piece.chapter + 1} ({title}), {shown(piece.passages[0].text)}"
        tell(f"vivace: {where}: not spoken: {plain(', '.join(some))}")
    if not arguments.quiet:
        what = f"{len(output.paths)} files" if output.is_split else "one file"
        tell(
            f"{plain(path)}: {what}, {_duration(audio_s)} of audio at {output.loudness:g} LUFS "
            f"({gain_db:+.1f} dB)"
        )
