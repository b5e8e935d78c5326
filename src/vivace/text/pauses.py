"""Pause marks in a text: `[pause 0.5s]` and `[pause 500ms]`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from vivace.errors import RequestError, TextError

MAX_PAUSE_S = 10.0
SILENT_S = 0.6  # silence instead of a text without words, such as "..." or "* * *"

# "[pause] button" and "[pause for effect]" are words.
PAUSE_MARK = re.compile(
    r"\[pause[ \t]{1,8}([0-9]{1,9}(?:\.[0-9]{1,9})?|\.[0-9]{1,9})[ \t]{0,8}(ms|s)\]", re.IGNORECASE
)
# The end of a piece that may still become a pause mark.
OPEN_MARK = re.compile(
    r"\[(?:p(?:a(?:u(?:s(?:e(?:[ \t]{1,8}[0-9.]{0,19}[ \t]{0,8}(?:ms?|s)?)?)?)?)?)?)?\Z",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Pause:
    """Silence of `seconds`."""

    seconds: float

    def __post_init__(self) -> None:
        if not 0 < self.seconds <= MAX_PAUSE_S:
            raise TextError(
                f"a pause lasts more than 0 and at most {MAX_PAUSE_S:g} seconds, "
                f"not {self.seconds:g}; write [pause 0.5s] or [pause 500ms]"
            )


def parse_pauses(text: str, errors: list[RequestError] | None = None) -> list[str | Pause]:
    """The text around the pauses, and the pauses, in order; no string is empty.

    A pause that is too short or too long raises a RequestError. With a list in `errors`, the
    error is appended there and the pause is left out.
    """
    parts: list[str | Pause] = []
    end = 0
    for mark in PAUSE_MARK.finditer(text):
        parts.append(text[end : mark.start()])
        end = mark.end()
        try:
            parts.append(Pause(float(mark[1]) / (1000 if mark[2].lower() == "ms" else 1)))
        except RequestError as error:
            if errors is None:
                raise
            errors.append(error)
    parts.append(text[end:])
    return [part for part in parts if part != ""]
