"""A cluster of nodes with GPUs whose layouts are kept: real reconcilers against a stand-in API server, and a stand-in cutter."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from email.utils import formatdate
from typing import Any

from e2e.stand_in_plugin import layout_of

from tessera.controller.layouts.reconciler import LayoutReconciler
from tessera.controller.leader import LeadershipLost
from tessera.controller.metrics import ControllerMetrics
from tessera.controller.reconciler import ReconcilerParts
from tessera.core.dra.device_names import pool_of
from tessera.kube.clock import Clock
from tessera.kube.event_recorder import Recorder
from tessera.kube.rest.client import Client
from tessera.kube.watch.follow import Follower
from tessera.protocol.mig import documents as mig
from tessera.serving.http_messages import HangUp, Request, Response, Stream
from tessera.serving.metrics import exposition
from tessera.simulation.control_plane.kinds import MIG_LAYOUTS, NODES, RESOURCE_SLICES
from tessera.simulation.control_plane.store import Document, StatusError, Store, StoredChange
from tests.build import claim_document
from tests.inventory.objects import LAYOUT, node
from tests.kube.apiserver import MisbehavingApiServer
from tests.protocol.dra.samples import device, slice_
from tests.rollout.machine.world import BIG, asked, record_in
from tests.rollout.plugin import CARDS, StorePlugin

HASTE = 100.0  # a second of the tests is so many of the cluster's
WRITES = ("PATCH", "POST", "PUT")


class FastClock(Clock):
    """Real time, made fast: minutes of a rollout pass in a second."""

    ahead = 0.0  # seconds by which it is wrong

    def now(self) -> float:
        return time.monotonic() * HASTE

    def wall(self) -> float:
        return 1_800_000_000.0 + time.monotonic() * HASTE + self.ahead

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / HASTE)


def layout(name: str = "inference", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "tessera.dev/v1alpha1",
        "kind": "MigLayout",
        "metadata": {"name": name, "generation": 1},
        "spec": {
            "nodeSelector": {"nvidia.com/pool": "a"},
            "layouts": [{"perCard": {"1g.10gb": 2}}],
            "rollout": {"maxUnavailable": 2, "whenInUse": "Wait", "drainTimeout": "2m", "timeout": "2m"},
            **spec,
        },
    }


def claimed(device: str, node: str, pod: str) -> dict[str, Any]:
    """A claim that has a device of Tessera's DRA driver, for a pod."""
    result = {"driver": "gpu.tessera.dev", "pool": pool_of(node), "device": device}
    return claim_document(f"claim-{device}", result, pods=[pod])


class GatedServer(MisbehavingApiServer):
    """Holds the writes of a client back, or drops it, before or after one of its writes."""

    def __init__(self) -> None:
        super().__init__()
        self.bookmark_seconds = 30.0 / HASTE
        self.gates: dict[str, asyncio.Event] = {}  # by user agent: its writes wait until then
        self.dropped: set[str] = set()  # user agents whose processes were killed
        self.request: Any = None  # the write that `before` is called for
        self.before: Callable[[str], None] = lambda agent: None
        self.after: Callable[[str], None] = lambda agent: None
        self.late: Callable[[Request], float] = lambda request: 0.0  # seconds until its answer is sent
        self.clock: Clock | None = None  # whose time it says

    async def answer(self, request: Request) -> Response | Stream:
        agent = request.headers.get("user-agent", "")
        writes = request.method in WRITES
        if writes:
            self.request = request
            self.before(agent)
            if (gate := self.gates.get(agent)) is not None:
                await gate.wait()
        if agent in self.dropped:
            raise HangUp
        answer = await super().answer(request)
        if writes:
            self.after(agent)
        await asyncio.sleep(self.late(request))
        if self.clock is not None and isinstance(answer, Response):
            date = ("Date", formatdate(self.clock.wall(), usegmt=True))
            return replace(answer, headers=(*answer.headers, date))
        return answer


