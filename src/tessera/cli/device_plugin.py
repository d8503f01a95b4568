"""`tessera device-plugin`: a node's devices, published to the kubelet."""

import logging

import click

from tessera.cli.common.help import Command
from tessera.cli.common.node import NodeChoice, node_options
from tessera.cli.common.options import NO_CLUSTER, ClusterChoice, env_option, option
from tessera.cli.common.output import echo, table
from tessera.kube.access.cluster import Cluster
from tessera.kube.access.kubeconfig import SERVICE_ACCOUNT
from tessera.kube.errors import InvalidKubeconfig, NoCluster
from tessera.kube.rest.client import Client
from tessera.node.deviceplugin.plugin import Plugin
from tessera.node.metrics import Metrics
from tessera.protocol.configuration.devices import DeviceConfiguration

_log = logging.getLogger("tessera.node")


@click.command(cls=Command)
@node_options
@env_option("--no-devices-in-use", "Do not write to the node which devices pods hold.", "hide_in_use")
@option("--list", "Print the devices and their health, and exit.", "list_only")
def command(node: NodeChoice, list_only: bool) -> None:
    """Report this node's devices to the kubelet, and give them to containers.

    Devices come from the configuration: listed ones, simulated GPUs, or the GPUs that NVML finds. The plugin cuts simulated
    GPUs, and real ones with nvml.cut: true, as the node's annotation run.ai/mig.config says, again whenever it changes.
    """
    if list_only:
        _list(node)
        return
    configuration = node.configuration()
    node.process.run(lambda: _serve(node, configuration))


def _cluster(choice: ClusterChoice, node: str, *, follows: bool) -> Cluster | None:
    """The cluster of this node, which says which layout is wanted and gets Events; there may be none, unless one was named."""
    if not follows and choice == NO_CLUSTER and not (SERVICE_ACCOUNT / "token").exists():
        return None  # a kubeconfig that happens to be there is not meant
    try:
        cluster = choice.find()
    except (InvalidKubeconfig, NoCluster) as error:
        if choice != NO_CLUSTER:
            raise
        _log.info("no cluster, using the layout of the configuration: %s", error)
        return None
    _log.info("following node %s of %s (%s)", node, cluster.endpoint, cluster.source)
    return cluster


def _list(node: NodeChoice) -> None:
    devices = node.devices(Metrics())
    rows = [(d.resource, d.id, "healthy" if d.healthy else f"unhealthy: {d.problem}") for d in devices]
    echo(table(rows))


async def _serve(node: NodeChoice, configuration: DeviceConfiguration) -> None:
    laid_out = configuration.simulated is not None or (
        configuration.nvml is not None and configuration.nvml.cut
    )
    follows = laid_out and node.settings.layout_file is None
    cluster = _cluster(node.process.cluster, node.settings.node, follows=follows)
    client = Client(cluster, user_agent="tessera-device-plugin") if cluster else None
    try:
        plugin = Plugin(configuration, node.settings, client)
        await node.process.serve(plugin.run(), plugin.metrics.families, plugin, _log)
    finally:
        if client is not None:
            client.close()
