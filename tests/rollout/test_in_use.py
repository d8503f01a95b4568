"""What claims hold of nodes' devices."""

import asyncio

from tessera.kube.rest.client import Client
from tessera.rollout.in_use import ClaimedDevices
from tessera.simulation.control_plane.kinds import RESOURCE_CLAIMS
from tests.controller.layouts.cluster import claimed
from tests.kube.served import served  # noqa: F401 # a fixture


def test_one_reading_serves_the_nodes_that_are_looked_at_together(served):  # noqa: F811 # the fixture
    """Thousands of claims are not read once for each node; who looks later reads them anew. Claims of NVIDIA's driver count, too."""
    theirs = claimed("gpu-1", "gpu-1", pod="other")
    theirs["status"]["allocation"]["devices"]["results"][0] |= {"driver": "gpu.nvidia.com", "pool": "gpu-1"}
    served.add(
        *({"kind": RESOURCE_CLAIMS.kind, **one} for one in (claimed("gpu-0", "gpu-0", "train"), theirs))
    )

    async def main():
        async with Client(served.server.cluster) as client:
            one, since = ClaimedDevices(client), client.clock.now()
            found = await asyncio.gather(*(one.on(f"gpu-{number}", since) for number in range(16)))
            assert found == [{"gpu-0": "default/train"}, {"gpu-1": "default/other"}, *[{}] * 14]
            assert len(served.server.asked(path="/apis/resource.k8s.io/v1/resourceclaims")) == 1
            await one.on("gpu-0", client.clock.now())
            assert len(served.server.asked(path="/apis/resource.k8s.io/v1/resourceclaims")) == 2

    asyncio.run(main())
