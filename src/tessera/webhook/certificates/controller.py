"""`tessera certs run`: keeps the authorities and the bundle for webhooks that may only read them.

The right to change a webhook configuration is the right to see and change every write in the cluster. Here it is held
by a process that reads two objects and takes no input from tenants, so that the server that does need not have it.
"""

import asyncio
from dataclasses import dataclass, field

from tessera import __version__
from tessera.kube.rest.client import Client
from tessera.serving.address import Address
from tessera.serving.http.messages import Request, Response, text
from tessera.serving.http.server import Server
from tessera.serving.logs import Log, forwarding
from tessera.serving.metrics import CONTENT_TYPE, exposition, process_metrics
from tessera.webhook.certificates.manager import CertificateManager
from tessera.webhook.certificates.rotation import Policy
from tessera.webhook.certificates.signer import Signer, run_program
from tessera.webhook.certificates.store import KubeStore


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line says."""

    namespace: str
    ca_secret: str
    webhook_configuration: str
    metrics_listen: Address | None
    certificate_policy: Policy = field(default_factory=Policy)  # quicker in tests


async def run_controller(client: Client, settings: Settings, log: Log) -> None:
    """Keep authorities and bundle until cancelled; probes and metrics beside it."""
    log.attach(asyncio.get_running_loop())
    store = KubeStore(client, settings.namespace, settings.ca_secret, settings.webhook_configuration)
    manager = CertificateManager(store, Signer(run_program), None, (), log, settings.certificate_policy)
    server = Server(lambda request: _respond(manager, request))
    with forwarding(log):
        if settings.metrics_listen is not None:
            address = await server.start(settings.metrics_listen)
            log.info("metrics and probes", address=str(address), version=__version__)
        try:
            await manager.run()
        finally:
            await server.stop()


async def _respond(manager: CertificateManager, request: Request) -> Response:
    if request.path == "/metrics":
        return Response(exposition([*manager.metrics(), *process_metrics()]), content_type=CONTENT_TYPE)
    if request.path == "/readyz":
        missing = manager.not_ready()
        return text("ok") if missing is None else text(f"not ready: certificates: {missing}", 503)
    if request.path in {"/livez", "/healthz"}:
        return text("ok")
    return text("the paths are /livez, /readyz and /metrics", 404)
