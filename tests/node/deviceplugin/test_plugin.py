"""The plugin and a kubelet: what is reported, what is handed out, what survives."""

import asyncio
import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tessera.core.devices.device import Handover
from tessera.node.deviceplugin.allocations import Allocations
from tessera.node.dra.prepared_claims import HeldDevice, Phase, PreparedClaim, PreparedClaims
from tessera.simulation.kubelet import AdmissionFailed, Kubelet
from tests.node.running import GPU, ListSource, mock_devices, offers, run, running, slices, started


def sockets_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_socket())


def test_devices_become_allocatable_and_are_handed_out() -> None:
    """Eight devices are allocatable; pods with 4 and 3 get theirs by CDI name; a third asking for 2 does not fit."""

    async def story(root: Path) -> None:
        async with running(ListSource(mock_devices()), root=root) as node:
            await node.kubelet.until(lambda kubelet: kubelet.allocatable == {GPU: 8})
            spec = json.loads((node.cdi / "tessera-device.example.com_gpu.json").read_text())
            assert len(spec["devices"]) == 8
            first = await node.kubelet.admit("ml/a", {GPU: 4})
            second = await node.kubelet.admit("ml/b", {GPU: 3})
            names = [device.name for grant in (first[GPU], second[GPU]) for device in grant.cdi_devices]
            assert names == [f"device.example.com/gpu=device_{n}" for n in range(7)]
            with pytest.raises(AdmissionFailed, match="Insufficient"):
                await node.kubelet.admit("ml/c", {GPU: 2})
            assert node.metric("allocations_total", resource=GPU, result="granted") == 2
            assert node.metric("devices", resource=GPU, health="healthy") == 8
            assert node.metric("registrations_total", resource=GPU, result="success") == 1
            await node.until(lambda: node.plugin.ready)
            assert node.plugin.alive

    run(story)


def test_specs_are_on_disk_before_the_kubelet_hears() -> None:
    """Whenever the kubelet knows a device, its CDI spec is there."""

    async def story(root: Path) -> None:
        def check() -> None:
            for devices in kubelet.devices.values():
                if devices:
                    spec = json.loads((root / "cdi" / "tessera-device.example.com_gpu.json").read_text())
                    assert {entry["name"] for entry in spec["devices"]} >= set(devices)
                    seen.append(len(devices))

        seen: list[int] = []
        kubelet = Kubelet(root, on_change=check)
        source = ListSource(mock_devices(1))
        async with started(kubelet), running(source, root=root, kubelet=kubelet) as node:
            for count in range(1, 6):
                source.list = mock_devices(count)
                node.poke()
                await kubelet.until(offers(GPU, count))
        assert {1, 2, 3, 4, 5} <= set(seen)

    run(story)


def test_runtimes_without_cdi_get_device_nodes() -> None:
    """With handover `both`, device nodes and environment are in the answer beside the CDI names."""

    async def story(root: Path) -> None:
        source = ListSource([*mock_devices(1), *slices(1, [0, 1])])
        async with running(source, root=root, handover=Handover.BOTH) as node:
            await node.kubelet.until(lambda kubelet: len(kubelet.allocatable) == 2)
            grants = await node.kubelet.admit("ml/a", {GPU: 1, "nvidia.com/mig-1g.10gb": 2})
            (device,) = grants[GPU].devices
            assert (device.container_path, device.host_path) == ("/dev/mock/device_0", "/dev/mock/device_0")
            assert len(grants[GPU].cdi_devices) == 1
            assert dict(grants["nvidia.com/mig-1g.10gb"].envs) == {
                "NVIDIA_VISIBLE_DEVICES": "MIG-0-0-1,MIG-0-1-1",
                "TESSERA_0_0": "1",
                "TESSERA_0_1": "1",
            }

    run(story)


def test_fault_23_kubelet_restarts() -> None:
    """A kubelet that starts again deletes all sockets; every resource is registered again within seconds."""

    async def story(root: Path) -> None:
        async with running(ListSource([*mock_devices(), *slices(2, [0, 2])]), root=root) as node:
            expected = {GPU: 8, "nvidia.com/mig-2g.20gb": 2}
            await node.kubelet.until(lambda kubelet: kubelet.allocatable == expected)
            before = {plugin.endpoint for plugin in node.kubelet.plugins.values()}
            for _ in range(3):
                await node.kubelet.restart()
                assert node.kubelet.allocatable == {}
                await node.kubelet.until(lambda kubelet: kubelet.allocatable == expected)
                endpoints = {plugin.endpoint for plugin in node.kubelet.plugins.values()}
                assert not endpoints & before, "a new socket name per start"
                before |= endpoints
            sockets = sockets_in(node.kubelet.folder)
            assert len(sockets) == 3, f"old sockets are left: {sockets}"

    run(story)


