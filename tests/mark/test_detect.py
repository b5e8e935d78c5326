"""`vivace detect`: every format, foreign and broken files, exit codes."""

from __future__ import annotations

import io
import json
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.c2pa_chain import write_chain
from vivace.audio.clip import encode
from vivace.audio.file_mark import SOURCE_TYPE, FileMark, Provenance
from vivace.audio.m4b import write_m4b
from vivace.audio.wav import wav_header
from vivace.audio.writer import write_audio
from vivace.cli.main import main
from vivace.errors import AudioError, RequestError
from vivace.mark.detect import LIMITS, Detection, Detector, describe_tags
from vivace.mark.marking import Marking
from vivace.mark.read_tags import read_tags
from vivace.mark.watermark import WatermarkResult

RATE = 24_000
MARK = FileMark(Provenance(model="Qwen/Tést", voices=("preset", "cloned")))
FORMATS = ("wav", "mp3", "flac", "ogg", "opus")


def tone() -> NDArray[np.float32]:
    return (0.3 * np.sin(np.arange(RATE) / 9)).astype(np.float32)


@pytest.mark.parametrize("format", FORMATS)
def test_metadata_of_every_format_is_found(format: str, tmp_path: Path) -> None:
    path = write_audio(tmp_path / f"a.{format}", tone(), RATE, mark=MARK)
    found = Detector().detect(str(path))
    assert found.is_marked
    assert found.metadata is not None
    assert found.metadata["model"] == "Qwen/Tést"
    assert found.metadata["voice"] == "preset, cloned"
    assert found.metadata["digital_source_type"] == "trainedAlgorithmicMedia"


def test_metadata_of_m4b_is_found() -> None:
    file = io.BytesIO()
    write_m4b(file, [tone()], RATE, marks=[], tags=MARK.tags)
    found = describe_tags(read_tags(file.getvalue()))
    assert found is not None
    assert found["voice"] == "preset, cloned"


@pytest.mark.parametrize("format", FORMATS)
def test_metadata_in_another_script_is_found(format: str) -> None:
    mark = FileMark(Provenance(model="模型", voices=("preset",)))  # UTF-16 in ID3
    found = describe_tags(read_tags(encode(tone(), RATE, format, mark)))
    assert found is not None
    assert found["model"] == "模型"


def test_tag_behind_a_riff_chunk_of_odd_size_is_found() -> None:
    artist = b"IART" + struct.pack("<I", 3) + b"me\0" + b"\0"
    comment = b"ICMT" + struct.pack("<I", 5) + b"yours" + b"\0"
    body = b"INFO" + artist + comment
    content = b"RIFF\0\0\0\0WAVE" + b"LIST" + struct.pack("<I", len(body)) + body
    assert read_tags(content)["comment"] == "yours"


