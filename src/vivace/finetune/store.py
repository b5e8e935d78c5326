"""Caches the codes and vectors of recordings, so that a second run does not decode them again.

One line of JSON for each recording is appended to a file. A line that a killed process left
unfinished is dropped and computed again.
"""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vivace.errors import TrainingDataError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Encoded:
    """A recording as codes, or the reason why it cannot be used."""

    problem: str | None = None
    codes: NDArray[np.int64] | None = None  # [frames, codebooks]
    seconds: float = 0.0
    recognised: str | None = None  # the transcript of a recogniser
    speaker: NDArray[np.float32] | None = None  # vector of the speaker encoder

    def to_json(self) -> dict[str, Any]:
        return {
            "problem": self.problem,
            "codes": None if self.codes is None else _pack(self.codes.astype(np.int16)),
            "books": 0 if self.codes is None else self.codes.shape[1],
            "seconds": self.seconds,
            "recognised": self.recognised,
            "speaker": None if self.speaker is None else _pack(self.speaker),
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Encoded:
        codes, speaker = values["codes"], values["speaker"]
        return cls(
            problem=values["problem"],
            codes=None
            if codes is None
            else _unpack(codes, np.int16).reshape(-1, values["books"]).astype(np.int64),
            seconds=float(values["seconds"]),
            recognised=values["recognised"],
            speaker=None if speaker is None else _unpack(speaker, np.float32),
        )


class EncodedStore:
    """Recordings that were encoded, by a key of their content and of the settings."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, Encoded] = {}
        self._read()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise TrainingDataError(f"{path} cannot be written: {error.strerror}") from error

    def __enter__(self) -> EncodedStore:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # `put` has reported that the disk is full
            self._file.close()

    def get(self, key: str) -> Encoded | None:
        return self._known.get(key)

    def put(self, key: str, encoded: Encoded) -> None:
        self._known[key] = encoded
        try:
            self._file.write(json.dumps({"key": key, **encoded.to_json()}) + "\n")
            self._file.flush()
        except OSError as error:
            raise TrainingDataError(f"{self._path} cannot be written: {error.strerror}") from error

    def _read(self) -> None:
        """Read all whole lines, and cut off a line without its end."""
        try:
            content = self._path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise TrainingDataError(f"{self._path} cannot be read: {error.strerror}") from error
        whole = content[: content.rfind(b"\n") + 1]
        for line in whole.splitlines():
            try:
                values = json.loads(line)
                self._known[values["key"]] = Encoded.from_json(values)
            except (ValueError, KeyError, TypeError):
                continue  # damaged: computed again
        if len(whole) < len(content):
            with self._path.open("r+b") as file:
                file.truncate(len(whole))


def _pack(values: NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()


def _unpack(text: str, dtype: type[Any]) -> NDArray[Any]:
    values: NDArray[Any] = np.frombuffer(base64.b64decode(text, validate=True), dtype).copy()
    return values
