"""The whole driver on real cards, between an API server, a kubelet and a driver that are all stand-ins."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tessera.core.errors import InvalidInput
from tessera.node.assembly import Settings, node_sources
from tessera.node.deviceplugin.plugin import Plugin
from tessera.node.metrics import DraMetrics, Metrics
from tessera.node.rpc import call, handlers, serve
from tessera.protocol.configuration import devices as device_config
from tessera.protocol.kubelet import dra_messages as messages
from tessera.protocol.kubelet import dra_pb2 as dra
from tessera.protocol.kubelet import podresources_pb2 as podresources
from tessera.protocol.kubelet.messages import LIST_PODS
from tessera.protocol.mig.documents import RUNAI_CONFIG
from tessera.simulation.control_plane.kinds import NODES, RESOURCE_SLICES
from tests.node.dra.samples import NODE
from tests.node.dra.test_process import Cluster, cluster
from tests.node.running import run
from tests.node.sources.cutting.fake import FakeCard, FakeDriver
from tests.node.sources.cutting.test_card import FIRST
from tests.node.sources.test_node_link import REASON, STATE

READ = "nvml: {{migStrategy: mixed}}"
DYNAMIC = "nvml: {{migStrategy: mixed, cut: true, partitioning: dynamic}}"
TWO = "gpu-0-mig-2g-35gb-0"


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    fake = FakeDriver(FakeCard(0), FakeCard(1, mig=False))
    monkeypatch.setattr("tessera.node.sources.nvml_library.NvmlLibrary", lambda: fake)
    monkeypatch.setattr("tessera.node.sources.cutting.library.NvmlDriver", lambda: fake)
    monkeypatch.setattr("tessera.node.sources.nvml._CARDS_EVERY", 0.0)
    return fake


async def prepare(found: Cluster, claim: dra.Claim, socket: Path) -> Any:
    [method, *_] = [messages.PREPARE[one] for one in messages.PLUGIN_SERVICES]
    answer = await call(socket, method, dra.NodePrepareResourcesRequest(claims=[claim]), 30.0)
    return answer.claims[claim.uid]


def test_the_devices_of_the_plugin_by_claim(driver: FakeDriver) -> None:
    """The slices that are there and the whole cards, with the ids that the device plugin gives; of a lost card all are tainted."""

    async def story(root: Path) -> None:
        card = driver.fakes["GPU-0"].add(*FIRST.instances)
        configuration = device_config.parse(READ.format())
        plugins, _ = await node_sources(configuration, Settings(NODE, state_dir=root), Metrics()).ask()
        async with cluster(root, READ) as found:
            await found.until(lambda: found.slices)
            offered = {
                (one["attributes"]["resource"]["string"], one["attributes"]["uuid"]["string"])
                for one in found.devices.values()
            }
            assert offered == {one.key for one in plugins}
            assert not any("consumesCounters" in one for one in found.devices.values())
            socket = await found.registered()
            await found.until(lambda: found.driver.ready)
            [device] = (await prepare(found, found.claim("a", TWO), socket)).devices
            spec = json.loads((root / "cdi" / "gpu.tessera.dev-claim-u-a.json").read_text())
            assert device.device_name == TWO
            assert "NVIDIA_VISIBLE_DEVICES=MIG-0-1-0" in spec["devices"][0]["containerEdits"]["env"]
            card.lost = "GPU is lost"
            await found.until(lambda: len(found.taints) == 3)
            assert "gpu-1" not in found.taints

    run(story)


def test_cards_are_cut_on_demand(driver: FakeDriver) -> None:
    """Every place has its counters; a layout is refused with the reason; what a claim gets is cut, and gone when it ends."""

    async def story(root: Path) -> None:
        card = driver.fakes["GPU-0"]
        async with cluster(root, DYNAMIC) as found:
            await found.until(lambda: found.slices)
            two = found.devices[TWO]
            assert two["attributes"]["uuid"] == {"string": ""}
            [taken] = two["consumesCounters"]
            assert (taken["counterSet"], taken["counters"]["compute"]) == ("card-0", {"value": "2"})
            assert "consumesCounters" not in found.devices["gpu-1"], "MIG is off, and may not be switched"
            socket = await found.registered()
            await found.until(lambda: found.driver.ready)
            claim = found.claim("a", TWO)
            answer = await prepare(found, claim, socket)
            assert [one.device_name for one in answer.devices] == [TWO], answer.error
            assert [str(one) for one in card.cut.instances] == ["2g.35gb at 0"]
            await found.client.patch(
                f"/api/v1/nodes/{NODE}", {"metadata": {"annotations": {RUNAI_CONFIG: "1g.18gb=7"}}}
            )

            def node() -> dict[str, Any]:
                return found.server.store.get(NODES, NODE).document["metadata"]  # type: ignore[no-any-return]

            await found.until(lambda: node()["labels"].get(STATE) == "failed")
            assert "nvml.partitioning: dynamic" in node()["annotations"][REASON]
            assert node()["labels"]["nvidia.com/gpu.product"] == "NVIDIA-H200"
            [method, *_] = [messages.UNPREPARE[one] for one in messages.PLUGIN_SERVICES]
            await call(socket, method, dra.NodeUnprepareResourcesRequest(claims=[claim]), 30.0)
            assert card.cut.instances == ()
            shown = "\n".join(str(one) for one in found.driver.metrics.families())
            assert "tessera_dra_driver_cuts_total" in shown

    run(story)


def test_a_slice_that_another_program_removed(driver: FakeDriver) -> None:
    """The claim's device becomes unhealthy with the reason, and healthy again when the claim is prepared again."""

    async def story(root: Path) -> None:
        card = driver.fakes["GPU-0"]
        async with cluster(root, DYNAMIC) as found:
            socket = await found.registered()
            await found.until(lambda: found.driver.ready)
            claim = found.claim("a", TWO)
            await prepare(found, claim, socket)
            await found.until(lambda: found.driver.metrics.claims)
            card.instances.clear()
            await found.until(lambda: found.taints)
            assert found.taints == {TWO: ["gpu.tessera.dev/unhealthy:NoSchedule"]}
            assert found.driver.driver.offered[TWO].problem.startswith("its slice is gone")
            await prepare(found, claim, socket)
            assert [str(one) for one in card.cut.instances] == ["2g.35gb at 0"]
            await found.until(lambda: not found.taints)

    run(story)


