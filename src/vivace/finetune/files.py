"""Writes the files of a run atomically."""

from __future__ import annotations

from pathlib import Path

from vivace.disk import write_whole
from vivace.errors import TrainingDataError


def write_file(path: Path, content: bytes | str) -> None:
    """Replace a file. Raises TrainingDataError, and then the old file is unchanged."""
    if isinstance(content, str):
        content = content.encode("utf-8", "replace")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content, replace=True)
    except OSError as error:
        raise TrainingDataError(f"cannot write {path}: {error.strerror or error}") from error
