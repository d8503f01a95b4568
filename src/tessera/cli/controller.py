"""`tessera controller`: makes, records and evicts what the webhook, which changes nothing but the pod, must not."""

import logging
import os
import secrets
import socket
from pathlib import Path
from typing import Any

import click

from tessera.cli.common.help import Command
from tessera.cli.common.node import ProcessChoice, process_options
from tessera.cli.common.options import env_option, option, tessera_namespace_option


@click.command(cls=Command)
@tessera_namespace_option("The namespace of its Lease.  [default: the pod's, else gpu-webhook]")
@option("--layouts", "Keep the layouts of MigLayouts: cordon nodes, change their layouts, uncordon them.")
@env_option(
    "--config FILE",
    "Tessera's configuration, reloaded when it changes. With it the controller evicts pods that wait longer than their patience, when something else is free.",
    type=click.Path(dir_okay=False, path_type=Path),
    group="Tessera",
)
@env_option(
    "--service NAME",
    "The webhook's Service: while it has no ready endpoints, no pod is evicted.",
    default="gpu-webhook",
    group="Tessera",
)
@process_options
def command(tessera_namespace: str | None, process: ProcessChoice, **choices: Any) -> None:
    """Make the templates of claims; keep layouts; evict pods that wait although something else is free.

    The webhook changes nothing but the pod that is being created: this process does the rest. It does what the cluster and its options
    ask for, and its Lease says what that is (annotation tessera.dev/reconcilers).

    claims: make the ResourceClaimTemplates of pods whose GPU request the webhook converted to a claim, and record what they got. Needed for
    `fallback.dra: first-available`. The controller removes templates that no pod has used for a day.

    layouts (--layouts): give nodes the layouts of MigLayouts (tessera.dev/v1alpha1), a few at a time: cordon them, wait for pods that hold devices or
    evict them, have the cards cut, verify, uncordon, and put back what fails.

    patience (--config): evict a pod that waits for longer than its patience (`fallback.patience`, or the annotation gpu-webhook.k8s.io/patience), has never
    started, has a controller that makes it again, and would get something that is free now. The webhook then decides about it again. At most 10 a minute.

    Several may run: one leads, by the Lease tessera-controller. While none leads, the webhook leaves requests as they are.
    """
    process.run(lambda: _serve(process, tessera_namespace, **choices))


async def _serve(process: ProcessChoice, namespace: str | None, **choices: Any) -> None:
    from tessera.controller.process import Controller
    from tessera.kube.access.kubeconfig import own_namespace
    from tessera.kube.rest.client import Client

    log = logging.getLogger("tessera.controller")
    cluster = process.cluster.find()
    # no other process has this name, not even this one before a restart: its old Lease belongs to another
    identity = f"{socket.gethostname()}_{os.getpid()}_{secrets.token_hex(4)}"
    async with Client(cluster, user_agent="tessera-controller") as client:
        controller = Controller(client, namespace or own_namespace(cluster), identity, **choices)
        log.info("controller of %s (%s)", cluster.endpoint, cluster.source)
        await process.serve(controller.run(), controller.metrics.families, controller, log)