def test_fault_23_socket_deleted() -> None:
    """Only the plugin's own socket vanishes: it serves and registers again."""

    async def story(root: Path) -> None:
        async with running(ListSource(mock_devices()), root=root) as node:
            await node.kubelet.until(lambda kubelet: kubelet.allocatable == {GPU: 8})
            endpoint = node.kubelet.plugins[GPU].endpoint
            (node.kubelet.folder / endpoint).unlink()
            await node.kubelet.until(lambda kubelet: len(kubelet.registrations) == 2)
            await node.kubelet.until(lambda kubelet: kubelet.allocatable == {GPU: 8})
            assert node.kubelet.plugins[GPU].endpoint != endpoint

    run(story)


def test_fault_23_kubelet_hangs_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kubelet that breaks off mid-stream and does not come back by itself is registered with again."""
    monkeypatch.setattr("tessera.node.deviceplugin.endpoint._STREAM_GRACE", 0.2)

    async def story(root: Path) -> None:
        async with running(ListSource(mock_devices()), root=root) as node:
            await node.kubelet.until(lambda kubelet: kubelet.allocatable == {GPU: 8})
            await node.kubelet.hang_up(GPU)
            assert node.kubelet.allocatable == {GPU: 0}
            await node.until(lambda: not node.plugin.ready)
            await node.kubelet.until(lambda kubelet: kubelet.allocatable == {GPU: 8})

    run(story)


def test_fault_23_the_kubelet_comes_later() -> None:
    """A plugin that is there before the kubelet waits, and one whose kubelet is away for long comes back."""

    async def story(root: Path) -> None:
        kubelet = Kubelet(root)
        async with running(ListSource(mock_devices()), root=root, kubelet=kubelet) as node:
            await node.until(lambda: len(node.plugin.devices) == 8)
            assert not node.plugin.ready
            await kubelet.start()
            await kubelet.until(lambda kubelet: kubelet.allocatable == {GPU: 8})
            await kubelet.stop()
            await node.until(lambda: not node.plugin.ready)
            await kubelet.start()
            await kubelet.until(lambda kubelet: kubelet.allocatable == {GPU: 8})
            await kubelet.stop()

    run(story)


def test_fault_24_unhealthy_and_healthy_again() -> None:
    """The full list is sent when a device becomes unhealthy and when it recovers."""

    async def story(root: Path) -> None:
        source = ListSource(mock_devices())
        async with running(source, root=root) as node:
            await node.kubelet.until(lambda kubelet: kubelet.allocatable == {GPU: 8})
            source.list[3] = source.list[3].unhealthy("its file is gone")
            node.poke()
            await node.kubelet.until(lambda kubelet: kubelet.allocatable == {GPU: 7})
            assert node.kubelet.capacity == {GPU: 8}
            assert node.kubelet.devices[GPU]["device_3"] is False
            assert node.metric("devices", resource=GPU, health="unhealthy") == 1
            source.list = mock_devices()
            node.poke()
            await node.kubelet.until(lambda kubelet: kubelet.allocatable == {GPU: 8})

    run(story)


def test_a_device_that_a_claim_still_has_is_not_given_out() -> None:
    """A node moved back from DRA before its claims had ended: their devices are unhealthy until they do; claims before a restart do not count."""

    async def story(root: Path) -> None:
        store, first = PreparedClaims(root / "state" / "dra" / "claims"), mock_devices()[0]
        held = (HeldDevice.of(first, "device-0", "gpu", (), admin=False),)
        other = (HeldDevice.of(mock_devices()[1], "device-1", "gpu", (), admin=False),)
        with store.locked():
            store.write(PreparedClaim("u1", "team", "c1", store.boot, Phase.COMPLETED, held))
            store.write(PreparedClaim("u2", "team", "c2", "an earlier one", Phase.COMPLETED, other))
        async with running(ListSource(mock_devices()), root=root) as node:
            await node.kubelet.until(lambda kubelet: kubelet.allocatable == {GPU: 7})
            assert node.kubelet.devices[GPU][first.id] is False
            [ill] = [one for one in node.plugin.devices if not one.healthy]
            assert ill.problem == "claim team/c1 has it from the DRA driver"
            store.remove("u1")
            node.poke()
            await node.kubelet.until(lambda kubelet: kubelet.allocatable == {GPU: 8})
            (root / "state" / "dra" / "claims" / f"{store.boot}.boot").touch()
            (root / "state" / "dra" / "claims" / "u3.json").write_text("nonsense")
            node.poke()
            await node.kubelet.until(lambda kubelet: kubelet.allocatable == {GPU: 0})

    run(story)


@pytest.mark.parametrize(
    ("ids", "status"),
    [
        (["device_9"], "NOT_FOUND: device.example.com/gpu has no device device_9 now"),
        (["device_0", "device_0"], "ALREADY_EXISTS: device.example.com/gpu: device_0 asked for twice"),
        (
            ["device_0", "device_1"],
            "FAILED_PRECONDITION: device.example.com/gpu: device_1 is unhealthy: gone",
        ),
    ],
)
def test_fault_25_bad_ids(ids: list[str], status: str) -> None:
    """An unknown, duplicate or unhealthy id is a gRPC error, and the good ids beside it stay free."""

    async def story(root: Path) -> None:
        source = ListSource(mock_devices(2))
        source.list[1] = source.list[1].unhealthy("gone")
        async with running(source, root=root) as node:
            await node.kubelet.until(lambda kubelet: kubelet.capacity == {GPU: 2})
            with pytest.raises(AdmissionFailed, match=status):
                await node.kubelet.admit("ml/a", {GPU: len(ids)}, {GPU: ids})
            assert node.metric("allocations_total", resource=GPU, result="refused") == 1
            assert node.metric("allocations_total", resource=GPU, result="granted") is None
            await node.kubelet.admit("ml/b", {GPU: 1}, {GPU: ["device_0"]})

    run(story)


@pytest.mark.parametrize("moment", ["_choose", "_allocate"])
def test_plugin_gone_while_a_pod_is_admitted(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pod fails in one sentence, and what admits pods lives on."""

    async def story(root: Path) -> None:
        async with running(ListSource(mock_devices(2)), root=root) as node:
            kubelet = node.kubelet
            await kubelet.until(lambda kubelet: kubelet.allocatable == {GPU: 2})
            step = getattr(kubelet, moment)

            async def and_then_it_goes(*arguments: Any) -> Any:
                done = await step(*arguments)
                await kubelet.hang_up(GPU)
                return done

            monkeypatch.setattr(kubelet, moment, and_then_it_goes)
            with pytest.raises(AdmissionFailed, match=f"can't allocate unregistered device {GPU}"):
                await kubelet.admit("ml/a", {GPU: 1})

    run(story)


