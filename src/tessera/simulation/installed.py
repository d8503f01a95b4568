"""What the chart installs, on the embedded cluster: the webhook, the controller, and what runs on each node.

It is the production code, wired as in its own processes, but in this one.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Final

from tessera.controller.process import Controller
from tessera.core.dra.slices import DRIVER
from tessera.core.errors import TesseraError
from tessera.core.kubernetes.resources import WHOLE_GPU, short
from tessera.core.requests.alternatives import GENERAL_CLASS, own_expression
from tessera.kube.rest.client import Client
from tessera.kube.view.lease import CONTROLLER, LeaseFollower
from tessera.kube.view.live import LiveView
from tessera.kube.view.ticket_keys import TicketFollower
from tessera.node.assembly import Settings
from tessera.node.deviceplugin.process import NodePlugin
from tessera.node.dra.process import NodeDriver
from tessera.protocol.configuration.webhook import Configuration
from tessera.serving.address import Address
from tessera.serving.logs import Log
from tessera.simulation.cluster import EmbeddedCluster
from tessera.simulation.control_plane.kinds import MUTATING_WEBHOOKS
from tessera.simulation.control_plane.store import Document
from tessera.simulation.node.descriptions import NodeSpec
from tessera.simulation.node.machine import SimulatedNode
from tessera.webhook.certificates import pki
from tessera.webhook.certificates.manager import CertificateManager, names_of_service
from tessera.webhook.certificates.served import ServedCertificate
from tessera.webhook.certificates.signer import Signer
from tessera.webhook.certificates.store import KubeStore
from tessera.webhook.endpoint import Admission, Endpoint
from tessera.webhook.http.listener import Listener
from tessera.webhook.http.messages import Limits
from tessera.webhook.metrics import Metrics

# the names that the chart gives everything
_NAMESPACE, _SERVICE, _SECRET = "gpu-webhook", "gpu-webhook", "gpu-webhook-ca"
_CONFIGURATION: Final = "gpu-allocation-webhook"
_TICK: Final = 0.2  # seconds between two polls of what runs on a node; people are watching
# the webhook believes a Lease once it was renewed: a demo starts that much sooner
_LEASE: Final = 0.1  # seconds
_SMALL: Final = Limits(connections=16)


async def run_daemon(cluster: EmbeddedCluster, node: SimulatedNode) -> None:
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
    daemon = NodeDriver if node.spec.dra else NodePlugin
    async with cluster.client() as client:
        await daemon(node.spec.devices, settings, client).run()


def device_classes(nodes: Iterable[NodeSpec]) -> list[Document]:
    """The chart's DeviceClasses, with extended resource names, for what the DRA driver of these nodes can offer."""
    configured = [node.devices.simulated for node in nodes if node.dra and node.devices]
    cards = {card for one in configured if one is not None for card in one.cards}
    if not cards:
        return []
    resources = {profile.resource for card in cards for profile in card.profiles} | {WHOLE_GPU}
    named = [
        _device_class(
            f"tessera-{short(one).replace('.', '-')}", own_expression(one), extendedResourceName=one
        )
        for one in sorted(resources)
    ]
    return [_device_class(GENERAL_CLASS, f"device.driver == '{DRIVER}'"), *named]


def _device_class(name: str, expression: str, **more: str) -> Document:
    return {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}], **more}}


@asynccontextmanager
async def controller(client: Client) -> AsyncIterator[None]:
    """`tessera controller`, at work."""
    async with asyncio.TaskGroup() as tasks:
        working = tasks.create_task(Controller(client, _NAMESPACE, "embedded", retry=_LEASE).run())
        try:
            yield
        finally:
            working.cancel()


@asynccontextmanager
async def webhook(
    cluster: EmbeddedCluster, client: Client, view: LiveView, configuration: Configuration, log: Log
) -> AsyncIterator[None]:
    """The webhook, published in a webhook configuration as the chart publishes it."""
    cluster.make_namespace(_NAMESPACE)
    endpoint = Endpoint(Admission(view.offers, configuration.policy), view.missing, Metrics("embedded"), log)
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
    tickets = TicketFollower(client, _NAMESPACE, view.offers, look=_LEASE)
    async with asyncio.TaskGroup() as tasks:
        work = [tasks.create_task(one.run()) for one in (view, manager, lease, tickets)]
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