class Cutter(StorePlugin):
    """Answers after a moment; on nodes of Tessera's DRA driver devices are in ResourceSlices, and none is allocatable."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, CARDS, seconds=0.003)

    def write(self, name: str, patch: Document) -> None:
        if "status" in patch and any(
            one.key[1] == f"{name}-slice" for one in self._store.list(RESOURCE_SLICES)
        ):
            text = layout_of(self._store.get(NODES, name).document)
            asyncio.get_running_loop().call_later(0.01, self.publish, name, text)
            patch = {"metadata": patch["metadata"]}
        super().write(name, patch)

    def publish(self, name: str, text: str) -> None:
        """Offer the devices of a layout in a ResourceSlice."""
        made = mig.read_layout(text, CARDS).resources()
        every = [resource for resource, number in made.items() for _ in range(number)]
        devices = (device(f"d{number}", resource=resource) for number, resource in enumerate(every))
        document = slice_(f"{name}-slice", *devices, node=name, driver="gpu.tessera.dev")
        with suppress(StatusError):
            self._store.delete(RESOURCE_SLICES, f"{name}-slice")
        self._store.create(RESOURCE_SLICES, document)


class LayoutCluster:
    """What happens in it is checked at every change of a node."""

    def __init__(self, server: GatedServer, most: int) -> None:
        self.server, self.store = server, server.store
        self.refuses: Callable[[str], str] = lambda name: ""
        self.cuts: Counter[str] = Counter()  # by node: how often it was given another layout
        self.cordoned: set[str] = set()
        self.most, self.errors = most, list[str]()
        self._leaders: dict[str, list[asyncio.Task[Any]]] = {}
        self._clients: list[Client] = []
        self.metrics: dict[str, ControllerMetrics] = {}
        self.store.follow(NODES, self.store.version, self._changed)
        self._cutter = Cutter(self.store)
        self._cutter.refuses = lambda name, text: "" if text == LAYOUT else self.refuses(name)
        self._cutter.on_layout = lambda name, text: self.cuts.update([name] if text != LAYOUT else ())
        self.dead, self.answer = self._cutter.absent, self._cutter.answer

    def add_nodes(self, *names: str, pool: str = "a") -> None:
        for name in names:
            document = node(name, BIG, "NVIDIA-H200", layout=LAYOUT, pool=pool)
            self._cutter.remember(document)
            self.store.create(NODES, document)

    def add_dra_node(self, name: str) -> None:
        """A node whose devices Tessera's DRA driver offers: none is allocatable."""
        document = node(name, {}, "NVIDIA-H200", layout=LAYOUT, pool="a")
        self._cutter.remember(document)
        self.store.create(NODES, document)
        self._cutter.publish(name, LAYOUT)

    def _changed(self, change: StoredChange) -> None:
        document, name = change.after.document, change.after.key[1]
        ours = change.type != "DELETED" and record_in(document) is not None
        (self.cordoned.add if ours else self.cordoned.discard)(name)
        if len(self.cordoned) > self.most:
            self.errors.append(f"cordoned: {sorted(self.cordoned)}")

    def node(self, name: str) -> dict[str, Any]:
        return self.store.get(NODES, name).document

    def names(self) -> list[str]:
        return [one.key[1] for one in self.store.list(NODES)]

    def has_layout(self, name: str) -> bool:
        document = self.node(name)
        labels = document["metadata"]["labels"]
        return (
            asked(document) != LAYOUT
            and labels.get(mig.CONFIG_STATE) == "success"
            and name not in self.cordoned
        )

    def status(self, name: str = "inference") -> dict[str, Any]:
        found: dict[str, Any] = self.store.get(MIG_LAYOUTS, name).document.get("status") or {}
        return found

    def slots(self, name: str = "inference") -> list[str]:
        """The nodes that have one."""
        return [slot["name"] for slot in self.status(name).get("updating", ())]

    def condition(self, type_: str, name: str = "inference") -> tuple[str, str, str]:
        some = self.status(name).get("conditions", ())
        one: dict[str, Any] = next((one for one in some if one["type"] == type_), {})
        return one.get("status", ""), one.get("reason", ""), one.get("message", "")

    def lead(
        self, identity: str, fence: Callable[[], None] = lambda: None, clock: Clock | None = None
    ) -> None:
        """Start a leader."""
        client = Client(self.server.cluster, clock=clock or FastClock(), user_agent=identity)
        metrics = self.metrics[identity] = ControllerMetrics()
        metrics.leads = lambda: True
        recorder = Recorder(client, "test")
        parts = ReconcilerParts(
            client=client, follower=Follower(client), recorder=recorder, metrics=metrics, fence=fence
        )
        one = LayoutReconciler(parts, identity)

        async def work() -> None:
            with suppress(LeadershipLost):
                await one.run()

        self._clients.append(client)
        self._leaders[identity] = [
            asyncio.ensure_future(x) for x in (parts.follower.run(), recorder.run(), work())
        ]

    def kill(self, identity: str) -> None:
        """End a leader at once; what it has sent may be answered still."""
        self.server.dropped.add(identity)
        for task in self._leaders.get(identity, ()):
            task.cancel()

    async def stop(self) -> None:
        for identity in self._leaders:
            self.kill(identity)
        await asyncio.gather(
            *(task for some in self._leaders.values() for task in some), return_exceptions=True
        )
        for client in self._clients:
            client.close()

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                for tasks in self._leaders.values():
                    for task in tasks:
                        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                            raise error
                await asyncio.sleep(0.005)

    def change(self, **spec: Any) -> None:
        """Edit the MigLayout's spec."""
        document = self.store.get(MIG_LAYOUTS, "inference").document
        document["spec"] |= spec
        document["metadata"]["generation"] += 1
        self.store.update(MIG_LAYOUTS, "inference", document)

    @property
    def writes(self) -> int:
        """How much was written to MigLayouts so far."""
        patches = (one for one in self.server.requests if one.method == "PATCH")
        return sum("/miglayouts/" in one.path for one in patches)

    def events(self) -> list[tuple[str, str]]:
        from tessera.simulation.control_plane.kinds import EVENTS

        found = [one.document for one in self.store.list(EVENTS)]
        return [(one["involvedObject"]["name"], one["reason"]) for one in found]

    def exposed(self, identity: str) -> str:
        return exposition(self.metrics[identity].families()).decode()


