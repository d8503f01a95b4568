"""What the page shows, kept as parts that each have a name: a part that changed is sent again, and no other.

Parts are `node/<name>`, `totals`, `pending`, `admissions`, `layouts` and `about`. A change in the cluster only marks
parts; they are made anew when the page asks what is new.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from tessera.core.devices.capacity import Capacity, Usage, Usages, in_order, total
from tessera.core.kubernetes.quantity import ZERO, Quantity
from tessera.dashboard.layouts import LayoutHistory, moment, short_name
from tessera.dashboard.mosaic import mosaic_of
from tessera.dashboard.observed import Denial, SeenNode, SeenPod, asks_for_gpus
from tessera.kube.watch.resource import Key

_MOST_ADMISSIONS: Final = 100
_MOST_DENIALS: Final = 1000
_MOST_PENDING: Final = 200

Parts = Mapping[str, bytes]  # name → JSON


@dataclass(frozen=True, slots=True)
class Admission:
    """What was decided about a pod."""

    when: str  # as the API writes it
    namespace: str
    pod: str
    decision: str  # fallback, as asked, changed, rejected
    record: str = ""  # `2g.20gb->1g.10gb`
    reason: str = ""


class Board:
    """The state of the page."""

    def __init__(
        self, about: str, *, all_admissions: bool = False, clock: Callable[[], float] = time.time
    ) -> None:
        """`all_admissions`: the caller reports every admission (`admitted`), so that none is read from pods."""
        self.version = 0
        self._about = about
        self._all_admissions = all_admissions
        self._clock = clock
        self._nodes: dict[str, SeenNode] = {}
        self._pods: dict[Key, SeenPod] = {}
        self._on: dict[str, dict[Key, SeenPod]] = {}  # pods by node; empty: without one
        self._capacity = Capacity()
        self._admissions: deque[Admission] = deque(maxlen=_MOST_ADMISSIONS)
        self._layouts = LayoutHistory(clock)
        self._denials: deque[str] = deque(maxlen=_MOST_DENIALS)  # names of events that are shown
        self._trouble = ""
        self._marked: set[str] = {"about", "totals", "pending", "admissions", "layouts"}
        self._parts: dict[str, bytes] = {}

    # what changes

    def put_node(self, one: SeenNode) -> None:
        """A node is new or changed."""
        before = self._nodes.get(one.node.name)
        if before == one:
            return
        self._nodes[one.node.name] = one
        self._capacity.put_node(one.node)
        if before is not None and self._layouts.see(before, one):
            self._mark("layouts")
        self._mark(f"node/{one.node.name}", "totals")

    def remove_node(self, name: str) -> None:
        """A node is gone."""
        if self._nodes.pop(name, None) is not None:
            self._capacity.remove_node(name)
            self._mark(f"node/{name}", "totals")

    def put_pod(self, one: SeenPod) -> None:
        """A pod is new or changed."""
        key = Key(one.claim.namespace, one.claim.name)
        before = self._pods.get(key)
        if before == one or (before is None and not one.claim.amounts):
            return
        self.remove_pod(key)
        if not one.claim.amounts:
            return
        self._pods[key] = one
        self._on.setdefault(one.claim.node, {})[key] = one
        self._capacity.add(one.claim)
        if before is None and not self._all_admissions and asks_for_gpus(one.claim):
            self.admitted(_admission_of(one))
        self._mark(f"node/{one.claim.node}" if one.claim.node else "pending", "totals")

    def remove_pod(self, key: Key) -> None:
        """A pod is gone."""
        pod = self._pods.pop(key, None)
        if pod is None:
            return
        self._on[pod.claim.node].pop(key, None)
        self._capacity.remove(pod.claim)
        self._mark(f"node/{pod.claim.node}" if pod.claim.node else "pending", "totals")

    def admitted(self, admission: Admission) -> None:
        """Something was decided about a pod."""
        self._admissions.appendleft(admission)
        self._mark("admissions")

    def denied(self, denial: Denial) -> None:
        """A controller was refused a pod; it tries again and again, which is shown once."""
        if denial.name not in self._denials:
            self._denials.append(denial.name)
            self.admitted(
                Admission(denial.when, denial.namespace, denial.owner, "rejected", "", denial.reason)
            )

    def trouble(self, text: str) -> None:
        """Why this may not be how things are; empty when it is."""
        if text != self._trouble:
            self._trouble = text
            self._mark("about")

    @property
    def nodes(self) -> Iterable[str]:
        """The nodes' names."""
        return tuple(self._nodes)

    @property
    def pods(self) -> Iterable[Key]:
        """The pods' names."""
        return tuple(self._pods)

    def _mark(self, *parts: str) -> None:
        self._marked.update(parts)
        self.version += 1

    def now(self) -> str:
        """This moment, as the API writes it."""
        return moment(self._clock())

    # what is shown

    def parts(self) -> Parts:
        """All of it, as it is now."""
        self.changes()
        return self._parts

    def changes(self) -> tuple[Parts, list[str]]:
        """What is new since the last time: parts that changed, names of parts that are gone."""
        changed: dict[str, bytes] = {}
        gone: list[str] = []
        for name in sorted(self._marked):
            made = self._make(name)
            if made is None:
                if self._parts.pop(name, None) is not None:
                    gone.append(name)
            elif self._parts.get(name) != (encoded := msgspec.json.encode(made)):
                self._parts[name] = changed[name] = encoded
        self._marked.clear()
        return changed, gone

    def _make(self, name: str) -> Any:
        if name.startswith("node/"):
            return self._node(name.removeprefix("node/"))
        match name:
            case "about":
                return {"cluster": self._about, "trouble": self._trouble}
            case "totals":
                usages = (self._capacity.usage(node) for node in self._nodes)
                return _resources(total(usages), self._capacity.asked)
            case "pending":
                return self._pending()
            case "admissions":
                return list(self._admissions)
            case _:
                return self._layouts.shown()

    def _node(self, name: str) -> Any:
        one = self._nodes.get(name)
        if one is None:
            return None
        mosaic = mosaic_of(one, self._on.get(name, {}).values())
        return {
            "name": name,
            "product": one.gpus.product.short_name if one.gpus.product else one.gpus.label,
            "ready": one.ready,
            "cordoned": one.cordoned,
            "state": one.gpus.state,
            "reason": one.gpus.reason or mosaic.trouble,
            "unhealthy": {short_name(resource): count for resource, count in one.unhealthy.items()},
            "cards": mosaic.cards,
            "loose": mosaic.loose,
            "resources": _resources(self._capacity.usage(name)),
        }

    def _pending(self) -> Any:
        waiting = sorted(self._on.get("", {}).values(), key=lambda one: (one.claim.created, one.claim.name))
        return [
            {
                "namespace": one.claim.namespace,
                "pod": one.claim.name,
                "asks": ", ".join(f"{short_name(r)} ×{a}" for r, a in _devices(one).items()),
                "record": one.claim.record,
                "why": one.why,
                "since": one.claim.created,
            }
            for one in waiting[:_MOST_PENDING]
        ]


