"""The embedded cluster with Tessera on it, beyond what the stories show."""

import asyncio
import socket
from contextlib import asynccontextmanager

import msgspec
import pytest

from tessera.core.requests.alternatives import ALTERNATIVES_ANNOTATION
from tessera.core.requests.tickets import TICKET_ANNOTATION
from tessera.doctor.examination import examine
from tessera.doctor.gather import Observer
from tessera.doctor.observations import Names
from tessera.kube.access.kubeconfig import find_cluster
from tessera.kube.errors import ApiError
from tessera.kube.rest.client import Client
from tessera.protocol.configuration import webhook as config
from tessera.simulation import machine
from tessera.simulation import node_drivers as drivers
from tessera.simulation.control_plane.kinds import EVENTS, NAMESPACES, RESOURCE_CLAIMS, RESOURCE_SLICES
from tessera.simulation.embedded import embedded
from tessera.simulation.kubelet import Kubelet
from tessera.simulation.node_descriptions import known_nodes, parse
from tessera.simulation.stories.stage import Stage
from tessera.simulation.stories.table import CONFIGURATION, MOCK, ONE, THREE, TWO, asks, container, pod

pytestmark = pytest.mark.usefixtures("soon")
CUT_ON_DEMAND = """
cut:
  dra: true
  devices: {simulated: {product: Simulated H200-70GB, cards: 1, partitioning: dynamic}}
"""


@asynccontextmanager
async def running(*nodes):
    """A cluster with these nodes, once they offer all they have."""
    async with (
        embedded(known_nodes() | parse(CUT_ON_DEMAND), config.parse(CONFIGURATION)) as one,
        one.client() as client,
    ):
        stage = Stage(client, one)
        await one.have(nodes)
        equipped = [name for name in nodes if name != "cpu"]
        await stage.until(
            lambda: stage.offers(equipped, [MOCK]), lambda found: all(map(bool, found.values()))
        )
        await one.settled()
        yield one, stage


async def in_phase(stage, name, phase):
    found = await stage.until(lambda: stage.pod(name), lambda p: p["status"]["phase"] == phase)
    assert found["status"]["phase"] == phase, found["status"]
    return found


async def mock_devices(stage):
    return (await stage.inventory([MOCK])).capacity.usage("mock")[MOCK]


async def test_every_container_has_its_own():
    """Containers share no device; what an init container had goes on to those after it."""
    async with running("mock") as (one, stage):
        document = pod(
            "p", container("a", limits={MOCK: 2}), container("b", limits={MOCK: 3}), container("c")
        )
        document["spec"]["initContainers"] = [container("first", limits={MOCK: 5})]
        await stage.create(document)
        found = await in_phase(stage, "p", "Running")
        seen = await one.seen("default", "p")
        devices = {name: set(lines[0].split(", ")) if lines else set() for name, lines in seen.items()}
        assert {name: len(each) for name, each in devices.items()} == {"first": 5, "a": 2, "b": 3, "c": 0}
        assert not devices["a"] & devices["b"]
        assert devices["first"] == devices["a"] | devices["b"]
        a, b, c = found["status"]["containerStatuses"]
        assert [len(each["allocatedResourcesStatus"][0]["resources"]) for each in (a, b)] == [2, 3]
        assert "allocatedResourcesStatus" not in c
        assert (await mock_devices(stage)).available.value == 3


async def test_a_kubelet_that_cannot():
    """A pod that was put onto a node past the scheduler, and does not fit, fails there for good."""
    async with running("mock") as (one, stage):
        await stage.create(asks("all", MOCK, 8))
        await in_phase(stage, "all", "Running")
        late = asks("late", MOCK, 1)
        late["spec"]["nodeName"] = "mock"
        await stage.create(late)
        found = await in_phase(stage, "late", "Failed")
        assert found["status"]["reason"] == "UnexpectedAdmissionError"
        events = [stored.document for stored in one.store.list(EVENTS)]
        assert any(event["reason"] == "UnexpectedAdmissionError" for event in events)
        assert (await mock_devices(stage)).allocated.value == 8


async def test_another_pod_of_the_same_name():
    """A pod that is deleted and made again at once is another pod."""
    async with running("mock") as (one, stage):
        await stage.create(asks("p", MOCK, 6))
        await in_phase(stage, "p", "Running")
        path = "/api/v1/namespaces/default/pods"
        await asyncio.gather(
            stage._client.delete(f"{path}/p"), stage._client.create(path, asks("p", MOCK, 8))
        )
        await in_phase(stage, "p", "Running")
        assert [len(ids) for ids in one.nodes["mock"].kubelet.pods["default/p"]["main"].values()] == [8]


