"""`tessera dashboard`: a cluster's GPUs in the browser."""

import asyncio
from contextlib import nullcontext
from functools import partial

import click

from tessera.cli.admit.explanation import explainer
from tessera.cli.common.cluster import ClusterChoice, cluster_options, policy_options
from tessera.cli.common.options import Listen, env_option
from tessera.cli.why import explained
from tessera.dashboard.board import Board
from tessera.dashboard.server import serve_dashboard, serve_metrics
from tessera.kube.view.live import LiveView
from tessera.kube.view.policy import PolicySource
from tessera.serving.address import Address
from tessera.serving.ending import run_until_signalled

PORT = 8765  # where nothing usual listens


@click.command()
@cluster_options
@env_option(
    "--port", "The dashboard's port; 0 takes any free one.", type=click.IntRange(0, 65535), default=PORT
)
@env_option(
    "--address ADDRESS",
    "The address to listen on. The dashboard has no password: beyond loopback, put an authenticating proxy in front of it.",
    default="127.0.0.1",
)
@env_option(
    "--allow-host NAME",
    "Also answer requests for this name, besides 127.0.0.1 and localhost. Repeatable.",
    "names",
    multiple=True,
)
@policy_options(env_option)
@env_option(
    "--metrics-listen [HOST]:PORT", "Serve only /metrics there: device-seconds by namespace.", type=Listen()
)
def command(
    cluster: ClusterChoice,
    port: int,
    address: str,
    names: tuple[str, ...],
    metrics_listen: Address | None,
    decides_by: PolicySource,
) -> int:
    """Show a cluster's GPUs in the browser, live.

    All nodes at a glance, every node's cards as a mosaic of tiles and the pods that hold them, capacity and its history,
    admissions, pending pods and why, layout changes; and a form that explains the decision about a pod. The dashboard
    listens on 127.0.0.1 by default, loads nothing from other servers, and changes nothing in the cluster. ^C ends
    it.
    """

    async def serve() -> int:
        async with cluster.connected("tessera-dashboard") as client:
            at, source = client.cluster.endpoint, client.cluster.source
            board = Board(f"{at} ({source})" if source else str(at))
            view = LiveView(client, keep=None)  # explanations tell of all nodes
            explain = explainer(view.offers, partial(decides_by.read, client))
            why = explained(client, decides_by)
            where = Address(address, port)
            async with (
                view.following(),
                serve_dashboard(client, board, explain, where, names=names, why=why) as url,
                serve_metrics(board, metrics_listen) if metrics_listen else nullcontext(),
            ):
                click.echo(f"{url}  shows {at}; ^C ends it")
                await asyncio.Event().wait()
        return 0

    return run_until_signalled(serve())
