"""Checks of the certificate authority that Tessera keeps itself: its Secret, and the controller that renews it.

What happens to a damaged Secret is told in the words of the certificate controller's log (`webhook.certificates`).
"""

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from tessera.core.text import first_of
from tessera.doctor.checks.webhook import replicas
from tessera.doctor.evidence import Evidence
from tessera.doctor.findings import Finding, note, problem

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

GIVE_BUNDLE: Final = (
    "helm upgrade … --set-file certificates.caBundle=ca.pem   # or: kubectl get certificates -A"
)
_PAIRS: Final = (("ca.crt", "ca.key"), ("next.crt", "next.key"))  # the Secret's keys: who signs, and who will
_OURS: Final = frozenset({"ca.crt", "ca.key", "next.crt", "next.key", "retiring.crt", "retiring-since"})
_ASIDE: Final = "damaged-"  # before the name of a key whose value was kept when the authority was damaged


def unpublished(webhook: str, seen: Evidence) -> Finding:
    """An empty caBundle: who should have written it, and may it?"""
    names = seen.names
    text = f"{webhook}: caBundle is empty: the API server trusts no certificate of the webhook; "
    if is_given(seen):
        return problem(f"{text}it was not given, or cert-manager has not written it yet", GIVE_BUNDLE)
    found = seen.controller if _has_controller(seen) else seen.deployment
    account = found.spec.template.spec.service_account_name if found else ""
    return problem(
        f"{text}{_maker(seen)} has not written it yet, or may not",
        maker_logs(seen),
        f"kubectl auth can-i patch mutatingwebhookconfigurations/{names.configuration} "
        f"--as=system:serviceaccount:{names.namespace}:{account or _maker_name(seen)}",
    )


def own(webhook: str, bundle: "list[Certificate]", seen: Evidence) -> Iterator[Finding]:
    """Self-managed: the Secret holds an authority, and the caBundle, if there is one, has it."""
    name, namespace = secret_name(seen), seen.names.namespace
    if seen.secret is None:
        if seen.deployment is not None and "secret" not in seen.unseen:
            yield problem(
                f"Secret {namespace}/{name} does not exist, and the right to create it is not given; create it empty, "
                "and Tessera fills it",
                f"kubectl create secret generic {name} -n {namespace}",
            )
        return
    data = seen.secret.data or {}
    kept = sorted(key for key in data if key.startswith(_ASIDE))
    if not any(value for key, value in data.items() if key not in kept):
        return  # it is filled within seconds
    if broken := _broken(data):
        remedy, command = _remedy(data, name, seen)
        yield problem(
            f"Secret {namespace}/{name}: {broken}; until it is repaired, replicas that start have no certificate and none "
            f"is renewed; {remedy}",
            command,
        )
    elif bundle and certificates_in(data["ca.crt"])[0] not in bundle:
        yield problem(
            f"{webhook}: the caBundle does not hold the authority of Secret {namespace}/{name}: "
            f"another client wrote another one, and {_maker(seen)} has not put its own back",
            maker_logs(seen),
        )
    if kept and not broken:
        removals = ",".join(f'{{"op":"remove","path":"/data/{key}"}}' for key in kept)
        yield note(
            f"Secret {namespace}/{name} was damaged before, and what was kept then is still there ({', '.join(kept)}): "
            "when you have looked at it, remove it, for the next damage is not mended by itself until then",
            f"kubectl patch secret {name} -n {namespace} --type=json -p '[{removals}]'",
        )


def _remedy(data: Mapping[str, bytes], name: str, seen: Evidence) -> tuple[str, str]:
    """What happens next with a damaged authority, and what to type; in the words of the certificate controller's log."""
    foreign = sorted(key for key in data.keys() - _OURS if not key.startswith(_ASIDE))
    if foreign:
        return (
            (
                f"it also holds {first_of(foreign, 3)}, so it may belong to another program and is not changed: "
                "use a separate Secret for the authority (--ca-secret; the chart's certificates.secretName)"
            ),
            f"{seen.names.upgrade} --set certificates.secretName=…",
        )
    if not data.keys() - _OURS:
        return (
            (
                f"after some minutes Tessera saves all of it as {_ASIDE}… in the same Secret "
                "and makes a new authority"
            ),
            maker_logs(seen),
        )
    return (
        (
            f"it was damaged before, and the contents saved then ({_ASIDE}…) are not overwritten; check them, then empty "
            "the Secret and Tessera makes a new authority"
        ),
        (
            f"kubectl patch secret {name} -n {seen.names.namespace} --type=json "
            """-p '[{"op":"remove","path":"/data"}]'"""
        ),
    )


def _broken(data: Mapping[str, bytes]) -> str | None:
    """What keeps the authorities of a Secret from being used; in the words of the certificate controller's log."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if not re.fullmatch(rb"\d{0,12}", data.get("retiring-since", b"")):
        return "retiring-since: not a Unix time"
    for certificate, private in _PAIRS:
        if certificate != "ca.crt" and not data.get(certificate):
            continue
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


def _has_controller(seen: Evidence) -> bool:
    """Whether the webhook only reads the authority and the caBundle, as the chart has it."""
    if seen.controller is not None or seen.deployment is None:
        return True
    return seen.deployment.has_flag("--read-only-certificates")


def _maker_name(seen: Evidence) -> str:
    return seen.names.controller if _has_controller(seen) else seen.names.webhook


def _maker(seen: Evidence) -> str:
    """What makes the authority and writes the caBundle."""
    return f"Deployment {_maker_name(seen)}"


def maker_logs(seen: Evidence) -> str:
    """What shows the log of what writes the caBundle; where it is given, of the webhook."""
    reads = not is_given(seen) and _has_controller(seen)
    return seen.names.controller_logs if reads else seen.names.logs


def controller(seen: Evidence) -> Iterator[Finding]:
    """The certificate controller is there and ready: without it the webhook goes on, and nothing is renewed."""
    if seen.controller is not None:
        yield from replicas(seen.controller, seen.controller_pods, seen, usual=1)
    elif seen.deployment is not None and _has_controller(seen) and "controller" not in seen.unseen:
        yield problem(
            f"there is no Deployment {seen.names.namespace}/{seen.names.controller}: no authority is renewed, "
            "and the caBundle is not put back when another client changes it",
            seen.names.upgrade,
        )


def is_given(seen: Evidence) -> bool:
    """Whether the certificate comes from files, made by cert-manager or by hand."""
    return seen.deployment is not None and seen.deployment.spec.template.option("--tls-cert") is not None


def secret_name(seen: Evidence) -> str:
    """The Secret behind the certificate: with the authority, or with the certificate that was given."""
    found = seen.deployment
    return (
        found and (found.given_secret() or found.spec.template.option("--ca-secret"))
    ) or seen.names.secret


def certificates_in(pem: bytes) -> "list[Certificate]":
    """The certificates in PEM; none where it is something else."""
    from cryptography.x509 import load_pem_x509_certificates

    try:
        return load_pem_x509_certificates(pem)
    except ValueError:
        return []
