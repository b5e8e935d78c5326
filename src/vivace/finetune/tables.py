"""Reads the rows of metadata files: JSON lines, LJSpeech's `id|text`, and tables with a header."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

AUDIO_FIELDS = ("audio", "file_name", "audio_filepath", "audio_file", "path", "file", "wav")
TEXT_FIELDS = ("text", "transcript", "transcription", "sentence", "normalized_text")
DELIMITERS = (",", "|", "\t", ";")
UNQUOTED = ("|", "\t")  # tables with these delimiters have no quoted cells

TableRow = tuple[int, dict[str, Any] | str]  # the line, and its values or why they cannot be read


def read_json_rows(text: str) -> Iterator[TableRow]:
    for number, line in enumerate(text.split("\n"), start=1):  # U+2028 does not end a line
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield number, f"not JSON: {str(error)[:100]}"
            continue
        yield number, values if isinstance(values, dict) else "not a JSON object"


def read_csv_rows(text: str) -> Iterator[TableRow]:
    first, _, _ = text.partition("\n")
    for delimiter in DELIMITERS:
        names = [name.strip().lower() for name in next(csv.reader([first], delimiter=delimiter))]
        if set(names) & set(AUDIO_FIELDS) and set(names) & set(TEXT_FIELDS):
            yield from _read_cells(text, names, delimiter)
            return
    yield from _read_ljspeech(text)


def _read_cells(text: str, names: Sequence[str], delimiter: str) -> Iterator[TableRow]:
    """The rows below a header. A quoted cell may have several lines."""
    lines = text.removesuffix("\n").split("\n")
    reader = csv.reader(
        io.StringIO(text, newline=""),
        delimiter=delimiter,
        quoting=csv.QUOTE_NONE if delimiter in UNQUOTED else csv.QUOTE_MINIMAL,
    )
    start, number = 1, 1
    try:
        for cells in reader:
            start, number = number, reader.line_num + 1
            if start == 1 or not cells:
                continue
            is_open = number - start > 1 and "\n".join(lines[start - 1 :]).count('"') % 2
            if is_open and number > len(lines):
                yield start, "a quotation mark is not closed; the rows below it are not read"
            else:
                yield start, dict(zip(names, cells, strict=False))
    except csv.Error as error:
        yield number, f"this row and the rows below it cannot be read: {error}"


def _read_ljspeech(text: str) -> Iterator[TableRow]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        name, bar, rest = line.partition("|")
        if not bar:
            yield number, "no | between the file's name and its text"
            continue
        written, _, normalized = rest.partition("|")  # LJSpeech has the text twice
        yield number, {"audio": name.strip(), "text": normalized.strip() or written.strip()}
