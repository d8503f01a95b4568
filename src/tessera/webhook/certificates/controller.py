"""`tessera certs run`: keeps the authorities and the bundle for webhooks that may only read them.

The right to change a webhook configuration is the right to see and change every write in the cluster. Here it is held
by a process that reads two objects and takes no input from tenants, so that the server that does need not have it.
"""

import asyncio

from tessera import __version__
from tessera.serving.address import Address
from tessera.serving.http_server import health_server
from tessera.serving.logs import Log, forwarding
from tessera.serving.metrics import process_metrics
from tessera.webhook.certificates.manager import CertificateManager
from tessera.webhook.certificates.rotation import RotationPolicy
from tessera.webhook.certificates.signer import Signer, run_program
from tessera.webhook.certificates.store import KubeStore


async def run_controller(store: KubeStore, log: Log, listen: Address | None, policy: RotationPolicy) -> None:
    """Keep authorities and bundle until cancelled; probes and metrics beside it."""
    log.attach(asyncio.get_running_loop())
    manager = CertificateManager(store, Signer(run_program), None, (), log, policy)
    server = health_server(
        lambda: [*manager.metrics(), *process_metrics()],
        ready=lambda: manager.not_ready() is None,
        why_not=lambda: f"not ready: certificates: {manager.not_ready()}",
    )
    with forwarding(log):
        if listen is not None:
            address = await server.start(listen)
            log.info("metrics and probes", address=str(address), version=__version__)
        try:
            await manager.run()
        finally:
            await server.stop()
