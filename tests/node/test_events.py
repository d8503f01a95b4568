"""What is reported of a node: each change of its devices' health and of its layout, once."""

from collections.abc import Sequence
from dataclasses import replace

from tessera.core.devices.device import Device
from tessera.kube.event_recorder import Event
from tessera.node.events import NodeEvents
from tessera.node.sources.layout import NodeLayoutStatus, State
from tests.node.running import GPU, mock_devices


class Recorded:
    """The events of a node, as they are recorded."""

    def __init__(self) -> None:
        self.events = list[Event]()
        self._node = NodeEvents("n1", self.events.append)

    def after(self, devices: Sequence[Device], layout: NodeLayoutStatus | None) -> list[tuple[str, str, str]]:
        """What is recorded when devices and layout are like this."""
        before = len(self.events)
        self._node.record_changes(devices, layout)
        return [(one.type, one.reason, one.message) for one in self.events[before:]]


def test_devices_that_fall_ill_and_recover():
    """Unhealthy ones are named with their problem, once; then that they are healthy, and nothing of those that vanished."""
    devices, node = mock_devices(5), Recorded()
    ill = [one.unhealthy("XID 79") for one in devices[:4]]
    assert node.after(devices, None) == []
    assert node.after([*ill, devices[4]], None) == [
        (
            "Warning",
            "GPUUnhealthy",
            f"{GPU}: 4 unhealthy: device_0: XID 79; device_1: XID 79; device_2: XID 79 and 1 more",
        )
    ]
    assert node.after([*ill, devices[4]], None) == []
    assert node.after([*ill[:2], *devices[2:4]], None) == [
        ("Normal", "GPUHealthy", f"{GPU}: 2 healthy again")
    ]
    assert node.after(devices[2:], None) == []
    assert node.after([replace(devices[2], problem="gone")], None) == [
        ("Warning", "GPUUnhealthy", f"{GPU}: 1 unhealthy: device_2: gone")
    ]


def test_layouts_that_wait_or_fail():
    """Pending and failed with the reason, and in place again; a layout that is in place from the start is no news."""
    node = Recorded()
    statuses = [
        None,
        NodeLayoutStatus(State.SUCCESS),
        NodeLayoutStatus(State.PENDING, "1g.10gb is in use"),
        NodeLayoutStatus(State.PENDING, "1g.10gb is in use"),
        NodeLayoutStatus(State.FAILED, "no such profile"),
        NodeLayoutStatus(State.SUCCESS),
    ]
    assert [event for status in statuses for event in node.after((), status)] == [
        ("Normal", "MIGLayoutPending", "the MIG layout is pending: 1g.10gb is in use"),
        ("Warning", "MIGLayoutFailed", "the MIG layout failed: no such profile"),
        ("Normal", "MIGLayoutApplied", "the MIG layout is in place"),
    ]
    assert {(one.about.kind, one.about.name, one.about.uid) for one in node.events} == {("Node", "n1", "n1")}
