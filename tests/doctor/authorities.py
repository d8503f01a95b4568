"""Certificate authorities for tests: valid for a year around a fixed moment."""

import datetime as dt
from functools import cache

from e2e.cluster.pki import PemPair, make_certificate

NOW = 1_800_000_000.0
DAY = 86400.0
_PAIRS: dict[bytes, PemPair] = {}  # by certificate


@cache
def authority(name: str = "test", ends: float = NOW + 200 * DAY) -> bytes:
    """A self-signed certificate, PEM; the same for the same arguments."""
    return _make(name, ends)


def key_of(certificate: bytes) -> bytes:
    """The private key of a certificate that was made here, PEM."""
    return _PAIRS[certificate].key if certificate in _PAIRS else b""


def signed_by(
    authority_pem: bytes,
    ends: float = NOW + 30 * DAY,
    host: str = "gpu-webhook.gpu-webhook.svc",
) -> bytes:
    """A serving certificate that an authority signed, PEM."""
    return _make("webhook", ends, _PAIRS[authority_pem], (host,))


def _make(name: str, ends: float, issuer: PemPair | None = None, hosts: tuple[str, ...] = ()) -> bytes:
    begins, ends_at = (dt.datetime.fromtimestamp(moment, dt.UTC) for moment in (ends - 365 * DAY, ends))
    pair = make_certificate(name, issuer=issuer, hosts=hosts, begins=begins, ends=ends_at)
    _PAIRS[pair.certificate] = pair
    return pair.certificate