def test_plugin_that_cannot_be_reached() -> None:
    """A call that finds no plugin ends as a failure of the pod, not as the end of the caller."""

    async def story(root: Path) -> None:
        async with running(ListSource(mock_devices(2)), root=root) as node:
            kubelet = node.kubelet
            await kubelet.until(lambda kubelet: kubelet.allocatable == {GPU: 2})
            plugin = kubelet.plugins[GPU]
            (kubelet.folder / plugin.endpoint).rename(kubelet.folder / "elsewhere")
            with pytest.raises(AdmissionFailed, match="UNAVAILABLE"):
                await kubelet.admit("ml/a", {GPU: 1})

    run(story)


def test_fault_25_two_at_once() -> None:
    """Of many Allocates for one device at once, one is granted; while a pod has it, none is."""

    async def story(root: Path) -> None:
        async with running(ListSource(mock_devices(2)), root=root) as node:
            await node.kubelet.until(lambda kubelet: kubelet.allocatable == {GPU: 2})
            both = (
                node.kubelet.admit(f"ml/{n}", {GPU: 2}, {GPU: [f"device_{n % 2}", f"device_{1 - n % 2}"]})
                for n in range(8)
            )
            results = await asyncio.gather(*both, return_exceptions=True)
            granted = [result for result in results if isinstance(result, dict)]
            refused = [str(result) for result in results if isinstance(result, AdmissionFailed)]
            assert (len(granted), len(refused)) == (1, 7)
            assert all("ALREADY_EXISTS" in text for text in refused)
            (pod,) = node.kubelet.pods
            with pytest.raises(AdmissionFailed, match=f"device_0 is in use by {pod}"):
                await node.kubelet.admit("ml/late", {GPU: 1}, {GPU: ["device_0"]})
            await node.kubelet.remove(pod)
            await node.kubelet.admit("ml/late", {GPU: 1}, {GPU: ["device_0"]})

    run(story)


