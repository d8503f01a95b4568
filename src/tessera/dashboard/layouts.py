"""What nodes' MIG layouts did while the page was watching, and what that did to what the nodes offer."""

import calendar
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from tessera.core.devices.capacity import in_order
from tessera.core.kubernetes.resources import is_whole_or_mig, short
from tessera.dashboard.observed import SeenNode

_MOST: Final = 50
_TOGETHER: Final = 15.0  # seconds; a kubelet reports its resources within ten
_LONGEST: Final = 120  # characters of a layout; an annotation may have 256 KiB
_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"

Offered = Mapping[str, int]  # GPU resource → how many


@dataclass(frozen=True, slots=True)
class LayoutChange:
    """What a node's layout did, and what that did to what the node offers."""

    when: str
    node: str
    state: str
    reason: str
    before: Offered
    after: Offered

    @property
    def offers(self) -> str:
        """`1g.10gb 0 → 28, 2g.20gb 8 → 0`; what is as it was is left out."""
        names = in_order({**self.before, **self.after})
        numbers = ((short_name(name), self.before.get(name, 0), self.after.get(name, 0)) for name in names)
        return ", ".join(f"{name} {old} → {new}" for name, old, new in numbers if old != new)


class LayoutHistory:
    """The changes, the newest first."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._changes: deque[LayoutChange] = deque(maxlen=_MOST)

    def see(self, before: SeenNode, after: SeenNode) -> bool:
        """A node changed; whether its layout did.

        What is asked for, and then what state it is in, are entries; what the node offers is added to the last one: a
        kubelet reports resources one by one, before the state changes or after it.
        """
        gpus, old, new = after.gpus, _offered(before), _offered(after)
        state, reason = gpus.state, gpus.reason
        if before.gpus.layout != gpus.layout:
            state, reason = "asked", " ".join((gpus.layout or "nothing").split())[:_LONGEST]
        elif (before.gpus.state, before.gpus.reason) == (state, reason):
            if old == new:
                return False
            last = next((one for one in self._changes if one.node == gpus.name), None)
            if last is not None and last.after == old and self._is_recent(last.when):
                self._changes[self._changes.index(last)] = replace(last, after=new)
                return True
        self._changes.appendleft(LayoutChange(moment(self._clock()), gpus.name, state, reason, old, new))
        return True

    def shown(self) -> list[dict[str, str]]:
        """The changes as the page shows them."""
        return [
            {"when": o.when, "node": o.node, "state": o.state, "reason": o.reason, "offers": o.offers}
            for o in self._changes
        ]

    def _is_recent(self, when: str) -> bool:
        return self._clock() - calendar.timegm(time.strptime(when, _TIME)) <= _TOGETHER


def moment(seconds: float) -> str:
    """A moment as the API writes it."""
    return time.strftime(_TIME, time.gmtime(seconds))


def short_name(resource: str) -> str:
    """A resource as people call it."""
    return short(resource) if is_whole_or_mig(resource) else resource


def _offered(node: SeenNode) -> dict[str, int]:
    found = node.node.allocatable.items()
    return {resource: int(amount.value) for resource, amount in found if is_whole_or_mig(resource) and amount}
