"""Options that several commands have: times, and those of a program that runs until it is told to stop."""

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from tessera.cli.common.cluster import ClusterChoice, cluster_options

if TYPE_CHECKING:
    from tessera.serving.http.server import Server

F = TypeVar("F", bound=Callable[..., Any])
_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_PART: Final = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)([smhd]?)", re.ASCII)


def env_option(*names: str, **settings: Any) -> Callable[[F], F]:
    """An option that can also be given in the environment: `--tls-cert` as `TESSERA_TLS_CERT`."""
    variable = "TESSERA_" + names[0].removeprefix("--").replace("-", "_").upper()
    return click.option(*names, envvar=variable, show_envvar=True, show_default=True, **settings)


def log_options(command: F) -> F:
    """How a program that runs until it is told to stop writes its log."""
    level = click.Choice(["debug", "info", "warning", "error"])
    command = env_option("--log-level", type=level, default="info", help="The lowest level that is logged.")(
        command
    )
    form, words = click.Choice(["auto", "json", "text"]), "`auto`: text on a terminal, JSON elsewhere."
    return env_option("--log-format", type=form, default="auto", help=words)(command)


_PROCESS_OPTIONS: Final = (
    env_option("--metrics-listen", metavar="[HOST]:PORT", help="Serve /metrics, /livez and /readyz there."),
    cluster_options,
    log_options,
)


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


@dataclass(frozen=True, slots=True)
class ProcessChoice:
    """What a person said about a program that runs until it is told to stop."""

    metrics_listen: str | None
    cluster: ClusterChoice
    log_format: str
    log_level: str

    def run(self, work: "Callable[[], Coroutine[Any, Any, None]]") -> int:
        """Work with logs set up until a signal, and then leave in good order."""
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


def process_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command these options; it gets a `ProcessChoice` called `process`."""

    @wraps(command)
    def with_process(
        metrics_listen: str | None, cluster: ClusterChoice, log_format: str, log_level: str, **more: Any
    ) -> Any:
        from tessera.serving.address import Address

        if metrics_listen:
            Address.parse(metrics_listen)  # an error in it is reported before anything begins
        return command(process=ProcessChoice(metrics_listen, cluster, log_format, log_level), **more)

    chosen: Callable[..., Any] = with_process
    for option in reversed(_PROCESS_OPTIONS):
        chosen = option(chosen)
    return chosen
