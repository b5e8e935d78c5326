"""A voice: a speaker vector and, for in-context cloning, a reference's codes and transcript.

Stored in one safetensors file that is validated when it is read.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as unpack_tensors
from safetensors.numpy import save as pack_tensors

from vivace.arguments import as_path
from vivace.disk import why_not_regular, write_whole
from vivace.errors import RequestError, VoiceFileError, VoiceMismatchError
from vivace.speech import shown

FORMAT = "vivace.voice/1"
FAMILY = "qwen3-tts-12hz"
CODEBOOK_SIZE = 2048
FRAME_RATE = 12.5  # frames a second, in every model of the family
NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
DEVICE_NAME = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?")  # reserved names on Windows
MAX_FILE_BYTES = 2**20
MAX_HEADER_BYTES = 2**16
MAX_REF_TEXT = 4_000  # characters; 30 seconds of speech have about 1,000
MAX_SPEAKER_VALUE = 10_000.0  # far above any encoder's; larger values overflow in the model
MAX_NOTE = 200  # characters of language, licence and consent
TEXT_FIELDS = (
    *("name", "language", "ref_text", "source_sha256", "licence", "consent", "created", "family"),
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Voice:
    """A voice to speak with. Invalid fields raise RequestError."""

    name: str  # 1 to 64 characters of a-z 0-9 _ . -
    speaker: NDArray[np.float32]  # [D], the speaker encoder's vector
    ref_codes: NDArray[np.int64] | None = None  # [T, codebooks]: the speech to continue
    ref_text: str | None = None  # the transcript of that speech
    language: str | None = None  # of the recording, a note
    source_sha256: str | None = None  # digest of the reference audio
    licence: str | None = None  # of the recording, a note
    consent: str | None = None  # who agreed to the use of the recording, a note
    created: str | None = None  # a date, such as 2026-01-31
    family: str = FAMILY  # the model family that speaks with it

    def __post_init__(self) -> None:
        check_voice_name(self.name)
        object.__setattr__(self, "speaker", _check_speaker(self.speaker))
        if self.ref_codes is not None:
            object.__setattr__(self, "ref_codes", _check_codes(self.ref_codes))
            if not (self.ref_text or "").strip():
                raise RequestError("a voice with ref_codes needs ref_text, their transcript")
        _check_text("ref_text", self.ref_text, MAX_REF_TEXT)
        _check_text("language", self.language, MAX_NOTE)
        _check_text("licence", self.licence, MAX_NOTE)
        _check_text("consent", self.consent, MAX_NOTE)
        _check_digest(self.source_sha256)
        _check_date(self.created)
        if not isinstance(self.family, str) or self.family != FAMILY:
            raise RequestError(f"the voice is for the models {shown(self.family)}, not {FAMILY!r}")

    @property
    def width(self) -> int:
        """Numbers in the speaker vector: the hidden size of the model."""
        return len(self.speaker)

    @property
    def is_in_context(self) -> bool:
        """Whether the voice has a reference for in-context cloning."""
        return self.ref_codes is not None

    @property
    def reference_s(self) -> float:
        """Length of the in-context reference; 0 without one."""
        return 0.0 if self.ref_codes is None else len(self.ref_codes) / FRAME_RATE

    def check_width(self, width: int) -> None:
        """Raise VoiceMismatchError unless the voice fits the model's hidden size."""
        if self.width != width:
            raise VoiceMismatchError(
                f"the voice {self.name!r} has width {self.width} and this model {width}; "
                "clone it again with this model, or load the model it was made with"
            )

    def check_codes(self, num_codebooks: int, codebook_size: int) -> None:
        """Raise VoiceMismatchError unless the reference fits the model's codebooks."""
        if self.ref_codes is None:
            return
        found, largest = self.ref_codes.shape[1], int(self.ref_codes.max())
        if found != num_codebooks or largest >= codebook_size:
            raise VoiceMismatchError(
                f"the voice {self.name!r} has {found} codebooks and codes up to {largest}; this "
                f"model has {num_codebooks} codebooks and codes up to {codebook_size - 1}; "
                "clone it again with this model"
            )

    def save(self, path: str | Path) -> Path:
        """Write the voice to one file, atomically.

        Args:
            path: Ends with .safetensors.
        """
        path = as_path("path", path, VoiceFileError)
        if path.suffix != ".safetensors":
            raise VoiceFileError(f"a voice is saved as .safetensors, not as {path.name!r}")
        try:
            write_whole(path.resolve(), self.to_bytes(), replace=True)  # keeps a symbolic link
        except (OSError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise VoiceFileError(f"cannot write {path}: {reason}") from error
        return path

    def to_bytes(self) -> bytes:
        """The content of the voice file. `parse_voice` reads it."""
        tensors: dict[str, NDArray[Any]] = {"speaker": self.speaker}
        if self.ref_codes is not None:
            tensors["ref_codes"] = self.ref_codes.astype(np.int16)
        texts = {name: getattr(self, name) for name in TEXT_FIELDS}
        metadata = {name: text for name, text in texts.items() if text is not None}
        metadata |= {"format": FORMAT, "width": str(self.width)}
        return _pack(tensors, metadata)

    @classmethod
    def load(cls, path: str | Path) -> Voice:
        """Read a voice file. Any other file raises VoiceFileError.

        Args:
            path: A file that `save` wrote.
        """
        return load_voice(path)


def load_voice(path: str | Path) -> Voice:
    """Read a voice file. Any other file raises VoiceFileError."""
    try:
        return parse_voice(_read(as_path("path", path, VoiceFileError)))
    except VoiceFileError as error:
        raise VoiceFileError(f"{str(path)[:200]}: {error}") from error


def parse_voice(content: bytes) -> Voice:
    """Read the bytes of a voice file. Other content raises VoiceFileError."""
    header_bytes = int.from_bytes(content[:8], "little")
    if len(content) > MAX_FILE_BYTES or header_bytes > MAX_HEADER_BYTES:
        raise VoiceFileError("not a voice: the file or its header is too large")
    try:
        tensors = unpack_tensors(content)
        # safetensors has validated the header: a flat object whose metadata are strings
        metadata = json.loads(content[8 : 8 + header_bytes]).get("__metadata__") or {}
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise VoiceFileError(f"not a safetensors file: {error}") from error
    _check_keys(tensors, metadata)
    texts: dict[str, Any] = {name: metadata.get(name) for name in TEXT_FIELDS}
    ref_codes = tensors.get("ref_codes")
    codes = None if ref_codes is None else ref_codes.astype(np.int64)
    try:
        return Voice(speaker=tensors["speaker"], ref_codes=codes, **texts)
    except RequestError as error:
        raise VoiceFileError(str(error)) from error


def check_voice_name(name: str) -> None:
    if not isinstance(name, str) or not NAME_PATTERN.fullmatch(name):
        raise RequestError(
            f"{str(name)[:80]!r} cannot name a voice; a name has 1 to 64 of a-z 0-9 _ . - "
            "and begins with a letter or digit"
        )
    if DEVICE_NAME.fullmatch(name):
        raise RequestError(f"{name!r} cannot name a voice; Windows reserves it for a device")


def _pack(tensors: dict[str, NDArray[Any]], metadata: dict[str, str]) -> bytes:
    # sorted, so that equal voices have equal files
    content = pack_tensors(tensors, metadata)
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8:end]), sort_keys=True, ensure_ascii=False).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + content[end:]