def test_fault_28_devices_in_use_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new layout leaves the device of a running pod alone; what it blocks comes when the pod ends."""
    monkeypatch.setattr("tessera.node.deviceplugin.withdrawn.RECALL", 0.1)

    async def story(root: Path) -> None:
        source = ListSource(slices(2, [0, 2, 4]))
        async with running(source, root=root) as node:
            kubelet = node.kubelet
            two, four = "nvidia.com/mig-2g.20gb", "nvidia.com/mig-4g.40gb"
            await kubelet.until(lambda kubelet: kubelet.allocatable == {two: 3})
            await kubelet.admit("ml/train", {two: 1}, {two: ["MIG-0-2-2"]})
            source.list = slices(4, [0, 4])
            node.poke()
            # the old resource is gone for newcomers at once, the part that nothing blocks is there at once
            await kubelet.until(lambda kubelet: kubelet.allocatable == {two: 0, four: 1})
            expected = {two: {"MIG-0-2-2": False}, four: {"MIG-0-4-4": True}}
            await kubelet.until(lambda kubelet: kubelet.devices == expected)
            spec = (node.cdi / "tessera-simulated.example_gpu.json").read_text()
            assert [entry["name"] for entry in json.loads(spec)["devices"]] == ["MIG-0-2-2", "MIG-0-4-4"]
            assert not node.transitions[-1].complete
            assert node.metric("devices", resource=two, health="leaving") == 1
            await kubelet.pre_start("ml/train", two)  # its container may be restarted
            with pytest.raises(AdmissionFailed, match="FAILED_PRECONDITION"):
                await kubelet.admit("ml/other", {two: 1}, {two: ["MIG-0-2-2"]})
            await kubelet.remove("ml/train")
            # each resource has a stream of its own: one may be ahead of the other
            await kubelet.until(
                lambda kubelet: kubelet.allocatable == {two: 0, four: 2} and not kubelet.devices[two]
            )
            assert node.transitions[-1].complete

    run(story)


def test_fault_28_across_a_restart() -> None:
    """A layout that changed while the plugin was away takes nothing from a running pod either."""

    async def story(root: Path) -> None:
        two, four = "nvidia.com/mig-2g.20gb", "nvidia.com/mig-4g.40gb"
        async with started(Kubelet(root)) as kubelet:
            async with running(ListSource(slices(2, [0, 2])), root=root, kubelet=kubelet):
                await kubelet.until(lambda kubelet: kubelet.allocatable == {two: 2})
                await kubelet.admit("ml/train", {two: 1}, {two: ["MIG-0-0-2"]})
            async with running(ListSource(slices(4, [0, 4])), root=root, kubelet=kubelet) as node:
                expected = {two: {"MIG-0-0-2": False}, four: {"MIG-0-4-4": True}}
                await kubelet.until(lambda kubelet: kubelet.devices == expected)
                await kubelet.pre_start("ml/train", two)
                assert not node.transitions[-1].complete
                await kubelet.remove("ml/train")
                await kubelet.until(lambda kubelet: kubelet.allocatable == {two: 0, four: 2})

    run(story)


def test_fault_28_without_pod_resources() -> None:
    """Where the kubelet does not say what is in use, whatever was handed out counts as used."""

    async def story(root: Path) -> None:
        source = ListSource(slices(2, [0, 2]))
        kubelet = Kubelet(root, pod_resources=False)
        async with started(kubelet), running(source, root=root, kubelet=kubelet) as node:
            two, four = "nvidia.com/mig-2g.20gb", "nvidia.com/mig-4g.40gb"
            await kubelet.until(lambda kubelet: kubelet.allocatable == {two: 2})
            await kubelet.admit("ml/train", {two: 1}, {two: ["MIG-0-0-2"]})
            source.list = slices(4, [0, 4])
            node.poke()
            await kubelet.until(lambda kubelet: kubelet.allocatable == {two: 0, four: 1})

    run(story)


def test_fault_42_the_kubelet_restarts_while_a_layout_waits() -> None:
    """Two pods hold what the new layout needs: however often the kubelet restarts, nothing of it is given out."""

    async def story(root: Path) -> None:
        source = ListSource(slices(2, [0, 4]))
        async with running(source, root=root) as node:
            kubelet, two, four = node.kubelet, "nvidia.com/mig-2g.20gb", "nvidia.com/mig-4g.40gb"
            await kubelet.until(lambda kubelet: kubelet.allocatable == {two: 2})
            for pod in ("ml/a", "ml/b"):
                await kubelet.admit(pod, {two: 1})
            source.list = slices(4, [0, 4])
            node.poke()
            waiting = {two: {"MIG-0-0-2": False, "MIG-0-4-2": False}}
            await kubelet.until(lambda kubelet: kubelet.devices == waiting)
            await node.until(lambda: not node.transitions[-1].complete)
            node.transitions.clear()
            for unknown in (["ml/a", "ml/b"], ["ml/a"], ["ml/b"]):
                await kubelet.restart(unknown)
                await kubelet.until(lambda kubelet: kubelet.devices == waiting)
                looks = len(node.transitions)
                await node.until(lambda looks=looks: len(node.transitions) > looks + 3)  # type: ignore[misc]
                assert kubelet.devices == waiting
                kubelet.unknown.clear()
            assert not any(change.complete for change in node.transitions)
            assert node.transitions[-1].holders == {(two, "MIG-0-0-2"): "ml/a", (two, "MIG-0-4-2"): "ml/b"}
            await kubelet.remove("ml/a")
            await kubelet.until(lambda kubelet: kubelet.allocatable == {two: 0, four: 1})
            await kubelet.remove("ml/b")
            await kubelet.until(lambda kubelet: kubelet.allocatable == {two: 0, four: 2})
            assert node.transitions[-1].complete

    run(story)


def test_fault_42_plugin_and_kubelet_restart_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin that starts in front of a new layout, beside a kubelet that knows no pods yet, gives nothing out twice."""
    monkeypatch.setattr("tessera.node.deviceplugin.allocations._AGAIN", 0.1)

    async def story(root: Path) -> None:
        two, four = "nvidia.com/mig-2g.20gb", "nvidia.com/mig-4g.40gb"
        async with started(Kubelet(root)) as kubelet:
            async with running(ListSource(slices(2, [0, 2])), root=root, kubelet=kubelet):
                await kubelet.until(lambda kubelet: kubelet.allocatable == {two: 2})
                await kubelet.admit("ml/train", {two: 1}, {two: ["MIG-0-0-2"]})
            await kubelet.restart(["ml/train"])
            async with running(ListSource(slices(4, [0, 4])), root=root, kubelet=kubelet) as node:
                held = {two: {"MIG-0-0-2": False}, four: {"MIG-0-4-4": True}}
                await kubelet.until(lambda kubelet: kubelet.devices == held)
                looks = len(node.transitions)
                await node.until(lambda: len(node.transitions) > looks + 3)
                assert kubelet.devices == held
                kubelet.unknown.clear()
                await kubelet.remove("ml/train")
                await kubelet.until(lambda kubelet: kubelet.allocatable == {two: 0, four: 2})

    run(story)