def _devices(one: SeenPod) -> dict[str, Quantity]:
    return in_order(one.claim.amounts)


def _resources(usages: Usages, asked: Mapping[str, Quantity] | None = None) -> list[dict[str, Any]]:
    """Rows of a table; a resource that no node has and no pod asks for is left out."""
    wanted = asked or {}
    rows = []
    for resource in in_order({**usages, **wanted}):
        usage, pending = usages.get(resource, Usage()), wanted.get(resource, ZERO)
        if usage or pending:
            rows.append(
                {
                    "resource": resource,
                    "name": short_name(resource),
                    "allocatable": str(usage.allocatable),
                    "allocated": str(usage.allocated),
                    "available": str(usage.available),
                    "asked": str(pending),
                    "share": float(usage.allocated.value / usage.allocatable.value)
                    if usage.allocatable
                    else 0.0,
                    "lacking": pending > usage.available,
                }
            )
    return rows


def _admission_of(one: SeenPod) -> Admission:
    claim = one.claim
    if not claim.record:
        return Admission(claim.created, claim.namespace, claim.name, "as asked")
    asked = claim.record.partition("->")[0]
    reason = f"no node that this pod could use offered {asked} as asked"
    return Admission(claim.created, claim.namespace, claim.name, "fallback", claim.record, reason)
