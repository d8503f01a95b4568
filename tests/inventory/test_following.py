"""An inventory that is kept right by list and watch."""

import asyncio

from tessera.core.kubernetes.resources import is_any_gpu
from tessera.inventory.following import following
from tessera.inventory.inventory import Inventory
from tessera.inventory.report import report_of
from tessera.kube.rest.client import Client
from tessera.protocol.kubernetes.selector import LabelSelector
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
