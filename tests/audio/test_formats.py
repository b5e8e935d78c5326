"""Tests of the table of audio formats."""

from __future__ import annotations

import subprocess
import sys

import pytest

from vivace.audio.formats import AUDIOBOOK_FORMATS, FORMATS, SPEECH_FORMATS, find_format, format_of
from vivace.errors import AudioError


def test_format_of_maps_extensions() -> None:
    for known in FORMATS.values():
        assert {format_of(f"x/a{extension}") for extension in known.extensions} == {known.name}
    assert format_of("A.Oga") == "ogg"
    for name in ("a", "wav", ".wav", "a.wav.gz", ""):
        with pytest.raises(AudioError, match=r"unknown file extension; use one of: \.wav, \.flac"):
            format_of(name)
    with pytest.raises(AudioError, match=r"'\.': unknown file extension"):
        format_of(".")


def test_content_types_are_standard() -> None:
    assert {name: known.content_type for name, known in FORMATS.items()} == {
        "wav": "audio/wav",
        "flac": "audio/flac",
        "mp3": "audio/mpeg",
        "ogg": "audio/ogg",
        "opus": "audio/ogg",
        "aac": "audio/aac",
        "pcm": "audio/pcm",
    }


def test_format_of_audiobook_accepts_m4b() -> None:
    assert (
        format_of("book.M4B", AUDIOBOOK_FORMATS) == format_of("b.m4a", AUDIOBOOK_FORMATS) == "m4b"
    )
    with pytest.raises(AudioError, match=r"'book\.m4b': unknown file extension"):
        format_of("book.m4b")


def test_find_format_with_unsupported_rate_raises_error_with_supported_rates() -> None:
    assert find_format("opus", 48_000) is FORMATS["opus"]
    with pytest.raises(AudioError, match="cannot write opus at 44,100 Hz; supported rates: 8,000,"):
        find_format("opus", 44_100)


def test_speech_formats_are_known_formats() -> None:
    assert set(SPEECH_FORMATS) <= set(FORMATS)


def test_formats_import_without_numpy() -> None:
    script = "import sys; sys.modules['numpy'] = None; import vivace.audio.formats"
    subprocess.run([sys.executable, "-c", script], check=True)
