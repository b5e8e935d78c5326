"""Audio from anywhere local to mono float32, and from float32 to a file.

Every reading road passes the same limits. URLs are never fetched, and what a file is called
never decides what it is.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vivace.audio.wav import encode_wav, parse_wav, to_float
from vivace.errors import AudioError

AudioSource = str | Path | bytes | tuple[Any, int]  # the tuple: (samples, sample_rate)

MIB = 2**20
BLOCK_FRAMES = 65_536
MAX_LABEL = 100  # characters of a path or URI that an error repeats
READABLE = "WAV, FLAC, OGG and MP3 are read"
INSTALL_SOUNDFILE = "pip install soundfile"
WRITABLE = {  # extension -> libsndfile's format and subtype
    ".wav": ("WAV", "PCM_16"),
    ".flac": ("FLAC", "PCM_16"),
    ".mp3": ("MP3", "MPEG_LAYER_III"),
    ".ogg": ("OGG", "VORBIS"),
    ".opus": ("OGG", "OPUS"),
}

MIN_REFERENCE_S, MAX_REFERENCE_S = 1.0, 30.0
MIN_REFERENCE_DBFS = -60.0
MAX_CLIPPED = 0.5  # share of samples at full scale
FULL_SCALE = 0.999


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioLimits:
    """What a stranger's audio may cost, checked while it is decoded."""

    max_encoded_bytes: int = 10 * MIB
    max_decoded_bytes: int = 16 * MIB  # float32, after mixing to mono
    max_channels: int = 2
    min_sample_rate: int = 8_000
    max_sample_rate: int = 192_000

    def check_encoded(self, num_bytes: int) -> None:
        if num_bytes > self.max_encoded_bytes:
            limit = self.max_encoded_bytes / MIB
            raise AudioError(f"larger than {limit:g} MiB, the limit; give a shorter piece")

    def check_format(self, sample_rate: int, num_channels: int) -> None:
        if not self.min_sample_rate <= sample_rate <= self.max_sample_rate:
            raise AudioError(
                f"the sample rate is {sample_rate:,} Hz; "
                f"{self.min_sample_rate:,} to {self.max_sample_rate:,} Hz are read"
            )
        if not 1 <= num_channels <= self.max_channels:
            raise AudioError(f"{num_channels} channels; 1 to {self.max_channels} are read")

    def check_decoded(self, num_frames: int, sample_rate: int) -> None:
        max_frames = self.max_decoded_bytes // 4
        if num_frames > max_frames:
            raise AudioError(
                f"longer than {max_frames / sample_rate:.1f} s, the limit at {sample_rate:,} Hz; "
                "give a shorter piece"
            )


DEFAULT_LIMITS = AudioLimits()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recording:
    """Audio as it was read: its own rate, one channel."""

    samples: NDArray[np.float32]  # [n], nominally -1 to 1
    sample_rate: int
    sha256: str  # of the encoded source; of an array, its float32 samples and rate

    @property
    def duration_s(self) -> float:
        return len(self.samples) / self.sample_rate


def read_audio(source: AudioSource, limits: AudioLimits = DEFAULT_LIMITS) -> Recording:
    """Read a path, the bytes of a file, a data:audio/…;base64, URI or (samples, sample_rate)."""
    if isinstance(source, tuple):
        samples, sample_rate = _read_array(source, limits)
        content = samples.tobytes() + str(sample_rate).encode()
    else:
        label = _label(source)
        try:
            content = _load(source, limits)
            limits.check_encoded(len(content))
            samples, sample_rate = _decode(content, limits)
        except AudioError as error:
            raise AudioError(f"{label}: {error}") from error
    digest = hashlib.sha256(content).hexdigest()
    return Recording(samples=samples, sample_rate=sample_rate, sha256=digest)


