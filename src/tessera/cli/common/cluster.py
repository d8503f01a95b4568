"""The cluster that a command talks to: the options that say which, and the way there."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tessera.cli.common import completing

if TYPE_CHECKING:
    from tessera.kube.access.cluster import Cluster
    from tessera.kube.rest.client import Client

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class ClusterChoice:
    """Which cluster a person means; without a word, the one that kubectl would take."""

    kubeconfig: str | None = None
    context: str | None = None
    user: str | None = None  # to act as
    groups: tuple[str, ...] = ()  # of that user

    def find(self) -> "Cluster":
        """Where that cluster is and how to get in."""
        from tessera.kube.access.choice import find_cluster
        from tessera.kube.access.cluster import impersonation

        cluster = find_cluster(self.kubeconfig, self.context)
        headers = impersonation(self.user or "", self.groups, "--as")
        return replace(cluster, headers=headers) if headers else cluster

    @asynccontextmanager
    async def connected(self, user_agent: str = "tessera") -> "AsyncIterator[Client]":
        """A client of that cluster; errors on the way there name the cluster."""
        from tessera.kube.errors import Unreachable
        from tessera.kube.rest.client import Client

        cluster = self.find()
        async with Client(cluster, user_agent=user_agent) as client:
            try:
                yield client
            except Unreachable as error:
                raise Unreachable(
                    error.kind, f"cannot reach the cluster ({cluster.source}): {error}"
                ) from error

    def run(self, work: "Callable[[Client], Awaitable[T]]") -> T:
        """Do some work with a client of that cluster, from beginning to end."""
        import asyncio

        # what a person should know the commands say themselves; without a handler warnings would go to the terminal
        logger = logging.getLogger("tessera.kube")
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())

        async def with_client() -> T:
            async with self.connected() as client:
                return await work(client)

        return asyncio.run(with_client())


def selector_option(help: str) -> Callable[[F], F]:  # noqa: A002 # as click has it
    """Give a command `-l`, a selector of nodes; it gets its text as `selector`, empty where all are meant."""
    return click.option("-l", "--selector", default="", metavar="SELECTOR", help=help)


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `--kubeconfig`, `--context` and `--as`; it gets a `ClusterChoice` called `cluster`."""

    @click.option(
        "--kubeconfig",
        metavar="FILE",
        shell_complete=completing.files,
        help="The kubeconfig.  [default: $KUBECONFIG, ~/.kube/config, or the pod's own cluster]",
    )
    @click.option(
        "--context",
        metavar="NAME",
        shell_complete=completing.contexts,
        help="The kubeconfig's context.  [default: the current one]",
    )
    @click.option("--as", "user", metavar="USER", help="Act as this user, as kubectl does (impersonation).")
    @click.option(
        "--as-group",
        "groups",
        multiple=True,
        metavar="GROUP",
        help="With --as: a group of the user. Repeatable.",
    )
    @wraps(command)
    def with_cluster(
        *args: Any,
        kubeconfig: str | None,
        context: str | None,
        user: str | None,
        groups: tuple[str, ...],
        **more: Any,
    ) -> Any:
        return command(*args, cluster=ClusterChoice(kubeconfig, context, user, groups), **more)

    return with_cluster
