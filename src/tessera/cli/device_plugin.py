"""`tessera device-plugin`: a node's devices, told to the kubelet."""

import asyncio
import logging
import socket
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tessera.cli.common import completing
from tessera.cli.common.cluster import ClusterChoice, cluster_options
from tessera.cli.common.terminal import read_parsed, table

if TYPE_CHECKING:
    from tessera.core.devices.device import Device
    from tessera.kube.access.cluster import Cluster
    from tessera.node.process import NodePlugin, Settings
    from tessera.protocol.configuration.devices import DeviceConfiguration
    from tessera.serving.address import Address


_Function = TypeVar("_Function", bound=Callable[..., Any])


def _folder(name: str, default: str, text: str) -> Callable[[_Function], _Function]:
    variable = f"TESSERA_{name.upper().replace('-', '_')}"
    return click.option(
        f"--{name}", type=click.Path(path_type=Path), default=Path(default), envvar=variable, show_envvar=True,
        show_default=True, metavar="DIR", help=text,
    )  # fmt: skip


@click.command()
@click.option("--config", "config_file", required=True, metavar="FILE", envvar="TESSERA_CONFIG", show_envvar=True,
              shell_complete=completing.files, help="Which devices there are (`-`: standard input).")  # fmt: skip
@click.option("--node-name", metavar="NAME", envvar=["TESSERA_NODE_NAME", "NODE_NAME"], show_envvar=True,
              help="The node's name; default: the host's.")  # fmt: skip
@_folder("kubelet-dir", "/var/lib/kubelet", "The kubelet's folder.")
@_folder("cdi-dir", "/var/run/cdi", "Where CDI specs go.")
@_folder(
    "state-dir",
    "/var/lib/tessera",
    "Where state is kept across restarts; the same path here and on the host.",
)
@_folder("host-root", "/", "Where the host's files are seen.")
@click.option("--layout", "layout_file", type=click.Path(path_type=Path), metavar="FILE", envvar="TESSERA_LAYOUT",
              show_envvar=True, help="Follow the MIG layout in this file, not the node's annotation.")  # fmt: skip
@click.option("--metrics-listen", metavar="[HOST]:PORT", envvar="TESSERA_METRICS_LISTEN", show_envvar=True,
              help="Serve /metrics, /livez and /readyz there.")  # fmt: skip
@cluster_options
@click.option("--log-format", type=click.Choice(["auto", "json", "text"]), default="auto", envvar="TESSERA_LOG_FORMAT",
              show_envvar=True, show_default=True, help="`auto`: text on a terminal, JSON elsewhere.")  # fmt: skip
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info",
              envvar="TESSERA_LOG_LEVEL", show_envvar=True, show_default=True)  # fmt: skip
@click.option("--list", "list_only", is_flag=True, help="Print the devices and their health, and exit.")
def command(
    config_file: str,
    node_name: str | None,
    kubelet_dir: Path,
    cdi_dir: Path,
    state_dir: Path,
    host_root: Path,
    layout_file: Path | None,
    metrics_listen: str | None,
    cluster: ClusterChoice,
    log_format: str,
    log_level: str,
    list_only: bool,
) -> int:
    """Tell the kubelet of this node's devices and hand them to containers.

    Devices come from the configuration: listed ones, simulated GPUs, or the GPUs that NVML finds. Simulated GPUs are
    cut as the node's annotation run.ai/mig.config says, and again whenever it changes.
    """
    from tessera.node.process import Settings
    from tessera.serving.address import Address
    from tessera.serving.logs import Log, choose, forwarding

    address = Address.parse(metrics_listen) if metrics_listen else None
    configuration = _configuration(config_file)
    settings = Settings(
        node=node_name or socket.gethostname(),
        kubelet_dir=kubelet_dir,
        cdi_dir=cdi_dir,
        state_dir=state_dir,
        host_root=host_root,
        layout_file=layout_file,
    )
    if list_only:
        return _list(configuration, settings)
    with forwarding(Log(choose(log_format), log_level)):
        followed = None
        if configuration.simulated and layout_file is None:
            followed = _cluster(cluster, settings.node)
        return asyncio.run(_run(configuration, settings, followed, address))


def _configuration(file: str) -> "DeviceConfiguration":
    from tessera.protocol.configuration import devices as device_config

    return read_parsed(file, device_config.parse)


def _cluster(choice: ClusterChoice, node: str) -> "Cluster | None":
    """The cluster whose node says which layout is wanted; none is fine, unless one was named."""
    from tessera.kube.errors import InvalidKubeconfig

    log = logging.getLogger("tessera.node")
    try:
        cluster = choice.find()
    except InvalidKubeconfig as error:
        if choice != ClusterChoice():
            raise
        log.info("the layout of the configuration holds: %s", error)
        return None
    log.info("following node %s of %s (%s)", node, cluster.endpoint, cluster.source)
    return cluster


def _list(configuration: "DeviceConfiguration", settings: "Settings") -> int:
    from tessera.node.process import NodePlugin

    async def look(nowhere: str) -> "list[Device]":
        node = NodePlugin(configuration, replace(settings, state_dir=Path(nowhere)))
        return [device for source in node.sources for device in await source.devices()]

    with tempfile.TemporaryDirectory() as nowhere:  # a look leaves nothing behind
        devices = asyncio.run(look(nowhere))
    rows = [(d.resource, d.id, "healthy" if d.healthy else f"unhealthy: {d.problem}") for d in devices]
    for line in table(rows):
        click.echo(line)
    return 0


async def _run(
    configuration: "DeviceConfiguration",
    settings: "Settings",
    cluster: "Cluster | None",
    address: "Address | None",
) -> int:
    """Work until a signal, and then leave in good order."""
    from tessera.kube.rest.client import Client
    from tessera.node.process import NodePlugin
    from tessera.serving.ending import Signalled, until_signalled

    client = Client(cluster, user_agent="tessera-device-plugin") if cluster else None
    node = NodePlugin(configuration, settings, client)
    try:
        await until_signalled(_serve(node, address))
    except Signalled:
        pass
    finally:
        if client is not None:
            client.close()
    return 0


async def _serve(node: "NodePlugin", address: "Address | None") -> None:
    from tessera.node.health_server import health_server

    server = health_server(node.metrics, alive=lambda: node.plugin.alive, ready=lambda: node.plugin.ready)
    if address:
        taken = await server.start(address)
        logging.getLogger("tessera.node").info("probes and metrics at %s", taken)
    try:
        await node.run()
    finally:
        await server.stop()
