"""The text of a command: an argument, all of stdin, or stdin while it is written."""

from __future__ import annotations

import argparse
import codecs
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from vivace.cli.streams import is_terminal_stdin
from vivace.errors import RequestError, TextTooLongError
from vivace.options import SpeechOptions
from vivace.text.markup import clean_text, parse_pauses

STDIN = "-"
MAX_STDIN_BYTES = 4_000_000  # a million characters, the longest text, has no more
PIECE_BYTES = 4096


def read_text(
    arguments: argparse.Namespace, options: SpeechOptions, *, live: bool = False
) -> str | Iterator[str]:
    """The text; with `live`, that of stdin comes in pieces as it is written."""
    if arguments.text is None and is_terminal_stdin():
        arguments.fail("there is no TEXT; give it as an argument or pipe it in")
    if arguments.text in (None, STDIN) and live:
        return live_stdin()
    text = read_stdin() if arguments.text in (None, STDIN) else str(arguments.text)
    check_text(text, options)
    return text


def check_text(text: str, options: SpeechOptions) -> None:
    """Refuse a text that no model could speak, before one is loaded."""
    from vivace.script.prompts import MAX_TEXT_CHARS

    if options.lexicon is None:  # an entry may make a word of any sign
        options.check_speakable(text)
    if len(text) > MAX_TEXT_CHARS:
        raise TextTooLongError(len(text), MAX_TEXT_CHARS, "characters")
    parse_pauses(clean_text(text) if options.clean else text)


def _stdin() -> BinaryIO:
    if sys.stdin is None:
        raise RequestError("stdin is closed; give the text as an argument")
    return cast("BinaryIO", sys.stdin.buffer)


def read_stdin() -> str:
    content = _stdin().read(MAX_STDIN_BYTES + 1)
    if len(content) > MAX_STDIN_BYTES:
        raise RequestError("stdin has more than 1,000,000 characters; split it into parts")
    return decode(content, "stdin").rstrip("\r\n")


def live_stdin() -> Iterator[str]:
    """Pieces as they come, without the line ends after the last of them."""
    held = ""
    for piece in _decoded_stdin():
        text = held + piece
        held = text[len(text.rstrip("\r\n")) :]
        if len(text) > len(held):
            yield text.removesuffix(held)


def _decoded_stdin() -> Iterator[str]:
    decoder, stdin = codecs.getincrementaldecoder("utf-8")(), _stdin()
    while True:
        content = stdin.read1(PIECE_BYTES)  # type: ignore[attr-defined]
        try:
            yield decoder.decode(content, final=not content)
        except UnicodeDecodeError as error:
            yield error.object[: error.start].decode("utf-8")  # speak what came before the error
            raise _not_utf8("stdin", error) from error
        if not content:
            return


def read_transcript(arguments: argparse.Namespace) -> str | None:
    """The words of the reference recording, from the command line or from a file."""
    if arguments.transcript_file is None:
        words: str | None = arguments.transcript
        return words
    return decode(read_file(arguments.transcript_file), arguments.transcript_file).strip()


def read_file(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror or error}") from error


def decode(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _not_utf8(name, error) from error


def _not_utf8(name: str, error: UnicodeDecodeError) -> RequestError:
    return RequestError(f"{name} is not UTF-8: {error}")
