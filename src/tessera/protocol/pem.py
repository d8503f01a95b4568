"""Certificates in PEM, and whether one leads to another. For tools: the library that reads them takes 12 MiB of memory."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.x509 import Certificate


def certificates_in(pem: bytes) -> "list[Certificate]":
    """The certificates in PEM; none where it is something else."""
    from cryptography.x509 import load_pem_x509_certificates

    try:
        return load_pem_x509_certificates(pem)
    except ValueError:
        return []


def leads_to(chain: "list[Certificate]", trusted: "list[Certificate]") -> bool:
    """Whether signatures go from the first certificate of a chain, over others of it, to one that is trusted."""
    reached = chain[:1]
    for current in reached:  # which grows on the way
        if current in trusted or any(_signed(current, one) for one in trusted):
            return True
        reached += [one for one in chain if one not in reached and _signed(current, one)]
    return False


def _signed(one: "Certificate", authority: "Certificate") -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        one.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
