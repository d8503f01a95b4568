"""Checks of the webhook's certificates, as far as they can be seen from outside, and of the controller that renews them.

What happens to a damaged Secret has the same text as in the certificate controller's log (`protocol.authority_secret`).
"""

import datetime as dt
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from tessera.doctor.checks.webhook import replicas
from tessera.doctor.findings import Finding, not_applicable, note, problem, short, unseen, warning
from tessera.doctor.observations import Observations
from tessera.protocol import authority_secret
from tessera.protocol.pem import certificates_in, leads_to

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

_SOON: Final = 30 * 86400.0  # seconds; the certificate controller renews an authority a year before its end
_SERVED_SOON: Final = 3 * 86400.0  # seconds; as the alert GPUWebhookCertificateExpiring has it
_GIVE_BUNDLE: Final = (
    "helm upgrade … --set-file certificates.caBundle=ca.pem   # or: kubectl get certificates -A"
)


def trust(seen: Observations) -> Iterator[Finding]:
    """The caBundle is there and valid, and trusts what is served; what is served has not ended."""
    if not seen.webhooks:
        yield not_applicable("no webhook is configured")
        return
    for webhook in seen.webhooks:
        bundle = webhook.client_config.ca_bundle or b""
        certificates = certificates_in(bundle)
        if not bundle:
            yield _unpublished(webhook.name, seen)
        elif not certificates:
            yield problem(f"{webhook.name}: caBundle holds no certificates in PEM", _maker_logs(seen))
        else:
            yield from _dates(webhook.name, certificates, seen)
        if not _is_given(seen):
            yield from _own(webhook.name, certificates, seen)
        elif certificates:
            yield from _given(webhook.name, certificates, seen)
    yield from _controller(seen)
    yield from _served(seen)
    if not (seen.answers or seen.served) and "secret" in seen.unseen:
        yield unseen(
            "could not compare the caBundle with what is served: "
            f"{short('; '.join(seen.unseen[one] for one in ('secret', 'served') if one in seen.unseen))}"
        )


def _unpublished(webhook: str, seen: Observations) -> Finding:
    """An empty caBundle: who should have written it, and may it?"""
    names = seen.names
    text = f"{webhook}: caBundle is empty: the API server trusts no certificate of the webhook; "
    if _is_given(seen):
        return problem(f"{text}it was not given, or cert-manager has not written it yet", _GIVE_BUNDLE)
    found = seen.controller if _has_controller(seen) else seen.deployment
    account = found.spec.template.spec.service_account_name if found else ""
    return problem(
        f"{text}Deployment {_maker(seen)} has not written it yet, or may not",
        _maker_logs(seen),
        f"kubectl auth can-i patch mutatingwebhookconfigurations/{names.configuration} "
        f"--as=system:serviceaccount:{names.namespace}:{account or _maker(seen)}",
    )


def _dates(webhook: str, certificates: "list[Certificate]", seen: Observations) -> Iterator[Finding]:
    last = max(one.not_valid_after_utc.timestamp() for one in certificates)
    first = min(one.not_valid_before_utc.timestamp() for one in certificates)
    renewal = (
        _GIVE_BUNDLE
        if _is_given(seen)
        else f"tessera certs rotate --tessera-namespace {seen.names.namespace}"
    )
    if last <= seen.now:
        yield problem(f"{webhook}: every certificate in the caBundle has expired", renewal)
    elif first > seen.now:
        yield problem(f"{webhook}: no certificate in the caBundle is valid yet: is a clock wrong?")
    elif last - seen.now < _SOON:
        yield warning(f"{webhook}: the caBundle ends in {int((last - seen.now) // 86400)} days", renewal)


# The authority that Tessera keeps itself


def _own(webhook: str, bundle: "list[Certificate]", seen: Observations) -> Iterator[Finding]:
    """The Secret holds an authority, and the caBundle, if there is one, has it."""
    name, namespace = seen.names.certificate_secret(seen.deployment), seen.names.namespace
    if seen.secret is None:
        if seen.deployment is not None and "secret" not in seen.unseen:
            yield problem(
                f"Secret {namespace}/{name} does not exist, and the right to create it is not given; create it empty, "
                "and Tessera fills it",
                f"kubectl create secret generic {name} -n {namespace}",
            )
        return
    data = seen.secret.data or {}
    if authority_secret.is_empty(data):
        return  # it is filled within seconds
    kept = sorted(key for key in data if key.startswith(authority_secret.ASIDE))
    if broken := _broken(data):
        if authority_secret.foreign_keys(data):
            command = f"{seen.names.upgrade} --set certificates.secretName=…"
        else:
            command = authority_secret.emptied_by(namespace, name) if kept else _maker_logs(seen)
        yield problem(
            f"Secret {namespace}/{name}: {broken}; until it is repaired, replicas that start have no certificate and none "
            f"is renewed; {authority_secret.remedy(data)}",
            command,
        )
    elif bundle and certificates_in(data[authority_secret.CURRENT])[0] not in bundle:
        yield problem(
            f"{webhook}: the caBundle does not hold the authority of Secret {namespace}/{name}: "
            f"another client wrote another one, and Deployment {_maker(seen)} has not put its own back",
            _maker_logs(seen),
        )
    if kept and not broken:
        removals = ",".join(f'{{"op":"remove","path":"/data/{key}"}}' for key in kept)
        yield note(
            f"Secret {namespace}/{name} was damaged before, and what was kept then is still there ({', '.join(kept)}): "
            "when you have looked at it, remove it, or the next damage is not repaired by itself",
            f"kubectl patch secret {name} -n {namespace} --type=json -p '[{removals}]'",
        )


