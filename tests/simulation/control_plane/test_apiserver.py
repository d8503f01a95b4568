"""The stand-in API server, over HTTP."""

import msgspec
import pytest

from tessera.kube.access.cluster import Cluster, ServerAddress
from tessera.kube.errors import ApiError
from tessera.kube.rest.client import Client, PatchType
from tessera.simulation.control_plane.apiserver import (
    Admitted,
    ApiServer,
    Target,
    field_selector,
    label_selector,
)
from tessera.simulation.control_plane.store import StatusError


def decode(body: bytes):
    return msgspec.json.decode(body)


def client_of(server: ApiServer) -> Client:
    return Client(Cluster(ServerAddress.parse(server.url, where="test")))


async def test_admission():
    """An object is stored as admission left it, refused when admission refuses, and dry runs leave no trace."""

    async def admission(target: Target, document, dry_run: bool) -> Admitted:
        if document["metadata"]["name"] == "bad":
            raise StatusError(403, "Forbidden", "no")
        labels = {"admitted-in": document["metadata"]["namespace"], "dry": str(dry_run).lower()}
        return Admitted({**document, "metadata": {**document["metadata"], "labels": labels}}, ("mind",))

    async with await ApiServer(admission=admission).start() as server, client_of(server) as client:
        pods = "/api/v1/namespaces/x/pods"
        made = decode(await client.create(pods, {"metadata": {"name": "a"}}))
        assert made["metadata"]["labels"] == {"admitted-in": "x", "dry": "false"}
        await client.create(pods, {"metadata": {"name": "b"}}, {"dryRun": "All"})
        with pytest.raises(ApiError, match="403 Forbidden: no"):
            await client.create(pods, {"metadata": {"name": "bad"}})
        names = [item["metadata"]["name"] for item in decode(await client.get(pods))["items"]]
        assert names == ["a"]


@pytest.mark.parametrize("plural", ["pods", "resourceclaims"])
async def test_status_is_a_part_of_its_own(plural):
    """What a controller writes into it stays when a client updates the rest."""
    group = "/api/v1" if plural == "pods" else "/apis/resource.k8s.io/v1"
    async with await ApiServer().start() as server, client_of(server) as client:
        path = f"{group}/namespaces/default/{plural}"
        await client.create(path, {"metadata": {"name": "x"}, "spec": {}})
        await client.patch(f"{path}/x/status", {"status": {"a": 1}})
        await client.update(f"{path}/x", {"metadata": {"name": "x"}, "spec": {"b": 2}})
        found = decode(await client.get(f"{path}/x"))
        assert (found["spec"], found["status"]) == ({"b": 2}, {"a": 1})


async def test_watch_with_a_selector():
    """To a watch with a selector, objects appear and vanish as they come to match and cease to."""
    async with await ApiServer().start() as server, client_of(server) as client:
        path = "/api/v1/namespaces/x/configmaps"
        await client.create(path, {"metadata": {"name": "a"}})
        query = {"labelSelector": "gpu=yes", "resourceVersion": str(server.store.version)}
        seen = []
        async with client.watch(path, query) as lines:
            await client.patch(path + "/a", {"metadata": {"labels": {"gpu": "yes"}}})
            await client.patch(path + "/a", {"data": {"k": "v"}})
            await client.patch(path + "/a", {"metadata": {"labels": None}})
            await client.patch(path + "/a", {"data": {"k": "w"}})
            await client.create(path, {"metadata": {"name": "last", "labels": {"gpu": "yes"}}})
            while ("ADDED", "last") not in seen:
                events = [decode(line) for line in await lines.batch()]
                seen += [(event["type"], event["object"]["metadata"]["name"]) for event in events]
        assert seen == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a"), ("ADDED", "last")]


async def test_discovery():
    """Clients find out what there is."""
    async with await ApiServer().start() as server, client_of(server) as client:
        core = decode(await client.get("/api/v1"))
        assert {"nodes", "pods", "secrets"} <= {resource["name"] for resource in core["resources"]}
        groups = decode(await client.get("/apis"))["groups"]
        assert "admissionregistration.k8s.io" in {group["name"] for group in groups}


