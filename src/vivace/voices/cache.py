"""On-disk cache of enrolled recordings, keyed by the audio's content, never by path."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from vivace.disk import sweep, write_whole
from vivace.errors import VoiceFileError
from vivace.voices.folders import enrolments_folder, make_private
from vivace.voices.voice import FAMILY, Voice, load_voice

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrolmentKey:
    """All inputs that determine an enrolled voice."""

    source_sha256: str  # of the recording
    transcript: str | None
    append_silence: bool
    width: int
    encoders: str  # see `encoder_fingerprint`
    family: str = FAMILY

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def fits(self, voice: Voice) -> bool:
        """Whether a cached voice matches the key. Protects against misnamed files."""
        found = (voice.source_sha256, voice.ref_text, voice.width, voice.family)
        asked = (self.source_sha256, self.transcript, self.width, self.family)
        return found == asked and voice.is_in_context == (self.transcript is not None)


class EnrolmentCache:
    """LRU cache of at most `max_entries` voices in a folder.

    Several processes may share it. If the folder or a file cannot be used, the recording is
    enrolled again.
    """

    def __init__(self, folder: Path | None = None, max_entries: int = 64) -> None:
        self.folder = enrolments_folder() if folder is None else Path(folder)
        self.max_entries = max_entries

    def find_or_make(self, key: EnrolmentKey, make: Callable[[], Voice]) -> Voice:
        voice = self.get(key)
        if voice is None:
            voice = make()
            self.put(key, voice)
        return voice

    def get(self, key: EnrolmentKey) -> Voice | None:
        path = self._path(key)
        try:
            voice = load_voice(path)
            os.utime(path)  # marks the entry as recently used
        except (VoiceFileError, OSError):
            return None
        return voice if key.fits(voice) else None

    def put(self, key: EnrolmentKey, voice: Voice) -> None:
        try:
            make_private(self.folder)
            sweep(self.folder)
            write_whole(self._path(key), voice.to_bytes(), replace=True)
            for _, path in self._entries()[self.max_entries :]:
                path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("an enrolled voice was not cached in %s: %s", self.folder, error)

    def __len__(self) -> int:
        return len(self._entries())

    def _path(self, key: EnrolmentKey) -> Path:
        return self.folder / f"{key.digest}.safetensors"

    def _entries(self) -> list[tuple[int, Path]]:
        """All files with the time of their last use, the latest first."""
        entries = []
        for path in self.folder.glob("*.safetensors"):
            try:
                entries.append((path.stat().st_mtime_ns, path))
            except FileNotFoundError:  # another process removed the file
                continue
        return sorted(entries, reverse=True)
