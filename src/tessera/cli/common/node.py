"""What the programs on a node share: the options that say where things are, and the devices that they find."""

import asyncio
import socket
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import click

from tessera.cli.common.options import env_option, gathered, read_parsed
from tessera.cli.common.process import ProcessChoice, process_options
from tessera.core.devices.device import Device
from tessera.node.assembly import Settings, node_sources
from tessera.node.metrics import NodeMetrics
from tessera.protocol.configuration import devices as device_config

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
    return env_option(f"--{name} DIR", text, type=_PATH, default=Path(default))


_settings_options: Final = gathered(
    "settings",
    Settings,
    env_option(
        "--node-name NAME",
        "The node's name; default: the host's.",
        "node",
        envvar=["TESSERA_NODE_NAME", "NODE_NAME"],
        callback=lambda _ctx, _param, name: name or socket.gethostname(),
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