async def test_nonsense_is_survived():
    """Objects that make no sense, and events that are deleted, stop neither scheduler nor nodes."""
    async with running("mock") as (_, stage):
        client = stage._client
        await client.create(
            "/api/v1/nodes", {"metadata": {"name": "odd"}, "status": {"allocatable": {"cpu": "many"}}}
        )
        await stage.create(asks("p", MOCK, 9))
        await stage.until(lambda: stage.pod("p"), lambda pod: bool(pod["status"].get("conditions")))
        await client.delete("/api/v1/namespaces/default/events")
        await client.patch("/api/v1/namespaces/default/pods/p", {"spec": None})
        await client.delete("/api/v1/nodes/mock")
        await client.delete("/api/v1/namespaces/default/pods/p")
        await stage.create(asks("q", MOCK, 1))
        found = await stage.until(lambda: stage.pod("q"), lambda pod: bool(pod["status"].get("conditions")))
        assert found["status"]["conditions"][0]["message"] == "no nodes available to schedule pods"


async def test_a_kubelet_restarts():
    """Plugins come back by themselves, pods keep their devices."""
    async with running("mock") as (one, stage):
        await stage.create(asks("some", MOCK, 3))
        await in_phase(stage, "some", "Running")
        kubelet = one.nodes["mock"].kubelet
        await kubelet.restart()
        found = await stage.until(lambda: stage.offers(["mock"], [MOCK]), lambda o: o["mock"].get(MOCK) == 8)
        assert found == {"mock": {MOCK: 8}}
        await stage.create(asks("rest", MOCK, 5))
        await in_phase(stage, "rest", "Running")
        held = [ids for held in kubelet.pods.values() for each in held.values() for ids in each[MOCK]]
        assert len(held) == len(set(held)) == 8


async def test_extended_resources_that_dra_serves():
    """A pod that asks as ever has its slice from the DRA driver; its claim and what was prepared for it go with it."""
    async with running("h200-dra") as (one, stage):
        node = one.nodes["h200-dra"]
        await stage.create(asks("p", TWO))
        found = await in_phase(stage, "p", "Running")
        assert found["spec"]["containers"][0]["resources"]["limits"] == {TWO: 1}
        assert "resourceClaims" not in found["spec"]
        assert "MIG 2g.20gb" in (await one.seen("default", "p"))["main"][-1]
        assert len(list(node.cdi_folder.glob("*.json"))) == 1
        await stage.create(asks("q", TWO))
        waits = await stage.until(lambda: stage.pod("q"), lambda pod: bool(pod["status"].get("conditions")))
        assert "cannot allocate all claims" in waits["status"]["conditions"][0]["message"]
        await stage.delete("p")
        await in_phase(stage, "q", "Running")
        await stage.delete("q")

        async def claims():
            return one.store.list(RESOURCE_CLAIMS)

        assert await stage.until(claims, lambda found: not found) == []

        async def files():
            return list(node.cdi_folder.glob("*.json"))

        assert await stage.until(files, lambda found: not found) == []


async def test_the_first_request_of_a_story_becomes_a_claim():
    """A settled webhook has what conversion needs: a controller at work, and the key for tickets. The controller takes the ticket."""
    async with running("h200-dra") as (one, stage):
        offers = one.view.offers
        assert (offers.controller, offers.ticket_maker is not None) == (True, True)
        await stage.annotate_namespace("gpu-webhook.k8s.io/dra", "first-available")
        await one.settled()
        await stage.create(asks("first", TWO))
        found = await in_phase(stage, "first", "Running")
        assert set(found["metadata"]["annotations"]) >= {ALTERNATIVES_ANNOTATION, TICKET_ANNOTATION}


async def test_cards_that_are_cut_on_demand():
    """Slices share the card's counters: what fits together runs, and what does not fit waits until there is room."""
    async with running("cut") as (one, stage):
        for name, resource in (("a", TWO), ("b", TWO), ("c", THREE)):
            await stage.create(asks(name, resource))
            await in_phase(stage, name, "Running")
        await stage.create(asks("d", ONE))
        waits = await stage.until(lambda: stage.pod("d"), lambda pod: bool(pod["status"].get("conditions")))
        assert "cannot allocate all claims" in waits["status"]["conditions"][0]["message"]
        await stage.delete("c")
        await in_phase(stage, "d", "Running")
        assert "MIG 1g.10gb" in (await one.seen("default", "d"))["main"][-1]


async def test_a_claim_that_no_driver_prepares(monkeypatch):
    """The pod waits on its node, with an event, and starts as soon as its driver is there."""
    monkeypatch.setattr(drivers, "_TIMEOUT", 0.05)
    monkeypatch.setattr(machine, "_RETRY_SECONDS", 0.05)
    async with running("h200-dra") as (one, stage):
        node = one.nodes["h200-dra"]

        async def registered():
            return dict(node.drivers._sockets)

        endpoints = await stage.until(registered, bool)
        node.drivers._sockets.clear()
        await stage.create(asks("p", TWO))

        async def told():
            return {stored.document["reason"] for stored in one.store.list(EVENTS)}

        reasons = await stage.until(told, lambda found: "FailedPrepareDynamicResources" in found)
        assert "FailedPrepareDynamicResources" in reasons
        assert (await stage.pod("p"))["status"]["phase"] == "Pending"
        node.drivers._sockets.update(endpoints)
        await in_phase(stage, "p", "Running")


