"""Audio formats: names, file extensions, MIME types, sample rates and how each one is encoded.

The command line, audiobooks, the server and `Audio.save` all use these tables. The module does not
import numpy, so that `vivace --help` can list the formats quickly.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from vivace.errors import AudioError
from vivace.speech import Bounds

SpeechFormat = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]
SPEECH_FORMATS: tuple[str, ...] = get_args(SpeechFormat)  # OpenAI's `response_format`
RECORDING_EXTENSIONS = (".wav", ".flac", ".ogg", ".mp3", ".m4a", ".opus", ".webm")
READABLE_FORMATS = "WAV, FLAC, OGG and MP3 are supported, and M4A, AAC and WebM with the extra av"
BIT_RATES = Bounds(8_000, 320_000)


@dataclass(frozen=True, slots=True)
class FfmpegCodec:
    """Settings for an encoder of FFmpeg, used through PyAV."""

    container: str
    codec: str
    bit_rate: int  # default, in bits per second
    options: Mapping[str, str] = field(default_factory=dict)  # of the container


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """An audio file format. PyAV is preferred where both PyAV and soundfile can encode it."""

    name: str
    extensions: tuple[str, ...]  # the first one is used for new files
    content_type: str
    sample_rates: tuple[int, ...] = ()  # empty: any
    soundfile: Mapping[str, Any] | None = None  # arguments of soundfile.SoundFile
    ffmpeg: FfmpegCodec | None = None

    @property
    def packages(self) -> tuple[str, ...]:
        """Packages that can encode the format, in order of preference. Empty: numpy alone."""
        return ("av",) * bool(self.ffmpeg) + ("soundfile",) * bool(self.soundfile)


MP3_RATES = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
OPUS_RATES = (8_000, 12_000, 16_000, 24_000, 48_000)
AAC_RATES = (7_350, *MP3_RATES, 64_000, 88_200, 96_000)
# 96 kbit/s. With a variable bit rate, libsndfile misjudges the length of a streamed file.
MP3_CODEC = {"format": "MP3", "bitrate_mode": "CONSTANT", "compression_level": 0.4}
OGG_CODEC = {"format": "OGG", "subtype": "VORBIS"}
FLAC_CODEC = {"format": "FLAC", "subtype": "PCM_16"}
# PyAV returns bytes every 80 ms, libsndfile every second. Pages are in microseconds.
OPUS_CODECS = (
    {"format": "OGG", "subtype": "OPUS"},
    FfmpegCodec("ogg", "libopus", 48_000, {"page_duration": "20000"}),
)
AAC_CODEC = FfmpegCodec("adts", "aac", 64_000)
M4B_CODEC = FfmpegCodec("mp4", "aac", 64_000, {"brand": "M4B "})
M4B = AudioFormat("m4b", (".m4b", ".m4a"), "audio/mp4", AAC_RATES, ffmpeg=M4B_CODEC)
FORMATS = {
    known.name: known
    for known in (
        AudioFormat("wav", (".wav",), "audio/wav"),
        AudioFormat("flac", (".flac",), "audio/flac", soundfile=FLAC_CODEC),
        AudioFormat("mp3", (".mp3",), "audio/mpeg", MP3_RATES, MP3_CODEC),
        AudioFormat("ogg", (".ogg", ".oga"), "audio/ogg", soundfile=OGG_CODEC),
        AudioFormat("opus", (".opus",), "audio/ogg", OPUS_RATES, *OPUS_CODECS),
        AudioFormat("aac", (".aac",), "audio/aac", AAC_RATES, ffmpeg=AAC_CODEC),
        AudioFormat("pcm", (".pcm",), "audio/pcm"),
    )
}
AUDIOBOOK_FORMATS = {M4B.name: M4B, **FORMATS}


def find_format(name: str, sample_rate: int | None = None) -> AudioFormat:
    """Look up a streaming format; raise AudioError for an unknown name or sample rate."""
    if not isinstance(name, str) or name not in FORMATS:
        raise AudioError(f"unknown audio format {name!r}; choose one of: {', '.join(FORMATS)}")
    rates = FORMATS[name].sample_rates
    if sample_rate is not None and rates and sample_rate not in rates:
        listed = ", ".join(f"{rate:,}" for rate in rates)
        raise AudioError(f"cannot write {name} at {sample_rate:,} Hz; supported rates: {listed}")
    return FORMATS[name]


def check_bit_rate(bit_rate: int | None) -> None:
    """Raise AudioError for bits per second that no encoder makes; None is a format's default."""
    if bit_rate is not None and bit_rate not in BIT_RATES:
        raise AudioError(f"bit_rate must be {BIT_RATES} bits a second, not {bit_rate}")


def format_of(path: str | os.PathLike[str], formats: Mapping[str, AudioFormat] = FORMATS) -> str:
    """The name of the format that belongs to the file's extension."""
    names = {extension: known.name for known in formats.values() for extension in known.extensions}
    suffix = Path(path).suffix.lower()
    if suffix not in names:
        name = Path(path).name or os.fspath(path)  # "." and "/" have no name
        raise AudioError(f"{name!r}: unknown file extension; use one of: {', '.join(names)}")
    return names[suffix]


def cover_kind(image: bytes) -> str | None:
    """The codec of a cover image, `mjpeg` or `png`; None for other formats."""
    if image.startswith(b"\xff\xd8\xff"):
        return "mjpeg"
    return "png" if image.startswith(b"\x89PNG\r\n\x1a\n") else None
