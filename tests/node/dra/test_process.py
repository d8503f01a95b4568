"""The whole driver, between an API server and a kubelet that are both stand-ins."""

import asyncio
import errno
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
import msgspec
import pytest

from tessera.core.errors import TesseraError
from tessera.kube.rest.client import Client
from tessera.node.assembly import Settings
from tessera.node.dra import process as driver
from tessera.node.dra.prepared_claims import PreparedClaims
from tessera.node.dra.process import NodeDriver
from tessera.node.dra.slice_documents import Offer, specs
from tessera.node.rpc import call, handlers, serve
from tessera.protocol.configuration import devices as device_config
from tessera.protocol.kubelet import dra_messages as messages
from tessera.protocol.kubelet import dra_pb2 as dra
from tessera.protocol.kubelet import health_pb2 as health
from tessera.protocol.kubelet import podresources_pb2 as podresources
from tessera.protocol.kubelet import registration_pb2 as registration
from tessera.protocol.kubelet.messages import LIST_PODS
from tessera.protocol.mig.documents import RUNAI_CONFIG
from tessera.serving.http_messages import Request, Response
from tessera.simulation.control_plane.kinds import EVENTS, NODES, RESOURCE_SLICES
from tests.build import claim_document
from tests.kube.apiserver import MisbehavingApiServer
from tests.node.dra.samples import NODE, POOL
from tests.node.running import TICK, run

CONFIGURATION = """
faultFile: {root}/faults
simulated:
  product: Simulated H200-70GB
  cards: 1
  layout: 2g.20gb=1,1g.10gb=2
"""
TWO, ONE = "gpu-0-mig-2g-20gb-5", "gpu-0-mig-1g-10gb-4"
_CLAIM = re.compile(r"/apis/resource\.k8s\.io/v1/(?:namespaces/ns/)?resourceclaims(?:/(.*))?")


@dataclass
class Cluster:
    """What a test touches."""

    root: Path
    server: MisbehavingApiServer
    client: Client
    driver: NodeDriver
    claims: dict[str, dict[str, Any]] = field(default_factory=dict)

    def claim(self, name: str, device: str, request: str = "gpu") -> dra.Claim:
        """A claim that was given this device."""
        result = {"driver": "gpu.tessera.dev", "pool": POOL, "device": device, "request": request}
        self.claims[name] = claim_document(name, result, namespace="ns")
        self.claims[name]["metadata"]["uid"] = f"u-{name}"
        return dra.Claim(namespace="ns", name=name, uid=f"u-{name}")

    def answer_for_claims(self, request: Request) -> Response | None:
        found = _CLAIM.fullmatch(request.path)
        if not found:
            return None
        if not found[1]:
            return Response(msgspec.json.encode({"items": list(self.claims.values())}))
        claim = self.claims.get(found[1])
        if claim is None:
            return Response(msgspec.json.encode({"kind": "Status", "code": 404, "reason": "NotFound"}), 404)
        return Response(msgspec.json.encode(claim))

    @property
    def slices(self) -> list[dict[str, Any]]:
        return [one.document for one in self.server.store.list(RESOURCE_SLICES)]

    @property
    def devices(self) -> dict[str, dict[str, Any]]:
        return {device["name"]: device for one in self.slices for device in one["spec"].get("devices") or ()}

    @property
    def warnings(self) -> dict[str, str]:
        """The messages of Events that warn, by reason."""
        events = [one.document for one in self.server.store.list(EVENTS)]
        return {one["reason"]: one["message"] for one in events if one["type"] == "Warning"}

    @property
    def taints(self) -> dict[str, list[str]]:
        return {
            name: [f"{taint['key']}:{taint['effect']}" for taint in device["taints"]]
            for name, device in self.devices.items()
            if device.get("taints")
        }

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                await asyncio.sleep(0.005)

    async def registered(self) -> Path:
        """Find the registration socket as the kubelet does, and register; the driver's socket."""
        registry = self.root / "plugins_registry"
        await self.until(lambda: list(registry.glob("[!.]*")))
        [socket] = registry.glob("[!.]*")
        info = await call(socket, messages.GET_INFO, registration.InfoRequest(), 1.0)
        assert (info.type, info.name) == ("DRAPlugin", "gpu.tessera.dev")
        await call(socket, messages.NOTIFY, registration.RegistrationStatus(plugin_registered=True), 1.0)
        return Path(info.endpoint)


