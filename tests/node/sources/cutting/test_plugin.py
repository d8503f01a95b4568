"""A plugin that cuts real cards, between a kubelet, an API server and a driver that are stand-ins."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tessera.kube.rest.client import Client
from tessera.node.assembly import Settings, node_sources
from tessera.node.deviceplugin.plugin import Plugin
from tessera.node.metrics import Metrics
from tessera.node.sources.cutting.real_cards import Neighbours
from tessera.protocol.configuration import devices as device_config
from tessera.protocol.kubernetes.nodes import decode_node
from tessera.protocol.mig.documents import RUNAI_CONFIG
from tessera.protocol.mig.nodes import decode_mapping, gpu_node, present_layout
from tessera.simulation.control_plane.kinds import NODES, RESOURCE_SLICES
from tessera.simulation.kubelet import AdmissionFailed, Kubelet
from tests.kube.apiserver import MisbehavingApiServer
from tests.node.running import TICK, run, started
from tests.node.sources.cutting.fake import FakeCard, FakeDriver
from tests.node.sources.cutting.test_card import FIRST
from tests.node.sources.test_node_link import MAPPING, REASON, STATE, Cluster

CUT = "nvml: {migStrategy: mixed, cut: true}"
READ = "nvml: {migStrategy: mixed}"
ONE, TWO, THREE = (f"nvidia.com/mig-{name}" for name in ("1g.18gb", "2g.35gb", "3g.71gb"))


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """One card with MIG on; a device that was given up can come back for a moment only."""
    fake = FakeDriver(FakeCard())
    monkeypatch.setattr("tessera.node.sources.nvml_library.NvmlLibrary", lambda: fake)
    monkeypatch.setattr("tessera.node.sources.cutting.library.NvmlDriver", lambda: fake)
    recall(monkeypatch, 0.1)
    return fake


def recall(monkeypatch: pytest.MonkeyPatch, seconds: float, on_the_way: float = 0.3) -> None:
    for module in ("deviceplugin.withdrawn", "sources.cutting.source"):
        monkeypatch.setattr(f"tessera.node.{module}.RECALL", seconds)
    monkeypatch.setattr("tessera.node.deviceplugin.withdrawn.ON_THE_WAY", on_the_way)


@asynccontextmanager
async def cluster(
    root: Path, configuration: str = CUT, state: str = "state", **metadata: Any
) -> AsyncIterator[Cluster]:
    async with started(Kubelet(root)) as kubelet, MisbehavingApiServer() as server:
        await server.start()
        server.store.create(NODES, {"metadata": {"name": "node-1", **metadata}})
        async with Client(server.cluster) as client, plugin(root, client, configuration, state) as node:
            yield Cluster(server, client, kubelet, node)


@asynccontextmanager
async def plugin(
    root: Path, client: Client, configuration: str, state: str = "state"
) -> AsyncIterator[Plugin]:
    settings = Settings("node-1", kubelet_dir=root, cdi_dir=root / "cdi", state_dir=root / state, tick=TICK)
    node = Plugin(device_config.parse(configuration), settings, client)
    task = asyncio.create_task(node.run())
    try:
        yield node
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def has(**wanted: int) -> Callable[[Kubelet], bool]:
    """Whether so many are allocatable, and nothing else."""
    names = {"ones": ONE, "twos": TWO, "threes": THREE, "whole": "nvidia.com/gpu"}
    expected = {names[name]: number for name, number in wanted.items()}
    return lambda kubelet: {name: n for name, n in kubelet.allocatable.items() if n} == expected


def test_the_annotation_cuts_the_card(driver: FakeDriver) -> None:
    """The first story on real cards: the annotation, the cut, the kubelet's count, the node's state and mapping; a pod keeps its slice."""

    async def story(root: Path) -> None:
        async with cluster(root, annotations={RUNAI_CONFIG: f"{TWO[15:]}=2,{THREE[15:]}=1"}) as it:
            await it.kubelet.until(has(twos=2, threes=1))
            await it.until(lambda: it.labels.get(STATE) == "success")
            assert it.labels["nvidia.com/gpu.product"] == "NVIDIA-H200"
            assert it.labels[f"{TWO}.count"] == "2"
            (devices,) = decode_mapping(it.annotations[MAPPING]).values()
            assert [(one.position, one.device_uuid, one.gpu_instance_id) for one in devices] == [
                (0, "MIG-0-1-0", 14),
                (2, "MIG-0-2-0", 14),
                (4, "MIG-0-3-0", 9),
            ]
            await it.kubelet.admit("ml/training", {THREE: 1})
            await it.annotate("1g.18gb=7")
            await it.kubelet.until(has(ones=4))
            await it.until(
                lambda: it.labels.get(STATE) == "pending" and "training" in it.annotations.get(REASON, "")
            )
            assert it.annotations[REASON] == "3 to come after 1 × 3g.71gb, kept for ml/training"
            node = gpu_node(decode_node(json.dumps(it.server.store.get(NODES, "node-1").document).encode()))
            layout = present_layout(node)
            assert layout is not None
            assert len(layout.cards[0].instances) == 5
            assert 3 in driver.fakes["GPU-0"].instances
            await it.kubelet.remove("ml/training")
            await it.kubelet.until(has(ones=7))
            await it.until(lambda: it.labels.get(STATE) == "success")
            assert REASON not in it.annotations

    run(story)


def test_the_kubelets_checkpoint_shortens_the_wait(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cut comes once the kubelet has written that it no longer offers the slices; one that it asks for before stays, after that it is refused."""
    recall(monkeypatch, 100.0)

    async def story(root: Path) -> None:
        async with cluster(root, annotations={RUNAI_CONFIG: "2g.35gb=2,3g.71gb=1"}) as it:
            await it.kubelet.until(has(twos=2, threes=1))
            await it.annotate("1g.18gb=7")
            await it.kubelet.until(has())
            await it.kubelet.admit("ml/late", {THREE: 1}, {THREE: ["MIG-0-3-0"]})
            await it.kubelet.until(has(ones=4))
            assert {1, 2}.isdisjoint(driver.fakes["GPU-0"].instances)
            assert 3 in driver.fakes["GPU-0"].instances
            with pytest.raises(AdmissionFailed, match="NOT_FOUND"):
                await it.kubelet.admit("ml/later", {TWO: 1}, {TWO: ["MIG-0-1-0"]})
            assert has(ones=4)(it.kubelet)

    run(story)