def test_a_source_that_fails_changes_nothing() -> None:
    """When a source cannot say, what it said before holds."""

    async def story(root: Path) -> None:
        source = ListSource(mock_devices())
        async with running(source, root=root) as node:
            await node.kubelet.until(lambda kubelet: kubelet.allocatable == {GPU: 8})
            source.failure = "NVML does not answer"
            await node.until(lambda: (node.metric("failures_total", what="source") or 0) > 0)
            assert node.kubelet.allocatable == {GPU: 8}
            source.failure, source.list = "", mock_devices(4)
            await node.kubelet.until(lambda kubelet: kubelet.allocatable == {GPU: 4})

    run(story)


def test_a_spec_that_cannot_be_written_is_not_announced() -> None:
    """The kubelet hears of no device whose CDI spec is not on disk; it hears as soon as it is."""

    async def story(root: Path) -> None:
        (root / "cdi").write_text("a file where the folder should be")
        async with running(ListSource(mock_devices()), root=root) as node:
            await node.until(lambda: (node.metric("failures_total", what="publish") or 0) > 0)
            assert node.kubelet.allocatable == {}
            (root / "cdi").unlink()
            await node.kubelet.until(lambda kubelet: kubelet.allocatable == {GPU: 8})

    run(story)


def test_devices_that_a_restart_would_forget_are_not_announced() -> None:
    """While the state cannot be written the devices stay as they were, specs included; then they change."""

    async def story(root: Path) -> None:
        source = ListSource(mock_devices())
        async with running(source, root=root) as node:
            await node.kubelet.until(lambda kubelet: kubelet.allocatable == {GPU: 8})
            spec = node.cdi / "tessera-device.example.com_gpu.json"
            before = spec.read_bytes()
            (root / "state").rename(root / "elsewhere")
            (root / "state").write_text("a file where the folder should be")
            source.list = mock_devices(4)
            await node.until(lambda: (node.metric("failures_total", what="publish") or 0) > 0)
            assert (node.kubelet.allocatable, spec.read_bytes()) == ({GPU: 8}, before)
            (root / "state").unlink()
            await node.kubelet.until(lambda kubelet: kubelet.allocatable == {GPU: 4})

    run(story)


def test_fault_56_news_do_not_hurry_what_fails() -> None:
    """However often a source has news, a step that fails is tried again only after its time."""

    async def story(root: Path) -> None:
        source = ListSource(mock_devices())
        async with running(source, root=root, tick=1.0) as node:
            await node.kubelet.until(lambda kubelet: kubelet.allocatable == {GPU: 8})
            (root / "state").rename(root / "elsewhere")
            (root / "state").write_text("a file where the folder should be")
            source.list = mock_devices(4)
            node.poke()
            await node.until(lambda: node.metric("failures_total", what="publish") == 1)
            for _ in range(20):
                node.poke()
                await asyncio.sleep(0)
            assert node.metric("failures_total", what="publish") == 1

    run(story)


