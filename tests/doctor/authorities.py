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
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(dt.datetime.fromtimestamp(ends - 365 * DAY, dt.UTC))
        .not_valid_after(dt.datetime.fromtimestamp(ends, dt.UTC))
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM)
