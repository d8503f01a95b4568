"""Conflicts that never end: whatever a node's processes write, they write it less and less often."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tessera.kube.rest.client import Client
from tessera.node.dra.slice_publisher import Publisher
from tessera.node.events import NodeEvents
from tessera.node.metrics import DraMetrics
from tessera.node.sources.node_link import NodeLink, Report
from tessera.simulation.control_plane.kinds import NODES
from tests.kube.apiserver import MisbehavingApiServer
from tests.kube.clock import FakeClock
from tests.kube.conflicts import EndlessConflicts, check_writes


def reporting(client: Client) -> NodeLink:
    link = NodeLink(client, "node-1")
    link.report(Report("", labels={"tessera.dev/test": "yes"}))
    return link


def publishing(client: Client) -> Publisher:
    events = NodeEvents("node-1", lambda _: None)
    publisher = Publisher(client, "node-1", lambda: True, DraMetrics(), events)
    pool = {"name": "node-1", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.tessera.dev", "nodeName": "node-1", "pool": pool, "devices": [{"name": "gpu-0"}]}
    publisher.want([spec])
    return publisher


@pytest.mark.parametrize(("start", "part"), [(reporting, "/nodes/"), (publishing, "/resourceslices")])
def test_conflicts_that_never_end(start: Callable[[Client], Any], part: str) -> None:
    """The report on the node, and its ResourceSlices."""
    waits = [2, 4, 8, 16, 32, 64, *[120] * 5]

    async def main() -> list[float]:
        async with MisbehavingApiServer() as server, asyncio.timeout(60):
            await server.start()
            server.store.create(NODES, {"metadata": {"name": "node-1", "uid": "n-1"}})
            clock = FakeClock()
            async with Client(server.cluster, clock=clock) as client:
                conflicts = EndlessConflicts(server, clock, part)
                work = asyncio.ensure_future(start(client).run())
                for seconds in waits:
                    await clock.pass_sleep(seconds)
                work.cancel()
                return conflicts.writes

    writes = asyncio.run(main())
    assert len(writes) >= len(waits)
    check_writes(writes)
