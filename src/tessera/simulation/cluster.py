"""A cluster in this process: API server, scheduler, the controller of claims, and nodes that come and go.

Each node has its device plugin or DRA driver. A webhook is not part of the cluster: it is reached through `services`.
"""

import asyncio
import contextlib
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from tessera.kube.access.cluster import Cluster, ServerAddress
from tessera.kube.rest.client import Client
from tessera.kube.view.live import LiveView
from tessera.node.assembly import Settings
from tessera.node.deviceplugin.plugin import Plugin
from tessera.node.dra.process import NodeDriver
from tessera.node.sources.simulated import SMI_IN_CONTAINER
from tessera.simulation.control_plane.admission import Called, Webhooks
from tessera.simulation.control_plane.apiserver import ApiServer
from tessera.simulation.control_plane.claims import ClaimController
from tessera.simulation.control_plane.events import Events
from tessera.simulation.control_plane.kinds import DEVICE_CLASSES, KINDS, NAMESPACES
from tessera.simulation.control_plane.scheduler import Scheduler
from tessera.simulation.control_plane.store import Key, StatusError, Store
from tessera.simulation.machine import Container, SimulatedNode
from tessera.simulation.node_descriptions import NodeSpec, device_classes

_CATCH_UP_SECONDS: Final = 10.0
_TICK: Final = 0.2  # seconds between two polls of what runs on a node; people are watching
_KINDS: Final = {kind.plural: kind for kind in KINDS}
_KUBECONFIG: Final = """\
apiVersion: v1
kind: Config
current-context: embedded
clusters: [{name: embedded, cluster: {server: "URL"}}]
users: [{name: embedded, user: {}}]
contexts: [{name: embedded, context: {cluster: embedded, user: embedded}}]
"""


class EmbeddedCluster:
    """A cluster to play stories on (`stories.stage.Backstage`). Use it inside a task group: what fails there ends everything."""

    view: LiveView  # the webhook's, once it runs

    def __init__(
        self,
        folder: Path,
        tasks: asyncio.TaskGroup,
        known: Mapping[str, NodeSpec],
        on_call: Callable[[Called], None],
    ) -> None:
        """`known` are the nodes that it can have; `on_call` hears of every call to a webhook."""
        self.reasons: dict[Key, str] = {}  # why the webhook admitted pods as it did
        self.kubeconfig = folder / "kubeconfig"  # leads here, for kubectl and for `tessera`
        self.store = Store()
        self.services: dict[tuple[str, str], tuple[str, int]] = {}
        self.nodes: dict[str, SimulatedNode] = {}
        self._folder = folder
        self._tasks = tasks
        self._known = known
        self._events = Events(self.store)
        self._webhooks = Webhooks(self.store, self.services, on_call)
        self._server = ApiServer(self.store, self._webhooks.admit)
        self._controlling: list[asyncio.Task[None]] = []
        self._working: dict[str, tuple[asyncio.Task[None], ...]] = {}  # node → its daemon and its kubelet
        self._made = 0

    async def start(self) -> None:
        """Start the control plane; there are no nodes yet."""
        await self._server.start()
        self.kubeconfig.write_text(_KUBECONFIG.replace("URL", self._server.url))
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
        return Client(Cluster(ServerAddress.parse(self._server.url, where="embedded cluster")))

    async def have(self, nodes: Iterable[str]) -> None:
        """Have exactly these nodes, as they are described: one that a client changed is made again."""
        wanted = {name: self._known[name] for name in nodes}
        for one in device_classes(wanted.values()):
            with contextlib.suppress(StatusError):  # it is there
                self.store.create(DEVICE_CLASSES, one)
        for name, node in list(self.nodes.items()):
            if wanted.get(name) != node.spec or node.was_changed():
                await self.remove(name)
        for name in [name for name in wanted if name not in self.nodes]:
            await self.add(wanted[name])

    async def add(self, spec: NodeSpec) -> SimulatedNode:
        self._made += 1
        folder = self._folder / str(self._made)  # short: the paths of unix sockets have 107 bytes
        node = SimulatedNode(spec, self.store, self._events, folder)
        try:
            await node.start()
        except BaseException:  # cancelled, too: what has started of it is stopped
            await node.stop()
            raise
        self.nodes[spec.name] = node
        work = (self._run_daemon(node), node.run())
        self._working[spec.name] = tuple(self._tasks.create_task(one) for one in work)
        return node

    async def remove(self, name: str) -> None:
        """A node leaves, with its pods."""
        node = self.nodes.pop(name)
        for task in self._working.pop(name):
            await _end(task)
        await node.stop()
        shutil.rmtree(node.folder, ignore_errors=True)

    async def _run_daemon(self, node: SimulatedNode) -> None:
        """Run the device plugin or the DRA driver of a node, until cancelled."""
        if node.spec.devices is None:
            return
        settings = Settings(
            node=node.name,
            kubelet_dir=node.folder,
            cdi_dir=node.cdi_folder,
            state_dir=node.state_folder,
            host_root=node.host_root,
            tick=_TICK,
        )
        daemon = NodeDriver if node.spec.dra else Plugin
        async with self.client() as client:
            await daemon(node.spec.devices, settings, client).run()

    # what the API does not show

    async def settled(self) -> None:
        """Return when the webhook knows everything as the API server does, and can convert requests.

        To convert, it must know that the controller is at work, and have a key for tickets.
        """
        async with asyncio.timeout(_CATCH_UP_SECONDS):
            while not self._caught_up():
                await asyncio.sleep(0.005)

    def _caught_up(self) -> bool:
        versions = [
            (one.health.version, self.store.last_change(_KINDS[one.resource.name]))
            for one in self.view.reflectors
            if one.resource.name in _KINDS
        ]
        offers = self.view.offers
        converts = offers.controller and offers.ticket_maker is not None
        return converts and all(version.isdigit() and int(version) >= newest for version, newest in versions)

    async def seen(self, namespace: str, pod: str) -> dict[str, list[str]]:
        for node in self.nodes.values():
            if (containers := node.containers.get((namespace, pod))) is not None:
                return {name: await _look_inside(one) for name, one in containers.items()}
        return {}

    def reason(self, namespace: str, pod: str) -> str:
        return self.reasons.get((namespace, pod), "")


async def _look_inside(container: Container) -> list[str]:
    if SMI_IN_CONTAINER in container.mounts:
        return ["$ nvidia-smi -L", *(await container.run(SMI_IN_CONTAINER, "-L")).splitlines()]
    return [", ".join(paths) for paths in (container.device_nodes, container.mounts) if paths]


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait((task,))  # if it failed, the task group raises that
