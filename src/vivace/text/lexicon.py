"""A pronunciation lexicon: words and respellings from a TOML or CSV file or a mapping.

# names.toml                             # names.csv
vivace = "vee-VAH-chay"                  word,respelling,language
[english]                                vivace,vee-VAH-chay
GIF = "jif"                              GIF,jif,english
"""

from __future__ import annotations

import csv
import io
import os
import re
import sys
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vivace.arguments import as_path
from vivace.errors import LexiconError
from vivace.speech import language_name, shown
from vivace.text.files import read_utf8
from vivace.text.pauses import PAUSE_MARK
from vivace.text.scripts import DIALECT, LANGUAGE_SCRIPTS
from vivace.text.trie import Trie

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_ENTRIES = 100_000
MAX_WORD_CHARS = 100
MAX_RESPELLING_CHARS = 200
ANY_LANGUAGE = ""
MAX_FILE_BYTES = 32 * 2**20
HEADER = ["word", "respelling", "language"]
BUILD_HINT = "use Lexicon.of or Lexicon.load"
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


class Lexicon:
    """Words and their respellings, for one language or for all."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._tries: dict[str, Trie] = {}
        self._where: dict[str, str] = {}  # place of the first entry of each language
        seen: dict[tuple[str, str], Row] = {}
        if not isinstance(rows, Iterable):
            raise LexiconError(f"a Lexicon is made of rows, not {shown(rows)}; {BUILD_HINT}")
        for row in rows:
            word, respelling = _check(row)
            if (first := seen.setdefault((row.language, word), row)) is not row:
                raise LexiconError(
                    f"{row.where}: {shown(word)} is a duplicate of {first.where}; remove one"
                )
            if len(seen) > MAX_ENTRIES:
                raise LexiconError(f"{row.where}: a lexicon has at most {MAX_ENTRIES:,} entries")
            self._where.setdefault(row.language, row.where)
            self._tries.setdefault(row.language, Trie()).add(word, respelling)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Lexicon:
        """Read a file. A LexiconError names the file, the line and the reason.

        Args:
            path: A .toml or .csv file (docs/text.md).
        """
        return cls(_read_rows(as_path("path", path, LexiconError)))

    @classmethod
    def of(cls, source: LexiconSource) -> Lexicon:
        """Build a lexicon from any source that `lexicon=` accepts.

        Args:
            source: A `Lexicon`, a file, or a mapping with the structure of the TOML file.
        """
        if isinstance(source, cls):
            return source
        if isinstance(source, Mapping):
            return cls(_rows_of(source))
        if isinstance(source, (str, os.PathLike)):
            return cls.load(source)
        kind = type(source).__name__
        raise LexiconError(f"lexicon must be a file path, a mapping or a Lexicon, not {kind}")

    def __len__(self) -> int:
        return sum(trie.num_words for trie in self._tries.values())

    def __repr__(self) -> str:
        return f"<Lexicon of {len(self)} entries>"

    def check_languages(self, known: Collection[str]) -> None:
        """Raise a LexiconError for a language that is neither in `known` nor released."""
        names = {*LANGUAGE_SCRIPTS, *known}
        for language, where in self._where.items():
            is_known = language in names or language.endswith(DIALECT)
            if language != ANY_LANGUAGE and not is_known:
                raise LexiconError(
                    f"{where}: no language named {shown(language)}; try one of: "
                    f"{', '.join(sorted(names))} (in TOML a word with a dot is quoted)"
                )

    def tries(self, language: str) -> tuple[Trie, ...]:
        """The entries for a text in `language`: its own entries first, then those for all."""
        names = [language, *(["chinese"] if language.endswith(DIALECT) else []), ANY_LANGUAGE]
        return tuple(self._tries[name] for name in names if name in self._tries)


LexiconSource = Lexicon | str | os.PathLike[str] | Mapping[str, Any]


def _check(row: Row) -> tuple[str, str]:
    """Return the checked word and its respelling; a LexiconError names the place and the reason."""
    if not isinstance(row, Row):
        raise LexiconError(f"a row of a Lexicon is not {shown(row)}; {BUILD_HINT}")
    word = _check_text(row, "word", row.word, MAX_WORD_CHARS)
    respelling = _check_text(row, "respelling", row.respelling, MAX_RESPELLING_CHARS)
    if PAUSE_MARK.search(respelling):
        raise LexiconError(f"{row.where}: the respelling of {shown(word)} cannot have a pause mark")
    return unicodedata.normalize("NFC", word), respelling


def _check_text(row: Row, what: str, value: object, max_chars: int) -> str:
    of = "" if what == "word" else f" of {shown(row.word)}"
    if not isinstance(value, str):
        kind = type(value).__name__
        raise LexiconError(f"{row.where}: the {what}{of} is a string, not {kind} {shown(value)}")
    text = " ".join(value.split())
    if not text:
        raise LexiconError(f"{row.where}: the {what}{of} is empty")
    if len(text) > max_chars:
        raise LexiconError(
            f"{row.where}: the {what}{of} has {len(text):,} characters and the limit is {max_chars}"
        )
    if bad := next((one for one in text if unicodedata.category(one) in ("Cc", "Cs")), None):
        raise LexiconError(f"{row.where}: the {what}{of} has the character U+{ord(bad):04X}")
    return text


def _rows_of(source: Mapping[str, Any]) -> Iterable[Row]:
    for word, respelling in source.items():
        if isinstance(respelling, Mapping):
            language = _entry_language(str(word))
            yield from (Row(*entry, language, "the lexicon") for entry in respelling.items())
        else:
            yield Row(word, respelling, ANY_LANGUAGE, "the lexicon")


def _read_rows(path: Path) -> Iterator[Row]:
    """Read the entries of a .toml or .csv file in order."""
    suffix = path.suffix.lower()
    if suffix not in (".toml", ".csv"):
        kind = repr(suffix) if suffix else "a file without extension"
        raise LexiconError(f"{path}: a lexicon is a .toml or a .csv file, not {kind}")
    text = read_utf8(path, MAX_FILE_BYTES, LexiconError)
    return (_read_toml if suffix == ".toml" else _read_csv)(text, path)


def _entry_language(name: str) -> str:
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
        language = _entry_language(cells[2] if len(cells) == 3 else ANY_LANGUAGE)
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
        return Row(word, respelling, _entry_language(language), f"{path}, line {line}")

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
