"""Reads audio from files, bytes, data URIs and arrays to mono float32, and checks references.

URLs are never fetched. The format is detected from the content, not from the file name.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vivace.audio.clip import Audio
from vivace.audio.decode import DEFAULT_LIMITS, AudioLimits, decode, decode_compressed, mix
from vivace.audio.sandbox import Sandbox
from vivace.audio.wav import Samples, to_float
from vivace.disk import why_not_regular
from vivace.errors import AudioError

AudioSource = str | Path | bytes | tuple[Any, int] | Audio  # the tuple: (samples, sample_rate)

MAX_LABEL = 100  # characters of a path or URI in an error message

MIN_REFERENCE_S, MAX_REFERENCE_S = 1.0, 30.0
MIN_REFERENCE_DBFS = -60.0
MAX_CLIPPED = 0.5  # allowed share of samples at full scale
FULL_SCALE = 0.999


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recording:
    """Mono audio at the sample rate of its source."""

    samples: NDArray[np.float32]  # [n], nominally -1 to 1
    sample_rate: int
    sha256: str  # of the encoded source; for arrays, of the float32 samples and the rate

    @property
    def duration_s(self) -> float:
        return len(self.samples) / self.sample_rate


def read_audio(
    source: AudioSource,
    limits: AudioLimits = DEFAULT_LIMITS,
    *,
    sandbox: Sandbox | None = None,
    trusted: bool = False,
) -> Recording:
    """Read a path, bytes, a data:audio/…;base64, URI, (samples, sample_rate) or Audio.

    Compressed audio is decoded by a process of `sandbox`, unless it is `trusted`. Without a
    sandbox, a process is started for this call.
    """
    if isinstance(source, Audio):
        source = (source.samples, source.sample_rate)
    if isinstance(source, tuple):
        samples, sample_rate = _read_array(source, limits)
        content = samples.tobytes() + str(sample_rate).encode()
    else:
        label = _label(source)
        try:
            content = _load(source, limits)
            limits.check_encoded(len(content))
            with nullcontext(sandbox) if sandbox else Sandbox(max_children=1) as pool:
                decompress = decode_compressed if trusted else pool.decode
                samples, sample_rate = decode(content, limits, decompress)
        except AudioError as error:
            raise AudioError(f"{label}: {error}") from error
    digest = hashlib.sha256(content).hexdigest()
    return Recording(samples=samples, sample_rate=sample_rate, sha256=digest)


def check_path(path: str) -> None:
    """Raise AudioError for a path that cannot be read, without decoding the file."""
    is_local = not path.lower().startswith("data:") and "://" not in path
    if is_local and (reason := why_not_regular(Path(path))):
        raise AudioError(f"{_shorten(path)}: {reason}")


def check_reference(recording: Recording) -> None:
    """Raise AudioError if a voice cannot be cloned from this recording."""
    samples, seconds = recording.samples, recording.duration_s
    if not MIN_REFERENCE_S <= seconds <= MAX_REFERENCE_S:
        raise AudioError(
            f"the reference lasts {seconds:.2f} s; it must have "
            f"{MIN_REFERENCE_S:g} to {MAX_REFERENCE_S:g} s of speech"
        )
    if num_bad := int(np.count_nonzero(~np.isfinite(samples))):
        raise AudioError(f"the reference has {num_bad:,} samples that are NaN or infinite")
    clipped = float(np.mean(np.abs(samples) >= FULL_SCALE))
    if clipped > MAX_CLIPPED:
        raise AudioError(
            f"the reference is clipped: {clipped:.0%} of its samples are at full scale (peak "
            f"{np.abs(samples).max():g}); at most {MAX_CLIPPED:.0%} are allowed. Float samples "
            "must be in the range -1 to 1"
        )
    rms = float(np.std(samples, dtype=np.float64))  # without the mean: a constant is silence
    level = 20 * np.log10(max(rms, 1e-10))
    if level < MIN_REFERENCE_DBFS:
        raise AudioError(
            f"the reference is silent ({level:.0f} dBFS); its level must be at least "
            f"{MIN_REFERENCE_DBFS:.0f} dBFS"
        )


def _label(source: object) -> str:
    if isinstance(source, (bytes, bytearray, memoryview)):
        return "the audio bytes"
    if isinstance(source, str) and source[:5].lower() == "data:":
        return "the data URI"
    if isinstance(source, (str, Path)):
        return _shorten(str(source))
    raise AudioError(
        "audio must be a path, bytes, a data: URI, (samples, sample_rate) or an Audio, "
        f"not {type(source).__name__}"
    )


def _load(source: str | Path | bytes, limits: AudioLimits) -> bytes:
    if isinstance(source, Path):
        return _read_file(source, limits)
    if not isinstance(source, str):
        return bytes(source)
    if source[:5].lower() == "data:":
        return _read_data_uri(source, limits)
    if re.match(r"\s*[a-z][a-z0-9+.-]*://", source, re.IGNORECASE):
        raise AudioError("URLs are not fetched; download the file and pass its local path")
    return _read_file(Path(source), limits)


def _read_file(path: Path, limits: AudioLimits) -> bytes:
    hint = "; base64 needs the prefix data:audio/wav;base64," if len(str(path)) > MAX_LABEL else ""
    try:
        if reason := why_not_regular(path):  # reading a pipe or a device may block forever
            raise AudioError(f"{reason}{hint}")
        with path.open("rb") as file:
            return file.read(limits.max_encoded_bytes + 1)
    except OSError as error:
        raise AudioError(f"cannot be read: {error.strerror or error}{hint}") from error


def _read_data_uri(uri: str, limits: AudioLimits) -> bytes:
    head, comma, payload = uri.partition(",")
    if not comma or not re.fullmatch(r"data:audio/[^,]{1,200};base64", head, re.IGNORECASE):
        raise AudioError(f"{_shorten(head)!r} does not have the form data:audio/wav;base64,…")
    limits.check_encoded(len(payload) // 4 * 3 - 2)
    try:
        return base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError) as error:
        raise AudioError(f"invalid base64: {error}") from error


def _read_array(source: tuple[Any, ...], limits: AudioLimits) -> tuple[Samples, int]:
    if len(source) != 2:
        raise AudioError(
            f"audio must be (samples, sample_rate), not a tuple of {len(source)} items"
        )
    try:
        sample_rate, values = int(source[1]), np.asarray(source[0])
        if sample_rate != source[1]:
            raise ValueError(f"sample_rate must be a whole number of Hz, not {source[1]}")
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise AudioError(f"audio must be (samples, sample_rate): {error}") from error
    if values.ndim not in (1, 2):
        raise AudioError(
            "samples must have the shape [n], [n, channels] or [channels, n], "
            f"not {list(values.shape)}"
        )
    if values.ndim == 1:
        values = values[:, None]
    elif values.shape[0] < values.shape[1]:
        values = values.T  # [channels, n] -> [n, channels]
    limits.check_format(sample_rate, values.shape[1])
    limits.check_decoded(len(values), sample_rate)
    return mix(to_float(values)), sample_rate


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_LABEL else f"{text[:MAX_LABEL]}…"
