"""A certificate authority of the cluster's own, and the certificates of everyone who talks in it."""

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
_BACKDATED = dt.timedelta(minutes=5)  # for clocks that step back while a machine boots

# Strict verification (Python 3.13's default) wants an authority to say that it is one, and key identifiers throughout.
_CA_USAGE = x509.KeyUsage(
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
class KeyPair:
    """Files: a certificate and its private key."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates and writes them, with their keys, into one folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tessera-e2e")])
        builder = self._builder(self._name, self._key)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        builder = builder.add_extension(_CA_USAGE, critical=True)
        self.files = self._write("ca", builder.sign(self._key, hashes.SHA256()), self._key)

    def issue(self, file: str, common_name: str, *, group: str = "", hosts: Iterable[str] = ()) -> KeyPair:
        """A certificate for a user (common name, group) and for the hosts it serves as."""
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
        if group:
            attributes.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, group))
        builder = self._builder(x509.Name(attributes), key)
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if names := [_general_name(host) for host in hosts]:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return self._write(file, builder.sign(self._key, hashes.SHA256()), key)

    def signing_key(self, file: str) -> Path:
        """A bare private key: what service account tokens are signed with."""
        return self._write_key(file, ec.generate_private_key(ec.SECP256R1()))

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _BACKDATED)
            .not_valid_after(now + _LIFETIME)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
        )

    def _write(self, file: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> KeyPair:
        path = self._folder / f"{file}.crt"
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return KeyPair(path, self._write_key(file, key))

    def _write_key(self, file: str, key: ec.EllipticCurvePrivateKey) -> Path:
        path = self._folder / f"{file}.key"
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,  # the one from which Kubernetes reads public keys too
                serialization.NoEncryption(),
            )
        )
        return path


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