@asynccontextmanager
async def cluster(
    *names: str, most: int = 2, document: dict[str, Any] | None = None
) -> AsyncIterator[LayoutCluster]:
    """A cluster with nodes and a MigLayout, and no leader yet; the limit holds from its beginning to its end."""
    server = GatedServer()
    await server.start()
    one = LayoutCluster(server, most)
    try:
        one.add_nodes(*names)
        if document is not None:
            server.store.create(MIG_LAYOUTS, document)
        yield one
        assert one.errors == []
    finally:
        for gate in server.gates.values():
            gate.set()
        await one.stop()
        await server.stop()


class MortalLeaders:
    """Leaders that are killed before or after any write, or paused with a write on its way that arrives much later; each has a successor."""

    def __init__(self, one: LayoutCluster, seed: int, odds: float = 0.25) -> None:
        self._odds, self._one, self._roll = odds, one, random.Random(seed)  # a schedule
        self.count, self._leaders = 0, list[str]()
        one.server.before = one.server.after = self._strike
        self._next()

    def spare(self) -> None:
        """Let them live from now on."""
        self._one.server.before = self._one.server.after = lambda agent: None

    def _next(self) -> None:
        identity = f"leader-{len(self._leaders)}"
        self._leaders.append(identity)

        def fence() -> None:  # as the Lease's: what is on its way then still arrives
            if self._leaders[-1] != identity:
                raise LeadershipLost("another leads")

        self._one.lead(identity, fence)

    def _strike(self, agent: str) -> None:
        if agent != self._leaders[-1] or len(self._leaders) > 12 or self._roll.random() > self._odds:
            return
        self.count += 1
        loop = asyncio.get_running_loop()
        if self._roll.random() < 0.5:  # this write, and all that follow, arrive later
            gate = self._one.server.gates[agent] = asyncio.Event()
            loop.call_later(self._roll.uniform(0.02, 0.3), gate.set)
        else:
            loop.call_soon(self._one.kill, agent)
        loop.call_soon(self._next)


class InThisLoop:
    """A stand-in mig-manager's view of a cluster that runs in the test's own loop."""

    def __init__(self, server):
        self.server, self.loop = server, asyncio.get_running_loop()

    def call(self, work):
        return work()

    def add(self, document):
        kind = next(kind for kind in self.server.kinds.values() if kind.kind == document["kind"])
        self.server.store.create(kind, document, document["metadata"].get("namespace", ""))

    def changing_node(self, name, change):
        document = self.server.store.get(NODES, name).document
        change(document)
        self.server.store.update(NODES, name, document)
