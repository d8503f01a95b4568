"""An inventory that is kept right by list and watch."""

import asyncio

from tessera.core.kubernetes.scheduling import LabelSelector
from tessera.core.resources import is_any_gpu
from tessera.inventory.inventory import Inventory, following
from tessera.inventory.report import report_of
from tessera.kube.rest.client import Client
from tessera.simulation.control_plane.kinds import NODES, PODS
from tests.inventory.test_inventory import store_all
from tests.kube.apiserver import MisbehavingApiServer


def fresh():
    return Inventory(is_any_gpu, LabelSelector.parse("nvidia.com/gpu.product"), holds=lambda _: True)


def report(inventory):
    return report_of(inventory, is_any_gpu, with_pods=True, with_rooms=True)


async def test_whatever_happens_it_is_what_a_fresh_one_would_be(soon):
    """Pods are bound, end and go, nodes go, and the watch breaks off: each time the report is that of a fresh inventory."""
    async with (
        asyncio.timeout(20),
        await MisbehavingApiServer().start() as server,
        Client(server.cluster) as client,
    ):
        store, inventory = server.store, fresh()
        store_all(server)

        def change(name, **fields):
            document = store.get(PODS, name, "default").document
            for section, values in fields.items():
                document[section].update(values)
            store.update(PODS, name, document, "default", status=None)

        async with following(client, inventory) as cluster:

            async def agrees():
                """Wait until the inventory is what a fresh one is."""
                other = fresh()
                await other.read_cluster(client)
                while True:
                    cluster.changed.clear()
                    cluster.now()
                    if report(inventory) == report(other):
                        return
                    await cluster.changed.wait()

            await agrees()
            change("waits", spec={"nodeName": "sim-1"})
            await agrees()
            store.delete(PODS, "waits", "default")
            store.delete(NODES, "v100")
            await agrees()
            change("a", status={"phase": "Succeeded"})
            await agrees()
            server.gone_mid_stream()
            store.delete(PODS, "b", "default")
            await agrees()
            assert cluster.error == ""


async def test_it_stands_still_for_who_reads_it_in_a_thread():
    """Nothing changes it meanwhile, whatever the watches bring; all of that is taken at the end, in its order."""
    async with (
        asyncio.timeout(20),
        await MisbehavingApiServer().start() as server,
        Client(server.cluster) as client,
    ):
        store, inventory = server.store, fresh()
        store_all(server)
        async with following(client, inventory) as cluster:
            cluster.now()
            before = report(inventory)
            cluster.changed.clear()
            cluster.pause()
            store.delete(PODS, "waits", "default")
            last = {"pods": store.version}
            store.delete(NODES, "v100")
            again = store.get(NODES, "sim-1").document
            store.delete(NODES, "sim-1")
            store.create(
                NODES, {**again, "metadata": {**again["metadata"], "resourceVersion": "", "uid": ""}}
            )
            last["nodes"] = store.version
            for one in cluster.follower.reflectors:
                while int(one.health.version or 0) < last.get(one.resource.name, 0):
                    await asyncio.sleep(0.001)
            assert (report(inventory), cluster.changed.is_set()) == (before, False)
            cluster.catch_up()
            assert cluster.changed.is_set()
            other = fresh()
            await other.read_cluster(client)
            cluster.now()
            assert report(inventory) == report(other) != before
