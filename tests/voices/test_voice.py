"""Voice files are saved and loaded unchanged; other files are rejected."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save

from tests.support.examples import examples
from vivace.errors import RequestError, VoiceFileError, VoiceMismatchError
from vivace.voices.voice import Voice, load_voice, parse_voice

SPEAKER = np.linspace(-1, 1, 32, dtype=np.float32)
CODES = np.arange(5 * 16).reshape(5, 16) * 25 % 2048
METADATA = {
    "format": "vivace.voice/1",
    "name": "ada",
    "family": "qwen3-tts-12hz",
    "width": "32",
}


def make_voice(**changes: Any) -> Voice:
    fields: dict[str, Any] = {
        "name": "ada",
        "speaker": SPEAKER,
        "ref_codes": CODES,
        "ref_text": 'Grüße, 世界. "Quoted".',
        "language": "german",
        "source_sha256": "0123456789abcdef" * 4,
        "licence": "CC0-1.0",
        "consent": "Ada agreed on 2026-01-30",
        "created": "2026-01-31",
    }
    return Voice(**(fields | changes))


def pack(metadata: dict[str, str] | None = None, **tensors: np.ndarray) -> bytes:
    return save(tensors or {"speaker": SPEAKER}, METADATA if metadata is None else metadata)


def with_header(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


FILE = pack({**METADATA, "ref_text": "Hello."}, speaker=SPEAKER, ref_codes=CODES.astype(np.int16))


def test_saved_voice_is_loaded_unchanged(tmp_path: Path) -> None:
    voice = make_voice()
    path = voice.save(tmp_path / "ada.safetensors")
    for loaded in (load_voice(path), Voice.load(str(path))):
        np.testing.assert_array_equal(loaded.speaker, voice.speaker)
        np.testing.assert_array_equal(loaded.ref_codes, CODES)
        assert loaded.speaker.dtype == np.float32
        assert loaded.ref_codes is not None
        assert loaded.ref_codes.dtype == np.int64
        for field in ("name", "ref_text", "language", "source_sha256", "licence", "consent"):
            assert getattr(loaded, field) == getattr(voice, field)


def test_voice_without_codes_is_valid(tmp_path: Path) -> None:
    path = Voice(name="bob", speaker=SPEAKER).save(tmp_path / "bob.safetensors")
    loaded = load_voice(path)
    assert not loaded.is_in_context
    assert loaded.ref_codes is None
    assert loaded.language is None
    assert loaded.family == "qwen3-tts-12hz"


def test_voice_with_codes_is_in_context() -> None:
    assert make_voice().is_in_context


def test_equal_voices_are_equal_files(tmp_path: Path) -> None:
    paths = [make_voice().save(tmp_path / f"{number}.safetensors") for number in range(4)]
    assert len({path.read_bytes() for path in paths}) == 1


def test_voice_file_is_plain_safetensors(tmp_path: Path) -> None:
    path = make_voice().save(tmp_path / "ada.safetensors")
    with safe_open(path, "np") as file:
        assert sorted(file.keys()) == ["ref_codes", "speaker"]
        assert file.metadata()["ref_text"] == make_voice().ref_text


def test_codes_are_stored_as_int16(tmp_path: Path) -> None:
    path = make_voice().save(tmp_path / "ada.safetensors")
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert header["ref_codes"]["dtype"] == "I16"
    assert header["__metadata__"]["format"] == "vivace.voice/1"
    assert header["__metadata__"]["width"] == "32"


def test_voice_copies_the_vector() -> None:
    mine = SPEAKER.copy()
    voice = make_voice(speaker=mine)
    mine[:] = 0
    np.testing.assert_array_equal(voice.speaker, SPEAKER)


def test_check_width_error_names_both_widths() -> None:
    voice = make_voice()
    voice.check_width(32)
    with pytest.raises(VoiceMismatchError, match=r"'ada' has width 32 and this model 1024; clone"):
        voice.check_width(1024)


@pytest.mark.parametrize("name", ["a", "0", "ada_2.b-c", "a" * 64])
def test_valid_names_are_accepted(name: str) -> None:
    assert make_voice(name=name).name == name


@pytest.mark.parametrize("name", ["", "Ada", ".ada", "-a", "a/b", "../a", "a b", "ä", "a\n", None])
def test_invalid_names_are_rejected(name: Any) -> None:
    with pytest.raises(RequestError, match="cannot name a voice"):
        make_voice(name=name)


def test_name_of_65_letters_is_rejected() -> None:
    with pytest.raises(RequestError, match="1 to 64"):
        make_voice(name="a" * 65)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("speaker", np.zeros((2, 3)), r"shape \[D\], not \[2, 3\]"),
        ("speaker", np.zeros(0), r"not \[0\]"),
        ("speaker", np.array([1.0, np.nan]), "NaN or infinite"),
        ("speaker", np.array([1e300]), "NaN or infinite"),
        ("ref_codes", np.zeros(16, np.int64), "shape"),
        ("ref_codes", np.zeros((0, 16), np.int64), "shape"),
        ("ref_codes", np.zeros((2, 16)), "whole numbers"),
        ("ref_codes", np.full((2, 16), 2048), "0 to 2047"),
        ("ref_codes", np.full((2, 16), -1), "0 to 2047"),
        ("ref_text", None, "needs ref_text"),
        ("ref_text", "  ", "needs ref_text"),
        ("ref_text", "a" * 4_001, "4,000 characters"),
        ("ref_text", "a\ud800", "surrogate"),
        ("language", "a" * 201, "200 characters"),
        ("licence", 3, "must be a text"),
        ("source_sha256", "abc", "64 hex digits"),
        ("created", "31.1.2026", "a date"),
        ("created", "20260131", "a date"),
        ("family", "qwen3-tts-25hz", "qwen3-tts-25hz"),
    ],
)
def test_invalid_field_raises_in_the_constructor(field: str, value: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        make_voice(**{field: value})


def test_longest_texts_fit_in_the_header(tmp_path: Path) -> None:
    voice = make_voice(ref_text="\0" * 3_999 + "a", language="\0" * 200, licence="\0" * 200)
    assert load_voice(voice.save(tmp_path / "a.safetensors")).ref_text == voice.ref_text


@pytest.mark.parametrize("name", ["ada", "ada.pt", "ada.wav"])
def test_save_with_another_ending_is_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(VoiceFileError, match=r"saved as \.safetensors"):
        make_voice().save(tmp_path / name)


def test_failed_save_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(VoiceFileError, match="cannot write"):
        make_voice().save(tmp_path / "missing" / "ada.safetensors")
    (tmp_path / "folder.safetensors").mkdir()
    with pytest.raises(VoiceFileError, match="not a file"):
        make_voice().save(tmp_path / "folder.safetensors")
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder.safetensors"]


def test_failed_save_keeps_the_previous_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_voice().save(tmp_path / "ada.safetensors")
    monkeypatch.setattr(os, "fsync", _fail)
    with pytest.raises(VoiceFileError, match="disk full"):
        make_voice(licence="other").save(path)
    assert load_voice(path).licence == "CC0-1.0"
    assert list(tmp_path.iterdir()) == [path]


def test_saved_file_mode_follows_the_umask(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    path = make_voice().save(tmp_path / "ada.safetensors")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


def test_missing_file_and_folder_raise_with_the_path(tmp_path: Path) -> None:
    for path in (tmp_path / "none.safetensors", tmp_path, tmp_path / ("x" * 5_000)):
        with pytest.raises(VoiceFileError, match=str(tmp_path)):
            load_voice(path)


def test_load_error_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(b"not a voice")
    with pytest.raises(VoiceFileError, match=r"bad\.safetensors: "):
        load_voice(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a safetensors file"),
        (FILE[:-1], "not a safetensors file"),
        (FILE + b"\0", "not a safetensors file"),
        (with_header(b"[" * 1_000), "not a safetensors file"),
        (with_header(b'"' + b"x" * 70_000 + b'"'), "too large"),
        (FILE + bytes(2**20), "too large"),
        (b"\xff" * 16, "too large"),
        (
            with_header({"speaker": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 4]}}),
            "not a s",
        ),
        (
            with_header(
                {"speaker": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, bytes(4)
            ),
            "format 'none'",
        ),
        (pack({}), "format 'none'"),
        (pack(METADATA | {"format": "vivace.voice/2"}), r"format 'vivace\.voice/2', not"),
        (pack({k: v for k, v in METADATA.items() if k != "name"}), "has no name"),
        (pack(METADATA | {"surprise": "x"}), "unknown entries: surprise"),
        (pack(METADATA | {"name": "../x"}), "cannot name a voice"),
        (pack(METADATA | {"family": "other"}), "other"),
        (
            pack(METADATA | {"width": "31"}),
            "the speaker vector has 32 values",
        ),
        (pack(METADATA | {"width": "٣٢"}), "in the metadata"),
        (pack(METADATA | {"created": "now"}), "a date"),
        (pack(METADATA | {"width": "0"}, speaker=SPEAKER[:0]), r"\[D\]"),
        (pack(None, speaker=SPEAKER.astype(np.float64)), "float64"),
        (pack(None, speaker=SPEAKER.astype(np.float16)), "float16"),
        (pack(None, speaker=SPEAKER, extra=SPEAKER), "extra"),
        (pack(None, ref_codes=CODES.astype(np.int16)), "the tensors are"),
        (pack(None, speaker=SPEAKER, ref_codes=CODES.astype(np.int64)), "int64"),
        (pack(None, speaker=SPEAKER, ref_codes=CODES.astype(np.int16)), "needs ref_text"),
        (pack(None, speaker=SPEAKER.reshape(4, 8)), r"\[4, 8\]"),
        (pack(None, speaker=np.full(32, np.inf, np.float32)), "infinite"),
    ],
)
def test_invalid_voice_file_is_rejected(content: bytes, message: str) -> None:
    with pytest.raises(VoiceFileError, match=message):
        parse_voice(content)


@pytest.mark.parametrize("dtype", ["BF16", "F8_E4M3", "BOOL", "I32", "F4", "X"])
def test_vector_of_another_type_is_rejected(dtype: str) -> None:
    header: dict[str, Any] = {
        "__metadata__": METADATA,
        "speaker": {"dtype": dtype, "shape": [32], "data_offsets": [0, 64]},
    }
    for size in (16, 32, 64, 128):
        header["speaker"]["data_offsets"] = [0, size]
        with pytest.raises(VoiceFileError):
            parse_voice(with_header(header, bytes(size)))


@examples(300)
@given(st.lists(st.tuples(st.integers(0, len(FILE) - 1), st.integers(0, 255)), max_size=6))
def test_mutated_file_loads_or_raises_voice_file_error(edits: list[tuple[int, int]]) -> None:
    content = bytearray(FILE)
    for position, value in edits:
        content[position] = value
    _parses_or_is_refused(bytes(content))


@examples(100)
@given(st.binary(max_size=64), st.integers(0, len(FILE)), st.integers(0, len(FILE)))
def test_spliced_file_loads_or_raises_voice_file_error(
    middle: bytes, start: int, stop: int
) -> None:
    _parses_or_is_refused(FILE[:start] + middle + FILE[stop:])


@examples(100)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
        ),
    )
)
def test_arbitrary_json_header_is_rejected(header: Any) -> None:
    with pytest.raises(VoiceFileError):
        parse_voice(with_header(header))


def _parses_or_is_refused(content: bytes) -> None:
    try:
        voice = parse_voice(content)
    except VoiceFileError:
        return
    assert np.isfinite(voice.speaker).all()


def _fail(_: int) -> None:
    raise OSError(28, "disk full")