@pytest.mark.parametrize(
    "also", ["", "cdi", "state/holders.json", "device-plugins/kubelet_internal_checkpoint"]
)
def test_fault_57_a_truncated_record_while_a_layout_is_pending(also: str) -> None:
    """Whatever else is lost beside the record: what a pod holds stays its own, what would overlap waits for the pod to end."""

    async def story(root: Path) -> None:
        one, two, four = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb", "nvidia.com/mig-4g.40gb"
        possible = [*slices(4, [0, 4]), *slices(2, [0, 2, 4, 6]), *slices(1, range(8))]
        wanted = slices(1, range(6))
        async with started(Kubelet(root)) as kubelet:
            source = ListSource([*slices(4, [0]), *slices(2, [4, 6])])
            async with running(source, root=root, kubelet=kubelet) as node:
                await kubelet.until(lambda kubelet: kubelet.allocatable == {two: 2, four: 1})
                await kubelet.admit("ml/train", {four: 1})
                source.list = wanted
                node.poke()
                await kubelet.until(lambda kubelet: kubelet.allocatable == {one: 2, two: 0, four: 0})
            record = root / "state" / "devices.json"
            record.write_bytes(record.read_bytes()[:-9])
            if also == "cdi":
                shutil.rmtree(root / "cdi")
            elif also:
                (root / also).write_bytes(b"{")
            async with running(ListSource(wanted), root=root, kubelet=kubelet, possible=possible) as node:
                await kubelet.until(lambda kubelet: kubelet.devices.get(four) == {"MIG-0-0-4": False})
                await node.until(lambda: len(node.transitions) > 3)
                for change in node.transitions:
                    assert {device.id for device in change.waiting} == {f"MIG-0-{n}-1" for n in range(4)}
                    assert change.holders == {(four, "MIG-0-0-4"): "ml/train"}
                assert str(record) in node.plugin._state.error
                assert node.metric("failures_total", what="state") == 1
                await kubelet.remove("ml/train")
                await kubelet.until(lambda kubelet: kubelet.allocatable.get(one) == 6)

    run(story)


def test_fault_57_nothing_is_published_while_nobody_says_what_is_held() -> None:
    """The record is truncated, the kubelet away and its checkpoint too: the devices wait for the kubelet."""

    async def story(root: Path) -> None:
        (root / "state").mkdir()
        (root / "state" / "devices.json").write_bytes(b"[")
        (root / "device-plugins").mkdir()
        (root / "device-plugins" / "kubelet_internal_checkpoint").write_bytes(b"{")
        kubelet = Kubelet(root)
        async with running(ListSource(mock_devices()), root=root, kubelet=kubelet) as node:
            await node.until(lambda: (node.metric("failures_total", what="publish") or 0) > 1)
            assert not node.plugin.devices
            async with started(kubelet):
                await kubelet.until(lambda kubelet: kubelet.allocatable == {GPU: 8})

    run(story)


def test_fault_57_a_held_device_that_no_card_knows() -> None:
    """The record is truncated and the cards are of another product: nothing is published while a pod holds what was there."""

    async def story(root: Path) -> None:
        two = "nvidia.com/mig-2g.20gb"
        async with started(Kubelet(root)) as kubelet:
            async with running(ListSource(slices(2, [0], card=7)), root=root, kubelet=kubelet):
                await kubelet.until(lambda kubelet: kubelet.allocatable == {two: 1})
                await kubelet.admit("ml/train", {two: 1})
            (root / "state" / "devices.json").write_bytes(b"[")
            here = slices(2, [0, 2])
            async with running(ListSource(here), root=root, kubelet=kubelet, possible=here) as node:
                await node.until(lambda: (node.metric("failures_total", what="publish") or 0) > 1)
                assert not node.plugin.devices
                await kubelet.remove("ml/train")
                await kubelet.until(lambda kubelet: kubelet.allocatable == {two: 2})

    run(story)


