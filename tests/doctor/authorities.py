"""Certificate authorities for tests: valid for a year around a fixed moment."""

import datetime as dt
from functools import cache

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NOW = 1_800_000_000.0
DAY = 86400.0


@cache
def authority(name: str = "test", ends: float = NOW + 200 * DAY) -> bytes:
    """A self-signed certificate, PEM; the same for the same arguments."""
    return _made(name, ends)[0]


def key_of(certificate: bytes) -> bytes:
    """The private key of a certificate that was made here, PEM."""
    return _KEYS.get(certificate, b"")


def signed_by(
    authority_pem: bytes,
    ends: float = NOW + 30 * DAY,
    host: str = "gpu-webhook.gpu-webhook.svc",
) -> bytes:
    """A serving certificate that an authority signed, PEM."""
    return _made("webhook", ends, authority_pem, host)[0]


_KEYS: dict[bytes, bytes] = {}


def _made(name: str, ends: float, issuer: bytes = b"", host: str = "") -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(x509.load_pem_x509_certificate(issuer).subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(dt.datetime.fromtimestamp(ends - 365 * DAY, dt.UTC))
        .not_valid_after(dt.datetime.fromtimestamp(ends, dt.UTC))
    )
    if host:
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
    signer = serialization.load_pem_private_key(_KEYS[issuer], None) if issuer else key
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    certificate = builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _KEYS[certificate] = pem
    return certificate, pem
