"""Programs that run until they are told to stop: their options, and those of a program on a node."""

import asyncio
import contextlib
import logging
import socket
import tempfile
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tessera.cli.common.cluster import ClusterChoice, cluster_options
from tessera.cli.common.options import env_option, gathered, log_options, read_parsed

if TYPE_CHECKING:
    from tessera.core.devices.device import Device
    from tessera.node.assembly import Settings
    from tessera.node.metrics import NodeMetrics
    from tessera.protocol.configuration.devices import DeviceConfiguration
    from tessera.serving.http.server import Server

_PATH: Final = click.Path(path_type=Path)


@dataclass(frozen=True, slots=True)
class ProcessChoice:
    """What the options say about such a program."""

    metrics_listen: str | None
    cluster: ClusterChoice
    log_format: str
    log_level: str

    def __post_init__(self) -> None:
        """An error in the address is reported before anything begins."""
        from tessera.serving.address import Address

        if self.metrics_listen:
            Address.parse(self.metrics_listen)

    def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> int:
        """Work with logs set up until a signal comes, and then leave in good order."""
        from tessera.serving.ending import Signalled, until_signalled
        from tessera.serving.logs import Log, choose, forwarding

        with forwarding(Log(choose(self.log_format), self.log_level)), contextlib.suppress(Signalled):
            asyncio.run(until_signalled(work()))
        return 0

    async def serve(self, server: "Server", work: Coroutine[Any, Any, None], log: logging.Logger) -> None:
        """Answer probes and scrapes, if that is wanted, for as long as the work goes on."""
        from tessera.serving.address import Address

        try:
            if self.metrics_listen:
                taken = await server.start(Address.parse(self.metrics_listen))
                log.info("probes and metrics at %s", taken)
            await work
        finally:
            work.close()
            await server.stop()


@dataclass(frozen=True, slots=True)
class NodeChoice:
    """What the options say about a node and its surroundings."""

    config_file: str
    settings: "Settings"
    process: ProcessChoice

    def configuration(self) -> "DeviceConfiguration":
        """The devices' configuration, read and checked."""
        from tessera.protocol.configuration import devices as device_config

        return read_parsed(self.config_file, device_config.parse)

    def devices(self, metrics: "NodeMetrics") -> "list[Device]":
        """What the sources report now; nothing is written."""
        from tessera.node.assembly import node_sources

        async def read(folder: str) -> "list[Device]":
            settings = replace(self.settings, state_dir=Path(folder))
            devices, _ = await node_sources(self.configuration(), settings, metrics).ask()
            return devices

        with tempfile.TemporaryDirectory() as folder:
            return asyncio.run(read(folder))


def _node(
    config_file: str,
    node_name: str | None,
    kubelet_dir: Path,
    cdi_dir: Path,
    state_dir: Path,
    host_root: Path,
    layout_file: Path | None,
    process: ProcessChoice,
) -> NodeChoice:
    from tessera.node.assembly import Settings

    name = node_name or socket.gethostname()
    settings = Settings(name, kubelet_dir, cdi_dir, state_dir, host_root, layout_file)
    return NodeChoice(config_file, settings, process)


def _folder(name: str, default: str, help: str) -> Callable[[Any], Any]:  # noqa: A002 # as click has it
    return env_option(f"--{name} DIR", help, type=_PATH, default=Path(default))


process_options: Final = gathered(
    "process",
    ProcessChoice,
    env_option("--metrics-listen [HOST]:PORT", "Serve /metrics, /livez and /readyz there."),
    cluster_options,
    log_options(),
)
node_options: Final = gathered(
    "node",
    _node,
    env_option(
        "--config FILE",
        "The configuration of the devices (`-`: standard input).",
        "config_file",
        required=True,
    ),
    env_option(
        "--node-name NAME", "The node's name; default: the host's.", envvar=["TESSERA_NODE_NAME", "NODE_NAME"]
    ),
    _folder("kubelet-dir", "/var/lib/kubelet", "The kubelet's folder."),
    _folder("cdi-dir", "/var/run/cdi", "The folder for CDI specs."),
    _folder(
        "state-dir",
        "/var/lib/tessera",
        "The folder for state that survives restarts; the same path here and on the host.",
    ),
    _folder("host-root", "/", "Where the host's files are mounted."),
    env_option(
        "--layout FILE",
        "Read the MIG layout from this file, not from the node's annotation.",
        "layout_file",
        type=_PATH,
    ),
    process_options,
)
