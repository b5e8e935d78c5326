"""Reads the rows of metadata files: JSON, LJSpeech's `id|text`, and tables with a header."""

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

# The line, or the place in an array; and the values, or why they cannot be read.
TableRow = tuple[int, dict[str, Any] | str]


def read_json_rows(text: str) -> Iterator[TableRow]:
    """The objects of an array, or one of each line."""
    if (values := _read_array(text)) is not None:
        yield from ((number, _object(one)) for number, one in enumerate(values, start=1))
        return
    for number, line in enumerate(text.split("\n"), start=1):  # U+2028 does not end a line
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield number, f"not JSON: {str(error)[:100]}"
            continue
        yield number, _object(values)


def _read_array(text: str) -> list[Any] | None:
    if not text.lstrip().startswith("["):
        return None
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):  # each line may be one
        return None
    assert isinstance(values, list)
    return values


def _object(value: Any) -> dict[str, Any] | str:
    return value if isinstance(value, dict) else "not a JSON object"


def read_csv_rows(text: str) -> Iterator[TableRow]:
    first, _, _ = text.partition("\n")
    for delimiter in DELIMITERS:
        names = [name.strip().lower() for name in next(csv.reader([first], delimiter=delimiter))]
        missing = [fields for fields in (AUDIO_FIELDS, TEXT_FIELDS) if not set(names) & set(fields)]
        if not missing:
            yield from _read_cells(text, names, delimiter)
            return
        # A row of LJSpeech has a bar too, and may have the name of a column in its text.
        is_header = len(names) > 1 and ("|" not in first or names[0] in AUDIO_FIELDS + TEXT_FIELDS)
        if is_header and len(missing) == 1:
            column, *others = missing[0]
            yield 1, f"the header has no column {column} (or {', '.join(others)})"
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
