"""`tessera controller`: what the webhook must not do itself, since it leaves no traces but the pod."""

import logging
import os
import secrets
import socket

import click

from tessera.cli.common import completing
from tessera.cli.common.options import ProcessChoice, process_options


@click.command()
@click.option("--namespace", "-n", metavar="NAME", shell_complete=completing.namespaces,
              help="The namespace of its Lease.  [default: the pod's, else gpu-webhook]")  # fmt: skip
@process_options
def command(namespace: str | None, process: ProcessChoice) -> int:
    """Make the ResourceClaimTemplates of pods whose GPU request the webhook converted to a claim; record what they got.

    Needed for `fallback.dra: first-available`. Several may run: one leads, by the Lease tessera-controller. While none leads,
    the webhook leaves requests as they are. The controller removes templates that no pod has used for a day.
    """
    return process.run(lambda: _serve(process, namespace))


async def _serve(process: ProcessChoice, namespace: str | None) -> None:
    from tessera.controller.process import Controller
    from tessera.kube.access.choice import own_namespace
    from tessera.kube.rest.client import Client
    from tessera.serving.health_server import health_server

    log = logging.getLogger("tessera.controller")
    cluster = process.cluster.find()
    # a name that no other process has, after a restart neither: a Lease of the last one is another's
    identity = f"{socket.gethostname()}_{os.getpid()}_{secrets.token_hex(4)}"
    async with Client(cluster, user_agent="tessera-controller") as client:
        controller = Controller(client, namespace or own_namespace(cluster), identity)
        server = health_server(
            controller.metrics.families, alive=lambda: controller.alive, ready=lambda: controller.ready
        )
        log.info("controller of %s (%s)", cluster.endpoint, cluster.source)
        await process.serve(server, controller.run(), log)