def check_reference(recording: Recording) -> None:
    """Raise AudioError unless a voice can be learned from this recording."""
    samples, seconds = recording.samples, recording.duration_s
    if not MIN_REFERENCE_S <= seconds <= MAX_REFERENCE_S:
        raise AudioError(
            f"the reference lasts {seconds:.2f} s; "
            f"{MIN_REFERENCE_S:g} to {MAX_REFERENCE_S:g} s of speech are needed"
        )
    if num_bad := int(np.count_nonzero(~np.isfinite(samples))):
        raise AudioError(f"the reference has {num_bad:,} samples that are NaN or infinite")
    clipped = float(np.mean(np.abs(samples) >= FULL_SCALE))
    if clipped > MAX_CLIPPED:
        raise AudioError(
            f"{clipped:.0%} of the reference is at full scale (peak {np.abs(samples).max():g}); "
            f"at most {MAX_CLIPPED:.0%} may be. Float samples run from -1 to 1"
        )
    rms = float(np.std(samples, dtype=np.float64))  # about the mean: a constant is silence
    level = 20 * np.log10(max(rms, 1e-10))
    if level < MIN_REFERENCE_DBFS:
        raise AudioError(
            f"the reference is silent ({level:.0f} dBFS); {MIN_REFERENCE_DBFS:.0f} dBFS is needed"
        )


def write_audio(path: Path, samples: ArrayLike, sample_rate: int) -> Path:
    """Write one channel, -1 to 1; the extension picks the format. All of it or nothing."""
    path = Path(path)
    if path.suffix.lower() not in WRITABLE:
        raise AudioError(f"cannot write {path.name!r}; name it with one of: {', '.join(WRITABLE)}")
    if not 1 <= sample_rate <= DEFAULT_LIMITS.max_sample_rate:
        raise AudioError(f"a sample rate of {sample_rate} Hz cannot be written")
    with np.errstate(over="ignore"):  # infinite then, and refused below
        signal = np.asarray(samples, dtype=np.float32)
    if signal.ndim != 1:
        raise AudioError(f"samples of shape {list(signal.shape)} were given; [n] can be written")
    if not np.isfinite(signal).all():
        raise AudioError("the samples hold NaN or infinite values; nothing was written")
    content = _encode(signal, sample_rate, path.suffix.lower())
    try:
        replace_file(path, content)
    except OSError as error:
        raise AudioError(f"cannot write {path}: {error.strerror or error}") from error
    return path


