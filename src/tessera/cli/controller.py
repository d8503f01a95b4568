"""`tessera controller`: what the webhook must not do itself, since it leaves no traces but the pod."""

import asyncio
import contextlib
import logging
import os
import secrets
import socket
from typing import TYPE_CHECKING

import click

from tessera.cli.common import completing
from tessera.cli.common.cluster import ClusterChoice
from tessera.cli.common.options import process_options

if TYPE_CHECKING:
    from tessera.serving.address import Address


@click.command()
@click.option("--namespace", "-n", metavar="NAME", shell_complete=completing.namespaces,
              help="Where its Lease is; else the pod's namespace, else gpu-webhook.")  # fmt: skip
@process_options
def command(
    namespace: str | None, metrics_listen: str | None, cluster: ClusterChoice, log_format: str, log_level: str
) -> int:
    """Make the ResourceClaimTemplates of pods whose GPU request the webhook has made a claim; record what they got.

    Needed for `fallback.dra: first-available`. Several may run: one leads, by the Lease tessera-controller, and while none does
    the webhook leaves requests as they are. Templates that no pod has used for a day are removed.
    """
    from tessera.serving.address import Address
    from tessera.serving.ending import Signalled, until_signalled
    from tessera.serving.logs import Log, choose, forwarding

    address = Address.parse(metrics_listen) if metrics_listen else None
    with forwarding(Log(choose(log_format), log_level)), contextlib.suppress(Signalled):
        asyncio.run(until_signalled(_serve(cluster, namespace, address)))
    return 0


async def _serve(choice: ClusterChoice, namespace: str | None, address: "Address | None") -> None:
    from tessera.controller.process import Controller
    from tessera.kube.access.choice import own_namespace
    from tessera.kube.rest.client import Client
    from tessera.serving.health_server import health_server

    cluster = choice.find()
    # a name that no other process has, after a restart neither: a Lease of the last one is another's
    identity = f"{socket.gethostname()}_{os.getpid()}_{secrets.token_hex(4)}"
    logger = logging.getLogger("tessera.controller")
    async with Client(cluster, user_agent="tessera-controller") as client:
        controller = Controller(client, namespace or own_namespace(cluster), identity)
        server = health_server(
            controller.metrics, alive=lambda: controller.alive, ready=lambda: controller.ready
        )
        logger.info("controller of %s (%s)", cluster.endpoint, cluster.source)
        try:
            if address is not None:
                logger.info("probes and metrics at %s", await server.start(address))
            await controller.run()
        finally:
            await server.stop()