def _broken(data: Mapping[str, bytes]) -> str | None:
    """What keeps the authorities of a Secret from being used; in the words of the certificate controller's log."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if not re.fullmatch(rb"\d{0,12}", data.get(authority_secret.RETIRING_SINCE, b"")):
        return f"{authority_secret.RETIRING_SINCE}: not a Unix time"
    pairs = [(authority_secret.CURRENT, authority_secret.CURRENT_KEY)]
    if data.get(authority_secret.FOLLOWING):
        pairs.append((authority_secret.FOLLOWING, authority_secret.FOLLOWING_KEY))
    for certificate, private in pairs:
        found = certificates_in(data.get(certificate, b""))
        if len(found) != 1:
            return f"{certificate}: one CA certificate in PEM is expected"
        if not data.get(private):
            return f"{private}: missing"
        try:
            key = load_pem_private_key(data[private], None)
        except (ValueError, TypeError):
            return f"{certificate}, {private}: no certificate chain and private key in PEM"
        if key.public_key() != found[0].public_key():
            return f"{certificate}, {private}: the certificate and the private key do not belong together"
    return None


def _controller(seen: Observations) -> Iterator[Finding]:
    """The certificate controller is there and ready: without it the webhook goes on, and nothing is renewed."""
    if seen.controller is not None:
        yield from replicas(seen.controller, seen.controller_pods, seen, usual=1)
    elif seen.deployment is not None and _has_controller(seen) and "controller" not in seen.unseen:
        yield problem(
            f"there is no Deployment {seen.names.namespace}/{seen.names.controller}: no authority is renewed, "
            "and the caBundle is not put back when another client changes it",
            seen.names.upgrade,
        )


def _has_controller(seen: Observations) -> bool:
    """Whether the webhook only reads the authority and the caBundle, as the chart has it."""
    if seen.controller is not None or seen.deployment is None:
        return True
    return seen.deployment.spec.template.option("--read-only-certificates") is not None


def _maker(seen: Observations) -> str:
    """The Deployment that makes the authority and writes the caBundle."""
    return seen.names.controller if _has_controller(seen) else seen.names.webhook


def _maker_logs(seen: Observations) -> str:
    """What shows the log of what writes the caBundle; where it is given, of the webhook."""
    return seen.names.logs(seen.names.webhook if _is_given(seen) else _maker(seen))


# A certificate that was given


def _is_given(seen: Observations) -> bool:
    """Whether the certificate comes from files, made by cert-manager or by hand."""
    return seen.deployment is not None and seen.deployment.spec.template.option("--tls-cert") is not None


def _given(webhook: str, bundle: "list[Certificate]", seen: Observations) -> Iterator[Finding]:
    """The certificate in the Secret has not ended, is for the Service, and the API server trusts it."""
    names, name = seen.names, seen.names.certificate_secret(seen.deployment)
    if seen.secret is None:
        if "secret" not in seen.unseen:
            yield problem(
                f"Secret {name}, in which the webhook's certificate should be, does not exist",
                f"kubectl get secrets,certificates -n {names.namespace}",
            )
        return
    describe = f"kubectl describe secret -n {names.namespace} {name}"
    chain = certificates_in((seen.secret.data or {}).get("tls.crt", b""))
    if not chain:
        yield problem(f"Secret {name}: tls.crt is no certificate", describe)
        return
    leaf, service = chain[0], f"{names.webhook}.{names.namespace}.svc"
    yield from _ended(f"the certificate in Secret {name}", leaf.not_valid_after_utc.timestamp(), seen)
    if not leads_to(chain, bundle):
        yield problem(
            f"{webhook}: the caBundle does not trust the certificate in Secret {name}: none of its authorities signed it",
            f"helm upgrade … --set-file certificates.caBundle=ca.pem   # with the authority that signed {name}",
        )
    if service not in (found := _hosts(leaf)):
        yield problem(
            f"the certificate in Secret {name} is for {', '.join(found) or 'no name'}, and the webhook is called {service}",
            describe,
        )


def _served(seen: Observations) -> Iterator[Finding]:
    """What the replicas themselves say of what they serve."""
    for one in seen.served:
        if one.ends is not None:
            yield from _ended(f"the certificate that pod {one.pod} serves", one.ends, seen)
        if one.trusted is False:
            yield problem(
                f"pod {one.pod} says that the published caBundle does not trust what it serves, or cannot be read",
                seen.names.logs(),
                _maker_logs(seen),
            )


def _ended(what: str, end: float, seen: Observations) -> Iterator[Finding]:
    date = dt.datetime.fromtimestamp(end, dt.UTC).strftime("%Y-%m-%d %H:%M UTC")
    given = f"kubectl get secrets,certificates -n {seen.names.namespace}"
    renewal = given if _is_given(seen) else seen.names.logs()
    if end <= seen.now:
        yield problem(f"{what} ended on {date}", renewal)
    elif end - seen.now < _SERVED_SOON:
        yield warning(f"{what} ends on {date}, and has not been renewed", renewal)


def _hosts(leaf: "Certificate") -> list[str]:
    from cryptography.x509 import DNSName, ExtensionNotFound, SubjectAlternativeName

    try:
        names = leaf.extensions.get_extension_for_class(SubjectAlternativeName).value
    except (ExtensionNotFound, ValueError):
        return []
    return names.get_values_for_type(DNSName)
