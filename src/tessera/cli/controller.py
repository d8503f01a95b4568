"""`tessera controller`: makes and records what the webhook, which changes nothing but the pod, must not write itself."""

import logging
import os
import secrets
import socket

import click

from tessera.cli.common import completing
from tessera.cli.common.options import option
from tessera.cli.common.process import ProcessChoice, process_options


@click.command()
@option(
    "-n, --namespace NAME",
    "The namespace of its Lease.  [default: the pod's, else gpu-webhook]",
    shell_complete=completing.namespaces,
)
@option("--layouts", "Keep the layouts of MigLayouts: cordon nodes, change their layouts, uncordon them.")
@process_options
def command(namespace: str | None, layouts: bool, process: ProcessChoice) -> int:
    """Make the ResourceClaimTemplates of pods whose GPU request the webhook converted to a claim; record what they got.

    Needed for `fallback.dra: first-available`. Several may run: one leads, by the Lease tessera-controller. While none leads,
    the webhook leaves requests as they are. The controller removes templates that no pod has used for a day.

    With --layouts the leader also gives nodes the layouts of MigLayouts (tessera.dev/v1alpha1), a few at a time: it cordons them, waits
    for pods that hold devices or evicts them, has the cards cut, verifies, uncordons, and puts back what fails.
    """
    return process.run(lambda: _serve(process, namespace, layouts=layouts))


async def _serve(process: ProcessChoice, namespace: str | None, *, layouts: bool) -> None:
    from tessera.controller.process import Controller
    from tessera.kube.access.choice import own_namespace
    from tessera.kube.rest.client import Client

    log = logging.getLogger("tessera.controller")
    cluster = process.cluster.find()
    # no other process has this name, not even this one before a restart: its old Lease belongs to another
    identity = f"{socket.gethostname()}_{os.getpid()}_{secrets.token_hex(4)}"
    async with Client(cluster, user_agent="tessera-controller") as client:
        controller = Controller(client, namespace or own_namespace(cluster), identity, layouts=layouts)
        log.info("controller of %s (%s)", cluster.endpoint, cluster.source)
        await process.serve(controller.run(), controller.metrics.families, controller, log)
