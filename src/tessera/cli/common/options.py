"""Options that several commands have: times, and what a program that runs until it is told to stop is given."""

import re
from collections.abc import Callable
from typing import Any, Final

import click

from tessera.cli.common.cluster import cluster_options

_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_PART: Final = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)([smhd]?)", re.ASCII)
_PROCESS_OPTIONS: Final = (
    click.option("--metrics-listen", metavar="[HOST]:PORT", envvar="TESSERA_METRICS_LISTEN", show_envvar=True,
                 help="Serve /metrics, /livez and /readyz there."),
    cluster_options,
    click.option("--log-format", type=click.Choice(["auto", "json", "text"]), default="auto", envvar="TESSERA_LOG_FORMAT",
                 show_envvar=True, show_default=True, help="`auto`: text on a terminal, JSON elsewhere."),
    click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info",
                 envvar="TESSERA_LOG_LEVEL", show_envvar=True, show_default=True),
)  # fmt: skip


class Duration(click.ParamType[float]):
    """Seconds, more than none."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read `5m`."""
        if isinstance(value, (int, float)):
            return float(value)
        text, seconds, position = str(value).strip(), 0.0, 0
        while match := _PART.match(text, position):
            seconds += float(match[1]) * _UNITS[match[2]]
            position = match.end()
        if position != len(text) or seconds <= 0:
            self.fail(f'"{text}" is not a time such as 90s, 5m or 1h30m', param, ctx)
        return seconds


def process_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command these options; it gets `metrics_listen`, `cluster`, `log_format` and `log_level`."""
    for option in reversed(_PROCESS_OPTIONS):
        command = option(command)
    return command
