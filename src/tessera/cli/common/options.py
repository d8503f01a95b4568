"""Options, declared as `--help` shows them, those that several commands have, and what they name.

That is the cluster that a command talks to, the configuration to decide with, and files.
"""

import inspect
import re
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from tessera.cli.common import completing
from tessera.core.errors import InvalidInputs
from tessera.core.text import quoted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

    from tessera.kube.access.cluster import Cluster
    from tessera.kube.rest.client import Client
    from tessera.kube.view.policy import PolicySource

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)", re.ASCII)
_PARTS: Final = re.compile(r"(?:\d+(?:\.\d+)?[smhd])*(?:\d+(?:\.\d+)?)?", re.ASCII)  # without a unit: seconds
# ten years: more than anybody waits, and a time that dates can be counted back by
_LONGEST: Final = 3650 * 86400.0


def option(declaration: str, text: str, name: str = "", **settings: Any) -> Callable[[F], F]:
    """An option such as `-n, --namespace NAME`; `name` is its parameter, where that is another.

    Without a value, a type and a default it is a flag. The shell completes a FILE. Help shows the default.
    """
    *short, last = declaration.split(", ")
    long, _, metavar = last.partition(" ")
    settings = {"show_default": True, **settings}
    if metavar:
        settings["metavar"] = metavar
    elif not settings.keys() & {"type", "default"}:
        settings["is_flag"] = True
    if "FILE" in metavar:
        settings.setdefault("shell_complete", completing.files)
    return click.option(*short, long, *filter(None, [name]), help=text, **settings)


def env_option(declaration: str, text: str, name: str = "", **settings: Any) -> Callable[[F], F]:
    """An option that the environment may give too: `--tls-cert` as `TESSERA_TLS_CERT`."""
    long = declaration.rpartition("--")[2].partition(" ")[0]
    variable = "TESSERA_" + long.replace("-", "_").upper()
    return option(declaration, text, name, **{"envvar": variable, "show_envvar": True, **settings})


