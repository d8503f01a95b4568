"""What is reported of a node's devices and layout, in the log and as Events that `kubectl describe node` shows."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from tessera.core.devices.device import Device, by_resource
from tessera.kube.event_recorder import About, Event
from tessera.node.sources.layout import NodeLayoutStatus, State
from tessera.node.state import Key

log = logging.getLogger(__name__)

STATE_UNREADABLE: Final = "DeviceStateUnreadable"  # what the last run had is rebuilt
CLAIM_UNREADABLE: Final = "ClaimStateUnreadable"  # it is not known which devices a claim holds
_MOST_NAMED: Final = 3


class NodeEvents:
    """Events of one node, by `record`."""

    def __init__(self, node: str, record: Callable[[Event], object]) -> None:
        # as the kubelet names the node in its own events: by name, and the name again in place of the uid
        self._about = About("v1", "Node", node, uid=node)
        self._record = record
        self._problems: Mapping[Key, str] = {}  # as they were recorded last
        self._layout: NodeLayoutStatus | None = None

    def warn(self, reason: str, message: str) -> None:
        """Record something that the node's operator ought to know."""
        self._record(Event(self._about, reason, message, "Warning"))

    def record_changes(self, devices: Sequence[Device], layout: NodeLayoutStatus | None) -> None:
        """Record how devices and layout differ from what was recorded last."""
        for resource, unhealthy, healthy in _health_changes(self._problems, devices):
            if unhealthy:
                self.warn("GPUUnhealthy", f"{resource}: {_described(unhealthy)}")
            if healthy:
                self._normal("GPUHealthy", f"{resource}: {len(healthy)} healthy again")
        self._problems = {device.key: device.problem for device in devices if device.problem}
        before, self._layout = self._layout, layout
        if layout is None or layout == before:
            return
        match layout.state:
            case State.FAILED:
                self.warn("MIGLayoutFailed", f"the MIG layout failed: {layout.reason}")
            case State.PENDING:
                self._normal("MIGLayoutPending", f"the MIG layout is pending: {layout.reason}")
            case State.SUCCESS if before is not None and before.state is not State.SUCCESS:
                self._normal("MIGLayoutApplied", "the MIG layout is in place")

    def _normal(self, reason: str, message: str) -> None:
        self._record(Event(self._about, reason, message))


def log_health(before: Iterable[Device], after: Sequence[Device]) -> None:
    """One line per resource whose devices became unhealthy or recovered."""
    problems = {device.key: device.problem for device in before}
    for resource, unhealthy, healthy in _health_changes(problems, after):
        if unhealthy:
            log.warning("%s: %s", resource, _described(unhealthy))
        if healthy:
            names = ", ".join(device.id for device in healthy[:_MOST_NAMED])
            log.info("%s: %d healthy again: %s", resource, len(healthy), names)


def _health_changes(
    problems: Mapping[Key, str], devices: Sequence[Device]
) -> Iterator[tuple[str, list[Device], list[Device]]]:
    """By resource: the devices that have another problem than before, and those that no longer have one."""
    for resource, members in sorted(by_resource(devices).items()):
        changed = [device for device in members if device.problem != problems.get(device.key, "")]
        yield resource, [one for one in changed if one.problem], [one for one in changed if one.healthy]


def _described(unhealthy: Sequence[Device]) -> str:
    shown = "; ".join(f"{device.id}: {device.problem}" for device in unhealthy[:_MOST_NAMED])
    more = f" and {len(unhealthy) - _MOST_NAMED} more" if len(unhealthy) > _MOST_NAMED else ""
    return f"{len(unhealthy)} unhealthy: {shown}{more}"