def test_a_slice_of_a_claim_that_is_gone_goes(driver: FakeDriver) -> None:
    """A claim that was begun and then deleted leaves no slice: whatever no claim holds is removed at the next look."""

    async def story(root: Path) -> None:
        card = driver.fakes["GPU-0"]
        async with cluster(root, DYNAMIC) as found:
            await found.until(lambda: found.driver.driver.offered)
            card.add(*FIRST.instances)
            await found.until(lambda: not card.instances)

    run(story)


@pytest.mark.parametrize("who", ["mig-manager", "NVIDIA's DRA driver"])
def test_not_where_others_cut(driver: FakeDriver, who: str) -> None:
    """Nothing is offered and nothing is cut; an Event has the reason. When the other has left, the places are offered."""

    async def story(root: Path) -> None:
        card = driver.fakes["GPU-0"].add(*FIRST.instances)
        async with cluster(root, DYNAMIC, begin=lambda it: begin(it, who)) as found:
            await found.until(lambda: "CuttingRefused" in found.warnings)
            assert who in found.warnings["CuttingRefused"]
            assert (found.devices, card.cut) == ({}, FIRST)
            assert not found.driver.ready
            if who == "mig-manager":
                patch = {"metadata": {"labels": {"nvidia.com/gpu.deploy.mig-manager": None}}}
                await found.client.patch(f"/api/v1/nodes/{NODE}", patch)
                await found.until(lambda: found.devices and not card.instances)

    run(story)


async def begin(found: Cluster, who: str) -> None:
    if who == "mig-manager":
        patch = {"metadata": {"labels": {"nvidia.com/gpu.deploy.mig-manager": "true"}}}
        await found.client.patch(f"/api/v1/nodes/{NODE}", patch)
        return
    pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.nvidia.com", "nodeName": NODE, "pool": pool, "devices": []}
    found.server.store.create(RESOURCE_SLICES, {"metadata": {"name": "theirs"}, "spec": spec})


def test_not_while_pods_have_slices_from_a_device_plugin(driver: FakeDriver) -> None:
    """Slices that are there may be a pod's of a device plugin that is gone: none is removed, and nothing is offered."""

    async def story(root: Path) -> None:
        card = driver.fakes["GPU-0"].add(*FIRST.instances)
        held = podresources.ContainerDevices(resource_name="nvidia.com/mig-3g.71gb", device_ids=["MIG-0-3-0"])
        pod = podresources.PodResources(
            name="train", namespace="ml", containers=[podresources.ContainerResources(devices=[held])]
        )

        async def listed(request: Any, context: Any) -> Any:
            return podresources.ListPodResourcesResponse(pod_resources=[pod])

        (root / "pod-resources").mkdir()
        server = await serve(root / "pod-resources" / "kubelet.sock", [handlers({LIST_PODS: listed})])
        async with cluster(root, DYNAMIC) as found:
            await found.until(lambda: "DevicePluginConflict" in found.warnings)
            assert "MIG-0-3-0 (ml/train)" in found.warnings["DevicePluginConflict"]
            assert (found.devices, card.cut) == ({}, FIRST)
        await server.stop(0)

    run(story)


def test_a_look_cuts_nothing(driver: FakeDriver, tmp_path: Path) -> None:
    """`--list` shows the places, and leaves what is there."""
    card = driver.fakes["GPU-0"].add(*FIRST.instances)
    settings = Settings(NODE, state_dir=tmp_path / "state")
    sources = node_sources(device_config.parse(DYNAMIC.format()), settings, DraMetrics(), read_only=True)
    devices, _ = asyncio.run(sources.ask())
    assert {one.model.profile for one in devices} > {"", "1g.18gb", "7g.141gb"}
    assert card.cut == FIRST
    assert not (tmp_path / "state").exists()


def test_a_device_plugin_cannot_cut_on_demand(tmp_path: Path) -> None:
    """It says who can; and a layout file makes no sense to the driver."""
    configuration = device_config.parse(DYNAMIC.format())
    with pytest.raises(InvalidInput, match=r"nvml\.partitioning: dynamic needs `tessera dra-driver`"):
        Plugin(configuration, Settings(NODE, state_dir=tmp_path))
    with pytest.raises(InvalidInput, match="--layout and partitioning: dynamic exclude each other"):
        node_sources(configuration, Settings(NODE, state_dir=tmp_path, layout_file=tmp_path), DraMetrics())
