"""The eviction of a pod."""

import json

import pytest

from tessera.kube.errors import ApiError
from tessera.kube.rest.client import Client, evict
from tessera.serving.http_messages import Response
from tests.kube.apiserver import MisbehavingApiServer
from tests.kube.clock import FakeClock


@pytest.mark.parametrize(
    ("code", "found"), [(201, True), (404, False), (409, False), (429, None), (500, None)]
)
async def test_asked_once(code: int, found: bool | None):
    """Whether the pod was still as it was seen; all else is raised. The API server is asked once, also where it says when to ask again."""
    clock, asked = FakeClock(auto=True), []

    def answer(request):
        asked.append((request.path, json.loads(request.body)))
        body = {"kind": "Status", "code": code, "message": "the budget needs 1 healthy pod"}
        return Response(json.dumps(body).encode(), code, headers=(("Retry-After", "10"),))

    async with await MisbehavingApiServer().start() as server, Client(server.cluster, clock=clock) as client:
        server.intercept = answer
        if found is None:
            with pytest.raises(ApiError) as caught:
                await evict(client, "team", "p", {"uid": "u"})
            assert caught.value.is_too_many is (code == 429)
        else:
            assert await evict(client, "team", "p", {"uid": "u"}) is found
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "p", "namespace": "team"},
        "deleteOptions": {"preconditions": {"uid": "u"}},
    }
    assert (asked, clock.slept) == ([("/api/v1/namespaces/team/pods/p/eviction", eviction)], [])
