"""Reads the text of a command: an argument, all of stdin, or stdin while it is written."""

from __future__ import annotations

import argparse
import codecs
import re
from collections.abc import Iterator
from pathlib import Path

from vivace.cli.streams import STDIN, is_terminal_stdin, open_stdin
from vivace.errors import RequestError, TextTooLongError
from vivace.options import SpeechOptions
from vivace.text.files import decode_utf8, read_utf8
from vivace.text.markup import remove_markup
from vivace.text.pauses import parse_pauses

MAX_TEXT_BYTES = 4_000_000  # 1,000,000 characters, the longest text
READ_BYTES = 4096
_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")


def read_text(
    arguments: argparse.Namespace, options: SpeechOptions, *, live: bool = False
) -> str | Iterator[str]:
    """The text to speak. With `live`, stdin is returned in parts while it is written."""
    if arguments.text is None and is_terminal_stdin():
        arguments.fail("TEXT is missing; pass it as an argument or pipe it to stdin")
    if arguments.text in (None, STDIN) and live:
        return live_stdin()
    is_stdin = arguments.text in (None, STDIN)
    text = read_stdin() if is_stdin else decode_argument(str(arguments.text))
    check_text(text, options)
    return text


def decode_argument(text: str) -> str:
    """An argument as UTF-8. In the locale C, Python turns its bytes into surrogates."""
    if not _ESCAPED_BYTE.search(text):
        return text
    return decode_utf8(
        text.encode("utf-8", "surrogateescape"), "TEXT", MAX_TEXT_BYTES, RequestError
    )


def check_text(text: str, options: SpeechOptions) -> None:
    """Raise TextError for a text that no model can speak, before a model is loaded."""
    from vivace.text.pipeline import MAX_TEXT_CHARS

    if options.lexicon is None:  # a lexicon may replace any sign by a word
        options.check_speakable(text)
    if len(text) > MAX_TEXT_CHARS:
        raise TextTooLongError(len(text), MAX_TEXT_CHARS, "characters")
    parse_pauses(remove_markup(text) if options.clean else text)


def read_stdin() -> str:
    content = open_stdin("the text").read(MAX_TEXT_BYTES + 1)
    return decode_utf8(content, "stdin", MAX_TEXT_BYTES, RequestError).rstrip("\r\n")


def live_stdin() -> Iterator[str]:
    """Parts of stdin while it is written, without the line ends at its end."""
    held = ""
    for part in _decoded_stdin():
        text = held + part
        held = text[len(text.rstrip("\r\n")) :]
        if len(text) > len(held):
            yield text.removesuffix(held)


def _decoded_stdin() -> Iterator[str]:
    decoder, stdin = codecs.getincrementaldecoder("utf-8-sig")(), open_stdin("the text")
    while True:
        content = stdin.read1(READ_BYTES)  # type: ignore[attr-defined]
        try:
            yield decoder.decode(content, final=not content)
        except UnicodeDecodeError as error:
            yield error.object[: error.start].decode("utf-8")  # text before the error is spoken
            raise RequestError(
                f"stdin is not UTF-8: {error.reason}; save the text as UTF-8"
            ) from error
        if not content:
            return


def read_transcript(arguments: argparse.Namespace) -> str | None:
    """The words of the reference recording, from --ref-text or --ref-text-file."""
    if arguments.transcript_file is None:
        words: str | None = arguments.transcript
        return words
    return read_utf8(arguments.transcript_file, MAX_TEXT_BYTES, RequestError).strip()


def read_file(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise RequestError(f"{path}: cannot be read: {error.strerror or error}") from error
