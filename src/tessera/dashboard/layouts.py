"""What nodes' MIG layouts did while the dashboard watched, and what that did to what the nodes offer.

One entry for each change, from the moment that a layout is desired until it is there or has failed: what is desired, how
far it is, and what the node offered before and offers now.
"""

import calendar
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from tessera.core.devices.capacity import in_order
from tessera.core.kubernetes.resources import is_whole_or_mig
from tessera.dashboard.observed import DashboardNode
from tessera.dashboard.totals import short_name

_MOST: Final = 50
_TOGETHER: Final = 15.0  # seconds; a kubelet reports its resources within ten
_LONGEST: Final = 120  # characters of a layout; an annotation may have 256 KiB
_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"
_ENDED: Final = frozenset({"success", "failed", ""})  # states after which nothing more comes

Offered = Mapping[str, int]  # GPU resource → how many


@dataclass(frozen=True, slots=True)
class LayoutChange:
    """What a node's layout did, and what that did to what the node offers."""

    when: str  # the last news
    node: str
    desired: str  # empty: the desired layout is the one before
    state: str  # desired, pending, success, failed; empty: only what is offered changed
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
    """The changes, the one with the latest news first."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._changes: deque[LayoutChange] = deque(maxlen=_MOST)

    def see(self, before: DashboardNode, after: DashboardNode) -> bool:
        """A node changed; whether that is news of its layout."""
        gpus, old, new = after.gpus, _offered(before), _offered(after)
        now = moment(self._clock())
        if before.gpus.layout != gpus.layout:
            desired = " ".join((gpus.layout or "nothing").split())[:_LONGEST]
            self._changes.appendleft(LayoutChange(now, gpus.name, desired, "desired", "", old, new))
            return True
        reported = (before.gpus.state, before.gpus.reason) != (gpus.state, gpus.reason)
        if not reported and old == new:
            return False
        last = next((one for one in self._changes if one.node == gpus.name), None)
        if last is not None and (last.state not in _ENDED or self._is_recent(last.when)):
            self._changes.remove(last)
            news = replace(last, when=now, after=new)
            if reported:
                news = replace(news, state=gpus.state, reason=gpus.reason)
            if news.desired or news.state or news.offers:  # devices that went and came back are no news
                self._changes.appendleft(news)
        else:
            state, reason = (gpus.state, gpus.reason) if reported else ("", "")
            self._changes.appendleft(LayoutChange(now, gpus.name, "", state, reason, old, new))
        return True

    def shown(self) -> list[dict[str, str]]:
        """The changes as the dashboard shows them."""
        return [
            {
                "when": one.when,
                "node": one.node,
                "desired": one.desired,
                "state": one.state,
                "reason": one.reason,
                "offers": one.offers,
            }
            for one in self._changes
        ]

    def _is_recent(self, when: str) -> bool:
        return self._clock() - calendar.timegm(time.strptime(when, _TIME)) <= _TOGETHER


def moment(seconds: float) -> str:
    """A moment as the API writes it."""
    return time.strftime(_TIME, time.gmtime(seconds))


def _offered(node: DashboardNode) -> dict[str, int]:
    found = node.node.allocatable.items()
    return {resource: int(amount.value) for resource, amount in found if is_whole_or_mig(resource) and amount}