@pytest.mark.parametrize(
    ("method", "path", "body", "message"),
    [
        ("GET", "/api/v1/unicorns", b"", "404 NotFound"),
        ("GET", "/nowhere", b"", "404 NotFound"),
        ("POST", "/api/v1/nodes", b"{", "400 BadRequest"),
        ("POST", "/api/v1/nodes", b"[]", "400 BadRequest"),
        ("POST", "/api/v1/nodes", b'{"kind": "\xff"}', "400 BadRequest: the body is no JSON"),
        ("PUT", "/api/v1/nodes", b"{}", "405 MethodNotAllowed"),
        ("PUT", "/api/v1/nodes/a/eyes", b"{}", "404 NotFound"),
        ("GET", "/api/v1/nodes?labelSelector=%28", b"", "400 BadRequest"),
        ("GET", "/api/v1/nodes?fieldSelector=x", b"", "400 BadRequest"),
        ("GET", "/api/v1/nodes?limit=1&continue=x", b"", "410 Expired"),
        ("GET", "/api/v1/nodes?resourceVersion=999", b"", "504 Timeout"),
    ],
)
async def test_refusals(method, path, body, message):
    """What cannot be done is answered with a Status."""
    async with await ApiServer().start() as server, client_of(server) as client:
        await client.create("/api/v1/nodes", {"metadata": {"name": "a"}})
        with pytest.raises(ApiError, match=message):
            await client.request(method, path, body=body)


@pytest.mark.parametrize(
    ("patch_type", "patch"),
    [
        (PatchType.JSON, [{"op": "replace", "path": "/data/none", "value": ""}]),
        (PatchType.JSON, [{"op": "remove", "path": "/data/none"}]),
        (PatchType.JSON, [{"op": "test", "path": "/data/k", "value": "w"}]),
        (PatchType.JSON, [{"op": "add", "path": "/list/4", "value": 1}]),
        (PatchType.JSON, [{"op": "fly", "path": "/data"}]),
        (PatchType.JSON, [{"path": "/data"}]),
        (PatchType.MERGE, [1]),
    ],
)
async def test_patches_that_do_not_apply(patch_type, patch):
    """Half a patch is no patch: the object stays as it was."""
    async with await ApiServer().start() as server, client_of(server) as client:
        path = "/api/v1/namespaces/x/configmaps"
        made = await client.create(path, {"metadata": {"name": "a"}, "data": {"k": "v"}, "list": [0]})
        with pytest.raises(ApiError, match="422 Invalid"):
            await client.patch(path + "/a", patch, patch_type)
        assert await client.get(path + "/a") == made


async def test_json_patch_on_lists():
    """Elements are put in, put at the end, replaced and taken out."""
    async with await ApiServer().start() as server, client_of(server) as client:
        path = "/api/v1/namespaces/x/configmaps"
        await client.create(path, {"metadata": {"name": "a"}, "list": [1, 2]})
        operations = [
            {"op": "add", "path": "/list/0", "value": 0},
            {"op": "add", "path": "/list/-", "value": 3},
            {"op": "replace", "path": "/list/1", "value": "one"},
            {"op": "remove", "path": "/list/2"},
            {"op": "test", "path": "/list", "value": [0, "one", 3]},
        ]
        patched = decode(await client.patch(path + "/a", operations, PatchType.JSON))
        assert patched["list"] == [0, "one", 3]


@pytest.mark.parametrize(
    ("text", "selected"),
    [
        ("", True), ("app=x", True), ("app==x", True), ("app!=x", False), ("app=y", False), ("app", True),
        ("!app", False), ("!other", True), ("app in (x, y)", True), ("app notin (x)", False),
        ("other notin (x)", True), ("app=x,tier=", False), ("nvidia.com/gpu.present=true,app", True),
    ],
)  # fmt: skip
def test_label_selectors(text, selected):
    """Label selectors in all their forms."""
    labels = {"app": "x", "nvidia.com/gpu.present": "true"}
    assert label_selector(text)({"metadata": {"labels": labels}}) is selected


@pytest.mark.parametrize(
    ("text", "selected"),
    [
        ("", True),
        ("metadata.name=a", True),
        ("spec.nodeName=", True),
        ("spec.nodeName!=", False),
        ("a.b.c=", True),
    ],
)
def test_field_selectors(text, selected):
    """Field selectors; a field that is not there is empty."""
    assert field_selector(text)({"metadata": {"name": "a"}, "spec": {}}) is selected


@pytest.mark.parametrize("query", [{"labelSelector": "a in b"}, {"fieldSelector": "spec"}])
async def test_a_bad_selector_is_refused_before_anything_is_sent(query):
    """Lists and watches alike: 400, not a stream that breaks off."""
    async with await ApiServer().start() as server, client_of(server) as client:
        for more in ({}, {"watch": "true"}):
            with pytest.raises(ApiError, match="400 BadRequest: unable to parse the"):
                await client.get("/api/v1/pods", {**query, **more})
