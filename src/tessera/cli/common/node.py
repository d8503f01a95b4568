"""What the commands share that run on a node: the options that say where things are, and how such a command runs."""

import asyncio
import socket
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tessera.cli.common import completing
from tessera.cli.common.options import ProcessChoice, process_options
from tessera.cli.common.terminal import read_parsed

if TYPE_CHECKING:
    from tessera.core.devices.device import Device
    from tessera.kube.access.cluster import Cluster
    from tessera.kube.rest.client import Client
    from tessera.node.assembly import Settings
    from tessera.node.metrics import NodeMetrics
    from tessera.protocol.configuration.devices import DeviceConfiguration

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class NodeChoice:
    """What a person said about the node and its surroundings."""

    config_file: str
    settings: "Settings"
    process: ProcessChoice

    def configuration(self) -> "DeviceConfiguration":
        """The devices' configuration, read and checked."""
        from tessera.protocol.configuration import devices as device_config

        return read_parsed(self.config_file, device_config.parse)

    def devices(self, metrics: "NodeMetrics") -> "list[Device]":
        """What the sources report now; nothing is written."""
        from tessera.node.assembly import NodeSources

        async def read(folder: str) -> "list[Device]":
            settings = replace(self.settings, state_dir=Path(folder))
            sources = NodeSources(self.configuration(), settings, metrics)
            return [device for source in sources.all for device in await source.devices()]

        with tempfile.TemporaryDirectory() as folder:
            return asyncio.run(read(folder))


def client_of(cluster: "Cluster | None", user_agent: str) -> "Client | None":
    """A client of a cluster, if there is one."""
    from tessera.kube.rest.client import Client

    return Client(cluster, user_agent=user_agent) if cluster else None


def _folder(name: str, default: str, text: str) -> Callable[[_Function], _Function]:
    variable = f"TESSERA_{name.upper().replace('-', '_')}"
    return click.option(
        f"--{name}", type=click.Path(path_type=Path), default=Path(default), envvar=variable, show_envvar=True,
        show_default=True, metavar="DIR", help=text,
    )  # fmt: skip


def node_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of a node's program; it gets a `NodeChoice` called `node`."""

    @click.option("--config", "config_file", required=True, metavar="FILE", envvar="TESSERA_CONFIG", show_envvar=True,
                  shell_complete=completing.files, help="The configuration of the devices (`-`: standard input).")  # fmt: skip
    @click.option("--node-name", metavar="NAME", envvar=["TESSERA_NODE_NAME", "NODE_NAME"], show_envvar=True,
                  help="The node's name; default: the host's.")  # fmt: skip
    @_folder("kubelet-dir", "/var/lib/kubelet", "The kubelet's folder.")
    @_folder("cdi-dir", "/var/run/cdi", "The folder for CDI specs.")
    @_folder(
        "state-dir",
        "/var/lib/tessera",
        "The folder for state that survives restarts; the same path here and on the host.",
    )
    @_folder("host-root", "/", "Where the host's files are mounted.")
    @click.option("--layout", "layout_file", type=click.Path(path_type=Path), metavar="FILE", envvar="TESSERA_LAYOUT",
                  show_envvar=True, help="Read the MIG layout from this file, not from the node's annotation.")  # fmt: skip
    @process_options
    @wraps(command)
    def with_node(
        config_file: str,
        node_name: str | None,
        kubelet_dir: Path,
        cdi_dir: Path,
        state_dir: Path,
        host_root: Path,
        layout_file: Path | None,
        process: ProcessChoice,
        **more: Any,
    ) -> Any:
        from tessera.node.assembly import Settings

        settings = Settings(
            node=node_name or socket.gethostname(),
            kubelet_dir=kubelet_dir,
            cdi_dir=cdi_dir,
            state_dir=state_dir,
            host_root=host_root,
            layout_file=layout_file,
        )
        return command(node=NodeChoice(config_file, settings, process), **more)

    return with_node
