"""Checks of the webhook's certificates, as far as they can be seen from outside."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tessera.doctor.evidence import Evidence
from tessera.doctor.findings import Finding, problem, warning

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

_SOON: Final = 30 * 86400.0  # seconds; the webhook itself renews an authority a year before its end


def trust(seen: Evidence) -> Iterator[Finding]:
    """The caBundle is there, is valid, and is that of the authority that signs."""
    names = seen.names
    logs = f"kubectl logs -n {names.namespace} -l app={names.webhook}"
    for webhook in (seen.configuration.webhooks if seen.configuration else None) or ():
        bundle = webhook.client_config.ca_bundle or b""
        if not bundle:
            yield problem(
                f"{webhook.name}: caBundle is empty: the API server trusts no certificate of the webhook; "
                "the webhook (or cert-manager) has not written it yet, or may not",
                logs,
                f"kubectl auth can-i patch mutatingwebhookconfigurations/{names.configuration} "
                f"--as=system:serviceaccount:{names.namespace}:{names.webhook}",
            )
            continue
        certificates = _certificates(bundle)
        if certificates is None:
            yield problem(f"{webhook.name}: caBundle holds no certificates in PEM", logs)
            continue
        yield from _dates(webhook.name, certificates, seen)
        yield from _matches(webhook.name, certificates, seen)


def _dates(webhook: str, certificates: "list[Certificate]", seen: Evidence) -> Iterator[Finding]:
    ends = [one.not_valid_after_utc.timestamp() for one in certificates]
    begins = [one.not_valid_before_utc.timestamp() for one in certificates]
    rotate = _renewal(seen)
    if all(end <= seen.now for end in ends):
        yield problem(f"{webhook}: every certificate in the caBundle has expired", rotate)
    elif all(begin > seen.now for begin in begins):
        yield problem(f"{webhook}: no certificate in the caBundle is valid yet: is a clock wrong?")
    elif max(ends) - seen.now < _SOON:
        days = int((max(ends) - seen.now) // 86400)
        yield warning(f"{webhook}: the caBundle ends in {days} days", rotate)


def _renewal(seen: Evidence) -> str:
    """What renews the authority: it depends on whose it is."""
    containers = seen.deployment.spec.template.spec.containers if seen.deployment else None
    from_files = any(arg.startswith("--tls-cert") for one in containers or () for arg in one.args or ())
    if from_files:
        return "helm upgrade … --set-file certificates.caBundle=ca.pem   # or: kubectl get certificates -A"
    return f"tessera certs rotate -n {seen.names.namespace}"


def _matches(webhook: str, certificates: "list[Certificate]", seen: Evidence) -> Iterator[Finding]:
    """Self-managed: the authority in the Secret is one that the API server trusts."""
    current = (seen.secret.data or {}).get("ca.crt") if seen.secret else None
    if not current:
        return
    own = _certificates(current)
    if own is None:
        yield problem(
            f"Secret {seen.names.secret}: ca.crt is no certificate; delete it, and the webhook makes a new one",
            f"kubectl delete secret -n {seen.names.namespace} {seen.names.secret}",
        )
    elif own[0] not in certificates:
        yield problem(
            f"{webhook}: the caBundle does not hold the authority of Secret {seen.names.secret}: "
            "another client wrote another one, and the webhook has not put its own back",
            f"kubectl logs -n {seen.names.namespace} -l app={seen.names.webhook}",
        )


def _certificates(pem: bytes) -> "list[Certificate] | None":
    from cryptography.x509 import load_pem_x509_certificates

    try:
        return load_pem_x509_certificates(pem)
    except ValueError:
        return None
