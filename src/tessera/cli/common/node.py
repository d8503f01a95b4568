"""What the programs on a node share: the options that say where things are, and the devices that they find.

Programs that run until a signal stops them: their options, and how they run.
"""

import asyncio
import contextlib
import logging
import socket
import tempfile
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import click

from tessera.cli.common.options import (
    ClusterChoice,
    Listen,
    cluster_options,
    env_option,
    gathered,
    log_options,
    read_parsed,
)
from tessera.core.devices.device import Device
from tessera.node.assembly import Settings, node_sources
from tessera.node.metrics import NodeMetrics
from tessera.protocol.configuration import devices as device_config
from tessera.serving.address import Address
from tessera.serving.ending import Signalled, until_signalled
from tessera.serving.http_server import health_server
from tessera.serving.logs import Log, choose, forwarding
from tessera.serving.metrics import Family


@dataclass(frozen=True, slots=True)
class ProcessChoice:
    """What the options say about such a program."""

    metrics_listen: Address | None
    cluster: ClusterChoice
    log_format: str
    log_level: str

    def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Work with logs set up until a signal comes, and then leave in good order."""
        with forwarding(Log(choose(self.log_format), self.log_level)), contextlib.suppress(Signalled):
            asyncio.run(until_signalled(work()))

    async def serve(
        self,
        work: Coroutine[Any, Any, None],
        families: Callable[[], Iterable[Family]],
        health: Any,  # has `alive` and `ready`
        log: logging.Logger,
    ) -> None:
        """Answer probes and scrapes, if that is wanted, for as long as the work goes on."""
        server = health_server(families, lambda: health.alive, lambda: health.ready)
        try:
            if self.metrics_listen:
                taken = await server.start(self.metrics_listen)
                log.info("probes and metrics at %s", taken)
            await work
        finally:
            work.close()
            await server.stop()


process_options: Final = gathered(
    "process",
    ProcessChoice,
    env_option(
        "--metrics-listen [HOST]:PORT",
        "Serve /metrics, /livez and /readyz there.",
        type=Listen(),
        group="Serving",
    ),
    cluster_options,
    log_options(),
)


_PATH: Final = click.Path(path_type=Path)


@dataclass(frozen=True, slots=True)
class NodeChoice:
    """What the options say about a node and its surroundings."""

    config_file: str
    settings: Settings
    process: ProcessChoice

    def configuration(self) -> device_config.DeviceConfiguration:
        """The devices' configuration, read and checked."""
        return read_parsed(self.config_file, device_config.parse)

    def devices(self, metrics: NodeMetrics) -> list[Device]:
        """What the sources report now; nothing is written."""

        async def read(folder: str) -> list[Device]:
            settings = replace(self.settings, state_dir=Path(folder))
            sources = node_sources(self.configuration(), settings, metrics, read_only=True)
            devices, _ = await sources.ask()
            return devices

        with tempfile.TemporaryDirectory() as folder:
            return asyncio.run(read(folder))


def _folder(name: str, default: str, text: str) -> Callable[[Any], Any]:
    return env_option(f"--{name} DIR", text, type=_PATH, default=Path(default), group="Node")


_settings_options: Final = gathered(
    "settings",
    Settings,
    env_option(
        "--node-name NAME",
        "The node's name.  [default: the host's]",
        "node",
        envvar=["TESSERA_NODE_NAME", "NODE_NAME"],
        callback=lambda _ctx, _param, name: name or socket.gethostname(),
        group="Node",
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
        group="Node",
    ),
)
node_options: Final = gathered(
    "node",
    NodeChoice,
    env_option(
        "--config FILE",
        "The configuration of the devices (`-`: standard input).",
        "config_file",
        required=True,
    ),
    _settings_options,
    process_options,
)