@asynccontextmanager
async def cluster(
    root: Path,
    configuration: str = CONFIGURATION,
    *,
    pod: str = "",
    begin: Callable[[Cluster], Awaitable[object]] | None = None,
    **status: Any,
) -> AsyncIterator[Cluster]:
    """A driver that runs on a node of a cluster; `begin` is called before it starts."""
    async with MisbehavingApiServer() as server:
        await server.start()
        metadata = {"name": NODE, "uid": "n-1", "labels": {"tessera.dev/devices": "dra"}}
        server.store.create(NODES, {"metadata": metadata, "status": status})
        async with Client(server.cluster) as client:
            settings = Settings(
                NODE, kubelet_dir=root, cdi_dir=root / "cdi", state_dir=root / "state", pod=pod, tick=TICK
            )
            parsed = device_config.parse(configuration.format(root=root))
            node = NodeDriver(parsed, settings, client)
            found = Cluster(root, server, client, node)
            server.intercept = found.answer_for_claims
            if begin:
                await begin(found)
            task = asyncio.create_task(node.run())
            try:
                yield found
            finally:
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task


def test_a_folder_of_claims_that_cannot_be_written() -> None:
    """The driver does not start, and says why in one sentence."""

    async def story(root: Path) -> None:
        (root / "state" / "dra").mkdir(parents=True)
        (root / "state" / "dra" / "claims").write_text("a file where the folder should be")
        settings = Settings(NODE, kubelet_dir=root, state_dir=root / "state")
        async with MisbehavingApiServer() as server:
            await server.start()
            async with Client(server.cluster) as client:
                parsed = device_config.parse(CONFIGURATION.format(root=root))
                with pytest.raises(TesseraError, match=r"the DRA driver does not start: .*claims"):
                    await NodeDriver(parsed, settings, client).run()

    run(story)


