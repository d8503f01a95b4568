"""Keys and certificates: the authority of a cluster, and everyone's pair. Tests that need no cluster make theirs here too."""

import datetime as dt
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFETIME = dt.timedelta(days=7)  # longer than any cluster of ours lives
_BACKDATED = dt.timedelta(
    hours=2
)  # for clocks that are behind: while a machine boots, or because a test sets them so

_AUTHORITY_USAGE = x509.KeyUsage(
    key_cert_sign=True,
    crl_sign=True,
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)


@dataclass(frozen=True, slots=True)
class PemPair:
    """A certificate and its private key, PEM."""

    certificate: bytes
    key: bytes

    def write(self, stem: Path) -> "KeyPair":
        """Write both into files with the endings `.crt` and `.key`."""
        files = KeyPair(stem.with_name(f"{stem.name}.crt"), stem.with_name(f"{stem.name}.key"))
        files.certificate.write_bytes(self.certificate)
        files.key.write_bytes(self.key)
        return files


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Files: a certificate and its private key."""

    certificate: Path
    key: Path


def make_certificate(
    name: str,
    *,
    issuer: PemPair | None = None,
    group: str = "",
    hosts: Iterable[str] = (),
    begins: dt.datetime | None = None,
    ends: dt.datetime | None = None,
    is_authority: bool = False,
    strict: bool = False,
) -> PemPair:
    """Make a certificate for a user (common name, group) and for the hosts it serves as. Without an issuer it signs itself.

    Strict verification, Python 3.13's default, accepts only what is made with `strict`: an authority says that it is
    one, and key identifiers are everywhere.
    """
    now, key = dt.datetime.now(dt.UTC), ec.generate_private_key(ec.SECP256R1())
    groups = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group)] if group else []
    subject = x509.Name([*groups, x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer_name, issuer_key = (subject, key) if issuer is None else _load(issuer)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer_name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins or now - _BACKDATED)
        .not_valid_after(ends or now + _LIFETIME)
    )
    if strict:
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        issuer_identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
        builder = builder.add_extension(identifier, critical=False)
        builder = builder.add_extension(issuer_identifier, critical=False)
    if is_authority:
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    if strict and is_authority:
        builder = builder.add_extension(_AUTHORITY_USAGE, critical=True)
    elif strict:
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    if names := [_general_name(host) for host in hosts]:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    certificate = builder.sign(issuer_key, hashes.SHA256())
    return PemPair(certificate.public_bytes(serialization.Encoding.PEM), _encode(key))


class Authority:
    """Signs certificates and writes them, with their keys, into one folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        self._folder = folder
        self._pair = make_certificate("tessera-e2e", is_authority=True, strict=True)
        self.files = self._pair.write(folder / "ca")

    def issue(self, file: str, common_name: str, *, group: str = "", hosts: Iterable[str] = ()) -> KeyPair:
        """A certificate for a user (common name, group) and for the hosts it serves as."""
        pair = make_certificate(common_name, issuer=self._pair, group=group, hosts=hosts, strict=True)
        return pair.write(self._folder / file)

    def signing_key(self, file: str) -> Path:
        """A bare private key: what service account tokens are signed with."""
        path = self._folder / f"{file}.key"
        path.write_bytes(_encode(ec.generate_private_key(ec.SECP256R1())))
        return path


def _load(pair: PemPair) -> tuple[x509.Name, ec.EllipticCurvePrivateKey]:
    key = serialization.load_pem_private_key(pair.key, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return x509.load_pem_x509_certificate(pair.certificate).subject, key


def _encode(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,  # the one from which Kubernetes reads public keys too
        serialization.NoEncryption(),
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
