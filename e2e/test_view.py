"""The live view on a real API server."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from e2e.cluster import Client, Cluster
from tessera.kube.access.kubeconfig import find_cluster
from tessera.kube.rest import client as kube
from tessera.kube.view.live import LiveView, read_node
from tessera.kube.watch.reflector import Reflector
from tessera.kube.watch.table import NODES, TableEntry, do_nothing

_PROFILE = "nvidia.com/mig-1g.10gb"


@asynccontextmanager
async def _live(kubeconfig: Path) -> AsyncIterator[LiveView]:
    async with kube.Client(find_cluster(kubeconfig)) as client, LiveView(client).following() as view:
        yield view


async def _until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


def test_view_follows_nodes(control_plane: Client) -> None:
    """A node appears, changes what it offers and goes; the view does the same, by a streamed list and a watch."""

    async def follow() -> None:
        async with _live(control_plane.kubeconfig) as view:
            nodes = view.reflectors[0].health
            assert (nodes.lists, nodes.events["BOOKMARK"], dict(nodes.errors)) == (1, 1, {})
            await asyncio.to_thread(control_plane.add_node, "view-a", allocatable={_PROFILE: 7})
            await _until(lambda: _PROFILE in view.offers.anywhere())
            await asyncio.to_thread(control_plane.set_allocatable, "view-a", {_PROFILE: 3})
            await _until(lambda: view.offers.anywhere().get(_PROFILE) == 3)
            await asyncio.to_thread(control_plane.remove_node, "view-a")
            await _until(lambda: "view-a" not in view.offers.nodes)
            assert view.reflectors[0].health.lists == 1

    asyncio.run(follow())


def test_list_and_streamed_list_agree(control_plane: Client) -> None:
    """Listed at once, as pages or as a stream: the same nodes."""

    async def listed(*, streamed: bool) -> list[str]:
        found: list[str] = []
        entry = TableEntry(lambda raw: read_node(raw).name, do_nothing, replace=found.extend)
        async with kube.Client(find_cluster(control_plane.kubeconfig)) as client:
            reflector = Reflector(client, NODES, entry, watch_list=streamed)
            task = asyncio.create_task(reflector.run())
            async with asyncio.timeout(60):
                await reflector.synced()
            task.cancel()
        return sorted(found)

    control_plane.add_node("view-b", allocatable={_PROFILE: 7})
    try:
        names = asyncio.run(listed(streamed=True))
        assert "view-b" in names
        assert asyncio.run(listed(streamed=False)) == names
    finally:
        control_plane.remove_node("view-b")


def test_fault_20_api_server_restarts(own_control_plane: Cluster) -> None:
    """While the API server is away the last view stays; when it is back the view is right again.

    A restarted server has forgotten the history that our watch would go on from: its answer is 410.
    """

    async def follow() -> None:
        await asyncio.to_thread(own_control_plane.add_node, "view-c", allocatable={_PROFILE: 7})
        async with _live(own_control_plane.kubeconfig) as view:
            await asyncio.to_thread(own_control_plane.stop_apiserver)
            await _until(lambda: bool(view.reflectors[0].health.errors))
            assert "view-c" in view.offers.nodes
            assert view.missing() is None
            own_control_plane.start_apiserver()  # in this thread: a program ends with the thread that started it
            await asyncio.to_thread(own_control_plane.remove_node, "view-c")
            await _until(lambda: "view-c" not in view.offers.nodes)

    asyncio.run(follow())
