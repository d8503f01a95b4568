"""The options of a program that runs until it is told to stop: where it is watched, its cluster, its log."""

from collections.abc import Callable
from typing import Any, Final

import click

from tessera.cli.common.cluster import cluster_options

_OPTIONS: Final = (
    click.option("--metrics-listen", metavar="[HOST]:PORT", envvar="TESSERA_METRICS_LISTEN", show_envvar=True,
                 help="Serve /metrics, /livez and /readyz there."),
    cluster_options,
    click.option("--log-format", type=click.Choice(["auto", "json", "text"]), default="auto", envvar="TESSERA_LOG_FORMAT",
                 show_envvar=True, show_default=True, help="`auto`: text on a terminal, JSON elsewhere."),
    click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info",
                 envvar="TESSERA_LOG_LEVEL", show_envvar=True, show_default=True),
)  # fmt: skip


def process_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command these options; it gets `metrics_listen`, `cluster`, `log_format` and `log_level`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
