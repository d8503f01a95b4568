"""A decision as it is counted and told: worked out once, however many pods get it."""

import msgspec

from tessera.core.admission.decision import Decision, Reject, Rewrite
from tessera.serving.logs import Record
from tessera.webhook.metrics import Outcome


class Account(msgspec.Struct, frozen=True, gc=False):
    """What counters and the log say about a decision."""

    outcome: Outcome
    level: str
    told: Record
    replaced: tuple[tuple[str, str], ...] = ()
    injected: bool = False
    rejected: str | None = None  # why, as the counter names it

    @classmethod
    def of(cls, decision: Decision) -> "Account":
        """The account of a decision."""
        if isinstance(decision, Reject):
            told = Record(decision="rejected", reason=decision.message)
            return cls(Outcome.REJECTED, "warning", told, rejected=decision.code)
        if not isinstance(decision, Rewrite):
            return cls(Outcome.UNCHANGED, "info", Record(decision="unchanged", reason=decision.reason))
        asked, chosen = (
            (",".join(names) for names in zip(*decision.replaced, strict=True))
            if decision.replaced
            else (None, None)
        )
        told = Record(
            decision="patched",
            reason=decision.reason,
            asked=asked,
            chosen=chosen,
            gpu_type=decision.gpu_type,
        )
        return cls(Outcome.PATCHED, "info", told, decision.replaced, decision.gpu_type is not None)
