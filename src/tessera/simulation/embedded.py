"""Tessera on the embedded cluster: the stand-ins of `simulation`, and the production code between them, as the chart installs it.

The API server calls the webhook over HTTPS, and the webhook makes its own certificate. Each node's device plugin or DRA driver talks
gRPC to its kubelet. The controller holds its Lease. CDI specs are files. Everything lives in this process and in one folder.
"""

import asyncio
import logging
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

from tessera.controller.leader import LeaseTimes
from tessera.controller.process import Controller
from tessera.core.errors import TesseraError
from tessera.dashboard.history import Admission
from tessera.kube.rest.client import Client
from tessera.kube.view.lease import CONTROLLER, LeaseFollower
from tessera.kube.view.live import LiveView
from tessera.kube.view.ticket_keys import TicketFollower
from tessera.protocol.configuration.webhook import Configuration
from tessera.protocol.kubernetes.objects import moment
from tessera.serving.address import Address
from tessera.serving.logs import Log, Record, Value
from tessera.simulation.cluster import EmbeddedCluster
from tessera.simulation.control_plane.admission import Called
from tessera.simulation.control_plane.kinds import MUTATING_WEBHOOKS
from tessera.simulation.control_plane.store import Document, Key
from tessera.simulation.node_descriptions import NodeSpec
from tessera.webhook import endpoint as webhook
from tessera.webhook.certificates import pki
from tessera.webhook.certificates.manager import CertificateManager, names_of_service
from tessera.webhook.certificates.served import ServedCertificate
from tessera.webhook.certificates.signer import Signer
from tessera.webhook.certificates.store import KubeStore
from tessera.webhook.http.listener import Listener
from tessera.webhook.http.messages import Limits
from tessera.webhook.metrics import Metrics

# the names that the chart gives everything
_NAMESPACE, _SERVICE, _SECRET = "gpu-webhook", "gpu-webhook", "gpu-webhook-ca"
_CONFIGURATION: Final = "gpu-allocation-webhook"
_LEASE: Final = (
    0.1  # seconds; the webhook believes a Lease once it was renewed, so a demo starts that much sooner
)
_AUTOPILOT_PERIOD: Final = 0.3  # seconds between two decisions of an autopilot: people are watching
_SMALL: Final = Limits(connections=16)
_MOST_REASONS: Final = 1000  # kept
_LONGEST_PATH: Final = 40  # of the folder: the path of a unix socket has 107 bytes at most


@asynccontextmanager
async def embedded(
    nodes: Mapping[str, NodeSpec],
    configuration: Configuration,
    *,
    on_admission: Callable[[Admission], None] = lambda _: None,
) -> AsyncIterator[EmbeddedCluster]:
    """A running cluster, with no nodes yet; at the end nothing of it is left."""

    def called(call: Called) -> None:
        if not call.dry_run:
            on_admission(_admission(call, cluster.reason(call.namespace, call.name)))

    with _quiet(), _short_folder() as folder:
        async with asyncio.TaskGroup() as tasks:
            cluster = EmbeddedCluster(Path(folder), tasks, nodes, called)
            await cluster.start()
            try:
                async with (
                    cluster.client() as client,
                    _tessera(cluster, client, configuration, _Reasons(cluster.reasons)),
                ):
                    yield cluster
            finally:
                await cluster.stop()


class _Reasons(Log):
    """The webhook's log: it keeps why pods were admitted as they were, and writes nothing."""

    def __init__(self, reasons: dict[Key, str]) -> None:
        super().__init__()
        self._reasons = reasons

    def event(self, level: str, message: str, fields: dict[str, Value]) -> None:
        """Leave everything else out."""

    def admission(
        self, level: str, uid: str, namespace: str, pod: str, microseconds: int, record: Record
    ) -> None:
        """Keep what was decided about pods."""
        self._reasons[namespace, pod] = str(record.fields.get("reason", ""))
        if len(self._reasons) > _MOST_REASONS:
            del self._reasons[next(iter(self._reasons))]


@asynccontextmanager
async def _tessera(
    cluster: EmbeddedCluster, client: Client, configuration: Configuration, log: Log
) -> AsyncIterator[None]:
    """The controller, and the webhook in a configuration as the chart publishes it; each wired as in its own process."""
    view = cluster.view = LiveView(client, keep=None)  # explanations speak of all nodes
    cluster.make_namespace(_NAMESPACE)
    endpoint = webhook.Endpoint(
        webhook.Admission(view.offers, configuration.policy), view.missing, Metrics("embedded"), log
    )
    endpoint.configure(configuration)
    view.configure(configuration.policy.fallback)
    served = ServedCertificate()
    store = KubeStore(client, _NAMESPACE, _SECRET, _CONFIGURATION)
    manager = CertificateManager(store, Signer(pki.ask), served, names_of_service(_SERVICE, _NAMESPACE), log)
    cluster.store.create(MUTATING_WEBHOOKS, _configuration())
    await manager.settle()  # makes the authority, publishes it, signs
    if not served.present:
        raise TesseraError(f"the webhook has no certificate: {manager.not_ready()}")
    listener = Listener({b"/mutate": endpoint.route()}, _SMALL, served.context)
    address = listener.start(Address("127.0.0.1", 0))
    cluster.services[_NAMESPACE, _SERVICE] = ("127.0.0.1", address.port)
    view.offers.put_controller(at_work=False)
    lease = LeaseFollower(client, _NAMESPACE, CONTROLLER, view.offers.put_controller)
    tickets = TicketFollower(client, _NAMESPACE, view.offers, tick=_LEASE)
    controller = Controller(
        client,
        _NAMESPACE,
        "embedded",
        layouts=True,
        soonest=_AUTOPILOT_PERIOD,
        lease=LeaseTimes(retry=_LEASE),
    )
    async with asyncio.TaskGroup() as tasks:
        work = [tasks.create_task(one.run()) for one in (view, manager, lease, tickets, controller)]
        try:
            await view.synced()
            yield
        finally:
            for task in work:
                task.cancel()
            del cluster.services[_NAMESPACE, _SERVICE]
            listener.abort()


def _configuration() -> Document:
    service = {"namespace": _NAMESPACE, "name": _SERVICE, "path": "/mutate", "port": 443}
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
    exempt = [
        {"key": "gpu-webhook", "operator": "NotIn", "values": ["disabled"]},
        {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", _NAMESPACE]},
    ]
    hook = {
        "name": "gpu-allocation.k8s.io",
        "admissionReviewVersions": ["v1"],
        "clientConfig": {"service": service},
        "rules": [rule],
        "namespaceSelector": {"matchExpressions": exempt},
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "reinvocationPolicy": "IfNeeded",
        "sideEffects": "NoneOnDryRun",
        "timeoutSeconds": 10,
    }
    return {"metadata": {"name": _CONFIGURATION}, "webhooks": [hook]}


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
