"""The DRA driver: claims prepared and ended over its socket, and the slices of a large node.

The driver is a process of its own, on its core, with its state on this machine's disk. The kubelet that calls it and the API
server that it asks are stand-ins, in this process and on the other core. What a GET of the claim takes there is measured beside.
"""

import asyncio
import itertools
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

import grpc.aio
import msgspec

from benchmarks.processes import LOAD_CORE, SERVER_CORE, Running, Unavailable, on_core
from benchmarks.results import Results
from benchmarks.stage import Stage
from tessera.core.dra.device_names import pool_of
from tessera.core.dra.slices import API_VERSION, DRIVER
from tessera.core.mig.geometry import product_named
from tessera.core.mig.layout import Slot
from tessera.kube.access.cluster import Cluster, ServerAddress
from tessera.kube.rest.client import Client, path_of
from tessera.node.assembly import Settings, node_sources
from tessera.node.dra.slice_documents import Offer, offer, specs
from tessera.node.metrics import DraMetrics
from tessera.node.rpc import address, call
from tessera.protocol.configuration import devices as device_config
from tessera.protocol.kubelet import dra_messages as messages
from tessera.protocol.kubelet import dra_pb2
from tessera.protocol.kubelet import registration_pb2 as registration
from tessera.simulation.control_plane.apiserver import ApiServer
from tessera.simulation.control_plane.kinds import NODES, RESOURCE_SLICES, ResourceType
from tessera.simulation.control_plane.store import Store

RUN: Final = "dra"
ONE_BY_ONE: Final = "one claim after another"
MEDIAN: Final = "ms, median"
P99: Final = "ms, p99"
PREPARE: Final = "prepare"
UNPREPARE: Final = "unprepare"
GET: Final = "GET of the claim, alone"
MANY: Final = 100
AT_ONCE: Final = f"{MANY} claims at once"
AFTER: Final = "after all these claims"
ALL: Final = "ms until all are done"
DRIVEN: Final = "the driver"
SLICES: Final = "8 cards × 26 placements"
MAKING: Final = "ms to make them"
WRITTEN: Final = "ms from the start until they are written"
NUMBER: Final = "slices"
SIZE: Final = "KiB of JSON"
RESIDENT: Final = "MiB resident"

_NODE: Final = "bench"
_CLAIMS: Final = ResourceType(API_VERSION, "resourceclaims", "ResourceClaim")
_CUT: Final = "simulated: {product: H200, cards: 16, layout: '1g.18gb=7'}"  # 112 devices
_DYNAMIC: Final = "simulated: {product: H200, cards: 8, partitioning: dynamic}"
_FIRST: Final = 5  # claims that open connections and are not counted
_PATIENCE: Final = 60.0  # seconds


def run(stage: Stage, results: Results) -> None:
    """A round is a driver's life: started, many claims, some at once, its size; and the life of one with many placements."""
    os.sched_setaffinity(0, {LOAD_CORE})
    claims = 100 if stage.effort.short else 300
    rounds = [asyncio.run(_life(claims)) for _ in range(stage.effort.rounds)]
    for quantity in rounds[0]:
        results.add(RUN, *quantity, [one[quantity] for one in rounds])
    results.note(
        f"{RUN}: kubelet and API server are stand-ins; the driver's state is on the disk of /var/tmp, every file written "
        f"through (fsync); load average {os.getloadavg()[0]:.1f} at the end"
    )


Quantity = tuple[str, str, str]  # case, unit, subject


async def _life(claims: int) -> dict[Quantity, float]:
    found: dict[Quantity, float] = {}
    async with _driver(_CUT) as node:
        devices = await node.devices(112)
        times = await node.one_by_one(devices, claims)
        for subject, values in times.items():
            found[ONE_BY_ONE, MEDIAN, subject] = median(values)
            found[ONE_BY_ONE, P99, subject] = quantiles(values, n=100)[98]
        for subject, value in (await node.at_once(devices[:MANY])).items():
            found[AT_ONCE, ALL, subject] = value
        found[AFTER, RESIDENT, DRIVEN] = node.process.memory()
    async with _driver(_DYNAMIC) as node:
        await node.devices(8 * 26)
        await _until(node.is_whole, node.process)
        found[SLICES, WRITTEN, DRIVEN] = (time.monotonic() - node.process.started) * 1000
        documents = [one.document for one in node.server.store.list(RESOURCE_SLICES)]
        found[SLICES, NUMBER, DRIVEN] = len(documents)
        found[SLICES, SIZE, DRIVEN] = sum(len(msgspec.json.encode(one)) for one in documents) / 1024
        found[SLICES, RESIDENT, DRIVEN] = node.process.memory()
    found[SLICES, MAKING, DRIVEN] = await _making()
    return found


async def _making() -> float:
    """What the driver does for its slices whenever its devices change, the sources' part left out."""
    configuration = device_config.parse(_DYNAMIC)
    with tempfile.TemporaryDirectory() as nowhere:
        settings = Settings(_NODE, state_dir=Path(nowhere))
        devices, _ = await node_sources(configuration, settings, DraMetrics()).ask()
    product = product_named("H200")
    counted = {Slot(number).uuid(_NODE): product for number in range(8)}
    begun = time.perf_counter()
    specs(Offer(_NODE, offer(devices), counted))
    return (time.perf_counter() - begun) * 1000


