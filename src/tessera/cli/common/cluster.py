"""The cluster that a command talks to: the options that say which, and a client of it; and the configuration to decide with."""

import logging
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tessera.cli.common import completing
from tessera.cli.common.options import gathered, option, read_parsed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tessera.kube.access.cluster import Cluster
    from tessera.kube.rest.client import Client
    from tessera.kube.view.policy import PolicySource

T = TypeVar("T")


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
    declare: "Callable[..., Callable[[Any], Any]]" = option, where: str = "Where the webhook is installed."
) -> "Callable[[Any], Any]":
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
