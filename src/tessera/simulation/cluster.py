"""A cluster in this process: API server, scheduler, the controller of claims, and nodes that come and go.

What runs on it is not part of it: a webhook is reached through `services`, and a node's daemon (its device plugin or DRA
driver) is handed in as a function.
"""

import asyncio
import contextlib
import shutil
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

from tessera.kube.access.cluster import Cluster, ServerAddress
from tessera.kube.rest.client import Client
from tessera.protocol import yaml
from tessera.simulation.control_plane.admission import Called, Webhooks
from tessera.simulation.control_plane.apiserver import ApiServer
from tessera.simulation.control_plane.dra.claims import ClaimController
from tessera.simulation.control_plane.events import Events
from tessera.simulation.control_plane.kinds import NAMESPACES
from tessera.simulation.control_plane.scheduler import Scheduler
from tessera.simulation.control_plane.store import StatusError, Store
from tessera.simulation.node.descriptions import NodeSpec
from tessera.simulation.node.machine import SimulatedNode

# runs on a node of a cluster until it is cancelled
Daemon = Callable[["EmbeddedCluster", SimulatedNode], Coroutine[Any, Any, None]]


class EmbeddedCluster:
    """Everything but what Tessera itself does. Use it inside a task group: what fails there ends everything."""

    def __init__(
        self, folder: Path, tasks: asyncio.TaskGroup, daemon: Daemon, on_call: Callable[[Called], None]
    ) -> None:
        self.store = Store()
        self.services: dict[tuple[str, str], tuple[str, int]] = {}
        self.nodes: dict[str, SimulatedNode] = {}
        self._folder = folder
        self._tasks = tasks
        self._daemon = daemon
        self._events = Events(self.store)
        self._webhooks = Webhooks(self.store, self.services, on_call)
        self._server = ApiServer(self.store, self._webhooks.admit)
        self._controlling: list[asyncio.Task[None]] = []
        self._working: dict[str, tuple[asyncio.Task[None], ...]] = {}  # node → its daemon and its kubelet
        self._made = 0

    @property
    def url(self) -> str:
        """Where its API server listens."""
        return self._server.url

    async def start(self) -> None:
        """Start the control plane; there are no nodes yet."""
        await self._server.start()
        for name in ("default", "kube-system"):
            self.make_namespace(name)
        for one in (Scheduler(self.store, self._events), ClaimController(self.store, self._events)):
            self._controlling.append(self._tasks.create_task(one.run()))

    async def stop(self) -> None:
        """Stop nodes first, the API server last."""
        for name in tuple(self.nodes):
            await self.remove(name)
        for task in self._controlling:
            await _end(task)
        self._webhooks.close()
        await self._server.stop()

    def make_namespace(self, name: str) -> None:
        """Make a namespace, unless it is there."""
        with contextlib.suppress(StatusError):
            labels = {"kubernetes.io/metadata.name": name}
            self.store.create(NAMESPACES, {"metadata": {"name": name, "labels": labels}})

    def client(self) -> Client:
        """A client of its API server."""
        return Client(Cluster(ServerAddress.parse(self.url, where="embedded cluster")))

    def kubeconfig(self) -> str:
        """A kubeconfig that leads here, for kubectl and for `tessera`."""
        entry = {"name": "embedded"}
        return yaml.dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "embedded",
                "clusters": [{**entry, "cluster": {"server": self.url}}],
                "users": [{**entry, "user": {}}],
                "contexts": [{**entry, "context": {"cluster": "embedded", "user": "embedded"}}],
            }
        )

    async def have(self, specs: Iterable[NodeSpec]) -> None:
        """Have exactly these nodes; those that are there already stay, unless somebody changed their layout."""
        wanted = {spec.name: spec for spec in specs}
        for name, node in list(self.nodes.items()):
            if wanted.get(name) != node.spec or node.was_changed():
                await self.remove(name)
        for name in [name for name in wanted if name not in self.nodes]:
            await self.add(wanted[name])

    async def add(self, spec: NodeSpec) -> SimulatedNode:
        """A node joins."""
        self._made += 1
        folder = self._folder / str(self._made)  # short: the paths of unix sockets have 107 bytes
        node = SimulatedNode(spec, self.store, self._events, folder)
        try:
            await node.start()
        except BaseException:  # cancelled, too: what has started of it is stopped
            await node.stop()
            raise
        self.nodes[spec.name] = node
        work = (self._daemon(self, node), node.run())
        self._working[spec.name] = tuple(self._tasks.create_task(one) for one in work)
        return node

    async def remove(self, name: str) -> None:
        """A node leaves, with its pods."""
        node = self.nodes.pop(name)
        for task in self._working.pop(name):
            await _end(task)
        await node.stop()
        shutil.rmtree(node.folder, ignore_errors=True)


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait((task,))  # if it failed, the task group raises that
