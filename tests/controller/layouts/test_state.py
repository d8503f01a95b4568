"""What the controller has seen of MigLayouts and nodes."""

import json

from tessera.controller.layouts.state import MIG_LAYOUTS, LayoutState
from tessera.kube.watch.table import NODES


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
