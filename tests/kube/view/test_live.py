"""The live view, and the one from files."""

import asyncio
import json
import os
from contextlib import asynccontextmanager

import pytest

from tessera.core.kubernetes.node import Node
from tessera.kube.rest.client import Client
from tessera.kube.view.files import FileView
from tessera.kube.view.live import LiveView
from tessera.simulation.control_plane.kinds import (
    DEVICE_CLASSES,
    NAMESPACES,
    NODES,
    RESOURCE_SLICES,
    ResourceType,
)
from tessera.simulation.control_plane.store import StatusError
from tests.build import Document, node_document
from tests.kube.apiserver import MisbehavingApiServer, status
from tests.protocol.dra.samples import DRIVER, class_, device, slice_

pytestmark = pytest.mark.usefixtures("soon")
RESOURCE_QUOTAS = ResourceType("v1", "resourcequotas", "ResourceQuota")


def node(name: str, beat: str = "", **allocatable: str) -> Document:
    has = {"cpu": 8, **{f"nvidia.com/{key}": value for key, value in allocatable.items()}}
    conditions = [{"type": "Ready", "lastHeartbeatTime": beat}]
    return node_document(name, has, labels={"kubernetes.io/hostname": name}, conditions=conditions)


@asynccontextmanager
async def live(server: MisbehavingApiServer, **options):
    async with (
        Client(server.cluster) as client,
        LiveView(client, **options).following(complete=False) as view,
    ):
        yield view


async def until(condition) -> None:
    """Wait for what the loop brings about."""
    while not condition():
        await asyncio.sleep(0.001)


async def test_live_view():
    """Nodes and namespaces are there as the server has them, and go as they go."""
    async with await MisbehavingApiServer().start() as server, live(server) as view:
        assert view.missing() == (
            "nodes not listed yet; namespaces not listed yet; resourcequotas not listed yet; "
            "deviceclasses not listed yet"
        )
        server.store.create(NODES, node("a", gpu="4"))
        server.store.create(NAMESPACES, {"metadata": {"name": "x", "labels": {"gpu-webhook": "disabled"}}})
        await view.synced()
        assert view.missing() is None
        await until(lambda: "a" in view.offers.nodes and "x" in view.offers.namespaces)
        assert view.offers.anywhere() == {"nvidia.com/gpu": 4}
        assert set(view.offers.nodes["a"].allocatable) == {"cpu", "nvidia.com/gpu"}
        server.store.update(NODES, "a", node("a", **{"mig-1g.10gb": "7"}))
        await until(lambda: "nvidia.com/mig-1g.10gb" in view.offers.anywhere())
        assert view.offers.anywhere()["nvidia.com/gpu"] == 4, "away, for as long as the grace"
        server.store.delete(NODES, "a")
        server.store.delete(NAMESPACES, "x")
        await until(lambda: not view.offers.nodes and not view.offers.namespaces)


def quota(name: str, **hard: str) -> dict[str, object]:
    amounts = {f"requests.nvidia.com/{key}": value for key, value in hard.items()}
    return {"metadata": {"name": name, "namespace": "team"}, "spec": {"hard": {"pods": "9", **amounts}}}


async def test_quotas():
    """Those that name GPUs are there as the server has them, and go as they go; the view's version stays."""
    async with await MisbehavingApiServer().start() as server:
        server.kinds[RESOURCE_QUOTAS.prefix, RESOURCE_QUOTAS.plural] = RESOURCE_QUOTAS
        for one in (quota("gpus", gpu="1"), quota("pods"), quota("slices", **{"mig-1g.10gb": "2"})):
            server.store.create(RESOURCE_QUOTAS, one)
        async with live(server) as view:
            await view.synced()
            version, quotas = view.offers.version, view.offers.quotas
            assert [(one.name, one.hard) for one in quotas["team"]] == [
                ("gpus", {"nvidia.com/gpu": 1}),
                ("slices", {"nvidia.com/mig-1g.10gb": 2}),
            ]
            server.store.update(RESOURCE_QUOTAS, "gpus", quota("gpus"), "team")
            await until(lambda: [one.name for one in quotas["team"]] == ["slices"])
            server.store.delete(RESOURCE_QUOTAS, "slices", "team")
            await until(lambda: not quotas)
            assert view.offers.version == version


async def test_quotas_that_may_not_be_read():
    """An installation without the right goes on without quotas."""
    async with await MisbehavingApiServer().start() as server:
        forbidden = StatusError(403, "Forbidden", "resourcequotas is forbidden")
        server.intercept = lambda request: status(forbidden) if "quotas" in request.path else None
        async with live(server) as view:
            await view.synced()
            assert (view.missing(), view.offers.quotas) == (None, {})


