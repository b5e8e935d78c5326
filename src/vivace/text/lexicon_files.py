"""Reads the rows of a lexicon file, with their line numbers.

# names.toml                             # names.csv
vivace = "vee-VAH-chay"                  word,respelling,language
[english]                                vivace,vee-VAH-chay
GIF = "jif"                              GIF,jif,english
"""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vivace.errors import LexiconError
from vivace.speech import language_name
from vivace.text.files import read_utf8

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ANY_LANGUAGE = ""
MAX_FILE_BYTES = 32 * 2**20
HEADER = ["word", "respelling", "language"]
_TOML_PLACE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)")
_TOML_TABLE = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(?:#.*)?")
_TOML_KEY = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'[^']*'|[A-Za-z0-9_.-]+)\s*=""")


@dataclass(frozen=True, slots=True)
class Row:
    """An entry that is not checked yet."""

    word: Any
    respelling: Any
    language: str
    where: str  # such as "names.csv, line 3"


def read_rows(path: Path) -> Iterator[Row]:
    """Read the entries of a .toml or .csv file in order."""
    suffix = path.suffix.lower()
    if suffix not in (".toml", ".csv"):
        raise LexiconError(f"{path}: a lexicon is a .toml or a .csv file, not {suffix or 'this'!r}")
    text = read_utf8(path, MAX_FILE_BYTES, LexiconError)
    return (_read_toml if suffix == ".toml" else _read_csv)(text, path)


def entry_language(name: str) -> str:
    """The language of an entry, from a name or a code such as `en`; "" means all languages."""
    return language_name(name) if name.strip() else ANY_LANGUAGE


def _read_csv(text: str, path: Path) -> Iterator[Row]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, skipinitialspace=True)
    while True:
        line = reader.line_num + 1
        try:
            cells = [cell.strip() for cell in next(reader)]
        except StopIteration:
            return
        except csv.Error as error:
            raise LexiconError(f"{path}, line {line}: not valid CSV: {error}") from error
        is_header = line == 1 and [cell.lower() for cell in cells] in (HEADER[:2], HEADER)
        if is_header or not any(cells) or cells[0].startswith("#"):
            continue
        if not 2 <= len(cells) <= 3:
            raise LexiconError(
                f"{path}, line {line}: a row is word,respelling or word,respelling,language, and "
                f"this has {len(cells)} cells (a cell with a comma is quoted)"
            )
        language = entry_language(cells[2] if len(cells) == 3 else ANY_LANGUAGE)
        yield Row(cells[0], cells[1], language, f"{path}, line {line}")


def _read_toml(text: str, path: Path) -> Iterator[Row]:
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        place = _TOML_PLACE.search(str(error))
        line = place[1] if place and place[1] else text.count("\n") + 1
        is_deep = isinstance(error, RecursionError)
        reason = "nested too deeply" if is_deep else _TOML_PLACE.sub("", str(error))
        raise LexiconError(f"{path}, line {line}: not valid TOML: {reason}") from error
    lines = _toml_lines(text)

    def row(word: str, respelling: object, language: str = ANY_LANGUAGE) -> Row:
        line = lines.get((language, word), lines.get((language, ""), 1))
        return Row(word, respelling, entry_language(language), f"{path}, line {line}")

    for name, value in tables.items():
        if isinstance(value, dict):
            yield from (row(word, respelling, name) for word, respelling in value.items())
        else:
            yield row(name, value)


def _toml_lines(text: str) -> dict[tuple[str, str], int]:
    """Line numbers by language and word; with the word "" the line of a table heading."""
    lines: dict[tuple[str, str], int] = {}
    language = ANY_LANGUAGE
    for number, line in enumerate(text.split("\n"), start=1):
        if table := _TOML_TABLE.fullmatch(line.rstrip("\r")):
            language = _unquote(table[1])
            lines.setdefault((language, ""), number)
        elif key := _TOML_KEY.match(line):
            name, dot, word = key[1].partition(".")
            is_dotted = bool(dot) and key[1][0] not in "\"'" and language == ANY_LANGUAGE
            place = (name, word) if is_dotted else (language, _unquote(key[1]))
            lines.setdefault(place, number)
    return lines


def _unquote(key: str) -> str:
    if key[0] == "'" or "\\" not in key:
        return key.strip("\"'") if key[0] in "\"'" else key
    try:
        return str(next(iter(tomllib.loads(f"{key} = 0"))))
    except ValueError:
        return key
