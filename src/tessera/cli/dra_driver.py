"""`tessera dra-driver`: a node's devices, offered to the scheduler and prepared for claims."""

import logging

import click

from tessera.cli.common.help import Command
from tessera.cli.common.node import NodeChoice, node_options
from tessera.cli.common.options import env_option, option
from tessera.cli.common.output import echo, table
from tessera.kube.rest.client import Client
from tessera.node.dra.process import NodeDriver
from tessera.node.dra.slice_documents import offer
from tessera.node.metrics import DraMetrics
from tessera.protocol.configuration.devices import DeviceConfiguration


@click.command(cls=Command)
@node_options
@env_option(
    "--pod NAMESPACE/NAME",
    "The driver's own pod: once the kubelet lists it, it knows what its pods hold.",
    default="",
    show_default=False,
    group="Node",
)
@option("--list", "Print the devices as they would be offered, and exit.", "list_only")
def command(node: NodeChoice, list_only: bool) -> None:
    """Offer this node's devices by dynamic resource allocation (DRA), and prepare the claims that get them.

    Devices come from the same configuration as the device plugin's. A node has one of the two, never both. With partitioning:
    dynamic, simulated cards and, with nvml.cut: true, real ones are cut as claims ask for it. Needs Kubernetes 1.34, and 1.36 for
    that and for taints of devices that are unhealthy or leaving.
    """
    if list_only:
        _list(node)
        return
    configuration = node.configuration()
    node.process.run(lambda: _serve(node, configuration))


def _list(node: NodeChoice) -> None:
    rows = [
        (
            name,
            str(device.model.type),
            device.model.profile or "-",
            f"{device.model.memory_mib}Mi",
            device.id if device.model.cut else "-",
            "healthy" if device.healthy else f"unhealthy: {device.problem}",
        )
        for name, device in offer(node.devices(DraMetrics())).items()
    ]
    echo(table(rows))


async def _serve(node: NodeChoice, configuration: DeviceConfiguration) -> None:
    cluster = node.process.cluster.find()
    log = logging.getLogger("tessera.node")
    log.info("driver of node %s of %s (%s)", node.settings.node, cluster.endpoint, cluster.source)
    async with Client(cluster, user_agent="tessera-dra-driver") as client:
        driver = NodeDriver(configuration, node.settings, client)
        await node.process.serve(driver.run(), driver.metrics.families, driver, log)
