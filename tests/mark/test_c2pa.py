"""Signed manifests: the file, its manifest, and every certificate that cannot be used."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.c2pa_chain import SigningChain, write_chain
from vivace.audio.clip import encode
from vivace.audio.decode import DEFAULT_LIMITS, decode, decode_compressed
from vivace.audio.file_mark import SOURCE_TYPE, FileMark
from vivace.audio.formats import AUDIOBOOK_FORMATS
from vivace.audio.m4b import write_m4b
from vivace.audio.writer import sign_bytes, write_audio
from vivace.errors import AudioError, RequestError
from vivace.mark.c2pa import ManifestSigner, read_manifest
from vivace.mark.marking import Marking

c2pa = pytest.importorskip("c2pa")
RATE = 24_000


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> SigningChain:
    return write_chain(tmp_path_factory.mktemp("c2pa"))


@pytest.fixture(scope="module")
def mark(chain: SigningChain) -> FileMark:
    marking = Marking.load("c2pa", certificate=chain.certificate, key=chain.key)
    made = marking.file_mark("Qwen/Test", "cloned")
    assert made is not None
    return made


def tone() -> NDArray[np.float32]:
    return (0.3 * np.sin(np.arange(RATE) / 9)).astype(np.float32)


def manifest_of(content: bytes, format: str) -> Mapping[str, Any] | None:
    return read_manifest(io.BytesIO(content), AUDIOBOOK_FORMATS[format].content_type)


def check(store: Mapping[str, Any] | None, title: str) -> None:
    assert store is not None
    assert store["validation_state"] == "Valid"  # not "Trusted": the authority is ours
    active = store["manifests"][store["active_manifest"]]
    assert active["title"] == title
    assert active["signature_info"]["common_name"] == "Vivace test signer"
    (actions,) = [one for one in active["assertions"] if one["label"].startswith("c2pa.actions")]
    (action,) = actions["data"]["actions"]
    assert (action["action"], action["digitalSourceType"]) == ("c2pa.created", SOURCE_TYPE)
    assert action["softwareAgent"]["name"] == "Vivace"


@pytest.mark.parametrize("format", ["wav", "mp3"])
def test_saved_file_has_a_valid_manifest_and_its_samples(
    format: str, mark: FileMark, tmp_path: Path
) -> None:
    path = write_audio(tmp_path / f"a.{format}", tone(), RATE, mark=mark)
    check(manifest_of(path.read_bytes(), format), f"a.{format}")
    signed = decode(path.read_bytes(), DEFAULT_LIMITS, decode_compressed)[0]
    plain = decode(encode(tone(), RATE, format), DEFAULT_LIMITS, decode_compressed)[0]
    assert np.array_equal(signed, plain)
    assert b"marks: metadata, c2pa" in path.read_bytes()


def test_signed_wav_keeps_a_header_of_44_bytes(mark: FileMark) -> None:
    assert encode(tone(), RATE, "wav", mark)[36:40] == b"data"


def test_m4b_has_a_valid_manifest(mark: FileMark) -> None:
    assert mark.signer is not None
    file = io.BytesIO()
    write_m4b(file, [tone()], RATE, marks=[], tags=mark.tags)
    check(manifest_of(sign_bytes(mark.signer, file, "m4b"), "m4b"), "speech.m4b")


def test_changed_samples_invalidate_the_manifest(mark: FileMark) -> None:
    content = bytearray(encode(tone(), RATE, "wav", mark))
    content[1_000] ^= 1
    store = manifest_of(bytes(content), "wav")
    assert store is not None
    assert store["validation_state"] == "Invalid"


def test_file_without_manifest_has_none() -> None:
    assert manifest_of(encode(tone(), RATE, "wav"), "wav") is None


@pytest.mark.parametrize("format", ["flac", "ogg", "opus", "aac", "pcm"])
def test_other_format_is_rejected_before_a_file_is_made(
    format: str, mark: FileMark, tmp_path: Path
) -> None:
    with pytest.raises(AudioError, match=f"cannot sign {format}; choose one of: wav, mp3, m4b"):
        write_audio(tmp_path / f"a.{format}", tone(), RATE, mark=mark)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("missing", ["CERT", "KEY"])
def test_missing_file_is_named(
    missing: str, chain: SigningChain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIVACE_C2PA_CERT", str(chain.certificate))
    monkeypatch.setenv("VIVACE_C2PA_KEY", str(chain.key))
    assert Marking.load("c2pa").levels.c2pa
    monkeypatch.delenv(f"VIVACE_C2PA_{missing}")
    with pytest.raises(RequestError, match=f"VIVACE_C2PA_{missing}"):
        Marking.load("c2pa")
    monkeypatch.setenv(f"VIVACE_C2PA_{missing}", "nowhere.pem")
    with pytest.raises(RequestError, match=r"nowhere\.pem cannot be read"):
        Marking.load("c2pa")


def test_timestamp_authority_is_read_from_the_environment(
    chain: SigningChain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIVACE_C2PA_TIMESTAMP_URL", "http://timestamps.example")
    signer = ManifestSigner.load(chain.certificate, chain.key, None)
    assert signer.timestamp_url == "http://timestamps.example"
    given = ManifestSigner.load(chain.certificate, chain.key, "http://other.example")
    assert given.timestamp_url == "http://other.example"


def test_certificate_that_the_library_rejects_is_reported_at_once(
    chain: SigningChain, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_info: object) -> None:
        raise c2pa.C2paError("unusable")

    monkeypatch.setattr(c2pa.Signer, "from_info", refuse)
    with pytest.raises(RequestError, match="c2pa rejects the certificate or its key: unusable"):
        Marking.load("c2pa", certificate=chain.certificate, key=chain.key)


@pytest.mark.parametrize(("first_day", "last_day"), [(-30, -1), (1, 30)])
def test_certificate_that_is_not_valid_now_is_rejected(
    first_day: int, last_day: int, tmp_path: Path
) -> None:
    old = write_chain(tmp_path, first_day=first_day, last_day=last_day)
    with pytest.raises(RequestError, match=r"certificate is valid from .* not now"):
        Marking.load("c2pa", certificate=old.certificate, key=old.key)


def test_key_of_another_certificate_is_rejected(chain: SigningChain, tmp_path: Path) -> None:
    other = write_chain(tmp_path)
    with pytest.raises(RequestError, match="does not belong"):
        Marking.load("c2pa", certificate=chain.certificate, key=other.key)


def test_file_that_is_not_pem_is_rejected(chain: SigningChain, tmp_path: Path) -> None:
    wrong = tmp_path / "a.pem"
    wrong.write_bytes(b"\0\1\2")
    with pytest.raises(RequestError, match="not a certificate in PEM format"):
        Marking.load("c2pa", certificate=wrong, key=chain.key)
    with pytest.raises(RequestError, match="cannot be read"):
        Marking.load("c2pa", certificate=chain.key, key=chain.key)


def test_key_is_not_shown(mark: FileMark) -> None:
    assert "PRIVATE" not in repr(mark)
