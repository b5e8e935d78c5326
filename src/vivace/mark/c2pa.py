"""Signed provenance manifests of C2PA, with the operator's certificate.

Nothing is fetched from the network, unless a timestamp authority is configured.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from vivace._version import __version__
from vivace.audio.file_mark import SOURCE_TYPE, STATEMENT, TOOL
from vivace.audio.formats import AUDIOBOOK_FORMATS
from vivace.errors import AudioError, RequestError, install_command

CERTIFICATE, KEY, TIMESTAMP_URL = (
    f"VIVACE_C2PA_{name}" for name in ("CERT", "KEY", "TIMESTAMP_URL")
)
# Not flac: the library puts an ID3 tag before the file, which few decoders accept.
SIGNABLE = ("wav", "mp3", "m4b")
MAX_PEM_BYTES = 2**20
ALGORITHMS = {"secp256r1": "es256", "secp384r1": "es384", "secp521r1": "es512"}  # by curve
SETTINGS = {"verify": {"remote_manifest_fetch": False, "ocsp_fetch": False}}


def import_c2pa() -> ModuleType:
    """Raises RequestError with the command that installs the package."""
    try:
        return import_module("c2pa")
    except (ImportError, OSError, RuntimeError) as error:  # RuntimeError: the wheel's library
        raise RequestError(
            "a C2PA manifest needs the package c2pa-python; install it with "
            f"{install_command('mark')} ({error})"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestSigner:
    """Signs complete files. `load` checks the certificate and the key."""

    certificates: str  # PEM, the signing certificate first
    key: str = field(repr=False)  # PEM
    algorithm: str
    timestamp_url: str | None = None

    @property
    def formats(self) -> tuple[str, ...]:
        return SIGNABLE

    @classmethod
    def load(
        cls, certificate: str | Path | None, key: str | Path | None, timestamp_url: str | None
    ) -> ManifestSigner:
        """Read PEM files. None: the environment variables. Raises RequestError."""
        import_c2pa()
        certificates = _read_pem(certificate, CERTIFICATE, "certificate", "--c2pa-cert")
        private_key = _read_pem(key, KEY, "private key", "--c2pa-key")
        signer = cls(
            certificates=certificates,
            key=private_key,
            algorithm=_check_certificate(certificates, private_key),
            timestamp_url=timestamp_url or os.environ.get(TIMESTAMP_URL) or None,
        )
        signer._check()
        return signer

    def sign(self, source: BinaryIO, target: BinaryIO, format: str, title: str) -> None:
        """Copy the file from `source` to `target` with a manifest. Raises AudioError."""
        c2pa = import_c2pa()
        kind = AUDIOBOOK_FORMATS[format].content_type
        try:
            with (
                self._open(c2pa) as signer,
                c2pa.Context.from_dict(SETTINGS) as context,
                c2pa.Builder(json.dumps(manifest(title, kind)), context) as builder,
            ):
                builder.sign(signer, kind, source, target)
        except c2pa.C2paError as error:
            raise AudioError(f"mark: c2pa cannot sign the {format} file: {error}") from error

    def _open(self, c2pa: ModuleType) -> Any:
        url = None if self.timestamp_url is None else self.timestamp_url.encode()
        info = c2pa.C2paSignerInfo(
            self.algorithm.encode(), self.certificates.encode(), self.key.encode(), url
        )
        return c2pa.Signer.from_info(info)

    def _check(self) -> None:
        """Sign nothing, so that an unusable certificate is reported before any speech."""
        c2pa = import_c2pa()
        try:
            self._open(c2pa).close()
        except c2pa.C2paError as error:
            raise RequestError(f"mark: c2pa rejects the certificate or its key: {error}") from error


def manifest(title: str, content_type: str) -> dict[str, Any]:
    """The definition of a manifest: the file was created by a trained algorithm."""
    agent = {"name": TOOL, "version": __version__}
    created = {
        "action": "c2pa.created",
        "digitalSourceType": SOURCE_TYPE,
        "softwareAgent": agent,
        "description": STATEMENT,
    }
    return {
        "claim_generator_info": [agent],
        "title": title,
        "format": content_type,
        "assertions": [{"label": "c2pa.actions", "data": {"actions": [created]}}],
    }


def read_manifest(source: BinaryIO, content_type: str) -> Mapping[str, Any] | None:
    """The manifest store as JSON, or None if the file has no manifest. Raises AudioError."""
    c2pa = import_c2pa()
    try:
        with (
            c2pa.Context.from_dict(SETTINGS) as context,
            c2pa.Reader(content_type, source, context=context) as reader,
        ):
            found: Mapping[str, Any] = json.loads(reader.json())
            return found
    except c2pa.C2paError.ManifestNotFound:
        return None
    except c2pa.C2paError as error:
        raise AudioError(f"the manifest cannot be read: {error}") from error


def _read_pem(given: str | Path | None, variable: str, what: str, flag: str) -> str:
    path = given or os.environ.get(variable)
    if not path:
        raise RequestError(
            f"mark: c2pa needs a {what}: give {flag} FILE, or set {variable} to a PEM file"
        )
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_PEM_BYTES + 1)
    except OSError as error:
        raise RequestError(
            f"mark: the {what} {path} cannot be read: {error.strerror or error}"
        ) from error
    if len(content) > MAX_PEM_BYTES or b"-----BEGIN " not in content:
        raise RequestError(f"mark: {path} is not a {what} in PEM format")
    return content.decode("latin-1")


def _check_certificate(certificates: str, key: str) -> str:
    """The signing algorithm. Raises RequestError for an expired certificate or another key."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        certificate = x509.load_pem_x509_certificates(certificates.encode())[0]
        private_key = load_pem_private_key(key.encode(), None)
        public_key = certificate.public_key()
    except (ValueError, TypeError) as error:  # TypeError: the key is encrypted
        raise RequestError(f"mark: the c2pa certificate or key cannot be read: {error}") from error
    now = datetime.now(timezone.utc)
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not first <= now <= last:
        raise RequestError(
            f"mark: the c2pa certificate is valid from {first:%Y-%m-%d} to {last:%Y-%m-%d}, not now"
        )
    if private_key.public_key() != public_key:
        raise RequestError("mark: the c2pa key does not belong to the certificate")
    return _algorithm(public_key)


def _algorithm(public_key: Any) -> str:
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    if isinstance(public_key, ed25519.Ed25519PublicKey):
        return "ed25519"
    if isinstance(public_key, rsa.RSAPublicKey):
        return "ps256"
    if isinstance(public_key, ec.EllipticCurvePublicKey) and public_key.curve.name in ALGORITHMS:
        return ALGORITHMS[public_key.curve.name]
    raise RequestError("mark: c2pa needs an EC (P-256, P-384, P-521), Ed25519 or RSA key")