async def test_a_node_with_dra_leaves():
    """Its slices go with it, and the webhook no longer counts on them."""
    async with running("h200-dra") as (one, stage):
        await one.have(["h200-small"])
        await stage.until(
            lambda: stage.offers(["h200-small"]), lambda found: found["h200-small"].get(ONE) == 28
        )
        await one.settled()
        assert one.store.list(RESOURCE_SLICES) == []
        assert one.view.dra.pools.slices == {}


async def test_namespaces_that_are_exempt():
    """The webhook is not called for them, as its configuration says."""
    async with running("h200-small") as (one, stage):
        labels = {"gpu-webhook": "disabled"}
        one.store.create(NAMESPACES, {"metadata": {"name": "own", "labels": labels}})
        there = Stage(stage._client, one, namespace="own")
        assert await there.create(asks("p", TWO)) == ()
        assert one.reason("own", "p") == ""
        assert await stage.create(asks("p", TWO)) != ()


async def test_a_node_leaves():
    """Its pods go with it, and admission no longer counts on it."""
    async with running("h200-small", "h200-medium") as (one, stage):
        await stage.create(asks("p", THREE))
        await in_phase(stage, "p", "Running")
        await one.have(["h200-small"])
        await one.settled()
        with pytest.raises(ApiError, match="not found"):
            await stage.pod("p")
        await stage.create(asks("q", THREE))
        found = await in_phase(stage, "q", "Running")
        assert found["spec"]["containers"][0]["resources"]["limits"] == {ONE: "1"}


async def test_its_kubeconfig_leads_there():
    """`kubectl` and every command of Tessera can be pointed at it."""
    async with running("cpu") as (one, _), Client(find_cluster(one.kubeconfig)) as client:
        nodes = msgspec.json.decode(await client.get("/api/v1/nodes"))
    assert [node["metadata"]["name"] for node in nodes["items"]] == ["cpu"]


_DRA = ("classes", "driver", "pools", "counters", "score")  # nothing is offered by DRA


async def test_the_doctor_finds_it_well():
    """`tessera doctor` reports what is not there, and calls nothing a problem: the webhook answers."""
    async with running("h200-small", "mock", "cpu") as (_, stage):
        results = list(examine(await Observer(stage._client, Names()).gather()))
    found = {result.check.name: result.findings for result in results if result.findings}
    assert not any(result.failed for result in results), found
    told = {name: [str(one.severity) for one in findings] for name, findings in found.items()}
    assert told == {
        "running": ["note"],
        "service": ["note"],
        "selection": ["warning"],  # every pod is sent: matchConditions would not be evaluated
        **{
            name: ["n/a"]
            for name in (
                "configuration",
                "controller",
                "tickets",
                "free",
                "plugin",
                *_DRA,
                "cdi",
            )
        },
    }
    assert not any("delete" in command for one in found.values() for f in one for command in f.commands)


def test_its_end_is_clean():
    """No task is left when it is over, not even when its user failed."""

    async def fail() -> None:
        try:
            async with running("mock", "h200-small"):
                raise ZeroDivisionError
        finally:
            assert asyncio.all_tasks() == {asyncio.current_task()}

    with pytest.raises(BaseExceptionGroup) as raised:
        asyncio.run(fail())
    assert raised.group_contains(ZeroDivisionError)


async def test_a_node_is_cancelled_while_it_starts(monkeypatch):
    """What has started of it is stopped: its kubelet no longer listens."""
    sockets = []
    start = Kubelet.start

    async def cancelled(kubelet):
        await start(kubelet)
        sockets.append(str(kubelet.folder / "kubelet.sock"))
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(sockets[0])
        raise asyncio.CancelledError

    async with running("mock") as (one, _):
        monkeypatch.setattr(Kubelet, "start", cancelled)
        with pytest.raises(asyncio.CancelledError):
            await one.add(known_nodes()["h200-small"])
        with socket.socket(socket.AF_UNIX) as client, pytest.raises(OSError):
            client.connect(sockets[0])
        assert [*one.nodes] == ["mock"]


async def test_layouts_are_kept():
    """The controller gives nodes the layout of their MigLayout, and says when they have it."""
    layout = {
        "metadata": {"name": "kept"},
        "spec": {
            "nodeSelector": {"topology.kubernetes.io/region": "north"},
            "layouts": [{"perCard": {"3g.30gb": 2}}],
        },
    }
    async with running("h200-small") as (_, stage):
        await stage.keep(layout)
        found = await stage.until(
            lambda: stage.layout("kept"), lambda one: one.condition("Ready").status == "True"
        )
        assert found.raw_status["current"] == 1
        assert (await stage.offers(["h200-small"]))["h200-small"] == {ONE: 0, THREE: 8}
        await stage.clear()
        with pytest.raises(ApiError):
            await stage.layout("kept")
