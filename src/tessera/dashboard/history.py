"""What happened while the dashboard watched, the latest first: what was decided about pods, and what nodes' MIG layouts did.

A layout has one entry for each change, from the moment that it is desired until it is there or has failed: what is desired, how far
it is, and what the node offered before and offers now.
"""

from bisect import insort
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from tessera.core.devices.capacity import PodUse, in_order
from tessera.core.requests.record import asked_first
from tessera.core.resources import is_whole_or_mig
from tessera.dashboard.observed import DashboardNode, DashboardPod
from tessera.dashboard.totals import short_name
from tessera.protocol.kubernetes.controllers import decode_event, denial_in
from tessera.protocol.kubernetes.objects import moment, seconds
from tessera.protocol.mig.nodes import GpuNode

_MOST: Final = 100
_MOST_DENIALS: Final = 1000
MOST_ASKED: Final = 8  # resources of one pod that are named: as many profiles as one may ask for
_MOST_LAYOUTS: Final = 50
_TOGETHER: Final = 15.0  # seconds; a kubelet reports its resources within ten
_LONGEST: Final = 120  # characters of a layout; an annotation may have 256 KiB
_ENDED: Final = frozenset({"success", "failed", ""})  # states after which nothing more comes


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
        return len(self._kept) <= _MOST or self._kept.pop(0) is not one

    def takes(self, when: str) -> bool:
        """Whether an admission of that time would be among the latest."""
        return len(self._kept) < _MOST or when >= self._kept[0].when

    def is_new(self, event: str) -> bool:
        """Whether a controller's event is the first: it tries again and again, which is shown once."""
        if event in self._denials:
            return False
        self._denials.append(event)
        return True

    def shown(self) -> list[Admission]:
        return self._kept[::-1]


def asks_of(use: PodUse) -> str:
    """What a pod asks for: `2g.20gb ×1`; with what else would do, where it waits with a claim that says so."""
    named = islice(in_order(use.amounts).items(), MOST_ASKED)
    asks = ", ".join(f"{short_name(resource)} ×{amount}" for resource, amount in named)
    if len(use.amounts) > MOST_ASKED:
        asks += f" and {len(use.amounts) - MOST_ASKED} more"
    return f"{asks} (claim: {use.alternatives.words})" if use.alternatives and not use.node else asks


def admission_of(one: DashboardPod) -> Admission:
    """What was decided about a pod that is there, by its record."""
    use, asks = one.use, asks_of(one.use)
    asked = asked_first(use.record)
    if not asked:
        return Admission(use.created, use.namespace, use.name, "as asked", asks=asks)
    reason = f"no node that this pod could use offered {asked} as asked"
    if use.claim:
        reason = f"{asked} was not free where the scheduler placed it"
    return Admission(use.created, use.namespace, use.name, "fallback", use.record, reason, asks)


def read_denial(raw: bytes) -> tuple[str, Admission] | None:
    """The name of an event, and the pod that the webhook denied a controller; None where it reports something else."""
    event = decode_event(raw)
    denial = denial_in(event.message)
    if denial is None or not denial.is_ours:
        return None
    owner = f"{event.involved_object.kind} {event.involved_object.name}"
    when = event.last_timestamp or event.event_time or ""
    return event.metadata.name, Admission(
        when, event.metadata.namespace, owner, "rejected", reason=denial.reason
    )


@dataclass(frozen=True, slots=True)
class LayoutChange:
    """What a node's layout did, and what that did to what the node offers."""

    when: str  # the last news
    node: str
    desired: str  # empty: the desired layout is the one before
    state: str  # desired, pending, success, failed; empty: only what is offered changed
    reason: str
    before: Mapping[str, int]  # GPU resource → how many
    after: Mapping[str, int]

    @property
    def offers(self) -> str:
        """`1g.10gb 0 → 28, 2g.20gb 8 → 0`; what is as it was is left out."""
        names = in_order({**self.before, **self.after})
        numbers = ((short_name(name), self.before.get(name, 0), self.after.get(name, 0)) for name in names)
        return ", ".join(f"{name} {old} → {new}" for name, old, new in numbers if old != new)


class LayoutHistory:
    """The changes of layouts, the one with the latest news first."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._changes: deque[LayoutChange] = deque(maxlen=_MOST_LAYOUTS)

    def see(self, before: DashboardNode, after: DashboardNode) -> bool:
        """A node changed; whether that is news of its layout."""
        gpus, old, new = after.gpus, _offered(before), _offered(after)
        now = moment(self._clock())
        if _desired(before.gpus) != (wish := _desired(gpus)):
            desired = " ".join((wish or "nothing").split())[:_LONGEST]
            self._changes.appendleft(LayoutChange(now, gpus.name, desired, "desired", "", old, new))
            return True
        reported = (before.gpus.state, before.gpus.reason) != (gpus.state, gpus.reason)
        if not reported and old == new:
            return False
        last = next((one for one in self._changes if one.node == gpus.name), None)
        if last is not None and (last.state not in _ENDED or self._is_recent(last.when)):
            self._changes.remove(last)
            news = replace(last, when=now, after=new)
        else:
            news = LayoutChange(now, gpus.name, "", "", "", old, new)
        if reported:
            news = replace(news, state=gpus.state, reason=gpus.reason)
        if news.desired or news.state or news.offers:  # devices that went and came back are no news
            self._changes.appendleft(news)
        return True

    def shown(self) -> list[dict[str, str]]:
        fields = ("when", "node", "desired", "state", "reason", "offers")
        return [{name: getattr(one, name) for name in fields} for one in self._changes]

    def _is_recent(self, when: str) -> bool:
        return self._clock() - (seconds(when) or 0.0) <= _TOGETHER


def _desired(gpus: GpuNode) -> str | None:
    """The layout that a node is to have: in its annotation, or by the name of mig-manager's configuration."""
    return gpus.config if gpus.by_mig_manager else gpus.layout


def _offered(node: DashboardNode) -> dict[str, int]:
    found = node.node.allocatable.items()
    return {resource: int(amount.value) for resource, amount in found if is_whole_or_mig(resource) and amount}