def test_fault_61_a_device_that_the_kubelet_chose_before_it_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layout took it a moment ago: it comes back for the pod, and what replaced it waits until the pod has ended."""

    async def story(root: Path) -> None:
        two, four = "nvidia.com/mig-2g.20gb", "nvidia.com/mig-4g.40gb"
        source = ListSource(slices(2, [0, 2]))
        async with running(source, root=root) as node:
            kubelet = node.kubelet
            await kubelet.until(lambda kubelet: kubelet.allocatable == {two: 2})
            source.list = slices(4, [0, 4])
            node.poke()
            await kubelet.until(lambda kubelet: kubelet.allocatable == {two: 0, four: 2})
            grants = await kubelet.admit("ml/late", {two: 1}, {two: ["MIG-0-0-2"]})
            assert [one.name for one in grants[two].cdi_devices] == ["simulated.example/gpu=MIG-0-0-2"]
            monkeypatch.setattr("tessera.node.deviceplugin.withdrawn.RECALL", 0.0)  # some time later
            waiting = {two: {"MIG-0-0-2": False}, four: {"MIG-0-4-4": True}}
            await kubelet.until(lambda kubelet: kubelet.devices == waiting)
            spec = json.loads((node.cdi / "tessera-simulated.example_gpu.json").read_text())
            assert [entry["name"] for entry in spec["devices"]] == ["MIG-0-0-2", "MIG-0-4-4"]
            await node.until(lambda: node.transitions[-1].holders == {(two, "MIG-0-0-2"): "ml/late"})
            await kubelet.remove("ml/late")
            await kubelet.until(lambda kubelet: kubelet.allocatable == {two: 0, four: 2})

    run(story)


def test_fault_61_what_was_given_out_meanwhile_stays() -> None:
    """A pod has the slice that replaced it, or it is gone for long: a gRPC error, and nothing changes."""

    async def story(root: Path) -> None:
        two, four = "nvidia.com/mig-2g.20gb", "nvidia.com/mig-4g.40gb"
        source = ListSource(slices(2, [0, 4]))
        async with running(source, root=root) as node:
            kubelet = node.kubelet
            await kubelet.until(lambda kubelet: kubelet.allocatable == {two: 2})
            source.list = slices(4, [0, 4])
            node.poke()
            await kubelet.until(lambda kubelet: kubelet.allocatable == {two: 0, four: 2})
            await kubelet.admit("ml/first", {four: 1}, {four: ["MIG-0-0-4"]})
            for chosen in (["MIG-0-0-2"], ["MIG-0-0-2", "MIG-0-4-2"]):
                with pytest.raises(
                    AdmissionFailed, match=r"NOT_FOUND: nvidia\.com/mig-2g\.20gb has no device MIG-0-0-2"
                ):
                    await kubelet.admit("ml/late", {two: len(chosen)}, {two: chosen})
            with pytest.MonkeyPatch.context() as later:
                later.setattr("tessera.node.deviceplugin.withdrawn.RECALL", 0.0)
                with pytest.raises(AdmissionFailed, match="NOT_FOUND"):
                    await kubelet.admit("ml/late", {two: 1}, {two: ["MIG-0-4-2"]})
            assert kubelet.allocatable == {two: 0, four: 2}
            assert node.transitions[-1].complete

    run(story)


def test_fault_61_the_kubelets_list_has_what_can_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that a layout took stays on the list, unhealthy, for as long as it can be handed out: a kubelet crashes when it is given what its list lacks."""

    async def story(root: Path) -> None:
        two, four = "nvidia.com/mig-2g.20gb", "nvidia.com/mig-4g.40gb"
        source = ListSource(slices(2, [0, 2]))
        async with running(source, root=root) as node:
            kubelet = node.kubelet
            await kubelet.until(lambda kubelet: kubelet.allocatable == {two: 2})
            source.list = slices(4, [0])
            node.poke()
            await kubelet.until(lambda kubelet: kubelet.allocatable == {two: 0, four: 1})
            assert kubelet.devices[two] == {"MIG-0-0-2": False, "MIG-0-2-2": False}
            assert node.metric("devices", resource=two, health="unhealthy") == 0
            monkeypatch.setattr("tessera.node.deviceplugin.withdrawn.RECALL", 0.0)  # some time later
            await kubelet.until(lambda kubelet: not kubelet.devices[two])
            with pytest.raises(AdmissionFailed, match="NOT_FOUND"):
                await kubelet.admit("ml/late", {two: 1}, {two: ["MIG-0-0-2"]})

    run(story)


def test_fault_61_a_layout_comes_while_allocate_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device was there when the kubelet asked for it, and is withdrawn before the answer: the pod gets it, it leaves with the pod."""

    async def story(root: Path) -> None:
        two, four = "nvidia.com/mig-2g.20gb", "nvidia.com/mig-4g.40gb"
        source = ListSource(slices(2, [0, 2]))
        async with running(source, root=root) as node:
            kubelet = node.kubelet
            await kubelet.until(lambda kubelet: kubelet.allocatable == {two: 2})
            ask = Allocations.ask

            async def slow(allocations: Allocations) -> bool:
                monkeypatch.setattr(Allocations, "ask", ask)
                source.list = slices(4, [0, 4])
                node.poke()
                await kubelet.until(lambda kubelet: kubelet.allocatable == {two: 0, four: 2})
                return await ask(allocations)

            monkeypatch.setattr(Allocations, "ask", slow)
            await kubelet.admit("ml/late", {two: 1}, {two: ["MIG-0-0-2"]})
            monkeypatch.setattr("tessera.node.deviceplugin.withdrawn.RECALL", 0.0)  # some time later
            waiting = {two: {"MIG-0-0-2": False}, four: {"MIG-0-4-4": True}}
            await kubelet.until(lambda kubelet: kubelet.devices == waiting)

    run(story)


def test_fault_61_a_device_that_is_about_to_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves, and is not proven free yet: a pod for which the kubelet chose it gets it, and no other pod after that."""
    monkeypatch.setattr("tessera.node.deviceplugin.allocations._CHECKPOINT_TIMEOUT", 0.01)

    async def story(root: Path) -> None:
        two = "nvidia.com/mig-2g.20gb"
        source = ListSource(slices(2, [0, 2]))
        async with running(source, root=root) as node:
            kubelet = node.kubelet
            await kubelet.until(lambda kubelet: kubelet.allocatable == {two: 2})
            kubelet._write_checkpoint = lambda: None  # type: ignore[method-assign] # nothing is proven
            source.list = slices(4, [0])
            node.poke()
            await kubelet.until(lambda kubelet: kubelet.allocatable == {two: 0})
            assert await kubelet.admit("ml/late", {two: 1}, {two: ["MIG-0-0-2"]})
            with pytest.raises(AdmissionFailed, match="FAILED_PRECONDITION"):
                await kubelet.admit("ml/later", {two: 1}, {two: ["MIG-0-0-2"]})

    run(story)