def test_no_pod_gets_a_slice_that_is_removed(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pods for which the kubelet chose a slice before the layout changed, and which it asks for at any moment of the cut: refused, or their slice stays."""
    recall(monkeypatch, 0.1, on_the_way=0.02)
    card, draw, ends = driver.fakes["GPU-0"], random.Random(27), {"given": 0, "refused": 0}

    async def story(root: Path) -> None:
        async with cluster(root, annotations={RUNAI_CONFIG: "1g.18gb=4"}) as it:
            await it.kubelet.until(has(ones=4))
            for number in range(8):
                text, counted = (("1g.18gb=4", has(ones=4)), ("2g.35gb=3", has(twos=3)))[number % 2 == 0]
                before = [(resource, name) for resource, some in it.kubelet.devices.items() for name in some]
                await it.annotate(text)
                for resource, name in draw.sample(before, 2):
                    await asyncio.sleep(draw.uniform(0, 0.05))
                    try:
                        await it.kubelet.admit(f"ml/{number}-{name}", {resource: 1}, {resource: [name]})
                        ends["given"] += 1
                    except AdmissionFailed:
                        ends["refused"] += 1
                for _ in range(10):
                    there = {card.uuid_of(one) for one in card.instances}
                    for containers in it.kubelet.pods.values():
                        for held in containers.values():
                            assert {name for some in held.values() for name in some} <= there
                    await asyncio.sleep(0.005)
                for pod in [*it.kubelet.pods]:
                    await it.kubelet.remove(pod)
                await it.kubelet.until(counted)

    run(story)
    assert all(ends.values()), ends


def test_not_where_nvidias_mig_manager_is(driver: FakeDriver) -> None:
    """`failed` with the reason, nothing is cut; when mig-manager has left the node, the layout is carried out."""

    async def story(root: Path) -> None:
        label = "nvidia.com/gpu.deploy.mig-manager"
        driver.fakes["GPU-0"].add(*FIRST.instances)
        async with cluster(root, labels={label: "true"}, annotations={RUNAI_CONFIG: "1g.18gb=7"}) as it:
            await it.until(lambda: it.labels.get(STATE) == "failed")
            assert it.annotations[REASON].startswith("NVIDIA's mig-manager cuts the cards of this node")
            await it.kubelet.until(has(twos=2, threes=1))
            assert driver.fakes["GPU-0"].cut == FIRST
            await it.patch({"labels": {label: None}})
            await it.kubelet.until(has(ones=7))

    run(story)


def test_not_where_nvidias_dra_driver_offers_the_cards(driver: FakeDriver) -> None:
    """`failed` with the reason, nothing is cut. Slices of other drivers, or of other nodes, are none of our business."""

    async def story(root: Path) -> None:
        driver.fakes["GPU-0"].add(*FIRST.instances)
        async with started(Kubelet(root)) as kubelet, MisbehavingApiServer() as server:
            await server.start()
            server.store.create(
                NODES, {"metadata": {"name": "node-1", "annotations": {RUNAI_CONFIG: "1g.18gb=7"}}}
            )
            pool = {"name": "node-1", "generation": 1, "resourceSliceCount": 1}
            spec = {"driver": "gpu.nvidia.com", "nodeName": "node-1", "pool": pool, "devices": []}
            server.store.create(RESOURCE_SLICES, {"metadata": {"name": "theirs"}, "spec": spec})
            async with Client(server.cluster) as client, plugin(root, client, CUT) as node:
                it = Cluster(server, client, kubelet, node)
                await it.until(lambda: it.labels.get(STATE) == "failed")
                assert it.annotations[REASON].startswith("NVIDIA's DRA driver (gpu.nvidia.com) offers")
                assert driver.fakes["GPU-0"].cut == FIRST

    run(story)


@pytest.mark.parametrize("remembered", [False, True])
def test_pods_that_another_plugin_gave_slices_keep_them(driver: FakeDriver, remembered: bool) -> None:
    """Whoever served the node before: the kubelet counts what its pods hold, and that is not removed."""

    async def story(root: Path) -> None:
        async with started(Kubelet(root)) as kubelet, MisbehavingApiServer() as server:
            await server.start()
            server.store.create(NODES, {"metadata": {"name": "node-1"}})
            async with Client(server.cluster) as client:
                if remembered:  # a time when we had the node, before the slices were there
                    async with plugin(root, client, CUT):
                        await kubelet.until(has())
                driver.fakes["GPU-0"].add(*FIRST.instances)
                async with plugin(root, client, READ, "theirs"):
                    await kubelet.until(has(twos=2, threes=1))
                    await kubelet.admit("ml/training", {THREE: 1})
                async with plugin(root, client, CUT) as node:
                    it = Cluster(server, client, kubelet, node)
                    await it.annotate("1g.18gb=7")
                    await kubelet.until(has(ones=4))
                    assert 3 in driver.fakes["GPU-0"].instances
                    await kubelet.remove("ml/training")
                    await kubelet.until(has(ones=7))

    run(story)


def test_labels_are_left_to_gpu_feature_discovery(driver: FakeDriver) -> None:
    """Where it runs, it alone writes what the cards are; the state of the layout is ours."""

    async def story(root: Path) -> None:
        labels = {"nvidia.com/gfd.timestamp": "1", f"{TWO}.count": "5"}
        async with cluster(root, labels=labels, annotations={RUNAI_CONFIG: "1g.18gb=7"}) as it:
            await it.until(lambda: it.labels.get(STATE) == "success")
            assert it.labels == {**labels, STATE: "success"}

    run(story)


def test_the_dra_driver_and_a_look_cut_nothing(driver: FakeDriver, tmp_path: Path) -> None:
    """Real cards are cut by the device plugin alone, and not by `--list`."""
    driver.fakes["GPU-0"].add(*FIRST.instances)
    layout = tmp_path / "layout"
    layout.write_text("1g.18gb=7")
    settings = Settings("node-1", state_dir=tmp_path, host_root=tmp_path, layout_file=layout)
    sources = node_sources(device_config.parse(CUT), settings, Metrics(), read_only=True)
    devices, _ = asyncio.run(sources.ask())
    assert [one.resource for one in devices] == [TWO, TWO, THREE]
    assert not (tmp_path / "cut").exists()


def test_the_last_answer_of_the_api_server_holds() -> None:
    """Before there was one, nothing is cut; later an outage changes nothing."""

    async def story(root: Path) -> None:
        now = [0.0]
        async with MisbehavingApiServer() as server:
            await server.start()
            async with Client(server.cluster) as client:
                late, known = (Neighbours(client, "node-1", lambda: now[0]) for _ in range(2))
                assert await known.objection({}) == ""
                await server.stop()
                now[0] += 100
                assert await known.objection({}) == ""
                assert "it cannot be learned whether NVIDIA's DRA driver" in await late.objection({})

    run(story)
