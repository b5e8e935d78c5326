"""Tags in every format, read with FFmpeg; samples and headers stay as they are."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from vivace._version import __version__
from vivace.audio.clip import encode
from vivace.audio.decode import DEFAULT_LIMITS, decode, decode_compressed
from vivace.audio.encode import open_encoder, tags_of
from vivace.audio.file_mark import SOURCE_TYPE, FileMark, Provenance, join_marks
from vivace.audio.id3 import id3_tag
from vivace.audio.tags import riff_chunks
from vivace.audio.wav import parse_wav
from vivace.audio.writer import open_audio_file, write_audio
from vivace.errors import AudioError

RATE = 24_000
PROVENANCE = Provenance(model="Qwen/Tést", voices=("preset",))
MARK = FileMark(PROVENANCE)
TAGGED = ("wav", "flac", "mp3", "ogg", "opus")
FORMATS = (*TAGGED, "aac", "pcm")


def tone(seconds: float = 1.0) -> NDArray[np.float32]:
    return (0.3 * np.sin(np.arange(round(seconds * RATE)) / 9)).astype(np.float32)


def read_tags(content: bytes) -> dict[str, str]:
    av = pytest.importorskip("av")
    with av.open(io.BytesIO(content)) as file:
        streams: list[dict[str, str]] = [dict(one.metadata) for one in file.streams]
        found = {**dict(file.metadata), **{k: v for one in streams for k, v in one.items()}}
    return {name.lower(): value for name, value in found.items()}


def samples_of(content: bytes) -> NDArray[np.float32]:
    return decode(content, DEFAULT_LIMITS, decode_compressed)[0]


def test_comment_names_tool_model_voice_and_source_type() -> None:
    assert PROVENANCE.comment == (
        f"AI-generated speech; tool: Vivace {__version__}; model: Qwen/Tést; voice: preset; "
        f"marks: metadata; digital source type: {SOURCE_TYPE}"
    )


@pytest.mark.parametrize("format", TAGGED)
def test_file_carries_the_comment(format: str) -> None:
    tags = read_tags(encode(tone(), RATE, format, MARK))
    assert tags["comment"] == PROVENANCE.comment


def test_mp3_carries_the_software() -> None:
    content = encode(tone(), RATE, "mp3", MARK)  # FFmpeg reports the encoder instead
    assert b"TSSE" in content
    assert f"\0\0\0Vivace {__version__}".encode() in content


@pytest.mark.parametrize("format", ["wav", "flac", "ogg", "opus"])
def test_file_carries_the_software(format: str) -> None:
    tags = read_tags(encode(tone(), RATE, format, MARK))
    found = tags.get("software") or tags["encoder"]  # FFmpeg's name of ISFT
    assert found.startswith(f"Vivace {__version__}")


@pytest.mark.parametrize("format", ["wav", "mp3"])
def test_file_carries_xmp_with_the_digital_source_type(format: str) -> None:
    content = encode(tone(), RATE, format, MARK)
    assert f'Iptc4xmpExt:DigitalSourceType="{SOURCE_TYPE}"'.encode() in content
    assert (b"_PMX" if format == "wav" else b"PRIV") in content


def test_mp3_has_one_tag_in_front_of_its_samples() -> None:
    assert encode(tone(), RATE, "mp3", MARK).count(b"ID3") == 1


def test_opus_has_no_xmp_among_its_comments() -> None:
    pytest.importorskip("av")
    assert b"Iptc4xmpExt" not in encode(tone(), RATE, "opus", MARK)


@pytest.mark.parametrize("format", FORMATS)
def test_samples_are_equal_with_and_without_tags(format: str) -> None:
    marked, plain = encode(tone(), RATE, format, MARK), encode(tone(), RATE, format)
    if format in ("aac", "pcm"):
        assert marked == plain
    else:
        assert marked != plain
        assert np.array_equal(samples_of(marked), samples_of(plain))


@pytest.mark.parametrize("format", TAGGED)
def test_file_written_in_steps_has_the_same_tags(format: str, tmp_path: Path) -> None:
    whole = write_audio(tmp_path / f"whole.{format}", tone(), RATE, mark=MARK)
    with open_audio_file(tmp_path / f"steps.{format}", RATE, mark=MARK) as file:
        for part in np.array_split(tone(), 7):
            file.write(part)
    steps = (tmp_path / f"steps.{format}").read_bytes()
    assert read_tags(steps)["comment"] == read_tags(whole.read_bytes())["comment"]
    if format != "ogg":  # libsndfile's Vorbis encoder depends on the parts
        assert np.array_equal(samples_of(steps), samples_of(whole.read_bytes()))


def test_wav_keeps_a_header_of_44_bytes_and_puts_tags_behind_the_samples() -> None:
    marked, plain = encode(tone(), RATE, "wav", MARK), encode(tone(), RATE, "wav")
    assert marked[36:40] == b"data"
    assert marked[44 : len(plain)] == plain[44:]
    assert marked[len(plain) :] == riff_chunks(MARK.tags)
    assert struct.unpack("<I", marked[4:8])[0] == len(marked) - 8
    assert struct.unpack("<I", marked[40:44])[0] == len(plain) - 44


def test_streamed_wav_has_no_bytes_behind_its_samples() -> None:
    encoder = open_encoder("wav", RATE, tags=tags_of(MARK))
    content = encoder.encode(tone()) + encoder.finish()
    assert content[36:44] == b"data\xff\xff\xff\xff"
    assert content[44:] == encode(tone(), RATE, "pcm")


def test_tags_in_front_of_a_streamed_wav_are_read() -> None:
    encoder = open_encoder("wav", RATE, tags=tags_of(MARK, are_first=True))
    content = encoder.encode(tone()) + encoder.finish()
    assert read_tags(content)["comment"] == PROVENANCE.comment
    assert bytes(parse_wav(content).data) == encode(tone(), RATE, "pcm")
    file = io.BytesIO(content)
    encoder.patch(file)
    samples, _ = soundfile.read(io.BytesIO(file.getvalue()), dtype="int16")
    assert samples.tobytes() == encode(tone(), RATE, "pcm")


def test_wav_without_samples_before_the_end_is_complete() -> None:
    encoder = open_encoder("wav", RATE, tags=tags_of(MARK))
    content = encoder.finish()
    assert struct.unpack("<I", content[4:8])[0] == len(content) - 8
    assert not encoder._buffer.patches


def test_wav_that_is_too_long_for_its_header_has_no_tags_behind_its_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vivace.audio.wav.MAX_DATA_BYTES", RATE)
    content = encode(tone(), RATE, "wav", MARK)  # readers take all bytes for samples
    assert content[36:44] == b"data\xff\xff\xff\xff"
    assert content[44:] == encode(tone(), RATE, "pcm")


def test_id3_text_that_is_not_latin_1_is_utf_16() -> None:
    mark = FileMark(Provenance(model="模型", voices=("cloned",)))
    assert "model: 模型; voice: cloned" in read_tags(encode(tone(), RATE, "mp3", mark))["comment"]
    assert b"\xff\xfe" not in id3_tag(MARK.tags)  # looks like the start of an mp3 frame


def test_values_cannot_end_their_field() -> None:
    comment = Provenance(model="a; voice: b\nc", voices=("designed",)).comment
    assert "model: a voice: b c; voice: designed" in comment


def test_header_is_ascii() -> None:
    header = Provenance(model="模型 1", voices=("preset", "cloned"), is_watermarked=True).header
    assert header == (
        f"ai-generated; tool=Vivace {__version__}; model=%E6%A8%A1%E5%9E%8B 1; "
        "voice=preset, cloned; marks=metadata, watermark; "
        "digital-source-type=trainedAlgorithmicMedia"
    )


def test_joined_marks_have_all_kinds_of_voices() -> None:
    other = FileMark(Provenance(model="Qwen/Tést", voices=("cloned",)))
    joined = join_marks([MARK, other, MARK])
    assert joined is not None
    assert joined.provenance.voices == ("preset", "cloned")
    assert join_marks([MARK, None]) is None
    assert join_marks([]) is None


class FakeSigner:
    formats = ("wav",)

    def sign(self, source: Any, target: Any, format: str, title: str) -> None:
        target.write(source.read() + f"{format} {title}".encode())


def test_complete_files_are_signed(tmp_path: Path) -> None:
    mark = FileMark(PROVENANCE, FakeSigner())
    plain = encode(tone(), RATE, "wav", MARK)
    path = write_audio(tmp_path / "a.wav", tone(), RATE, mark=mark)
    assert path.read_bytes() == plain + b"wav a.wav"
    assert encode(tone(), RATE, "wav", mark) == plain + b"wav speech.wav"


def test_format_that_cannot_be_signed_raises_audio_error(tmp_path: Path) -> None:
    mark = FileMark(PROVENANCE, FakeSigner())
    with pytest.raises(AudioError, match="c2pa cannot sign flac; choose one of: wav"):
        encode(tone(), RATE, "flac", mark)
    with pytest.raises(AudioError, match="c2pa cannot sign flac; choose one of: wav"):
        open_audio_file(tmp_path / "a.flac", RATE, mark=mark)
    assert not list(tmp_path.iterdir())