async def test_nodes_without_gpus():
    """Of a node that offers nothing the name is kept, whatever labels it has, until it offers something."""
    async with await MisbehavingApiServer().start() as server:
        server.store.create(NODES, node("plain"))
        async with live(server) as view, live(server, keep=None) as every:
            await view.synced()
            await every.synced()
            assert view.offers.nodes == {"plain": Node("plain")}
            assert every.offers.nodes["plain"].labels == {"kubernetes.io/hostname": "plain"}
            server.store.update(NODES, "plain", node("plain", gpu="1"))
            await until(lambda: view.offers.anywhere() == {"nvidia.com/gpu": 1})
            assert view.offers.nodes["plain"].labels == {"kubernetes.io/hostname": "plain"}


async def test_heartbeats_change_nothing():
    """Nodes report all the time; as long as nothing that decisions read changes, the view stays the same."""
    async with await MisbehavingApiServer().start() as server:
        server.store.create(NODES, node("a", gpu="4"))
        async with live(server) as view:
            await view.synced()
            version = view.offers.version
            for beat in range(20):
                server.store.update(NODES, "a", node("a", str(beat), gpu="4"))
            nodes = view.reflectors[0]
            await until(lambda: nodes.health.version == str(server.store.version))
            assert nodes.health.events["MODIFIED"] == 20
            assert view.offers.version == version


async def test_relist_forgets_what_vanished():
    """After 410, namespaces and nodes that vanished meanwhile are gone."""
    async with await MisbehavingApiServer().start() as server:
        for name in ("a", "b"):
            server.store.create(NODES, node(name, gpu="1"))
            server.store.create(NAMESPACES, {"metadata": {"name": name}})
        async with live(server) as view:
            await view.synced()
            server.black_hole = True
            server.store.delete(NODES, "a")
            server.store.delete(NAMESPACES, "a")
            server.black_hole = False
            server.gone_mid_stream()
            await until(lambda: list(view.offers.nodes) == list(view.offers.namespaces) == ["b"])


async def test_what_is_missing():
    """A view that cannot be completed says why."""
    async with await MisbehavingApiServer().start() as server:
        forbidden = StatusError(403, "Forbidden", 'namespaces is forbidden: User "x" cannot list resource')
        server.intercept = lambda request: status(forbidden) if "namespaces" in request.path else None
        async with live(server) as view:
            await until(lambda: view.reflectors[0].health.synced and view.reflectors[1].health.errors)
            assert (
                view.missing()
                == f"namespaces not listed yet (the API server answered 403 Forbidden: {forbidden})"
            )


def test_files(tmp_path):
    """Nodes and namespaces from a List, from several documents, from several files."""
    one, two = tmp_path / "one.json", tmp_path / "two.yaml"
    one.write_text(json.dumps({"kind": "List", "items": [{"kind": "Node", **node("a", gpu="1")}]}))
    two.write_text(
        "kind: Node\nmetadata: {name: b}\nstatus: {allocatable: {nvidia.com/gpu: 2}}\n---\n"
        "kind: Namespace\nmetadata: {name: x}\n"
    )
    view = FileView([one, two])
    assert set(view.offers.nodes) == {"a", "b"}
    assert set(view.offers.namespaces) == {"x"}
    assert view.missing() is None


def test_files_with_dra(tmp_path, caplog):
    """What DRA serves is read from files too; a class that cannot be evaluated is warned of."""
    file = tmp_path / "all.json"
    items = [
        slice_("s", device("a")),
        {"kind": "Node", **node("n")},
        class_("two", "device.odd()", resource="nvidia.com/mig-2g.20gb"),
    ]
    file.write_text(json.dumps({"kind": "List", "items": items}))
    assert FileView([file]).offers.anywhere() == {"nvidia.com/mig-2g.20gb": 1}
    (message,) = caplog.messages
    assert message.startswith("device class two: ")


