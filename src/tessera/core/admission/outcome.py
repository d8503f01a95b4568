"""What is decided about a pod: it is allowed as it is, patched, or denied; and observe mode, in which all that is only reported.

`decide` says what would be done. Whether it is done, the namespace or the configuration says (`policy.mode_in`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from tessera.core.admission.injection import Refusal
from tessera.core.kubernetes.pod import Edit, Pod, SetAnnotation
from tessera.core.text import cut_warning
from tessera.core.values import value

Cause = Literal["missing", "full"]  # no node offers it, or none has it free

OBSERVE_MODE: Final = "observe mode:"  # how its warnings begin; the doctor knows the webhook by it


@value
class Momentary:
    """A decision by what was free at this moment holds for this one pod: room is kept for it, and its mark says that it was decided about."""

    pod: Pod  # as it is admitted
    mark: SetAnnotation


@value
class Allowed:
    """The pod is fine as it is."""

    reason: str
    warnings: tuple[str, ...] = ()
    audit: Mapping[str, str] = field(default_factory=dict)
    conversion: str = ""  # why its request did not become a claim, where it could have
    unmet: bool = False  # no node offers what it asks for: it waits
    by: str = ""  # where `when: full` holds: `full`, or why what is free did not matter
    momentary: Momentary | None = None


@value
class Patched:
    """The pod is admitted with these edits."""

    edits: tuple[Edit, ...]
    reason: str
    replaced: tuple[tuple[str, str], ...] = ()  # fallbacks as the record has them: ("2g.20gb", "1g.10gb")
    gpu_type: str | None = None  # of the injection rule, when one was followed
    warnings: tuple[str, ...] = ()
    audit: Mapping[str, str] = field(default_factory=dict)
    conversion: str = ""  # `claim`: its request became one; or why not, where it could have
    unmet: bool = False  # no node offers what it asks for: it waits
    by: str = ""  # where `when: full` holds: `full`, or why what is free did not matter
    momentary: Momentary | None = None
    cause: Cause = "missing"  # of what is replaced


Code = Literal["not_offered", "quota", "too_many_profiles", "bad_annotation", "bad_quantity", Refusal]


REJECTIONS: Final[tuple[str, ...]] = get_args(Code)


@value
class Denied:
    """The pod is refused; the message says what to change, the code counts it."""

    code: Code
    message: str
    by: str = ""  # as in `Allowed`


Decision = Allowed | Patched | Denied


@dataclass(frozen=True, slots=True)
class Observed:
    """The pod is admitted as it is, whatever would be done about it; warnings and audit say what."""

    would: Decision
    reason: str
    warnings: tuple[str, ...]
    audit: Mapping[str, str]


def observed(would: Decision) -> Observed:
    """A decision that is reported and not carried out."""
    if isinstance(would, Denied):
        audit = {"mode": "observe", "would-reject": would.message}
        warning = cut_warning(f"{OBSERVE_MODE} would be rejected: {would.message}")
        return Observed(would, would.message, (warning,), audit)
    audit = {"mode": "observe", **{f"would-{what}": text for what, text in would.audit.items()}}
    return Observed(would, would.reason, tuple(map(cut_warning, _warnings(would))), audit)


def _warnings(would: Allowed | Patched) -> Iterator[str]:
    if isinstance(would, Allowed):
        yield from would.warnings
        return
    why = "has {} free" if would.cause == "full" else "offers {} as asked"
    for old, new in would.replaced:
        yield f"{OBSERVE_MODE} would be changed to {new}: no node that this pod can use {why.format(old)}"
    if not would.replaced:
        yield f"{OBSERVE_MODE} would be changed: {would.reason}"
    # the first warnings of a rewrite are about what was replaced, one for each
    yield from (f"{OBSERVE_MODE} {warning}" for warning in would.warnings[len(would.replaced) :])