def test_devices_are_offered() -> None:
    """The slices name the node, belong to it, and say what there is; ready when kubelet and API server know."""

    async def story(root: Path) -> None:
        async with cluster(root) as found:
            await found.until(lambda: found.slices)
            [one] = found.slices
            assert one["metadata"]["name"] == f"00000-{NODE}-gpu.tessera.dev"
            uid = found.server.store.get(NODES, NODE).document["metadata"]["uid"]
            assert one["metadata"]["ownerReferences"] == [
                {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": uid, "controller": True}
            ]
            assert one["spec"]["pool"] == {"name": POOL, "generation": 1, "resourceSliceCount": 1}
            assert list(found.devices)[-1] == TWO
            assert not found.driver.ready
            await found.registered()
            await found.until(lambda: found.driver.ready and found.driver.alive)

    run(story)


def test_documents_are_made_only_when_devices_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Making them takes milliseconds in which no claim is answered: a look that finds nothing new makes none."""
    made = []

    def counted(wanted: Offer) -> Any:
        made.append(wanted)
        return specs(wanted)

    monkeypatch.setattr(driver, "specs", counted)

    async def story(root: Path) -> None:
        async with cluster(root) as found:
            await found.registered()
            await found.until(lambda: found.driver.ready)
            before, beat = len(made), found.driver.driver.beat
            await found.until(lambda: found.driver.driver.beat > beat + 5 * TICK)
            assert len(made) == before
            (root / "faults").write_text("card 0: XID 79\n")
            await found.until(lambda: found.taints)
            assert len(made) == before + 1

    run(story)


def test_slices_that_are_removed_come_back() -> None:
    """A kubelet that starts removes them all: they are back, in a later generation."""

    async def story(root: Path) -> None:
        async with cluster(root) as found:
            await found.until(lambda: found.slices)
            found.server.store.delete(RESOURCE_SLICES, found.slices[0]["metadata"]["name"])
            await found.until(lambda: found.slices)
            assert found.slices[0]["spec"]["pool"]["generation"] == 2

    run(story)


def test_claims_are_prepared_over_the_socket() -> None:
    """One call for two claims, one of which is not there: each has its own answer; ending them leaves nothing."""

    async def story(root: Path) -> None:
        async with cluster(root) as found:
            await found.until(lambda: found.slices)
            socket = await found.registered()
            for service in messages.PLUGIN_SERVICES:
                claims = [
                    found.claim("a", TWO, request="gpu/larger"),
                    dra.Claim(namespace="ns", name="b", uid="u-b"),
                ]
                answer = await call(
                    socket, messages.PREPARE[service], dra.NodePrepareResourcesRequest(claims=claims), 10.0
                )
                assert answer.claims["u-b"].error == "claim ns/b is gone"
                [device] = answer.claims["u-a"].devices
                assert (list(device.request_names), device.pool_name, device.device_name) == (
                    ["gpu"],
                    POOL,
                    TWO,
                )
                assert (root / "cdi" / "gpu.tessera.dev-claim-u-a.json").exists()
                ended = await call(
                    socket,
                    messages.UNPREPARE[service],
                    dra.NodeUnprepareResourcesRequest(claims=claims),
                    10.0,
                )
                assert {uid: one.error for uid, one in ended.claims.items()} == {"u-a": "", "u-b": ""}
                assert list((root / "cdi").iterdir()) == []

    run(story)


@asynccontextmanager
async def health_told(found: Cluster, service: str) -> AsyncIterator[Any]:
    """The stream on which the kubelet hears of devices that become unhealthy, or healthy again."""
    method = messages.WATCH_HEALTH[service]
    async with grpc.aio.insecure_channel(f"unix:{await found.registered()}") as channel:
        stream: Any = channel.unary_stream(method.path, **method.codec)(health.NodeWatchResourcesRequest())
        yield stream
        stream.cancel()


def test_an_ill_device_is_tainted_and_told() -> None:
    """The scheduler keeps away, the kubelet and an Event say why; healthy again, both hear that."""

    async def story(root: Path) -> None:
        async with cluster(root) as found:
            await found.until(lambda: found.slices)
            async with health_told(found, messages.HEALTH_SERVICES[1]) as stream:
                first = await stream.read()
                assert {one.health for one in first.devices} == {health.HEALTHY}
                (root / "faults").write_text("card 0: fell off the bus\n")
                ill = await stream.read()
                assert {one.health for one in ill.devices} == {health.UNHEALTHY}
                assert "fell off the bus" in ill.devices[0].message
                taint = "gpu.tessera.dev/unhealthy:NoSchedule"
                await found.until(lambda: found.taints == {name: [taint] for name in found.devices})
                await found.until(lambda: "fell off the bus" in found.warnings.get("GPUUnhealthy", ""))
                (root / "faults").unlink()
                assert {one.health for one in (await stream.read()).devices} == {health.HEALTHY}
                await found.until(lambda: not found.taints)

    run(story)


def test_health_is_told_without_an_api_server() -> None:
    """The API server answers nothing any more: the kubelet still hears of an unhealthy device, and taints follow when it is back."""

    async def story(root: Path) -> None:
        async with cluster(root) as found:
            await found.until(lambda: found.slices)
            async with health_told(found, messages.HEALTH_SERVICES[0]) as stream:
                await stream.read()
                found.server.intercept = lambda request: Response(b"{}", 500)
                (root / "faults").write_text("card 0: fell off the bus\n")
                assert {one.health for one in (await stream.read()).devices} == {health.UNHEALTHY}
                assert not found.taints
                found.server.intercept = found.answer_for_claims
                await found.until(lambda: found.taints)

    run(story)


def test_a_device_that_a_claim_has_never_leaves_the_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new layout: what is allocated, prepared or not, is tainted and stays; it goes when its claim has gone."""
    monkeypatch.setattr("tessera.node.dra.process._NOTICE", 0.2)

    async def story(root: Path) -> None:
        async with cluster(root) as found:
            await found.until(lambda: found.slices)
            socket = await found.registered()
            service = messages.PLUGIN_SERVICES[0]
            prepared = found.claim("prepared", TWO)
            found.claim("allocated", ONE)
            request = dra.NodePrepareResourcesRequest(claims=[prepared])
            await call(socket, messages.PREPARE[service], request, 10.0)
            patch = {"metadata": {"annotations": {RUNAI_CONFIG: "7g.70gb=1"}}}
            await found.client.patch(f"/api/v1/nodes/{NODE}", patch)
            leaving = ["gpu.tessera.dev/leaving:NoSchedule"]
            both = {TWO: leaving, ONE: leaving}
            await found.until(lambda: found.taints == both and len(found.devices) == 2)
            del found.claims["allocated"]
            await found.until(lambda: list(found.devices) == [TWO])
            end = dra.NodeUnprepareResourcesRequest(claims=[prepared])
            await call(socket, messages.UNPREPARE[service], end, 10.0)
            assert list(found.devices) == [TWO], "the claim has it until the API server says otherwise"
            del found.claims["prepared"]
            await found.until(lambda: list(found.devices) == ["gpu-0-mig-7g-70gb-0"])

    run(story)


def test_nothing_is_offered_beside_a_device_plugin() -> None:
    """Its resource is above 0: no slices, not ready. At 0 the plugin is gone, and the devices are offered."""

    async def story(root: Path) -> None:
        async with cluster(root, allocatable={"nvidia.com/mig-2g.20gb": "1"}) as found:
            await found.registered()
            await found.until(lambda: found.driver.driver.conflict)
            assert "nvidia.com/mig-2g.20gb: 1" in (found.driver.driver.conflict or "")
            assert (found.slices, found.driver.ready) == ([], False)
            await found.until(lambda: found.warnings.keys() == {"DevicePluginConflict"})

            def status(count: str) -> Any:
                return {"status": {"allocatable": {"nvidia.com/mig-2g.20gb": count}}}

            await found.client.patch(f"/api/v1/nodes/{NODE}/status", status("0"))
            await found.until(lambda: found.slices and found.driver.ready)
            await found.client.patch(f"/api/v1/nodes/{NODE}/status", status("3"))
            taint = ["gpu.tessera.dev/device-plugin:NoSchedule"]
            await found.until(lambda: found.taints == dict.fromkeys(found.devices, taint))

    run(story)


def test_nothing_is_offered_until_the_kubelet_lists_its_pods() -> None:
    """A kubelet that starts does not answer, and then lists no pods: one of them may have a device from a plugin that is gone."""

    async def story(root: Path) -> None:
        pods: list[podresources.PodResources] = []
        held = podresources.ContainerDevices(resource_name="nvidia.com/mig-2g.20gb")

        async def listed(_request: Any, _context: Any) -> Any:
            return podresources.ListPodResourcesResponse(pod_resources=pods)

        async def kubelet() -> grpc.aio.Server:
            return await serve(root / "pod-resources" / "kubelet.sock", [handlers({LIST_PODS: listed})])

        (root / "pod-resources").mkdir()
        async with cluster(root, pod="gpus/driver") as found:
            driver = found.driver.driver
            await found.until(lambda: driver.devices)
            for device in driver.devices:
                if device.resource == held.resource_name:
                    held.device_ids.append(device.id)
            beat = driver.beat
            await found.until(lambda: driver.beat > beat + 3 * TICK)  # it does not answer
            server = await kubelet()
            beat = driver.beat
            await found.until(lambda: driver.beat > beat + 3 * TICK)  # it lists nothing yet
            assert (found.slices, driver.conflict) == ([], None)
            container = podresources.ContainerResources(name="main", devices=[held])
            pods += [
                podresources.PodResources(namespace="team", name="before", containers=[container]),
                podresources.PodResources(namespace="gpus", name="driver"),
            ]
            await found.until(lambda: "(team/before)" in (driver.conflict or ""))
            assert found.slices == []
            del pods[0]
            await found.until(lambda: found.slices)
            await server.stop(None)
            beat = driver.beat
            await found.until(lambda: driver.beat > beat + 8 * TICK)
            assert (driver.conflict, found.taints) == ("", {}), "what was known holds"

    run(story)


def test_a_device_plugin_that_the_kubelet_remembers_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """No conflict: the devices are offered. But extended resources do not work until the kubelet forgets, and the log says so."""

    async def story(root: Path) -> None:
        two = "nvidia.com/mig-2g.20gb"
        async with cluster(root, allocatable={two: "0"}, capacity={two: "1"}) as found:
            await found.until(lambda: found.slices)
            assert found.driver.driver.conflict == ""

    run(story)
    told = [record.getMessage() for record in caplog.records if "still counts" in record.getMessage()]
    assert len(told) == 1
    assert "nvidia.com/mig-2g.20gb" in told[0]


def test_two_processes_at_once() -> None:
    """The newer one publishes; both prepare and end claims, over the same state; when it goes, the older one publishes."""

    async def story(root: Path) -> None:
        async with cluster(root) as found:
            await found.until(lambda: found.slices)
            first = await found.registered()
            settings = Settings(
                NODE, kubelet_dir=root, cdi_dir=root / "cdi", state_dir=root / "state", tick=TICK
            )
            newer = NodeDriver(device_config.parse(CONFIGURATION.format(root=root)), settings, found.client)
            task = asyncio.create_task(newer.run())
            registry = root / "plugins_registry"
            await found.until(lambda: len(list(registry.glob("[!.]*"))) == 2)
            service = messages.PLUGIN_SERVICES[0]
            claim = found.claim("a", TWO)
            request = dra.NodePrepareResourcesRequest(claims=[claim])
            await found.until(lambda: newer.driver.offered)
            sockets = sorted((root / "plugins" / "gpu.tessera.dev").glob("*.sock"))
            [second] = [socket for socket in sockets if socket != first]
            answer = await call(second, messages.PREPARE[service], request, 10.0)
            assert answer.claims["u-a"].error == ""
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert [path.name for path in registry.iterdir()] == [f"gpu.tessera.dev-{first.stem}-reg.sock"], (
                "the newer one took its own socket away, and no other"
            )
            found.server.store.delete(RESOURCE_SLICES, found.slices[0]["metadata"]["name"])
            await found.until(lambda: found.slices)
            end = dra.NodeUnprepareResourcesRequest(claims=[claim])
            ended = await call(first, messages.UNPREPARE[service], end, 10.0)
            assert ended.claims["u-a"].error == ""
            assert list((root / "cdi").iterdir()) == []

    run(story)


def test_what_a_killed_process_left_is_removed() -> None:
    """Sockets that no process serves, specs of claims that are not known; the files of others are not touched."""

    async def story(root: Path) -> None:
        import socket

        for folder in ("plugins_registry", "plugins/gpu.tessera.dev", "cdi"):
            (root / folder).mkdir(parents=True)
        dead = root / "plugins_registry" / "gpu.tessera.dev-dead-reg.sock"
        other = root / "plugins_registry" / "gpu.example.com-reg.sock"
        for path in (dead, other):
            with socket.socket(socket.AF_UNIX) as one:
                one.bind(str(path))
        (root / "cdi" / "gpu.tessera.dev-claim-u-dead.json").write_text("{}")
        (root / "cdi" / "vendor.json").write_text("{}")
        async with cluster(root) as found:
            await found.until(lambda: found.slices)
            await found.until(lambda: not dead.exists())
            await found.until(lambda: [path.name for path in (root / "cdi").iterdir()] == ["vendor.json"])
            assert other.exists()

    run(story)


def test_a_socket_that_is_removed_comes_back() -> None:
    """Both sockets are checked every second: when one is gone, the driver serves and registers again."""

    async def story(root: Path) -> None:
        async with cluster(root) as found:
            await found.until(lambda: found.slices)
            socket = await found.registered()
            socket.unlink()
            await found.until(lambda: not found.driver.ready)
            await found.until(socket.exists)
            assert await found.registered() == socket
            request = dra.NodePrepareResourcesRequest(claims=[found.claim("a", TWO)])
            answer = await call(socket, messages.PREPARE[messages.PLUGIN_SERVICES[0]], request, 10.0)
            assert answer.claims["u-a"].error == ""

    run(story)


def test_entries_of_claims_that_can_have_no_container_are_forgotten() -> None:
    """The claim is gone: one that was only begun, or prepared before a reboot, is forgotten; a finished one stays held."""

    async def story(root: Path) -> None:
        folder = root / "state" / "dra" / "claims"
        folder.mkdir(parents=True)
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        for name, its_boot, phase in (
            ("begun", boot, "started"),
            ("rebooted", "earlier", "completed"),
            ("held", boot, "completed"),
        ):
            entry = {"uid": f"u-{name}", "namespace": "ns", "name": name, "boot": its_boot, "phase": phase}
            (folder / f"u-{name}.json").write_bytes(msgspec.json.encode(entry | {"devices": []}))
        async with cluster(root) as found:
            await found.until(lambda: [path.stem for path in folder.glob("*.json")] == ["u-held"])
            await found.until(lambda: found.driver.metrics.stale == 1)

    run(story)


def test_fault_59_one_unreadable_record_of_a_claim() -> None:
    """It is rebuilt: claims for other devices are prepared, and one for the same slices waits for the claim that has them."""

    async def story(root: Path) -> None:
        async with cluster(root) as found:
            await found.until(lambda: found.slices)
            socket, service = await found.registered(), messages.PLUGIN_SERVICES[0]

            async def error_of(claim: dra.Claim) -> str:
                request = dra.NodePrepareResourcesRequest(claims=[claim])
                answer = await call(socket, messages.PREPARE[service], request, 6.0)
                return answer.claims[claim.uid].error

            assert await error_of(found.claim("a", TWO)) == ""
            record = root / "state" / "dra" / "claims" / "u-a.json"
            record.write_bytes(record.read_bytes()[:-9])
            assert await error_of(found.claim("b", ONE)) == ""
            assert "still in use by claim ns/a" in await error_of(found.claim("c", TWO))
            assert found.driver.metrics.unreadable == 0

    run(story)


def test_fault_59_a_record_that_cannot_be_rebuilt() -> None:
    """No claim and no spec say what it holds: new claims wait, the driver is not ready and reports it, until the claim ends."""

    async def story(root: Path) -> None:
        folder = root / "state" / "dra" / "claims"
        PreparedClaims(folder).begin()  # the driver has run in this boot
        (folder / "u-lost.json").write_bytes(b"{")
        async with cluster(root) as found:
            socket, service = await found.registered(), messages.PLUGIN_SERVICES[0]
            await found.until(lambda: found.driver.metrics.unreadable == 1 and found.slices)
            await found.until(lambda: found.warnings)
            message = f"{folder / 'u-lost.json'} does not say which devices its claim holds"
            assert message in found.warnings["ClaimStateUnreadable"]
            assert not found.driver.ready
            request = dra.NodePrepareResourcesRequest(claims=[found.claim("b", ONE)])
            waiting = asyncio.create_task(call(socket, messages.PREPARE[service], request, 20.0))
            end = dra.NodeUnprepareResourcesRequest(
                claims=[dra.Claim(namespace="ns", name="lost", uid="u-lost")]
            )
            await call(socket, messages.UNPREPARE[service], end, 10.0)
            assert not (await waiting).claims["u-b"].error
            await found.until(lambda: found.driver.ready)

    run(story)


def test_fault_59_records_that_cannot_be_rebuilt_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Each for itself, for as long as it lasts, however many there are."""

    async def story(root: Path) -> None:
        folder = root / "state" / "dra" / "claims"
        PreparedClaims(folder).begin()  # the driver has run in this boot
        for uid in ("u-lost", "u-gone"):
            (folder / f"{uid}.json").write_bytes(b"{")
        async with cluster(root) as found:
            await found.until(lambda: found.driver.metrics.unreadable == 2)
            beats: set[float] = set()

            def has_looked_again() -> bool:
                beats.add(found.driver.driver.beat)
                return len(beats) > 3

            await found.until(has_looked_again)
        waits = [
            line for line in caplog.messages if line.startswith("new claims wait for the record of claim ")
        ]
        assert sorted(line.split()[8].rstrip(":") for line in waits) == ["u-gone", "u-lost"]

    run(story)


def test_fault_59_with_the_record_of_devices(caplog: pytest.LogCaptureFixture) -> None:
    """The record of devices cannot be read either: the claim's is rebuilt at the first poll, and no new claim waits."""

    async def story(root: Path) -> None:
        async with cluster(root) as found:
            await found.until(lambda: found.slices)
            request = dra.NodePrepareResourcesRequest(claims=[found.claim("a", TWO)])
            service = messages.PREPARE[messages.PLUGIN_SERVICES[0]]
            assert not (await call(await found.registered(), service, request, 10.0)).claims["u-a"].error
        for record in ("devices.json", "claims/u-a.json"):
            path = root / "state" / "dra" / record
            path.write_bytes(path.read_bytes()[:-9])
        async with cluster(root) as found:
            await found.until(lambda: found.slices)
            assert "its record could not be read, and was rebuilt: " + TWO in caplog.text
            assert "new claims wait" not in caplog.text

    run(story)


def test_fault_59_a_record_of_an_earlier_boot() -> None:
    """The machine has started again: whatever the record held is free, so it goes, and claims are prepared."""

    async def story(root: Path) -> None:
        folder = root / "state" / "dra" / "claims"
        folder.mkdir(parents=True)
        (folder / "the-boot-before.boot").touch()
        (folder / "u-lost.json").write_bytes(b"{")
        async with cluster(root) as found:
            await found.until(lambda: found.slices)
            socket, service = await found.registered(), messages.PLUGIN_SERVICES[0]
            request = dra.NodePrepareResourcesRequest(claims=[found.claim("b", ONE)])
            assert not (await call(socket, messages.PREPARE[service], request, 10.0)).claims["u-b"].error
            assert not (folder / "u-lost.json").exists()
            await found.until(lambda: found.driver.ready)

    run(story)


def test_fault_57_a_truncated_record_of_devices() -> None:
    """The layout changed and the record is truncated: what a claim holds is offered as leaving, what would overlap waits."""

    async def story(root: Path) -> None:
        async with cluster(root) as found:
            await found.until(lambda: found.slices)
            request = dra.NodePrepareResourcesRequest(claims=[found.claim("a", TWO)])
            service = messages.PREPARE[messages.PLUGIN_SERVICES[0]]
            assert not (await call(await found.registered(), service, request, 10.0)).claims["u-a"].error
        record = root / "state" / "dra" / "devices.json"
        record.write_bytes(record.read_bytes()[:-9])
        async with cluster(root, CONFIGURATION.replace("2g.20gb=1,1g.10gb=2", "7g.70gb=1")) as found:
            await found.until(lambda: found.taints == {TWO: ["gpu.tessera.dev/leaving:NoSchedule"]})
            assert set(found.devices) == {TWO}
            await found.until(lambda: found.warnings)
            assert str(record) in found.warnings["DeviceStateUnreadable"]

    run(story)


def test_fault_58_a_restart_while_the_state_disk_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that starts offers what the last one saved; the new layout is pending, and comes when there is room."""

    def full(path: Path, *_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    async def story(root: Path) -> None:
        async with cluster(root) as found:
            await found.until(lambda: len(found.devices) == 3)
            saved = set(found.devices)
        with monkeypatch.context() as disk:
            disk.setattr("tessera.node.files.put", full)
            async with cluster(root, CONFIGURATION.replace("2g.20gb=1,1g.10gb=2", "7g.70gb=1")) as found:
                await found.until(lambda: len(found.devices) == 3)
                assert set(found.devices) == saved
                await found.registered()
                await found.until(lambda: found.driver.ready)
                disk.undo()
                await found.until(lambda: set(found.devices) == {"gpu-0-mig-7g-70gb-0"})

    monkeypatch.setattr(driver, "_NOTICE", 0.1)
    run(story)


def test_slices_are_cut_on_demand() -> None:
    """Every place is offered with its counters; a layout is refused with a clear word, and changes nothing."""

    async def story(root: Path) -> None:
        text = "simulated: {{product: Simulated H200-70GB, cards: 1, partitioning: dynamic, profiles: [2g.20gb]}}"
        async with cluster(root, text) as found:
            await found.until(lambda: len(found.slices) == 2)
            [devices, counters] = sorted(found.slices, key=lambda one: str(one["metadata"]["name"]))
            assert [one["name"] for one in counters["spec"]["sharedCounters"]] == ["card-0"]
            offered = {one["name"]: one for one in devices["spec"]["devices"]}
            assert len(offered) == 7
            assert all(one["consumesCounters"][0]["counterSet"] == "card-0" for one in offered.values())
            patch = {"metadata": {"annotations": {RUNAI_CONFIG: "7g.70gb=1"}}}
            await found.client.patch(f"/api/v1/nodes/{NODE}", patch)

            def metadata() -> dict[str, Any]:
                document: dict[str, Any] = found.server.store.get(NODES, NODE).document["metadata"]
                return document

            await found.until(
                lambda: (metadata().get("labels") or {}).get("nvidia.com/mig.config.state") == "failed"
            )
            assert "partitioning: dynamic" in metadata()["annotations"]["nvidia.com/mig.config.reason"]
            assert len(found.slices) == 2
            socket = await found.registered()
            service = messages.PLUGIN_SERVICES[0]
            claims = [found.claim("a", "gpu-0-mig-2g-20gb-0"), found.claim("b", "gpu-0-mig-2g-20gb-1")]
            for claim, trouble in zip(claims, ("", "still in use by claim ns/a"), strict=True):
                request = dra.NodePrepareResourcesRequest(claims=[claim])
                answer = await call(socket, messages.PREPARE[service], request, 6.0)
                assert trouble in answer.claims[claim.uid].error
                assert bool(answer.claims[claim.uid].error) is bool(trouble)

    run(story)
