"""Checks of the webhook's certificates, as far as they can be seen from outside."""

import datetime as dt
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tessera.doctor.checks.authority import (
    GIVE_BUNDLE,
    certificates_in,
    controller,
    is_given,
    maker_logs,
    own,
    secret_name,
    unpublished,
)
from tessera.doctor.evidence import Evidence
from tessera.doctor.findings import Finding, not_applicable, problem, short, unseen, warning

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

_SOON: Final = 30 * 86400.0  # seconds; the certificate controller renews an authority a year before its end
_SERVED_SOON: Final = 3 * 86400.0  # seconds; as the alert GPUWebhookCertificateExpiring has it


def trust(seen: Evidence) -> Iterator[Finding]:
    """The caBundle is there and valid, and trusts what is served; what is served has not ended."""
    if not seen.webhooks:
        yield not_applicable("no webhook is configured")
        return
    for webhook in seen.webhooks:
        bundle = webhook.client_config.ca_bundle or b""
        certificates = certificates_in(bundle)
        if not bundle:
            yield unpublished(webhook.name, seen)
        elif not certificates:
            yield problem(f"{webhook.name}: caBundle holds no certificates in PEM", maker_logs(seen))
        else:
            yield from _dates(webhook.name, certificates, seen)
        if not is_given(seen):
            yield from own(webhook.name, certificates, seen)
        elif certificates:
            yield from _given(webhook.name, certificates, seen)
    yield from controller(seen)
    yield from _replicas(seen)
    if not (seen.answers or seen.served) and "secret" in seen.unseen:
        yield unseen(
            "could not compare the caBundle with what is served: "
            f"{short('; '.join(seen.unseen[one] for one in ('secret', 'served') if one in seen.unseen))}"
        )


def _dates(webhook: str, certificates: "list[Certificate]", seen: Evidence) -> Iterator[Finding]:
    ends = [one.not_valid_after_utc.timestamp() for one in certificates]
    begins = [one.not_valid_before_utc.timestamp() for one in certificates]
    renewal = GIVE_BUNDLE if is_given(seen) else f"tessera certs rotate -n {seen.names.namespace}"
    if all(end <= seen.now for end in ends):
        yield problem(f"{webhook}: every certificate in the caBundle has expired", renewal)
    elif all(begin > seen.now for begin in begins):
        yield problem(f"{webhook}: no certificate in the caBundle is valid yet: is a clock wrong?")
    elif max(ends) - seen.now < _SOON:
        days = int((max(ends) - seen.now) // 86400)
        yield warning(f"{webhook}: the caBundle ends in {days} days", renewal)


def _given(webhook: str, bundle: "list[Certificate]", seen: Evidence) -> Iterator[Finding]:
    """From files: the certificate in the Secret has not ended, is for the Service, and the API server trusts it."""
    name, names = secret_name(seen), seen.names
    if seen.secret is None:
        if "secret" not in seen.unseen:
            yield problem(
                f"Secret {name}, in which the webhook's certificate should be, does not exist",
                f"kubectl get secrets,certificates -n {names.namespace}",
            )
        return
    chain = certificates_in((seen.secret.data or {}).get("tls.crt", b""))
    if not chain:
        yield problem(f"Secret {name}: tls.crt is no certificate", _describe(name, seen))
        return
    leaf, service = chain[0], f"{names.webhook}.{names.namespace}.svc"
    yield from _ended(f"the certificate in Secret {name}", leaf.not_valid_after_utc.timestamp(), seen)
    if not _leads_to(leaf, chain[1:], bundle):
        yield problem(
            f"{webhook}: the caBundle does not trust the certificate in Secret {name}: none of its authorities signed it",
            f"helm upgrade … --set-file certificates.caBundle=ca.pem   # with the authority that signed {name}",
        )
    if service not in (found := _hosts(leaf)):
        yield problem(
            f"the certificate in Secret {name} is for {', '.join(found) or 'no name'}, and the webhook is called {service}",
            _describe(name, seen),
        )


def _replicas(seen: Evidence) -> Iterator[Finding]:
    """What the replicas themselves say of what they serve."""
    for one in seen.served:
        if one.ends is not None:
            yield from _ended(f"the certificate that pod {one.pod} serves", one.ends, seen)
        if one.trusted is False:
            yield problem(
                f"pod {one.pod} says that the published caBundle does not trust what it serves, or cannot be read",
                seen.names.logs,
                maker_logs(seen),
            )


def _ended(what: str, end: float, seen: Evidence) -> Iterator[Finding]:
    date = dt.datetime.fromtimestamp(end, dt.UTC).strftime("%Y-%m-%d %H:%M UTC")
    renewal = (
        f"kubectl get secrets,certificates -n {seen.names.namespace}" if is_given(seen) else seen.names.logs
    )
    if end <= seen.now:
        yield problem(f"{what} ended on {date}", renewal)
    elif end - seen.now < _SERVED_SOON:
        yield warning(f"{what} ends on {date}, and has not been renewed", renewal)


def _leads_to(leaf: "Certificate", chain: "list[Certificate]", bundle: "list[Certificate]") -> bool:
    """Whether a chain of signatures goes from a certificate to one that is trusted."""
    reached = [leaf]
    for current in reached:  # which grows on the way
        if current in bundle or any(_signed(current, one) for one in bundle):
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


def _hosts(leaf: "Certificate") -> list[str]:
    from cryptography.x509 import DNSName, ExtensionNotFound, SubjectAlternativeName

    try:
        names = leaf.extensions.get_extension_for_class(SubjectAlternativeName).value
    except (ExtensionNotFound, ValueError):
        return []
    return names.get_values_for_type(DNSName)


def _describe(name: str, seen: Evidence) -> str:
    return f"kubectl describe secret -n {seen.names.namespace} {name}"