def _read(path: Path) -> bytes:
    try:
        if reason := why_not_regular(path):
            raise VoiceFileError(reason.replace("such file", "such voice file"))
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise VoiceFileError(f"cannot be read: {error.strerror or error}") from error


def _check_keys(tensors: dict[str, NDArray[Any]], metadata: dict[str, str]) -> None:
    found = metadata.get("format", "none")
    if found != FORMAT:
        raise VoiceFileError(f"not a voice that can be read here: format {found!r}, not {FORMAT!r}")
    if missing := {"name", "family", "width"} - metadata.keys():
        raise VoiceFileError(f"the metadata has no {', '.join(sorted(missing))}")
    if unknown := metadata.keys() - {*TEXT_FIELDS, "format", "width"}:
        raise VoiceFileError(f"the metadata has unknown entries: {', '.join(sorted(unknown))}")
    types = {name: array.dtype.name for name, array in tensors.items()}
    if types not in ({"speaker": "float32"}, {"speaker": "float32", "ref_codes": "int16"}):
        raise VoiceFileError(
            f"the tensors are {types}; a voice has speaker (float32) and maybe ref_codes (int16)"
        )
    if metadata["width"] != str(tensors["speaker"].size):
        raise VoiceFileError(
            f"width is {metadata['width']} in the metadata, but the speaker vector has "
            f"{tensors['speaker'].size} values"
        )


def _check_speaker(speaker: NDArray[Any]) -> NDArray[np.float32]:
    try:
        with np.errstate(all="ignore"):
            vector = np.array(speaker, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise RequestError(f"speaker must be numbers of shape [D]: {error}") from error
    if vector.ndim != 1 or not vector.size:
        raise RequestError(f"speaker must be of shape [D], not {list(vector.shape)}")
    if not np.isfinite(vector).all():
        raise RequestError("speaker holds NaN or infinite values; clone the voice again")
    if np.abs(vector).max() > MAX_SPEAKER_VALUE:
        raise RequestError(
            f"speaker must have values from -{MAX_SPEAKER_VALUE:g} to {MAX_SPEAKER_VALUE:g}; "
            "clone the voice again"
        )
    return vector


def _check_codes(codes: NDArray[Any]) -> NDArray[np.int64]:
    frames = np.array(codes)
    if frames.ndim != 2 or not frames.size or frames.dtype.kind not in "iu":
        raise RequestError(
            f"ref_codes must be whole numbers of shape [T, codebooks], not {frames.dtype} "
            f"{list(frames.shape)}"
        )
    if frames.min() < 0 or frames.max() >= CODEBOOK_SIZE:
        raise RequestError(
            f"ref_codes run from {frames.min()} to {frames.max()}; "
            f"0 to {CODEBOOK_SIZE - 1} are codes"
        )
    return frames.astype(np.int64)


def _check_text(field: str, text: str | None, limit: int) -> None:
    if text is None:
        return
    if not isinstance(text, str) or len(text) > limit:
        raise RequestError(f"{field} must be a text of at most {limit:,} characters")
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise RequestError(f"{field} contains a lone surrogate (half a character)")


def _check_digest(digest: str | None) -> None:
    if digest is None:
        return
    if not isinstance(digest, str) or not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise RequestError(f"source_sha256 must be 64 hex digits, not {shown(digest)}")


def _check_date(created: str | None) -> None:
    try:
        is_date = created is None or date.fromisoformat(created).isoformat() == created
    except (TypeError, ValueError):
        is_date = False
    if not is_date:
        raise RequestError(f"created must be a date as 2026-01-31, not {str(created)[:40]!r}")
