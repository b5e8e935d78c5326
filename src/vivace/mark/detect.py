"""Looks for marks in audio files: metadata, a watermark and a signed manifest."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from vivace.audio.decode import MIB, AudioLimits
from vivace.audio.file_mark import STATEMENT
from vivace.audio.files import read_audio
from vivace.audio.sandbox import Sandbox
from vivace.disk import why_not_regular
from vivace.errors import AudioError, CheckpointError, RequestError, TTSError
from vivace.mark.c2pa import read_manifest
from vivace.mark.read_tags import read_tags
from vivace.mark.watermark import Watermark

LIMITS = AudioLimits(max_encoded_bytes=256 * MIB, max_decoded_bytes=512 * MIB)
# IPTC's terms for media that a trained model made, or that has parts of such media.
SOURCE_TYPES = re.compile(r"digitalsourcetype/(\w*[aA]lgorithmicMedia)")
CONTENT_TYPES = {b"RIFF": "audio/wav", b"ID3": "audio/mpeg", b"\xff": "audio/mpeg"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Detection:
    """The marks found in one file. None: not found, or not checked."""

    path: str
    metadata: Mapping[str, str] | None = None  # facts of a file that says it is AI-generated
    watermark: float | None = None  # confidence of a watermark that was found, 0 to 1
    manifest: Mapping[str, str] | None = None  # facts of a signed manifest
    unchecked: Mapping[str, str] = field(
        default_factory=dict
    )  # "watermark", "manifest": the reason

    @property
    def is_marked(self) -> bool:
        """Whether a mark says that the audio is AI-generated."""
        is_signed = self.manifest is not None and bool(self.manifest.get("source_type"))
        return self.metadata is not None or self.watermark is not None or is_signed

    def as_json(self) -> dict[str, Any]:
        return {
            "file": self.path,
            "is_marked": self.is_marked,
            "metadata": self.metadata,
            "watermark": self.watermark,
            "manifest": self.manifest,
            "unchecked": dict(self.unchecked),
        }


class Detector:
    """Checks one file after another. Marks whose packages are missing are not checked."""

    def __init__(self) -> None:
        self._watermark: Watermark | TTSError | None = None  # None: not loaded yet

    def detect(self, path: str) -> Detection:
        """Raises AudioError if the file cannot be read."""
        return self._detect(_read_file(path), path)

    def detect_stream(self, file: BinaryIO, name: str) -> Detection:
        """Detect marks in a file that is open, such as stdin. Raises AudioError."""
        return self._detect(_read(file, name), name)

    def _detect(self, content: bytes, path: str) -> Detection:
        unchecked: dict[str, str] = {}
        metadata = describe_tags(read_tags(content))
        manifest, confidence = None, None
        try:
            manifest = _find_manifest(content)
        except (RequestError, AudioError) as error:
            unchecked["manifest"] = str(error)
        try:
            confidence = self._find_watermark(path, content)
        except AudioError as error:
            if metadata is None and manifest is None:  # not an audio file
                raise
            unchecked["watermark"] = str(error)
        except (RequestError, CheckpointError) as error:
            unchecked["watermark"] = str(error)
        return Detection(
            path=path,
            metadata=metadata,
            watermark=confidence,
            manifest=manifest,
            unchecked=unchecked,
        )

    def _find_watermark(self, path: str, content: bytes) -> float | None:
        try:
            with Sandbox(max_children=1) as sandbox:
                recording = read_audio(content, LIMITS, sandbox=sandbox)
        except AudioError as error:
            reason = str(error).removeprefix("the audio bytes: ")
            raise AudioError(f"the audio cannot be decoded: {path}: {reason}") from error
        if not len(recording.samples):
            raise AudioError(f"{path}: the file has no samples")
        found = self._load_watermark().detect(recording.samples, recording.sample_rate)
        return round(found.confidence, 3) if found.is_marked else None

    def _load_watermark(self) -> Watermark:
        """Raises RequestError or CheckpointError; a second call raises the same error."""
        if self._watermark is None:
            try:
                self._watermark = Watermark.load()
            except (RequestError, CheckpointError) as error:
                self._watermark = error
        if isinstance(self._watermark, TTSError):
            raise self._watermark
        return self._watermark


def _read_file(path: str) -> bytes:
    if reason := why_not_regular(Path(path)):
        raise AudioError(f"{path}: {reason}")
    try:
        with Path(path).open("rb") as file:
            return _read(file, path)
    except OSError as error:
        raise _unreadable(path, error) from error


def _read(file: BinaryIO, name: str) -> bytes:
    try:
        content = file.read(LIMITS.max_encoded_bytes + 1)
        LIMITS.check_encoded(len(content))
    except OSError as error:
        raise _unreadable(name, error) from error
    except AudioError as error:
        raise AudioError(f"{name}: {error}") from error
    return content


def _unreadable(name: str, error: OSError) -> AudioError:
    return AudioError(f"{name}: cannot be read: {error.strerror or error}")


def describe_tags(tags: Mapping[str, str]) -> dict[str, str] | None:
    """The facts of tags that say the audio is AI-generated; None if they do not."""
    lines = tags.get("comment", "").split("\n")  # other tools may have added comments
    statement = next((line for line in lines if line.startswith(STATEMENT)), None)
    texts = "\n".join(tags.values())
    source = SOURCE_TYPES.search(texts)
    if statement is None and source is None:
        return None
    facts = {}
    if statement is not None:
        parts = (part.partition(": ") for part in statement.split("; ")[1:])
        facts = {name.replace(" ", "_"): value for name, _, value in parts if value}
    elif software := tags.get("software"):
        facts["tool"] = software
    if source is not None:
        facts["digital_source_type"] = source[1]
    return facts


def _find_manifest(content: bytes) -> dict[str, str] | None:
    kinds = (kind for magic, kind in CONTENT_TYPES.items() if content.startswith(magic))
    kind = "audio/mp4" if content[4:8] == b"ftyp" else next(kinds, None)
    if kind is None:
        return None
    store = read_manifest(io.BytesIO(content), kind)
    return None if store is None else _describe_manifest(store)


def _describe_manifest(store: Mapping[str, Any]) -> dict[str, str]:
    active = store.get("manifests", {}).get(store.get("active_manifest"), {})
    actions = [
        action
        for one in active.get("assertions", ())
        if str(one.get("label", "")).startswith("c2pa.actions")
        for action in one.get("data", {}).get("actions", ())
    ]
    found = SOURCE_TYPES.search("\n".join(str(one.get("digitalSourceType")) for one in actions))
    signature = active.get("signature_info", {})
    generator = (active.get("claim_generator_info") or [{}])[0]
    facts = {
        "state": store.get("validation_state"),
        "signer": signature.get("common_name") or signature.get("issuer"),
        "time": signature.get("time"),
        "tool": " ".join(str(generator[name]) for name in ("name", "version") if name in generator),
        "action": ", ".join(str(one.get("action")) for one in actions),
        "source_type": found and found[1],
    }
    return {name: str(value) for name, value in facts.items() if value}
