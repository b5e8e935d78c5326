"""A pronunciation lexicon: words and respellings from a TOML or CSV file or a mapping."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vivace.errors import LexiconError
from vivace.speech import shown
from vivace.text.lexicon_files import ANY_LANGUAGE, Row, entry_language, read_rows
from vivace.text.pauses import PAUSE_MARK
from vivace.text.scripts import DIALECT, LANGUAGE_SCRIPTS
from vivace.text.trie import Trie

MAX_ENTRIES = 100_000
MAX_WORD_CHARS = 100
MAX_RESPELLING_CHARS = 200


class Lexicon:
    """Words and their respellings, for one language or for all."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._tries: dict[str, Trie] = {}
        self._where: dict[str, str] = {}  # place of the first entry of each language
        seen: dict[tuple[str, str], Row] = {}
        for row in rows:
            entry = _check(row)
            if (first := seen.setdefault((row.language, entry.word), row)) is not row:
                raise LexiconError(
                    f"{row.where}: {shown(entry.word)} is a duplicate of {first.where}; remove one"
                )
            if len(seen) > MAX_ENTRIES:
                raise LexiconError(f"{row.where}: a lexicon has at most {MAX_ENTRIES:,} entries")
            self._where.setdefault(row.language, row.where)
            self._tries.setdefault(row.language, Trie()).add(entry.word, entry.respelling)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Lexicon:
        """Read a file. A LexiconError names the file, the line and the reason.

        Args:
            path: A .toml or .csv file (docs/text.md).
        """
        return cls(read_rows(Path(path)))

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


@dataclass(frozen=True, slots=True)
class _Entry:
    word: str
    respelling: str


def _check(row: Row) -> _Entry:
    """Return the checked entry; a LexiconError names the place and the reason."""
    word = _check_text(row, "word", row.word, MAX_WORD_CHARS)
    respelling = _check_text(row, "respelling", row.respelling, MAX_RESPELLING_CHARS)
    if PAUSE_MARK.search(respelling):
        raise LexiconError(f"{row.where}: the respelling of {shown(word)} cannot have a pause mark")
    return _Entry(unicodedata.normalize("NFC", word), respelling)


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
            language = entry_language(str(word))
            yield from (Row(*entry, language, "the lexicon") for entry in respelling.items())
        else:
            yield Row(word, respelling, ANY_LANGUAGE, "the lexicon")