def together(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Several options as one decorator; help lists them in this order."""

    def decorate(command: F) -> F:
        for one in reversed(options):
            command = one(command)
        return command

    return decorate


def gathered(name: str, make: Callable[..., Any], *options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Several options that a command gets as one argument: what `make` makes of those that it takes."""
    taken = inspect.signature(make).parameters

    def decorate(command: Any) -> Any:
        @wraps(command)
        def with_one(**given: Any) -> Any:
            made = make(**{each: given.pop(each) for each in taken if each in given})
            return command(**given, **{name: made})

        return together(*options)(with_one)

    return decorate


def log_options(declare: Callable[..., Callable[[Any], Any]] = env_option) -> Callable[[F], F]:
    """How a program that runs until a signal stops it writes its log."""
    forms = click.Choice(["auto", "json", "text"])
    levels = click.Choice(["debug", "info", "warning", "error"])
    return together(
        declare("--log-format", "`auto`: text on a terminal, JSON elsewhere.", type=forms, default="auto"),
        declare("--log-level", "The lowest level that is logged.", type=levels, default="info"),
    )


def selector_option(text: str) -> Callable[[F], F]:
    """`-l`, a selector of nodes; its text is empty where all are meant."""
    return option("-l, --selector SELECTOR", text, default="", show_default=False)


class Duration(click.ParamType[float]):
    """A time such as `5m`, in seconds; more than none."""

    name = "duration"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = value.strip()
        parts = _PART.findall(text) if _PARTS.fullmatch(text) else []
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
        if seconds <= 0:
            self.fail(f"{quoted(text)} is not a time such as 90s, 5m or 1h30m", param, ctx)
        if seconds > _LONGEST:
            self.fail(f"{quoted(text)} is more than 3650d", param, ctx)
        return seconds


class Seconds(click.FloatRange):
    """A number of seconds, also 0."""

    def __init__(self) -> None:
        super().__init__(0)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds: float = super().convert(value, param, ctx)
        if not seconds <= _LONGEST:  # nor `nan`
            self.fail(f"{value} is not in the range 0<=x<={_LONGEST:.0f}.", param, ctx)
        return seconds


class Listen(click.ParamType[Any]):
    """An address to listen on; the command gets an `Address`, and None for `none` or an empty text."""

    name = "address"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from tessera.serving.address import Address

        return None if value in ("", "none") else Address.parse(value)


def read_parsed(path: str, parse: Callable[[bytes, str], T]) -> T:
    """What `parse` reads in a file; it reports all errors at once, each with the file's name in front."""
    from tessera.kube.object_files import called, read_file

    try:
        return parse(read_file(path), called(path))
    except InvalidInputs as error:
        raise InvalidInputs(f"{called(path)}: {one}" for one in error.errors) from error


@dataclass(frozen=True, slots=True)
class ClusterChoice:
    """Which cluster the options name; without any, the one that kubectl would take."""

    kubeconfig: str | None = None
    context: str | None = None
    user: str | None = None  # to act as
    groups: tuple[str, ...] = ()  # of that user

    def find(self) -> "Cluster":
        """Where that cluster is and how to get in."""
        from tessera.kube.access.cluster import impersonation
        from tessera.kube.access.kubeconfig import find_cluster

        cluster = find_cluster(self.kubeconfig, self.context)
        headers = impersonation(self.user or "", self.groups, "--as")
        return replace(cluster, headers=headers) if headers else cluster

    @asynccontextmanager
    async def connected(self, user_agent: str = "tessera") -> "AsyncIterator[Client]":
        """A client of that cluster; where the cluster cannot be reached, the error names it."""
        from tessera.kube.errors import Unreachable
        from tessera.kube.rest.client import Client

        cluster = self.find()
        async with Client(cluster, user_agent=user_agent) as client:
            try:
                yield client
            except Unreachable as error:
                why = f"cannot reach the cluster ({cluster.source}): {error}"
                raise Unreachable(error.kind, why) from error

    def run(self, work: "Callable[[Client], Awaitable[T]]") -> T:
        """Connect, do the work, and disconnect."""
        import asyncio
        import logging

        # commands report errors themselves; without a handler, Python would print the library's warnings too
        logger = logging.getLogger("tessera.kube")
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())

        async def with_client() -> T:
            async with self.connected() as client:
                return await work(client)

        return asyncio.run(with_client())


NO_CLUSTER: Final = ClusterChoice()

cluster_options: Final = gathered(
    "cluster",
    ClusterChoice,
    option(
        "--kubeconfig FILE",
        "The kubeconfig.  [default: $KUBECONFIG, ~/.kube/config, or the pod's own cluster]",
    ),
    option(
        "--context NAME",
        "The kubeconfig's context.  [default: the current one]",
        shell_complete=completing.contexts,
    ),
    option("--as USER", "Act as this user, as kubectl does (impersonation).", "user"),
    option("--as-group GROUP", "With --as: a group of the user. Repeatable.", "groups", multiple=True),
)


def _source(config_file: str | None, webhook_namespace: str, webhook_name: str) -> "PolicySource":
    from tessera.kube.object_files import called
    from tessera.kube.view.policy import PolicySource, UsedPolicy
    from tessera.protocol.configuration import webhook as configuration

    given = None
    if config_file:
        given = UsedPolicy(read_parsed(config_file, configuration.parse).policy, called(config_file))
    return PolicySource(webhook_namespace, webhook_name, given)


def policy_options(
    declare: Callable[..., Callable[[Any], Any]] = option, where: str = "Where the webhook is installed."
) -> Callable[[Any], Any]:
    """Give a command `--config` and what names the installed webhook; it gets a `PolicySource` as `decides_by`."""
    file = "Decide with this configuration.  [default: the one that the webhook is installed with]"
    name = "The webhook's Deployment, or its ConfigMap."
    return gathered(
        "decides_by",
        _source,
        declare("--config FILE", file, "config_file"),
        declare("--webhook-namespace", where, default="gpu-webhook"),
        declare("--webhook-name", name, default="gpu-webhook"),
    )
