"""`vivace repl`: speaks every line of stdin with one loaded model."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
from collections.abc import Iterator
from dataclasses import replace

from vivace.cli.messages import print_error
from vivace.cli.output import choose_series
from vivace.cli.request import load_model, speech_options
from vivace.cli.signals import Terminated
from vivace.cli.speak import pick_voice, speak
from vivace.cli.streams import is_terminal_stdin, print_stdout
from vivace.cli.text import MAX_TEXT_BYTES
from vivace.errors import RequestError, TTSError
from vivace.text.files import decode_utf8

PROMPT = "vivace> "
EXIT = "exit"
TRIAL = "Hello."


def repl(arguments: argparse.Namespace) -> int:
    options = speech_options(arguments)
    target = choose_series(arguments)
    arguments.stream = True
    is_typed = is_terminal_stdin() and sys.stdout.isatty()
    with load_model(arguments) as tts:
        options = replace(options, voice=pick_voice(tts, arguments))
        # Raises for an unknown voice before any line.
        tts.synthesizer.stream(TRIAL, options).close()
        lines = map(str.strip, _typed_lines() if is_typed else _piped_lines())
        for line in filter(None, itertools.takewhile(lambda line: line != EXIT, lines)):
            try:
                with target.renewed() as own:
                    speak(tts, line, options, own, arguments)
            except TTSError as error:
                print_error(error, is_json=arguments.json)
            except Terminated:
                raise
            except KeyboardInterrupt:
                continue  # Ctrl-C ends this line only
    return 0


def _typed_lines() -> Iterator[str]:
    """Lines typed at a prompt. Ctrl-C drops the current line."""
    with contextlib.suppress(ImportError):  # line editing and history, where available
        import readline  # noqa: F401
    while True:
        try:
            yield input(PROMPT)
        except EOFError:
            print_stdout("")
            return
        except Terminated:
            raise
        except KeyboardInterrupt:
            print_stdout("  (exit or Ctrl-D ends)")
        except UnicodeDecodeError as error:
            print_error(RequestError(f"the line is not UTF-8: {error.reason}"))


def _piped_lines() -> Iterator[str]:
    lines = sys.stdin.buffer if sys.stdin is not None else ()
    for number, content in enumerate(lines, start=1):
        try:
            yield decode_utf8(content, "stdin", MAX_TEXT_BYTES, RequestError, first_line=number)
        except RequestError as error:
            print_error(error)
