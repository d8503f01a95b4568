"""What was decided about pods, the latest first."""

from bisect import insort
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import Final

from tessera.core.devices.capacity import PodUse, in_order
from tessera.core.requests.record import asked_first
from tessera.dashboard.observed import DashboardPod, Denial
from tessera.dashboard.totals import short_name

_MOST: Final = 100
_MOST_DENIALS: Final = 1000
MOST_ASKED: Final = 8  # resources of one pod that are named: as many profiles as one may ask for


@dataclass(frozen=True, slots=True)
class Admission:
    """What was decided about a pod."""

    when: str  # as the API writes it: later texts are later times
    namespace: str
    pod: str
    decision: str  # fallback, as asked, changed, rejected
    record: str = ""  # `2g.20gb->1g.10gb`
    reason: str = ""
    asks: str = ""  # `2g.20gb ×1`, where it is known


class AdmissionLog:
    """The latest admissions in the order of time, however they become known."""

    def __init__(self) -> None:
        self._kept: list[Admission] = []
        self._denials: deque[str] = deque(maxlen=_MOST_DENIALS)  # names of events that are shown

    def add(self, one: Admission) -> bool:
        """Take an admission; whether it is among the latest."""
        insort(self._kept, one, key=lambda admission: admission.when)
        if len(self._kept) > _MOST:
            return self._kept.pop(0) is not one
        return True

    def takes(self, when: str) -> bool:
        """Whether an admission of that time would be among the latest."""
        return len(self._kept) < _MOST or when >= self._kept[0].when

    def denied(self, denial: Denial) -> bool:
        """A controller was refused a pod; it tries again and again, which is shown once."""
        if denial.name in self._denials:
            return False
        self._denials.append(denial.name)
        return self.add(Admission(denial.when, denial.namespace, denial.owner, "rejected", "", denial.reason))

    def shown(self) -> list[Admission]:
        """The latest first."""
        return self._kept[::-1]


def asks_of(use: PodUse) -> str:
    """What a pod asks for: `2g.20gb ×1`; with what else would do, where it waits with a claim that says so."""
    asks = ", ".join(
        f"{short_name(r)} ×{amount}" for r, amount in islice(in_order(use.amounts).items(), MOST_ASKED)
    )
    if len(use.amounts) > MOST_ASKED:
        asks += f" and {len(use.amounts) - MOST_ASKED} more"
    return f"{asks} (claim: {use.alternatives.words})" if use.alternatives and not use.node else asks


def admission_of(one: DashboardPod) -> Admission:
    """What was decided about a pod that is there, by its record."""
    use, asks = one.use, asks_of(one.use)
    asked = asked_first(use.record)
    if not asked:
        return Admission(use.created, use.namespace, use.name, "as asked", asks=asks)
    reason = (
        f"{asked} was not free where the scheduler placed it"
        if use.claim
        else f"no node that this pod could use offered {asked} as asked"
    )
    return Admission(use.created, use.namespace, use.name, "fallback", use.record, reason, asks)
