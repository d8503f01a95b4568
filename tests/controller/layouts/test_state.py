"""What the controller has seen of MigLayouts and nodes."""

import json

from tessera.controller.layouts.state import MIG_LAYOUTS, LayoutState
from tessera.core.autopilot.shares import Taker
from tessera.kube.watch.table import NODES, UNFINISHED_PODS, Key
from tests.build import MIG
from tests.inventory.objects import pod


def test_fault_21_after_a_restore_older_versions_count():
    """A list may be older than what was just written, and is not taken then; after a restore of etcd it is all that there is."""
    state = LayoutState(lambda: None)

    def listed(version):
        document = {"metadata": {"name": "one", "uid": "1", "resourceVersion": str(version)}}
        for resource in (NODES, MIG_LAYOUTS):
            sink = state.table()[resource]
            sink.take_all([sink.decode(json.dumps(document).encode())])
        return state.nodes["one"].node.metadata.resource_version, state.layouts["one"].version

    assert listed(100) == ("100", "100")
    assert listed(7) == ("100", "100")
    for resource in (NODES, MIG_LAYOUTS):
        state.table()[resource].forget("99")
    assert listed(7) == ("100", "100"), "written after this list"
    for resource in (NODES, MIG_LAYOUTS):
        state.table()[resource].forget("5000")
    assert listed(7) == ("7", "7"), "the revision was raised after a restore"
    assert listed(100) == ("100", "100")
    for resource in (NODES, MIG_LAYOUTS):
        state.table()[resource].forget("")
    assert listed(7) == ("7", "7")


def test_who_took_devices_of_a_node():
    """Pods by when they were bound: those that run, and those that have ended since. One that the scheduler has not bound took nothing."""
    state = LayoutState(lambda: None)
    sink = state.table()[UNFINISHED_PODS]

    def put(name, where, bound="2027-01-15T08:00:00Z", phase="Running"):
        document = pod(name, where, MIG + "1g.10gb", 2, phase=phase)
        if bound:
            scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": bound}
            document["status"]["conditions"] = [scheduled]
        decoded = sink.decode(json.dumps(document).encode())
        sink.remove(Key("default", name)) if decoded is None else sink.put(decoded)

    put("runs", "gpu-0")
    put("runs", "gpu-0")
    put("elsewhere", "gpu-1")
    put("waits", "", bound="")
    put("forced", "gpu-0", bound="")
    taken = Taker("default", 1_800_000_000.0, {"1g.10gb": 2})
    assert state.takers("gpu-0") == [taken]
    put("runs", "gpu-0", phase="Succeeded")
    assert state.takers("gpu-0") == [taken]
    assert state.takers("gpu-2") == []
