"""Observe mode: everything is decided and told, and nothing is done.

`decide` says what would be done. Whether it is done, the namespace or the configuration says (`constraints.mode_in`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tessera.core.admission.decision import Admit, Decision, Reject, Rewrite, fitting

OBSERVE_MODE: Final = "observe mode:"  # how its warnings begin; the doctor knows the webhook by it


@dataclass(frozen=True, slots=True)
class Observed:
    """The pod is admitted as it is, whatever would be done about it; warnings and audit say what."""

    would: Decision
    reason: str
    warnings: tuple[str, ...]
    audit: Mapping[str, str]


Ruling = Decision | Observed


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
