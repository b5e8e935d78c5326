"""A certificate authority and a signing certificate for tests of C2PA manifests."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = timedelta(days=1)


@dataclass(frozen=True)
class SigningChain:
    certificate: Path
    key: Path


def write_chain(folder: Path, *, first_day: int = -1, last_day: int = 30) -> SigningChain:
    """Write `chain.pem` and `key.pem`. The days of validity count from today."""
    now = datetime.now(timezone.utc)
    authority, signer = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = _name("Vivace test authority")
    root = _builder(issuer, issuer, authority.public_key(), now - 400 * DAY, now + 400 * DAY, True)
    leaf = _builder(
        _name("Vivace test signer"), issuer, signer.public_key(),
        now + first_day * DAY, now + last_day * DAY, False,
    )  # fmt: skip
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.EMAIL_PROTECTION])
    leaf = leaf.add_extension(usage, critical=False).add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False
    )
    chain = [one.sign(authority, hashes.SHA256()) for one in (leaf, root)]
    certificate, key = folder / "chain.pem", folder / "key.pem"
    certificate.write_bytes(b"".join(one.public_bytes(Encoding.PEM) for one in chain))
    key.write_bytes(signer.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return SigningChain(certificate, key)


def _name(common_name: str) -> x509.Name:
    names = ((NameOID.COMMON_NAME, common_name), (NameOID.ORGANIZATION_NAME, "Vivace tests"))
    return x509.Name([x509.NameAttribute(kind, value) for kind, value in names])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    first: datetime,
    last: datetime,
    is_authority: bool,
) -> x509.CertificateBuilder:
    usage = x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer)
    builder = builder.public_key(public_key).serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(first).not_valid_after(last)
    constraints = x509.BasicConstraints(ca=is_authority, path_length=None)
    builder = builder.add_extension(constraints, critical=True).add_extension(usage, critical=True)
    identifier = x509.SubjectKeyIdentifier.from_public_key(public_key)
    return builder.add_extension(identifier, critical=False)