async def test_files_are_followed(tmp_path):
    """A change is seen, by writing, renaming or a swapped link; a broken file leaves the last good view in use."""
    (tmp_path / "v1").mkdir()
    (tmp_path / "v2").mkdir()
    (tmp_path / "data").symlink_to("v1")
    file = tmp_path / "data" / "nodes.json"

    def write(folder: str, *names: str) -> None:
        text = json.dumps({"kind": "NodeList", "items": [node(name, gpu="1") for name in names]})
        (tmp_path / folder / "nodes.json").write_text(text)

    write("v1", "a")
    write("v2", "a", "b")
    view = FileView([file])
    version = view.offers.version
    await view.check()
    assert (set(view.offers.nodes), view.offers.version) == ({"a"}, version)
    (tmp_path / "new").symlink_to("v2")
    os.rename(tmp_path / "new", tmp_path / "data")  # noqa: PTH104
    await view.check()
    assert set(view.offers.nodes) == {"a", "b"}
    file.write_text("{")
    await view.check()
    assert set(view.offers.nodes) == {"a", "b"}
    assert view.last_error.startswith(f"{file}: ")
    file.unlink()
    await view.check()
    assert view.last_error == f"{file}: no such file or directory"
    assert view.failures == 2
    write("v2", "c")
    await view.check()
    assert (set(view.offers.nodes), view.last_error, view.reloads) == ({"c"}, "", 2)


async def test_dra():
    """What DRA serves is offered by the nodes, whichever of node, class and slice comes first, and goes with its class."""
    two, one = "nvidia.com/mig-2g.20gb", "nvidia.com/mig-1g.10gb"
    a = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}']"
    async with await MisbehavingApiServer().start() as server:
        server.store.create(NODES, node("n"))
        server.store.create(RESOURCE_SLICES, slice_("s", device("a", profile="2g.20gb", model="x")))
        async with live(server) as view:
            await view.synced()
            assert view.offers.nodes == {"n": Node("n")}, "without a class of no interest"
            server.store.create(DEVICE_CLASSES, class_("two", f"{a}.profile == '2g.20gb'", resource=two))
            await until(lambda: view.offers.anywhere() == {two: 1})
            assert view.missing() is None
            # of this node the name alone was read before; now all of it matters
            await until(lambda: view.offers.nodes["n"].labels == {"kubernetes.io/hostname": "n"})
            assert view.offers.nodes["n"].offer.dra == {two}
            # a class that looks at more than was kept: the slices are read again
            server.store.create(DEVICE_CLASSES, class_("one", f"{a}.model == 'x'", resource=one))
            await until(lambda: view.offers.anywhere() == {two: 1, one: 1})
            server.store.create(
                RESOURCE_SLICES, slice_("t", device("b", profile="2g.20gb", model="y"), pool="t")
            )
            await until(lambda: view.offers.anywhere() == {two: 2, one: 1})
            server.store.delete(DEVICE_CLASSES, "two")
            await until(lambda: view.offers.anywhere() == {one: 1})
        async with live(server) as view:
            await view.synced()
            assert view.offers.anywhere() == {one: 1}, "all of it is there when the view is complete"


async def test_a_node_that_comes_later():
    """A node that DRA serves may come after its slices."""
    two = "nvidia.com/mig-2g.20gb"
    async with await MisbehavingApiServer().start() as server:
        server.store.create(DEVICE_CLASSES, class_("two", resource=two))
        async with live(server) as view:
            await view.synced()
            server.store.create(RESOURCE_SLICES, slice_("s", device("a")))
            server.store.create(NODES, node("n"))
            await until(lambda: view.offers.anywhere() == {two: 1})


async def test_fault_62_the_webhook_restarts_while_devices_are_away():
    """Plugin gone, kubelet restarted, webhook restarted: what the node's labels count is offered, until they say otherwise."""
    two = "nvidia.com/mig-2g.20gb"

    def cut(beat: str, **counts: str) -> dict[str, object]:
        made = node("n", beat, **{"mig-2g.20gb": "0"})
        labels = {
            "nvidia.com/mig.config.state": "success",
            **{f"nvidia.com/{k}": v for k, v in counts.items()},
        }
        return {**made, "metadata": {"name": "n", "labels": labels}}

    async with await MisbehavingApiServer().start() as server:
        server.store.create(NODES, cut("1", **{"mig-2g.20gb.count": "8"}))
        async with live(server) as view, live(server, first_sight=False) as command:
            await view.synced()
            await command.synced()
            assert view.offers.anywhere() == {two: 8}
            assert command.offers.anywhere() == {}, "a command has no past, and goes by the status alone"
            server.store.update(NODES, "n", cut("2", **{"mig-2g.20gb.count": "8"}))
            nodes = view.reflectors[0]
            await until(lambda: nodes.health.version == str(server.store.version))
            assert view.offers.anywhere() == {two: 8}
            server.store.update(NODES, "n", cut("3", **{"mig-1g.10gb.count": "28"}))
            await until(lambda: view.offers.anywhere() == {})
