"""What of a cluster concerns a node's change, besides the node and its pods."""

import asyncio

import pytest

from tessera.kube.rest.client import Client
from tessera.rollout.changes import Surroundings
from tessera.simulation.control_plane.store import StatusError
from tests.kube.apiserver import MisbehavingApiServer, status


@pytest.mark.parametrize(("served", "told"), [(True, 1), (False, 0)])
def test_layouts_that_may_not_be_listed(served, told):
    """It is told that nobody looked whether a MigLayout keeps the nodes; not where the cluster knows no MigLayouts."""
    group = "/apis/tessera.dev/v1alpha1"

    def answer(request):
        if request.path.startswith(f"{group}/"):
            return status(StatusError(403, "Forbidden", "miglayouts is forbidden"))
        if request.path == group:
            error = StatusError(403, "Forbidden", "no") if served else StatusError(404, "NotFound", "no")
            return status(error)
        return None

    async def main():
        async with MisbehavingApiServer() as server, asyncio.timeout(20):
            await server.start()
            server.intercept = answer
            async with Client(server.cluster) as client:
                return (await Surroundings.read(client, [])).warnings

    warnings = asyncio.run(main())
    assert len([one for one in warnings if "a MigLayout keeps the nodes" in one]) == told
