"""The controller as a whole, against a stand-in API server."""

import asyncio

from tessera.controller.process import Controller
from tessera.kube.rest.client import Client
from tessera.serving.metrics import exposition
from tessera.simulation.control_plane.kinds import LEASES, PODS, RESOURCE_CLAIM_TEMPLATES
from tests.controller.claims import objects
from tests.kube.apiserver import MisbehavingApiServer


def test_one_of_two_works():
    """Both are ready and one leads; it makes what a pod waits for. When it ends, the other goes on."""

    async def until(condition):
        while not condition():
            await asyncio.sleep(0.01)

    async def main():
        async with MisbehavingApiServer() as server, asyncio.timeout(30):
            await server.start()
            async with Client(server.cluster) as client:
                both = [Controller(client, "gpu-webhook", name) for name in ("one", "two")]
                assert [one.ready for one in both] == [False, False]
                tasks = [asyncio.ensure_future(one.run()) for one in both]

                def leads(one):
                    return "\ntessera_controller_leader 1\n" in exposition(one.metrics.families()).decode()

                await until(lambda: all(one.ready and one.alive for one in both))
                await until(lambda: sum(map(leads, both)) == 1)
                first = 0 if leads(both[0]) else 1
                server.store.create(PODS, objects.pod(), "a")
                await until(lambda: server.store.list(RESOURCE_CLAIM_TEMPLATES))
                tasks[first].cancel()
                await asyncio.gather(tasks[first], return_exceptions=True)
                assert server.store.list(LEASES)[0].document["spec"]["holderIdentity"] == ""
                server.store.create(PODS, objects.pod("q", namespace="b"), "b")
                await until(lambda: len(server.store.list(RESOURCE_CLAIM_TEMPLATES)) == 2)
                assert leads(both[1 - first])
                tasks[1 - first].cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())
