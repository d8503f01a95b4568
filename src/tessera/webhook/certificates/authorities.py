"""Authorities as they are kept: PEM, and the keys of a Secret. Read with the standard library alone (see `pki`)."""

import hashlib
import math
import re
import ssl
from collections.abc import Iterable, Mapping
from typing import Final

from tessera.core.errors import InvalidInput
from tessera.core.text import first_of
from tessera.webhook.certificates.rotation import UNREADABLE, Authorities, Authority
from tessera.webhook.certificates.served import InvalidCertificate, server_context

CURRENT, CURRENT_KEY = "ca.crt", "ca.key"
FOLLOWING, FOLLOWING_KEY = "next.crt", "next.key"
RETIRING, RETIRING_SINCE = "retiring.crt", "retiring-since"  # the latter as Unix time
_OURS: Final = frozenset({CURRENT, CURRENT_KEY, FOLLOWING, FOLLOWING_KEY, RETIRING, RETIRING_SINCE})
_ASIDE: Final = "damaged-"  # before the name of a key whose value is kept for a person to look at

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
    """The bundle that trusts these."""
    return b"".join(one.certificate for one in authorities)


def read_authorities(data: Mapping[str, bytes], where: str) -> Authorities | None:
    """What a Secret holds; None when it is empty, as a chart may have made it."""
    if not any(value for name, value in data.items() if not name.startswith(_ASIDE)):
        return None
    try:
        since = _since(data)
        current = _signer(data, CURRENT, CURRENT_KEY)
        following = _signer(data, FOLLOWING, FOLLOWING_KEY) if data.get(FOLLOWING) else None
    except InvalidInput as error:
        raise InvalidAuthorities(f"{where}: {error}; {_remedy(data, where)}") from error
    return Authorities(current, following, tuple(authorities_in(data.get(RETIRING, b""))), since)


def set_aside(data: Mapping[str, bytes]) -> dict[str, bytes | None] | None:
    """What empties a damaged Secret and keeps everything under other names, so that a new authority can be made.

    None where that is for a person to decide: the Secret also holds what is not ours, or was damaged before.
    """
    if not data.keys() <= _OURS:
        return None
    return {**{_ASIDE + name: value for name, value in data.items()}, **dict.fromkeys(data, None)}


def _remedy(data: Mapping[str, bytes], where: str) -> str:
    """What happens next, or what to type."""
    foreign = sorted(name for name in data.keys() - _OURS if not name.startswith(_ASIDE))
    if foreign:
        return (
            f"it also holds {first_of(foreign, 3)}, so it may belong to another program and is not changed: "
            "use a separate Secret for the authority (--ca-secret; the chart's certificates.secretName)"
        )
    if set_aside(data) is not None:
        return (
            f"after some minutes Tessera saves all of it as {_ASIDE}… in the same Secret "
            "and makes a new authority"
        )
    namespace, _, name = where.removeprefix("Secret ").partition("/")
    return (
        f"it was damaged before, and the contents saved then ({_ASIDE}…) are not overwritten; check them, then empty "
        "the Secret and Tessera makes a new authority: "
        f'kubectl patch secret {name} -n {namespace} --type=json -p \'[{{"op":"remove","path":"/data"}}]\''
    )


def write_authorities(authorities: Authorities) -> dict[str, bytes | None]:
    """A Secret's data; None for keys that are not to be there."""
    following = authorities.following
    return {
        CURRENT: authorities.current.certificate,
        CURRENT_KEY: authorities.current.key,
        FOLLOWING: following.certificate if following else None,
        FOLLOWING_KEY: following.key if following else None,
        RETIRING: bundle_of(authorities.retiring) if authorities.retiring else None,
        RETIRING_SINCE: str(int(authorities.retiring_since)).encode() if authorities.retiring else None,
    }


def _since(data: Mapping[str, bytes]) -> float:
    since = data.get(RETIRING_SINCE, b"").decode("ascii", "replace") or "0"
    if not re.fullmatch(r"\d{1,12}", since, re.ASCII):
        raise InvalidInput(f"{RETIRING_SINCE}: not a Unix time")
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
    return Authority(one.name, one.not_before, one.not_after, one.certificate, data[key])


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