@dataclass(slots=True)
class _Node:
    """A driver, and what is around it."""

    server: ApiServer
    process: Running
    channel: grpc.aio.Channel
    client: Client
    numbers: "itertools.count[int]"

    async def devices(self, count: int) -> list[str]:
        """The names of the devices, as soon as all are offered."""
        await _until(lambda: len(self._offered()) >= count, self.process)
        return self._offered()

    def is_whole(self) -> bool:
        """Whether all slices of the pool are there, that of the counters too."""
        pools = [one.document["spec"]["pool"] for one in self.server.store.list(RESOURCE_SLICES)]
        return {one["resourceSliceCount"] for one in pools} == {len(pools)}

    def _offered(self) -> list[str]:
        return [
            device["name"]
            for one in self.server.store.list(RESOURCE_SLICES)
            for device in one.document["spec"].get("devices") or ()
        ]

    async def one_by_one(self, devices: list[str], count: int) -> dict[str, list[float]]:
        """Milliseconds of each call."""
        times: dict[str, list[float]] = {GET: [], PREPARE: [], UNPREPARE: []}
        for number in range(count + _FIRST):
            claim = self.claim(devices[number % len(devices)])
            for subject, work in ((GET, self.get), (PREPARE, self.prepare), (UNPREPARE, self.unprepare)):
                begun = time.perf_counter()
                await work(claim)
                if number >= _FIRST:
                    times[subject].append((time.perf_counter() - begun) * 1000)
        return times

    async def at_once(self, devices: list[str]) -> dict[str, float]:
        """Milliseconds until all are done."""
        claims = [self.claim(device) for device in devices]
        found = {}
        for subject, work in ((PREPARE, self.prepare), (UNPREPARE, self.unprepare)):
            begun = time.perf_counter()
            await asyncio.gather(*map(work, claims))
            found[subject] = (time.perf_counter() - begun) * 1000
        return found

    def claim(self, device: str) -> dra_pb2.Claim:
        """A claim that was given this device, as the scheduler leaves it."""
        name = f"claim-{next(self.numbers)}"
        result = {"driver": DRIVER, "pool": pool_of(_NODE), "device": device, "request": "gpu"}
        document = {
            "metadata": {"name": name, "namespace": "ns"},
            "status": {"allocation": {"devices": {"results": [result]}}},
        }
        stored = self.server.store.create(_CLAIMS, document, "ns")
        return dra_pb2.Claim(namespace="ns", name=name, uid=stored.document["metadata"]["uid"])

    async def get(self, claim: dra_pb2.Claim) -> None:
        """What the driver asks the API server for each claim."""
        await self.client.get(path_of(API_VERSION, "resourceclaims", namespace="ns", name=claim.name))

    async def prepare(self, claim: dra_pb2.Claim) -> None:
        """As the kubelet does it, on a connection that stands."""
        request = dra_pb2.NodePrepareResourcesRequest(claims=[claim])
        answer = await self._call(messages.PREPARE[messages.PLUGIN_SERVICES[0]], request)
        if error := answer.claims[claim.uid].error:
            raise Unavailable(f"not prepared: {error}")

    async def unprepare(self, claim: dra_pb2.Claim) -> None:
        """As the kubelet does it."""
        request = dra_pb2.NodeUnprepareResourcesRequest(claims=[claim])
        answer = await self._call(messages.UNPREPARE[messages.PLUGIN_SERVICES[0]], request)
        if error := answer.claims[claim.uid].error:
            raise Unavailable(f"not ended: {error}")

    async def _call(self, method: Any, request: Any) -> Any:
        return await self.channel.unary_unary(method.path, **method.codec)(request, timeout=_PATIENCE)


@asynccontextmanager
async def _driver(configuration: str) -> AsyncIterator[_Node]:
    """The driver as a process between stand-ins; not in memory, since it writes through to a disk."""
    with tempfile.TemporaryDirectory(
        prefix="tessera-", dir="/var/tmp"
    ) as folder:  # short, for sockets; on a disk
        root = Path(folder)
        (root / "devices.yaml").write_text(configuration)
        server = ApiServer(Store())
        server.kinds[_CLAIMS.prefix, _CLAIMS.plural] = _CLAIMS
        server.store.create(NODES, {"metadata": {"name": _NODE}})
        async with await server.start():
            (root / "kubeconfig").write_text(msgspec.json.encode(kubeconfig(server.url)).decode())
            command: list[str | Path] = [
                Path(sys.executable).parent / "tessera", "dra-driver", f"--config={root}/devices.yaml",
                f"--kubeconfig={root}/kubeconfig", f"--node-name={_NODE}", f"--kubelet-dir={root}",
                f"--cdi-dir={root}/cdi", f"--state-dir={root}/state",
            ]  # fmt: skip
            process = Running(on_core(SERVER_CORE, command))
            try:
                socket = await _registered(root / "plugins_registry", process)
                async with (
                    grpc.aio.insecure_channel(address(socket)) as channel,
                    Client(Cluster(ServerAddress.parse(server.url, where="bench"))) as client,
                ):
                    yield _Node(server, process, channel, client, itertools.count())
            finally:
                process.stop()


async def _registered(registry: Path, process: Running) -> Path:
    """Find the driver as the kubelet does; its socket."""
    await _until(lambda: list(registry.glob("[!.]*")), process)
    [socket] = registry.glob("[!.]*")
    info = await call(socket, messages.GET_INFO, registration.InfoRequest(), _PATIENCE)
    await call(socket, messages.NOTIFY, registration.RegistrationStatus(plugin_registered=True), _PATIENCE)
    return Path(info.endpoint)


async def _until(condition: Callable[[], object], process: Running) -> None:
    async with asyncio.timeout(_PATIENCE):
        while not condition():
            process.check()
            await asyncio.sleep(0.002)


def kubeconfig(url: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": ""}}],
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [],
    }
