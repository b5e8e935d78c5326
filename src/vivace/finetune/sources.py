"""Finds recordings and transcripts: metadata.csv, a JSONL file, or audio with .txt beside it.

Nothing is decoded here. Rows that cannot be used become rejections; a folder without any row raises
TrainingDataError.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vivace.errors import RequestError, TrainingDataError
from vivace.finetune.examples import Transcript
from vivace.finetune.tables import AUDIO_FIELDS, TEXT_FIELDS, read_csv_rows, read_json_rows
from vivace.speech import language_name
from vivace.voices.voice import check_voice_name

AUDIO_SUFFIXES = (".wav", ".flac", ".mp3", ".ogg", ".opus", ".m4a", ".webm")
WRITTEN_SUFFIXES = (*AUDIO_SUFFIXES, *(suffix.upper() for suffix in AUDIO_SUFFIXES))
METADATA = ("metadata.csv", "metadata.jsonl", "train.jsonl")
TABLES = (".csv", ".tsv", ".jsonl", ".json")  # suffixes of files that may list recordings
NO_TRANSCRIPT = "no transcript"
CODES_FIELD = "audio_codes"  # codes of every frame, as the official package prepares them
MAX_TEXT_BYTES = 100_000  # of a .txt file
RUN_FOLDER = ".finetune"  # suffix of the folder of a run, which has samples


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Entry:
    """One row of the data."""

    where: str  # shown in reports
    transcript: Transcript
    audio: Path | None = None
    codes: NDArray[np.int64] | None = None  # encoded already, instead of audio


@dataclass(frozen=True, slots=True)
class Rejection:
    """A row that is not used, and why."""

    where: str
    reason: str


Row = Entry | Rejection


@dataclass(frozen=True, slots=True)
class Defaults:
    """Values of rows that do not contain them."""

    speaker: str | None
    language: str
    by_folder: bool = False  # each folder has the recordings of the speaker it is named after


def read_rows(data: Path, defaults: Defaults) -> list[Row]:
    """All rows of a folder or file, in a fixed order."""
    if data.is_dir():
        rows = list(_read_folder(data, data, defaults))
        _check_table(data, rows)
    elif data.suffix.lower() in AUDIO_SUFFIXES:
        raise TrainingDataError(
            f"{data}: one recording is not enough; give a folder of recordings, or a .jsonl or "
            ".csv file that lists them"
        )
    elif data.is_file():
        rows = list(_read_table(data, data.parent, defaults))
    else:
        raise TrainingDataError(f"{data}: there is no such folder or file")
    if not rows and defaults.by_folder and data.is_dir() and any(_audio_files(data)):
        raise TrainingDataError(
            f"{data}: the recordings have no speaker; give --name, or each speaker a folder"
        )
    if not rows:
        raise TrainingDataError(
            f"{data}: no recordings; give a folder with metadata.csv, a .jsonl file, or audio "
            "files with a .txt file beside each"
        )
    return rows


def _read_folder(folder: Path, root: Path, defaults: Defaults) -> Iterator[Row]:
    """The rows of a folder. Reports name files relative to `root`."""
    for name in METADATA:
        if (folder / name).is_file():
            yield from _read_table(folder / name, root, defaults)
            return
    if defaults.by_folder:
        for part in sorted(one for one in folder.iterdir() if _is_part(one, folder)):
            yield from _read_folder(part, root, _speaker_of(part, defaults))
        return
    for path in sorted(_audio_files(folder)):
        yield _beside(path, root, defaults)


def _check_table(folder: Path, rows: list[Row]) -> None:
    """Raise TrainingDataError if no recording has a transcript and the folder has a table."""
    if not rows or any(isinstance(one, Entry) or NO_TRANSCRIPT not in one.reason for one in rows):
        return
    tables = (one for one in sorted(folder.iterdir()) if one.suffix.lower() in TABLES)
    if (table := next((one for one in tables if one.is_file()), None)) is not None:
        raise TrainingDataError(
            f"{folder}: no recording has a .txt file beside it, and there is no {METADATA[0]}; if "
            f"{table.name} lists the recordings, give {table} as DATA"
        )


def _is_part(path: Path, folder: Path) -> bool:
    """Whether `path` in `folder` is a folder of data. A link to a parent of `folder` is not."""
    if not path.is_dir() or not _has_data(path.name):
        return False
    return not path.is_symlink() or not folder.resolve().is_relative_to(path.resolve())


def _has_data(folder: str) -> bool:
    """False for hidden folders and for the folder of a run, which may be beside the data."""
    return not folder.startswith(".") and not folder.endswith(RUN_FOLDER)


def _speaker_of(folder: Path, defaults: Defaults) -> Defaults:
    try:
        check_voice_name(folder.name.lower())
    except RequestError as error:
        raise TrainingDataError(f"{folder}: a folder is named after its speaker: {error}") from None
    return Defaults(folder.name.lower(), defaults.language)


def _audio_files(folder: Path) -> Iterator[Path]:
    """Audio in a folder and its parts. Links are followed last, and each folder is read once."""
    seen: set[Path] = set()
    folders = [folder]
    while folders:
        for place, parts, names in os.walk(folders.pop(0)):
            root = Path(place)
            if (target := root.resolve()) in seen:
                parts.clear()
                continue
            seen.add(target)
            parts[:] = [one for one in sorted(parts) if _is_part(root / one, folder)]
            folders += [root / one for one in parts if os.path.islink(root / one)]
            yield from (root / name for name in names if name.lower().endswith(AUDIO_SUFFIXES))


def _beside(path: Path, root: Path, defaults: Defaults) -> Row:
    where = path.relative_to(root).as_posix()
    beside = path.with_suffix(".txt")
    if not path.is_file():
        return Rejection(where, "it is not a file")
    try:
        with beside.open("rb") as file:
            text = file.read(MAX_TEXT_BYTES).decode("utf-8-sig")
    except FileNotFoundError:
        return Rejection(where, f"{NO_TRANSCRIPT}: {beside.name} is missing")
    except (OSError, ValueError) as error:
        return Rejection(where, f"{beside.name} cannot be read: {_reason(error)}")
    return _entry(where, {"audio": path.name, "text": text}, path.parent, defaults)


def _read_table(path: Path, root: Path, defaults: Defaults) -> Iterator[Row]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise TrainingDataError(f"{path}: cannot be read: {_reason(error)}") from error
    is_json = path.suffix in (".jsonl", ".json") or text.lstrip()[:1] == "{"
    place = path.relative_to(root).as_posix()
    for number, values in read_json_rows(text) if is_json else read_csv_rows(text):
        where = f"{place}:{number}"
        if isinstance(values, str):
            yield Rejection(where, values)
        else:
            yield _entry(where, values, path.parent, defaults)


def _entry(where: str, values: Mapping[str, Any], folder: Path, defaults: Defaults) -> Row:
    try:
        transcript = Transcript(
            text=_text(values),
            speaker=_speaker(values.get("speaker"), defaults.speaker),
            language=_language(values.get("language") or defaults.language),
            instruct=_instruct(values.get("instruct")),
        )
        if (codes := values.get(CODES_FIELD)) is not None:
            return Entry(where=where, transcript=transcript, codes=_codes(codes))
        name = next((values[one] for one in AUDIO_FIELDS if values.get(one)), None)
        if not isinstance(name, str):
            raise RequestError(f"no audio; it is expected in the field {AUDIO_FIELDS[0]!r}")
        return Entry(where=where, transcript=transcript, audio=_find_audio(folder, name))
    except RequestError as error:
        return Rejection(where, str(error))


def _text(values: Mapping[str, Any]) -> str:
    text = next((values[one] for one in TEXT_FIELDS if values.get(one)), "")
    if not isinstance(text, str) or not text.strip():
        raise RequestError("the transcript is empty")
    return " ".join(text.split())


def _speaker(value: object, default: str | None) -> str | None:
    if value is None or value == "":
        return default
    if not isinstance(value, str):
        raise RequestError(f"speaker must be a name, not {value!r:.80}")
    check_voice_name(value.lower())
    return value.lower()


def _language(value: object) -> str:
    if not isinstance(value, str):
        raise RequestError(f"language must be a string, not {value!r:.80}")
    return language_name(value)


def _instruct(value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise RequestError(f"instruct must be a string, not {value!r:.80}")
    return value or None


def _codes(value: object) -> NDArray[np.int64]:
    try:
        codes = np.asarray(value)
    except ValueError as error:
        raise RequestError(f"{CODES_FIELD} must have equally many codes in each frame") from error
    if codes.ndim != 2 or not codes.size or codes.dtype.kind not in "iu":
        raise RequestError(f"{CODES_FIELD} must be whole numbers of shape [frames, codebooks]")
    return codes.astype(np.int64)


def _find_audio(folder: Path, name: str) -> Path:
    """The file of a row: a path, or the stem of a file in `wavs`, as in LJSpeech."""
    if "\0" in name:
        raise RequestError("the file's name has a null character")
    places = [folder / name, folder / "wavs" / name]
    known = [place for place in places if place.suffix.lower() in AUDIO_SUFFIXES]
    # Made only if no path is a file: 100,000 rows would otherwise make 2,800,000 paths.
    stems = (Path(f"{place}{suffix}") for place in places for suffix in WRITTEN_SUFFIXES)
    for place in chain(known, stems, places[:1]):
        if os.path.isfile(place):  # False for a name that is too long
            return place
    raise RequestError(f"there is no file {name[:200]!r}")


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    return str(getattr(error, "strerror", None) or error)