def replace_file(path: Path, content: bytes) -> None:
    """Make `path` a file of exactly this content; a failure leaves what was there (OSError)."""
    target = path.resolve()  # through a link, so that the link stays
    if target.exists() and not target.is_file():
        raise OSError("it exists and is not a file")
    temporary = target.with_name(f".vivace-{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _label(source: object) -> str:
    if isinstance(source, (bytes, bytearray, memoryview)):
        return "the audio bytes"
    if isinstance(source, str) and source[:5].lower() == "data:":
        return "the data URI"
    if isinstance(source, (str, Path)):
        return _shorten(str(source))
    raise AudioError(
        "audio is a path, bytes, a data: URI or (samples, sample_rate), "
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
        raise AudioError("URLs are not fetched; download it and give the local path")
    return _read_file(Path(source), limits)


def _read_file(path: Path, limits: AudioLimits) -> bytes:
    hint = "; base64 needs data:audio/wav;base64, in front" if len(str(path)) > MAX_LABEL else ""
    try:
        if not path.is_file():  # a pipe or a device could keep us reading for ever
            raise AudioError(f"there is no such file{hint}")
        with path.open("rb") as file:
            return file.read(limits.max_encoded_bytes + 1)
    except OSError as error:
        raise AudioError(f"cannot be read: {error.strerror or error}{hint}") from error


def _read_data_uri(uri: str, limits: AudioLimits) -> bytes:
    head, comma, payload = uri.partition(",")
    if not comma or not re.fullmatch(r"data:audio/[^,]{1,200};base64", head, re.IGNORECASE):
        raise AudioError(f"{_shorten(head)!r} is not of the form data:audio/wav;base64,…")
    limits.check_encoded(len(payload) // 4 * 3 - 2)
    try:
        return base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError) as error:
        raise AudioError(f"not valid base64: {error}") from error


def _read_array(source: tuple[Any, ...], limits: AudioLimits) -> tuple[NDArray[np.float32], int]:
    if len(source) != 2:
        raise AudioError(f"audio in memory is (samples, sample_rate), not {len(source)} things")
    try:
        sample_rate, values = int(source[1]), np.asarray(source[0])
        if sample_rate != source[1]:
            raise ValueError(f"{source[1]} is not a whole number of Hz")
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise AudioError(f"not usable as (samples, sample_rate): {error}") from error
    if values.ndim not in (1, 2):
        shape = list(values.shape)
        raise AudioError(f"samples of shape {shape}; [n], [n, channels] or [channels, n] are read")
    if values.ndim == 1:
        values = values[:, None]
    elif values.shape[0] < values.shape[1]:
        values = values.T  # [channels, n] -> [n, channels]
    limits.check_format(sample_rate, values.shape[1])
    limits.check_decoded(len(values), sample_rate)
    return _mix(to_float(values)), sample_rate


def _mix(frames: NDArray[np.float32]) -> NDArray[np.float32]:
    with np.errstate(all="ignore"):
        mono: NDArray[np.float32] = frames.mean(axis=1, dtype=np.float32)
    return mono  # [n]


def _decode(content: bytes, limits: AudioLimits) -> tuple[NDArray[np.float32], int]:
    if content[:4] == b"RIFF" and content[8:12] == b"WAVE":
        wav = parse_wav(content)
        limits.check_format(wav.sample_rate, wav.num_channels)
        limits.check_decoded(wav.num_frames, wav.sample_rate)
        return _mix(wav.decode()), wav.sample_rate
    if content[:4] in (b"fLaC", b"OggS"):
        return _decode_by_soundfile(content, limits)
    content = _skip_id3(content)
    if _is_mp3_frame(content):
        return _decode_by_soundfile(content, limits)
    raise AudioError(f"not a format that is known here; {READABLE}" if content else "it is empty")


def _skip_id3(content: bytes) -> bytes:
    # libsndfile looks for any of its formats behind a tag; ours must be looked at first
    start = 0
    while content[start : start + 3] == b"ID3" and start + 10 <= len(content):
        a, b, c, d = content[start + 6 : start + 10]
        start += 10 + (a << 21 | b << 14 | c << 7 | d)  # seven bits a byte
    return content[start:].lstrip(b"\0") if start else content


def _is_mp3_frame(content: bytes) -> bool:
    if len(content) < 4 or content[0] != 0xFF or content[1] & 0xE0 != 0xE0:
        return False
    version, layer = content[1] >> 3 & 3, content[1] >> 1 & 3
    return version != 1 and layer == 1 and content[2] >> 4 != 15 and content[2] >> 2 & 3 != 3


def _decode_by_soundfile(content: bytes, limits: AudioLimits) -> tuple[NDArray[np.float32], int]:
    soundfile = _import_soundfile()
    blocks: list[NDArray[np.float32]] = []
    num_frames = 0
    try:
        with soundfile.SoundFile(io.BytesIO(content)) as file:
            sample_rate = int(file.samplerate)
            limits.check_format(sample_rate, file.channels)
            while len(block := file.read(BLOCK_FRAMES, dtype="float32", always_2d=True)):
                num_frames += len(block)
                limits.check_decoded(num_frames, sample_rate)
                blocks.append(_mix(block))
    except AudioError:
        raise
    except (RuntimeError, ValueError, OSError) as error:
        raise AudioError(f"cannot be decoded: {_reason(error)}") from error
    return np.concatenate(blocks or [np.zeros(0, np.float32)]), sample_rate


def _encode(signal: NDArray[np.float32], sample_rate: int, suffix: str) -> bytes:
    signal = np.clip(signal, -1, 1)
    pcm = np.minimum(np.rint(signal * np.float32(32_768)), 32_767).astype(np.int16)
    if suffix == ".wav":
        return encode_wav(pcm, sample_rate)
    soundfile = _import_soundfile()
    file_format, subtype = WRITABLE[suffix]
    values = pcm if subtype == "PCM_16" else signal
    buffer = io.BytesIO()
    try:
        with soundfile.SoundFile(
            buffer, "w", sample_rate, channels=1, format=file_format, subtype=subtype
        ) as file:
            # Given minutes at once, libsndfile's Vorbis overflows its stack.
            for start in range(0, len(values), BLOCK_FRAMES):
                file.write(values[start : start + BLOCK_FRAMES])
    except (RuntimeError, ValueError, OSError) as error:
        raise AudioError(
            f"cannot write {suffix} at {sample_rate:,} Hz: {_reason(error)}"
        ) from error
    return buffer.getvalue()


def _import_soundfile() -> Any:
    try:
        import soundfile
    except (ImportError, OSError) as error:  # OSError: the wheel came without libsndfile
        raise AudioError(
            f"only WAV works without soundfile, which is not usable here: {INSTALL_SOUNDFILE}"
        ) from error
    return soundfile


def _reason(error: Exception) -> str:
    return str(getattr(error, "error_string", error))  # libsndfile's words without our buffer's


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_LABEL else f"{text[:MAX_LABEL]}…"
