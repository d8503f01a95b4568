"""`tessera dashboard`: a cluster's GPUs in the browser."""

import asyncio
from contextlib import nullcontext

import click

from tessera.cli.admit_explanation import explainer
from tessera.cli.common.exit_codes import ExitCode
from tessera.cli.common.help import Command
from tessera.cli.common.options import (
    NO_CLUSTER,
    ClusterChoice,
    Listen,
    WholeNumber,
    cluster_options,
    env_option,
    policy_options,
)
from tessera.cli.common.output import echo
from tessera.cli.common.reading import files_option
from tessera.cli.why import explained
from tessera.core.errors import InvalidInput
from tessera.dashboard.board import Board
from tessera.dashboard.following import show_objects
from tessera.dashboard.reasons import asking
from tessera.dashboard.server import serve_dashboard, serve_metrics
from tessera.kube.object_files import called, objects_in
from tessera.kube.view.files import DescribedCluster
from tessera.kube.view.live import LiveView
from tessera.kube.view.policy import PolicySource, UsedPolicy
from tessera.serving.address import Address
from tessera.serving.ending import run_until_signalled

PORT = 8765  # where nothing usual listens


@click.command(cls=Command)
@cluster_options
@env_option(
    "--port PORT",
    "The dashboard's port; 0 takes any free one.",
    type=WholeNumber(0, 65535),
    default=PORT,
    group="Serving",
)
@env_option(
    "--address ADDRESS",
    "The address to listen on. The dashboard has no password: beyond loopback, put an authenticating proxy in front of it.",
    default="127.0.0.1",
    group="Serving",
)
@env_option(
    "--allow-host NAME",
    "Also answer requests for this name, besides 127.0.0.1 and localhost. Repeatable.",
    "names",
    multiple=True,
    group="Serving",
)
@policy_options(env_option)
@env_option(
    "--metrics-listen [HOST]:PORT",
    "Serve only /metrics there: device-seconds by namespace.",
    type=Listen(),
    group="Serving",
)
@files_option()
def command(
    cluster: ClusterChoice,
    port: int,
    address: str,
    names: tuple[str, ...],
    metrics_listen: Address | None,
    sources: tuple[str, ...],
    decides_by: PolicySource,
) -> ExitCode:
    """Show a cluster's GPUs in the browser, live.

    All nodes at a glance, every node's cards as a mosaic of tiles and the pods that hold them, capacity and its history,
    admissions, pending pods and why, layout changes; and a form that explains the decision about a pod. The dashboard
    listens on 127.0.0.1 by default, loads nothing from other servers, and changes nothing in the cluster. ^C ends
    it.

    \b
    Examples:
      tessera dashboard
      kubectl get nodes,pods -A -o json | tessera dashboard --from -
    """
    if sources and (cluster != NO_CLUSTER or metrics_listen):
        what = "--kubeconfig, --context, --as or --metrics-listen"
        raise click.UsageError(f"--from reads files: it does not go with {what}")
    found = list(objects_in(sources))
    if sources and not any(one.kind in ("Node", "Pod") for one in found):
        raise InvalidInput(f"{called(*sources)}: no nodes and no pods")

    async def serve_files() -> ExitCode:
        board, described = Board(called(*sources)), DescribedCluster(found, others=True)
        show_objects(board, found)

        used = decides_by.among(described.config_maps)

        async def policy() -> UsedPolicy:
            return used

        explain = explainer(described.offers_for(used.policy.fallback), policy)
        described.dra.log_class_errors()
        async with serve_dashboard(None, board, explain, Address(address, port), names=names) as url:
            echo([f"{url}  shows {called(*sources)}; ^C ends it"])
            await asyncio.Event().wait()
        return ExitCode.DONE

    async def serve() -> ExitCode:
        async with cluster.connected("tessera-dashboard") as client:
            at, source = client.cluster.endpoint, client.cluster.source
            board = Board(f"{at} ({source})" if source else str(at))
            view = LiveView(client, keep=None)  # explanations are about all nodes

            async def policy() -> UsedPolicy:
                used = await decides_by.read(client)
                view.configure(used.policy.fallback)
                return used

            await policy()
            explain = explainer(view.offers, policy)
            why, ask = explained(client, decides_by), asking(client, decides_by)
            where = Address(address, port)
            async with (
                view.following(),
                serve_dashboard(client, board, explain, where, names=names, why=why, ask=ask) as url,
                serve_metrics(board, metrics_listen) if metrics_listen else nullcontext(),
            ):
                echo([f"{url}  shows {at}; ^C ends it"])
                await asyncio.Event().wait()
        return ExitCode.DONE

    return ExitCode(run_until_signalled(serve_files() if sources else serve()))
