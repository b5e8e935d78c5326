"""Messages of `vivace serve` for people and, with `--log-format json`, for programs."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Iterable
from typing import Any

from vivace.cli.streams import print_stderr, printable
from vivace.errors import TTSError, counted
from vivace.serve.observability.logs import FIELDS
from vivace.serve.settings import ServeSettings

log = logging.getLogger(__name__)


class ServerMessages:
    """Prints lines on stderr. JSON lines are log records, see `log_to_stderr`."""

    def __init__(self, log_format: str) -> None:
        self._is_json = log_format == "json"

    def say(self, words: str, *, level: int = logging.INFO, **fields: Any) -> None:
        """Print a line; `fields` appear in JSON only."""
        if self._is_json:
            log.log(level, "%s", printable(words), extra={FIELDS: fields})
        else:
            print_stderr(words)

    def warn(self, words: str, **fields: Any) -> None:
        prefix = "" if self._is_json else "warning: "
        self.say(f"{prefix}{words}", level=logging.WARNING, **fields)

    def fail(self, error: TTSError) -> None:
        prefix = "" if self._is_json else "vivace: "
        fields = {"error": type(error).__name__}
        self.say(f"{prefix}{printable(error)}", level=logging.ERROR, **fields)

    def show_settings(self, settings: ServeSettings, names: Iterable[str]) -> None:
        """Print all settings with `--verbose`, or the settings that differ from their defaults."""
        shown = {name: value for name, value in settings.describe().items() if name in {*names}}
        if settings.verbose and not self._is_json:
            for name, value in shown.items():
                print_stderr(f"{name:<28} {printable(value)}")
            return
        if not settings.verbose:
            shown = {name: shown[name] for name in settings.changed() if name in shown}
        if shown:
            listed = ", ".join(f"{name} {printable(value)}" for name, value in shown.items())
            self.say(f"settings: {listed}", settings=shown)

    def show_drain(self, num_streams: int, timeout_s: float, number: int) -> None:
        """Report at a signal that `num_streams` running streams are finished first."""
        if sys.stderr.isatty() and not self._is_json:
            print_stderr("")  # the terminal has printed ^C
        if not num_streams:
            return
        is_interrupt = number == signal.SIGINT
        again = "press Ctrl-C again" if is_interrupt else "send the signal again"
        streams = counted(num_streams, "stream")
        words = f"finishing {streams}, up to {timeout_s:g} s; {again} to stop now"
        self.say(words, streams=num_streams, timeout_s=timeout_s)

    def show_cut(self, num_streams: int) -> None:
        """Report that `num_streams` streams are cut off."""
        streams = "1 stream is" if num_streams == 1 else f"{num_streams} streams are"
        words = f"stopping now: {streams} cut off"
        self.say(words, level=logging.WARNING, streams=num_streams)
