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
from tessera.cli.common.help import CONNECTION, GroupedOption
from tessera.core.errors import InvalidInput, InvalidInputs
from tessera.core.text import quoted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

    from tessera.kube.access.cluster import Cluster
    from tessera.kube.rest.client import Client
    from tessera.kube.view.policy import PolicySource

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)([smhd])", re.ASCII)
_PARTS: Final = re.compile(rf"(?:{_PART.pattern})+", re.ASCII)
# ten years: more than anybody waits, and a time that dates can be counted back by
_LONGEST: Final = 3650 * 86400.0


def option(declaration: str, text: str, name: str = "", **settings: Any) -> Callable[[F], F]:
    """An option such as `-n, --namespace NAME`; `name` is its parameter, where that is another.

    Without a value, a type and a default it is a flag. The shell completes a FILE. Help shows the default, and lists
    options of one `group` together.
    """
    *short, last = declaration.split(", ")
    long, _, metavar = last.partition(" ")
    settings = {"show_default": True, "cls": GroupedOption, **settings}
    if metavar:
        settings["metavar"] = metavar
    elif not settings.keys() & {"type", "default"}:
        settings["is_flag"] = True
    if "FILE" in metavar:
        settings.setdefault("shell_complete", completing.files)
    return click.option(*short, long, *filter(None, [name]), help=text, **settings)


def env_option(declaration: str, text: str, name: str = "", **settings: Any) -> Callable[[F], F]:
    """An option that the environment may give too: `--tls-cert` as `TESSERA_TLS_CERT`, `--tessera-namespace` as `TESSERA_NAMESPACE`."""
    long = declaration.rpartition("--")[2].partition(" ")[0].removeprefix("tessera-")
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
        declare(
            "--log-format",
            "`auto`: text on a terminal, JSON elsewhere.",
            type=forms,
            default="auto",
            group="Logs",
        ),
        declare("--log-level", "The lowest level that is logged.", type=levels, default="info", group="Logs"),
    )


def selector_option(text: str, **settings: Any) -> Callable[[F], F]:
    """`-l`, a selector of nodes; its text is empty where all are meant."""
    return option("-l, --selector SELECTOR", text, default="", show_default=False, **settings)


def tessera_namespace_option(
    text: str = "Where Tessera is installed.",
    name: str = "",
    declare: "Callable[..., Callable[[Any], Any]]" = option,
    **settings: Any,
) -> Callable[[Any], Any]:
    """`--tessera-namespace`, which is never the namespace of the objects that a command works on."""
    settings = {"shell_complete": completing.namespaces, "group": "Tessera", **settings}
    return declare("--tessera-namespace NAME", text, name, **settings)


def webhook_name_option(
    text: str, name: str = "", declare: "Callable[..., Callable[[Any], Any]]" = option
) -> Callable[[Any], Any]:
    """`--webhook-name`, the webhook's Deployment."""
    return declare("--webhook-name NAME", text, name, default="gpu-webhook", group="Tessera")


def webhook_configuration_option(
    declare: "Callable[..., Callable[[Any], Any]]" = option, name: str = ""
) -> Callable[[Any], Any]:
    """`--webhook-configuration`, the object by which API servers find the webhook."""
    text = "The MutatingWebhookConfiguration, which has the authority in its caBundle."
    default = "gpu-allocation-webhook"
    return declare("--webhook-configuration NAME", text, name, default=default, group="Tessera")


class Duration(click.ParamType[float]):
    """A duration such as `5m`, in seconds. It must not be zero, unless `may_be_zero`."""

    name = "duration"

    def __init__(self, *, may_be_zero: bool = False) -> None:
        self._may_be_zero = may_be_zero

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> float:
        parts = _PART.findall(value) if _PARTS.fullmatch(value) else []
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
        if not parts or (seconds == 0 and not self._may_be_zero):
            self.fail(f"{quoted(value)} is not a duration such as 30s, 5m, 1h30m or 14d", param, ctx)
        if seconds > _LONGEST:
            self.fail(f"{quoted(value)} is more than 3650d", param, ctx)
        return seconds


class WholeNumber(click.IntRange):
    """A number of things, within bounds; an error calls it so."""

    name = "whole number"


class Listen(click.ParamType[Any]):
    """An address to listen on; the command gets an `Address`, and None for `none` or an empty text."""

    name = "address"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from tessera.serving.address import Address

        try:
            return None if value in ("", "none") else Address.parse(value)
        except InvalidInput as error:
            self.fail(str(error), param, ctx)


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

        if self.groups and not self.user:
            raise InvalidInput("--as-group is a group of the user that --as names: give --as USER as well")
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
        group=CONNECTION,
    ),
    option(
        "--context NAME",
        "The kubeconfig's context.  [default: the current one]",
        shell_complete=completing.contexts,
        group=CONNECTION,
    ),
    option("--as USER", "Act as this user, as kubectl does (impersonation).", "user", group=CONNECTION),
    option(
        "--as-group GROUP",
        "With --as: a group of the user. Repeatable.",
        "groups",
        multiple=True,
        group=CONNECTION,
    ),
)


def _source(config_file: str | None, tessera_namespace: str, webhook_name: str) -> "PolicySource":
    from tessera.kube.object_files import called
    from tessera.kube.view.policy import PolicySource, UsedPolicy
    from tessera.protocol.configuration import webhook as configuration

    given = None
    if config_file:
        given = UsedPolicy(read_parsed(config_file, configuration.parse).policy, called(config_file))
    return PolicySource(tessera_namespace, webhook_name, given)


def policy_options(declare: Callable[..., Callable[[Any], Any]] = option) -> Callable[[Any], Any]:
    """Give a command `--config` and what names the installed webhook; it gets a `PolicySource` as `decides_by`."""
    file = "Decide with this configuration.  [default: the one that the webhook is installed with]"
    name = "The webhook's Deployment. Without the right to read it: its ConfigMap."
    return gathered(
        "decides_by",
        _source,
        declare("--config FILE", file, "config_file", group="Tessera"),
        tessera_namespace_option(declare=declare, default="gpu-webhook"),
        webhook_name_option(name, declare=declare),
    )