def test_fault_58_a_restart_while_the_state_disk_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin that starts publishes what the last one saved, with the health of now; the new layout comes when there is room."""
    monkeypatch.setattr("tessera.node.deviceplugin.withdrawn.RECALL", 0.1)

    def full(path: Path, *_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    async def story(root: Path) -> None:
        two, four = "nvidia.com/mig-2g.20gb", "nvidia.com/mig-4g.40gb"
        async with started(Kubelet(root)) as kubelet:
            async with running(ListSource(slices(2, [0, 2, 4])), root=root, kubelet=kubelet):
                await kubelet.until(lambda kubelet: kubelet.allocatable == {two: 3})
                await kubelet.admit("ml/train", {two: 1}, {two: ["MIG-0-0-2"]})
            await kubelet.restart()
            source = ListSource([*slices(2, [0]), *slices(4, [4])])
            with monkeypatch.context() as disk:
                disk.setattr("tessera.node.files.put", full)
                async with running(source, root=root, kubelet=kubelet) as node:
                    await kubelet.until(lambda kubelet: kubelet.allocatable == {two: 3})
                    assert (node.metric("failures_total", what="publish") or 0) > 0
                    source.list[0] = source.list[0].unhealthy("XID 79")
                    await kubelet.until(lambda kubelet: kubelet.allocatable == {two: 2})
                    assert kubelet.devices[two]["MIG-0-0-2"] is False
                    source.list[0] = slices(2, [0])[0]
                    await kubelet.until(lambda kubelet: kubelet.allocatable == {two: 3})
                    assert (await kubelet.admit("ml/more", {two: 1}, {two: ["MIG-0-2-2"]}))[two].cdi_devices
                    disk.undo()
                    await kubelet.until(lambda kubelet: kubelet.allocatable == {two: 1, four: 1})
                    held = {"MIG-0-0-2": True, "MIG-0-2-2": False}
                    await kubelet.until(lambda kubelet: kubelet.devices[two] == held)

    run(story)


def test_removed_specs_come_back() -> None:
    """A cleaned /var/run/cdi is filled again."""

    async def story(root: Path) -> None:
        async with running(ListSource(mock_devices()), root=root) as node:
            await node.kubelet.until(lambda kubelet: kubelet.allocatable == {GPU: 8})
            spec = node.cdi / "tessera-device.example.com_gpu.json"
            spec.unlink()
            await node.until(spec.exists)

    run(story)


def test_leaving_in_good_order() -> None:
    """A plugin that ends removes its sockets, and leaves CDI specs for containers that restart meanwhile."""

    async def story(root: Path) -> None:
        async with started(Kubelet(root)) as kubelet:
            async with running(ListSource(mock_devices()), root=root, kubelet=kubelet):
                await kubelet.until(lambda kubelet: kubelet.allocatable == {GPU: 8})
            await kubelet.until(lambda kubelet: kubelet.allocatable == {GPU: 0})
            assert sockets_in(kubelet.folder) == ["kubelet.sock"]
            assert [path.name for path in (root / "cdi").iterdir()] == ["tessera-device.example.com_gpu.json"]

    run(story)


def test_sockets_of_a_killed_plugin_are_removed() -> None:
    """A socket that a killed plugin left is removed; one that is served stays."""

    async def story(root: Path) -> None:
        import socket

        folder = root / "device-plugins"
        folder.mkdir()
        listeners = {}
        for name in ("tessera-dead.sock", "tessera-alive.sock", "other.sock"):
            listeners[name] = socket.socket(socket.AF_UNIX)
            listeners[name].bind(str(folder / name))
            listeners[name].listen()
        listeners["tessera-dead.sock"].close()
        listeners["other.sock"].close()
        async with running(ListSource([]), root=root, kubelet=Kubelet(root)) as node:
            await node.until(lambda: node.plugin.ready)
            assert sockets_in(folder) == ["other.sock", "tessera-alive.sock"]
        listeners["tessera-alive.sock"].close()

    run(story)


def test_a_folder_too_deep_for_a_socket(caplog: pytest.LogCaptureFixture) -> None:
    """A path longer than a unix socket's may be is said in a sentence, and tried again without a crash."""

    async def story(root: Path) -> None:
        deep = root / ("x" * 60)
        (deep / "device-plugins").mkdir(parents=True)
        (deep / "device-plugins" / "kubelet.sock").touch()
        async with running(ListSource(mock_devices()), root=deep, kubelet=Kubelet(deep)) as node:
            await node.until(
                lambda: (node.metric("registrations_total", resource=GPU, result="failed") or 0) > 0
            )
            assert node.plugin.alive
        assert "longer than the 107 bytes" in caplog.text

    run(story)
