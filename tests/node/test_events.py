"""What is told of a node: each change of its devices' health and of its layout, once."""

from dataclasses import replace

from tessera.kube.events.correlator import Event
from tessera.node.events import NodeEvents
from tessera.node.sources.simulated.layout import LayoutStatus, State
from tests.node.running import GPU, mock_devices


def told(events: list[Event]) -> list[tuple[str, str, str]]:
    return [(one.type, one.reason, one.message) for one in events]


def test_devices_that_fall_ill_and_recover():
    """Ill ones are named with their problem, once; then that they are well, and nothing of those that went away."""
    devices, news = mock_devices(5), NodeEvents("n1", None)
    ill = [one.unhealthy("XID 79") for one in devices[:4]]
    assert list(news.news(devices, None)) == []
    assert told(list(news.news([*ill, devices[4]], None))) == [
        (
            "Warning",
            "GPUUnhealthy",
            f"{GPU}: 4 unhealthy: device_0: XID 79; device_1: XID 79; device_2: XID 79 and 1 more",
        )
    ]
    assert list(news.news([*ill, devices[4]], None)) == []
    assert told(list(news.news([*ill[:2], *devices[2:4]], None))) == [
        ("Normal", "GPUHealthy", f"{GPU}: 2 healthy again")
    ]
    assert list(news.news(devices[2:], None)) == []
    assert told(list(news.news([replace(devices[2], problem="gone")], None))) == [
        ("Warning", "GPUUnhealthy", f"{GPU}: 1 unhealthy: device_2: gone")
    ]


def test_layouts_that_wait_or_fail():
    """Pending and failed with the reason, and in place again; a layout that is in place from the start is no news."""
    news = NodeEvents("n1", None)
    outcomes = [
        None,
        LayoutStatus(State.SUCCESS),
        LayoutStatus(State.PENDING, "1g.10gb is in use"),
        LayoutStatus(State.PENDING, "1g.10gb is in use"),
        LayoutStatus(State.FAILED, "no such profile"),
        LayoutStatus(State.SUCCESS),
    ]
    events = [event for outcome in outcomes for event in news.news((), outcome)]
    assert told(events) == [
        ("Normal", "MIGLayoutPending", "the MIG layout is pending: 1g.10gb is in use"),
        ("Warning", "MIGLayoutFailed", "the MIG layout failed: no such profile"),
        ("Normal", "MIGLayoutApplied", "the MIG layout is in place"),
    ]
    assert {(one.about.kind, one.about.name, one.about.uid) for one in events} == {("Node", "n1", "n1")}
