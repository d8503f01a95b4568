"""Observe mode: everything is decided and told, and nothing is done.

`decide` says what would be done; here is whether it is. A namespace's label wins over the configuration.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tessera.core.admission.decision import Admit, Decision, Mode, Policy, Reject, Rewrite, fitting
from tessera.core.admission.offers import Offers

MODE_LABEL: Final = "gpu-webhook"  # of a namespace: observe, enforce, or disabled
OBSERVE_MODE: Final = "observe mode:"  # how its warnings begin; the doctor knows the webhook by it
_MODES: Final = {one.value: one for one in Mode}


@dataclass(frozen=True, slots=True)
class Observed:
    """The pod is admitted as it is, whatever would be done about it; warnings and audit say what."""

    would: Decision
    reason: str
    warnings: tuple[str, ...]
    audit: Mapping[str, str]


Ruling = Decision | Observed


def mode_in(namespace: str, offers: Offers, policy: Policy) -> Mode:
    """The mode of a namespace."""
    known = offers.namespaces.get(namespace)
    return policy.mode if known is None else _MODES.get(known.labels.get(MODE_LABEL, ""), policy.mode)


def said_by(namespace: str, offers: Offers) -> str:
    """Who says which mode holds in a namespace."""
    known = offers.namespaces.get(namespace)
    value = known.labels.get(MODE_LABEL, "") if known is not None else ""
    return (
        f"namespace {namespace}, label {MODE_LABEL}={value}"
        if value in _MODES
        else "the configuration's mode"
    )


def observed(would: Decision) -> Observed:
    """A decision that is told and not carried out."""
    if isinstance(would, Reject):
        audit = {"mode": "observe", "would-reject": would.message}
        warning = fitting(f"{OBSERVE_MODE} would be rejected: {would.message}")
        return Observed(would, would.message, (warning,), audit)
    audit = {"mode": "observe", **{f"would-{what}": text for what, text in would.audit.items()}}
    return Observed(would, would.reason, tuple(map(fitting, _warnings(would))), audit)


def _warnings(would: Admit | Rewrite) -> Iterator[str]:
    if isinstance(would, Admit):
        yield from would.warnings
        return
    for old, new in would.replaced:
        yield f"{OBSERVE_MODE} would be changed to {new}: no node that this pod can use offers {old} as asked"
    if not would.replaced:
        yield f"{OBSERVE_MODE} would be changed: {would.reason}"
    # the first warnings of a rewrite are about what was replaced, one for each
    yield from (f"{OBSERVE_MODE} {warning}" for warning in would.warnings[len(would.replaced) :])
