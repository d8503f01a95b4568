"""Authorities as they are kept: PEM, and the keys of a Secret. Read with the standard library alone (see `pki`)."""

import hashlib
import math
import re
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from tessera.core.errors import InvalidInput
from tessera.protocol import authority_secret as secret
from tessera.webhook.certificates.rotation import UNREADABLE, Authorities, Authority
from tessera.webhook.certificates.served import InvalidCertificate, server_context

_BLOCK: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


class InvalidAuthorities(InvalidInput):
    """A Secret that holds something else than authorities, and what can be done about it."""


def authorities_in(pem: bytes) -> list[Authority]:
    """The certificates in a bundle, without those that are none."""
    return [one for block in _BLOCK.findall(pem) if (one := _authority(block + b"\n")) is not None]


def names_in(pem: bytes) -> frozenset[str]:
    """The names of a bundle's certificates, with `UNREADABLE` for anything else that is in it."""
    found = {one.name for one in authorities_in(pem)}
    rest = _BLOCK.sub(b"", pem).strip()
    whole = not rest and len(_BLOCK.findall(pem)) == len(found)
    return frozenset(found if whole else found | {UNREADABLE})


def bundle_of(authorities: Iterable[Authority]) -> bytes:
    return b"".join(one.certificate for one in authorities)


def read_authorities(data: Mapping[str, bytes], where: str) -> Authorities | None:
    """What a Secret holds; None when it is empty, as a chart may have made it."""
    if secret.is_empty(data):
        return None
    try:
        since = _since(data)
        current = _signer(data, secret.CURRENT, secret.CURRENT_KEY)
        following = (
            _signer(data, secret.FOLLOWING, secret.FOLLOWING_KEY) if data.get(secret.FOLLOWING) else None
        )
    except InvalidInput as error:
        message = f"{where}: {error}; {secret.remedy(data)}"
        if not secret.foreign_keys(data) and secret.set_aside(data) is None:
            namespace, _, name = where.removeprefix("Secret ").partition("/")
            message = f"{message}: {secret.emptied_by(namespace, name)}"
        raise InvalidAuthorities(message) from error
    return Authorities(current, following, tuple(authorities_in(data.get(secret.RETIRING, b""))), since)


def write_authorities(authorities: Authorities) -> dict[str, bytes | None]:
    """A Secret's data; None for keys that are not to be there."""
    following = authorities.following
    return {
        secret.CURRENT: authorities.current.certificate,
        secret.CURRENT_KEY: authorities.current.key,
        secret.FOLLOWING: following.certificate if following else None,
        secret.FOLLOWING_KEY: following.key if following else None,
        secret.RETIRING: bundle_of(authorities.retiring) if authorities.retiring else None,
        secret.RETIRING_SINCE: str(int(authorities.retiring_since)).encode()
        if authorities.retiring
        else None,
    }


def _since(data: Mapping[str, bytes]) -> float:
    since = data.get(secret.RETIRING_SINCE, b"").decode("ascii", "replace") or "0"
    if not re.fullmatch(r"\d{1,12}", since, re.ASCII):
        raise InvalidInput(f"{secret.RETIRING_SINCE}: not a Unix time")
    return float(since)


def _signer(data: Mapping[str, bytes], certificate: str, key: str) -> Authority:
    found = authorities_in(data.get(certificate, b""))
    if len(found) != 1:
        raise InvalidInput(f"{certificate}: one CA certificate in PEM is expected")
    if not data.get(key):
        raise InvalidInput(f"{key}: missing")
    one = found[0]
    try:
        server_context(one.certificate, data[key])  # whether they belong together
    except InvalidCertificate as error:
        raise InvalidInput(f"{certificate}, {key}: {error}") from error
    return replace(one, key=data[key])


def _authority(pem: bytes) -> Authority | None:
    try:
        der = ssl.PEM_cert_to_DER_cert(pem.decode("ascii"))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=der)
    except (ValueError, ssl.SSLError):  # the former for what is no base64
        return None
    known = context.get_ca_certs()
    # A certificate that is no authority is not described. It can only ever retire, for which dates do not matter.
    begin, end = -math.inf, math.inf
    if known:
        begin, end = (ssl.cert_time_to_seconds(str(known[0][when])) for when in ("notBefore", "notAfter"))
    return Authority(hashlib.sha256(der).hexdigest(), begin, end, pem)
