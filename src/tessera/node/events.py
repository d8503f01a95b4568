"""Events of the node, as `kubectl describe node` shows them: a layout that waits or failed, devices that are unhealthy."""

from collections.abc import Iterator, Sequence
from typing import Final

from tessera.core.devices.device import Device
from tessera.kube.events.correlator import About, Event
from tessera.node.sources.simulated.layout import Outcome, State

COMPONENT: Final = "tessera-device-plugin"
STATE_UNREADABLE: Final = "DeviceStateUnreadable"  # reason of an Event: what the last run had is rebuilt
CLAIM_UNREADABLE: Final = "ClaimStateUnreadable"  # it is not known which devices a claim holds
_MOST_NAMED: Final = 3


def warning(node: str, reason: str, message: str) -> Event:
    """Something about a node that its operator ought to know."""
    return Event(_about(node), reason, message, "Warning")


def _about(node: str) -> About:
    """The node as the kubelet names it in its own events: by name, and the name again in place of the uid."""
    return About("v1", "Node", node, uid=node)


class NodeNews:
    """Compares what is with what was reported last, and yields an event for each difference."""

    def __init__(self, node: str) -> None:
        self._about = _about(node)
        self._unhealthy: dict[tuple[str, str], str] = {}  # device → its problem
        self._outcome: Outcome | None = None

    def of(self, devices: Sequence[Device], outcome: Outcome | None) -> Iterator[Event]:
        """The news, once each."""
        yield from self._devices(devices)
        yield from self._layout(outcome)

    def _devices(self, devices: Sequence[Device]) -> Iterator[Event]:
        unhealthy = {device.key: device.problem for device in devices if device.problem}
        before, self._unhealthy = self._unhealthy, unhealthy
        there = {device.key for device in devices}
        for resource in sorted({resource for resource, _ in (*unhealthy, *before)}):
            worse = [key for key in unhealthy if key[0] == resource and before.get(key) != unhealthy[key]]
            better = [key for key in before if key[0] == resource and key not in unhealthy and key in there]
            if worse:
                shown = "; ".join(f"{key[1]}: {unhealthy[key]}" for key in worse[:_MOST_NAMED])
                more = f" and {len(worse) - _MOST_NAMED} more" if len(worse) > _MOST_NAMED else ""
                yield self._event(
                    "GPUUnhealthy", f"{resource}: {len(worse)} unhealthy: {shown}{more}", "Warning"
                )
            if better:
                yield self._event("GPUHealthy", f"{resource}: {len(better)} healthy again")

    def _layout(self, outcome: Outcome | None) -> Iterator[Event]:
        before, self._outcome = self._outcome, outcome
        if outcome is None or outcome == before:
            return
        match outcome.state:
            case State.FAILED:
                yield self._event("MIGLayoutFailed", f"the MIG layout failed: {outcome.reason}", "Warning")
            case State.PENDING:
                yield self._event("MIGLayoutPending", f"the MIG layout is pending: {outcome.reason}")
            case State.SUCCESS if before is not None and before.state is not State.SUCCESS:
                yield self._event("MIGLayoutApplied", "the MIG layout is in place")
            case _:
                return

    def _event(self, reason: str, message: str, kind: str = "Normal") -> Event:
        return Event(self._about, reason, message, kind)
