"""The embedded cluster with Tessera on it: the stand-ins of `simulation`, the production code between them.

The webhook is called over HTTPS with a certificate of its own making, as in a cluster; each node's device plugin or DRA driver
talks gRPC to its kubelet; the controller holds its Lease; CDI specs are files. Everything lives in this process and in one folder,
and goes with them.
"""

import asyncio
import logging
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final

from tessera.dashboard.history import Admission, moment
from tessera.kube.view.live import LiveView
from tessera.node.sources.simulated.cards import SMI_IN_CONTAINER
from tessera.protocol.configuration.webhook import Configuration
from tessera.serving.logs import Log, Record, Value
from tessera.simulation.cluster import EmbeddedCluster
from tessera.simulation.control_plane.admission import Called
from tessera.simulation.control_plane.kinds import DEVICE_CLASSES, KINDS
from tessera.simulation.control_plane.store import StatusError
from tessera.simulation.installed import controller, device_classes, run_daemon, webhook
from tessera.simulation.node.descriptions import NodeSpec
from tessera.simulation.node.runtime import Container

_CATCH_UP_SECONDS: Final = 10.0
_MOST_REASONS: Final = 1000  # kept
_LONGEST_PATH: Final = 40  # of the folder: the path of a unix socket has 107 bytes at most
_KINDS: Final = {kind.plural: kind for kind in KINDS}


class _Reasons(Log):
    """The webhook's log: why pods were admitted as they were; nothing is written."""

    def __init__(self) -> None:
        super().__init__()
        self.of: dict[tuple[str, str], str] = {}  # namespace, pod

    def event(self, level: str, message: str, fields: dict[str, Value]) -> None:
        """Leave everything else out."""

    def admission(
        self, level: str, uid: str, namespace: str, pod: str, microseconds: int, record: Record
    ) -> None:
        """Keep what was decided about pods."""
        self.of[namespace, pod] = str(record.fields.get("reason", ""))
        if len(self.of) > _MOST_REASONS:
            del self.of[next(iter(self.of))]


class Embedded:
    """A cluster to play stories on (`stories.stage.Backstage`)."""

    def __init__(
        self,
        cluster: EmbeddedCluster,
        view: LiveView,
        nodes: Mapping[str, NodeSpec],
        reasons: _Reasons,
        kubeconfig: Path,
    ) -> None:
        self.cluster = cluster
        self.view = view
        self.kubeconfig = kubeconfig
        self._nodes = nodes
        self._reasons = reasons

    async def have(self, nodes: Iterable[str]) -> None:
        """Have exactly these nodes, as they are described: one that was changed is made again."""
        wanted = [self._nodes[name] for name in nodes]
        for one in device_classes(wanted):
            with suppress(StatusError):  # it is there
                self.cluster.store.create(DEVICE_CLASSES, one)
        await self.cluster.have(wanted)

    async def settled(self) -> None:
        """Return when the webhook knows everything as the API server does, and can convert requests.

        To convert, it must know that the controller is at work, and have a key for tickets.
        """
        async with asyncio.timeout(_CATCH_UP_SECONDS):
            while not self._caught_up():
                await asyncio.sleep(0.005)

    def _caught_up(self) -> bool:
        store = self.cluster.store
        versions = [
            (one.health.version, store.last_change(_KINDS[one.resource.name]))
            for one in self.view.reflectors
            if one.resource.name in _KINDS
        ]
        offers = self.view.offers
        converts = offers.controller and offers.ticket_maker is not None
        return converts and all(version.isdigit() and int(version) >= newest for version, newest in versions)

    async def seen(self, namespace: str, pod: str) -> dict[str, list[str]]:
        """What each container of a pod sees."""
        for node in self.cluster.nodes.values():
            if (containers := node.containers.get((namespace, pod))) is not None:
                return {name: await _look_inside(one) for name, one in containers.items()}
        return {}

    def reason(self, namespace: str, pod: str) -> str:
        """What the webhook's log says."""
        return self._reasons.of.get((namespace, pod), "")


async def _look_inside(container: Container) -> list[str]:
    if SMI_IN_CONTAINER in dict(container.mounts):
        return ["$ nvidia-smi -L", *(await container.run(SMI_IN_CONTAINER, "-L")).splitlines()]
    mounted = [path for path, _ in container.mounts]
    return [", ".join(paths) for paths in (container.device_nodes, mounted) if paths]


@asynccontextmanager
async def embedded(
    nodes: Mapping[str, NodeSpec],
    configuration: Configuration,
    *,
    on_admission: Callable[[Admission], None] = lambda _: None,
) -> AsyncIterator[Embedded]:
    """A running cluster, with no nodes yet; at the end nothing of it is left."""
    reasons = _Reasons()

    def called(call: Called) -> None:
        if not call.dry_run:
            on_admission(_admission(call, reasons.of.get((call.namespace, call.name), "")))

    with _quiet(), _short_folder() as folder:
        async with asyncio.TaskGroup() as tasks:
            cluster = EmbeddedCluster(Path(folder), tasks, run_daemon, called)
            await cluster.start()
            try:
                kubeconfig = Path(folder) / "kubeconfig"
                kubeconfig.write_text(cluster.kubeconfig())
                async with cluster.client() as client:
                    view = LiveView(client, keep=None)  # explanations speak of all nodes
                    async with webhook(cluster, client, view, configuration, reasons), controller(client):
                        yield Embedded(cluster, view, nodes, reasons, kubeconfig)
            finally:
                await cluster.stop()


def _admission(call: Called, reason: str) -> Admission:
    record = call.annotations.get("fallback", "")
    changed = "fallback" if record else "changed" if call.annotations else "as asked"
    decision = changed if call.allowed else "rejected"
    when = moment(time.time())
    return Admission(when, call.namespace, call.name, decision, record, call.message or reason)


def _short_folder() -> "tempfile.TemporaryDirectory[str]":
    """A folder with a short path, so that it has room for the names of unix sockets."""
    usual = tempfile.gettempdir()
    where = usual if len(usual) <= _LONGEST_PATH else "/tmp"  # noqa: S108 # mkdtemp makes a folder of its own there
    return tempfile.TemporaryDirectory(prefix="tessera-", dir=where, ignore_cleanup_errors=True)


@contextmanager
def _quiet() -> Iterator[None]:
    """What the parts log is not for the person who watches."""
    library = logging.getLogger("tessera")
    nowhere = logging.NullHandler()
    library.addHandler(nowhere)
    before, library.propagate = library.propagate, False
    try:
        yield
    finally:
        library.removeHandler(nowhere)
        library.propagate = before