def make_box(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I4s", 8 + len(body), name) + body


def make_movie(comment: bytes) -> bytes:
    item = make_box(b"\xa9cmt", make_box(b"data", bytes(8) + comment))
    meta = make_box(b"meta", bytes(4) + make_box(b"ilst", item))
    return make_box(b"moov", make_box(b"udta", meta))


FTYP = make_box(b"ftyp", b"M4A ")


@pytest.mark.parametrize(
    "content",
    [
        FTYP + make_movie(b"ours"),
        FTYP + struct.pack(">I4sQ", 1, b"mdat", 16 + 50) + bytes(50) + make_movie(b"ours"),
        FTYP + bytes(4) + make_movie(b"ours")[4:],  # size 0: to the end of the file
    ],
    ids=["plain", "behind a box with a 64-bit size", "in a box without a size"],
)
def test_mp4_comment_is_found(content: bytes) -> None:
    assert read_tags(content)["comment"] == "ours"


def test_statement_behind_a_comment_of_another_tool_is_found(tmp_path: Path) -> None:
    path = write_audio(tmp_path / "a.flac", tone(), RATE, mark=MARK)
    statement = read_tags(path.read_bytes())["comment"]
    comments = [b"COMMENT=my favourite", f"COMMENT={statement}".encode(), b"COMMENT=again"]
    packed = b"".join(len(one).to_bytes(4, "little") + one for one in comments)
    block = bytes(4) + len(comments).to_bytes(4, "little") + packed
    content = b"fLaC" + (0x84 << 24 | len(block)).to_bytes(4, "big") + block
    found = describe_tags(read_tags(content))
    assert found is not None
    assert found["model"] == "Qwen/Tést"


@pytest.mark.parametrize("format", FORMATS)
def test_unmarked_file_has_no_mark(format: str, tmp_path: Path) -> None:
    path = write_audio(tmp_path / f"a.{format}", tone(), RATE)
    found = Detector().detect(str(path))
    assert not found.is_marked
    assert (found.metadata, found.watermark, found.manifest) == (None, None, None)


def test_watermark_without_its_package_is_reported_as_not_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> None:
        raise RequestError("a package is missing")

    monkeypatch.setattr("vivace.mark.detect.Watermark.load", refuse)
    path = write_audio(tmp_path / "a.wav", tone(), RATE, mark=MARK)
    detector = Detector()
    for _ in range(2):
        assert detector.detect(str(path)).unchecked["watermark"] == "a package is missing"
    assert main(["detect", str(path)]) == 0
    rows = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert ["watermark", "not checked: a package is missing"] in rows


@pytest.mark.parametrize(("is_marked", "shown"), [(True, 0.123), (False, None)])
def test_confidence_is_reported_only_of_a_watermark_that_was_found(
    is_marked: bool, shown: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Scripted:
        def detect(self, samples: object, rate: int) -> WatermarkResult:
            return WatermarkResult(is_marked, 0.12345)

    monkeypatch.setattr("vivace.mark.detect.Watermark.load", Scripted)
    found = Detector().detect(str(write_audio(tmp_path / "a.wav", tone(), RATE)))
    assert (found.watermark, found.is_marked) == (shown, is_marked)


def test_manifest_without_a_source_type_is_no_mark() -> None:
    signed = Detection(path="a.wav", manifest={"state": "Valid", "signer": "A camera"})
    assert not signed.is_marked
    assert replace(signed, manifest={"source_type": "trainedAlgorithmicMedia"}).is_marked


def test_signed_file_with_undecodable_audio_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    action = {"action": "c2pa.created", "digitalSourceType": SOURCE_TYPE}
    active = {
        "assertions": [{"label": "c2pa.actions.v2", "data": {"actions": [action]}}],
        "signature_info": {"issuer": "An operator"},
    }
    store = {"active_manifest": "one", "manifests": {"one": active}}
    monkeypatch.setattr("vivace.mark.detect.read_manifest", lambda *_: store)
    path = tmp_path / "a.wav"
    path.write_bytes(b"RIFF\0\0\0\0WAVE")
    found = Detector().detect(str(path))
    assert found.is_marked
    assert found.manifest is not None
    assert found.manifest["signer"] == "An operator"
    assert "cannot be decoded" in found.unchecked["watermark"]


def test_tagged_file_with_undecodable_audio_is_reported(tmp_path: Path) -> None:
    whole = write_audio(tmp_path / "a.flac", tone(), RATE, mark=MARK).read_bytes()
    path = tmp_path / "b.flac"
    path.write_bytes(whole[: len(whole) // 8])
    found = Detector().detect(str(path))
    assert found.is_marked
    assert "cannot be decoded" in found.unchecked["watermark"]


def test_source_type_of_another_tool_is_found() -> None:
    url = "http://cv.iptc.org/newscodes/digitalsourcetype/compositeWithTrainedAlgorithmicMedia"
    assert describe_tags({"xmp": f'DigitalSourceType="{url}"', "software": "Other 1"}) == {
        "tool": "Other 1",
        "digital_source_type": "compositeWithTrainedAlgorithmicMedia",
    }
    assert describe_tags({"comment": "a song about AI-generated speech"}) is None


def test_manifest_is_found_and_a_changed_file_is_reported(tmp_path: Path) -> None:
    pytest.importorskip("c2pa")
    chain = write_chain(tmp_path)
    marking = Marking.load("c2pa", certificate=chain.certificate, key=chain.key)
    path = write_audio(tmp_path / "a.wav", tone(), RATE, mark=marking.file_mark("m", "preset"))
    found = Detector().detect(str(path)).manifest
    assert found is not None
    assert (found["state"], found["signer"]) == ("Valid", "Vivace test signer")
    assert found["source_type"] == "trainedAlgorithmicMedia"
    content = bytearray(path.read_bytes())
    content[2_000] ^= 1
    path.write_bytes(content)
    changed = Detector().detect(str(path)).manifest
    assert changed is not None
    assert changed["state"] == "Invalid"


@pytest.mark.parametrize("format", FORMATS)
def test_broken_tags_never_raise(format: str) -> None:
    content = encode(tone()[:480], RATE, format, MARK)
    for length in range(0, min(len(content), 1_500), 7):
        read_tags(content[:length])
    draw = np.random.default_rng(1)
    for _ in range(100):
        damaged = bytearray(content)
        for place in draw.integers(0, min(len(content), 1_500), 8):
            damaged[place] = draw.integers(256)
        read_tags(bytes(damaged))


BROKEN = (b"", b"text", b"RIFF\0\0\0\0WAVE", b"ID3\4\0\0\x7f\x7f\x7f\x7f")


@pytest.mark.parametrize("content", BROKEN)
def test_foreign_and_broken_files_raise_audio_error(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(content)
    with pytest.raises(AudioError, match=r"a\.wav"):
        Detector().detect(str(path))


def test_wav_without_samples_is_an_error_with_the_reason(tmp_path: Path) -> None:
    plain, marked = tmp_path / "plain.wav", tmp_path / "marked.wav"
    plain.write_bytes(wav_header(RATE, 0))
    with pytest.raises(AudioError, match=r"plain\.wav: the file has no samples"):
        Detector().detect(str(plain))
    tags = encode(tone(), RATE, "wav", MARK)[len(wav_header(RATE)) + 2 * RATE :]
    marked.write_bytes(wav_header(RATE, 0, num_after=len(tags)) + tags)
    found = Detector().detect(str(marked))
    assert found.is_marked
    assert "no samples" in found.unchecked["watermark"]


def test_command_prints_json_and_returns_the_worst_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marked = str(write_audio(tmp_path / "a.wav", tone(), RATE, mark=MARK))
    plain = str(write_audio(tmp_path / "b.wav", tone(), RATE))
    assert main(["detect", marked, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["is_marked"] is True
    assert report["metadata"]["model"] == "Qwen/Tést"
    assert main(["detect", marked, plain]) == 1
    assert "no mark was found" in capsys.readouterr().out
    assert main(["detect", str(tmp_path / "missing.wav"), plain]) == 2
    output = capsys.readouterr()
    assert "missing.wav" in output.err
    assert "no mark was found" in output.out
    missing = str(tmp_path / "missing.wav")
    assert main(["detect", missing, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["file"] == missing


def test_command_with_dash_reads_stdin(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def detect(content: bytes) -> int:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
        return main(["detect", "-", "--json"])

    assert detect(encode(tone(), RATE, "flac", MARK)) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["file"], report["metadata"]["model"]) == ("stdin", "Qwen/Tést")
    assert detect(encode(tone(), RATE, "wav")) == 1
    capsys.readouterr()
    assert detect(b"text") == 2
    failed = json.loads(capsys.readouterr().out)
    assert failed["file"] == "stdin"
    assert "stdin" in failed["error"]


def test_command_with_dash_and_closed_stdin_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    assert main(["detect", "-"]) == 2
    assert "stdin is closed" in capsys.readouterr().err


def test_more_bytes_on_stdin_than_the_limit_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vivace.mark.detect.LIMITS", replace(LIMITS, max_encoded_bytes=100))
    with pytest.raises(AudioError, match="stdin: "):
        Detector().detect_stream(io.BytesIO(bytes(101)), "stdin")


def test_help_names_stdin(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["detect", "--help"])
    assert "- is stdin" in capsys.readouterr().out
