"""`tessera demo --serve`: the embedded cluster on a page, with the stories and after them."""

import asyncio
import sys
from typing import Final

import click

from tessera.cli.admit.explanation import explainer
from tessera.cli.common.terminal import Style
from tessera.cli.demo.command import Pace, tell_all
from tessera.cli.why import explained
from tessera.dashboard.board import Board
from tessera.dashboard.server import HOST, serve_dashboard
from tessera.protocol.configuration import webhook as config
from tessera.serving.address import Address
from tessera.simulation.embedded import Embedded, embedded
from tessera.simulation.node.descriptions import NodeSpec, known_nodes
from tessera.simulation.stories.stage import Stage
from tessera.simulation.stories.story import Story
from tessera.simulation.stories.table import SOME_PODS

_ABOUT: Final = "the embedded cluster of tessera demo"


async def serve_demo(stories: list[Story], pace: Pace, port: int, own: dict[str, NodeSpec] | None) -> int:
    """Stories while a page shows them; then nodes and pods to look at, until it is interrupted."""
    configuration = config.parse(config.EXAMPLE)
    board = Board(_ABOUT, all_admissions=True)
    nodes = {**known_nodes(), **(own or {})}
    bold = Style.of(sys.stdout).bold
    async with (
        embedded(nodes, configuration, on_admission=board.admitted) as cluster,
        cluster.cluster.client() as client,
        serve_dashboard(
            client,
            board,
            explainer(cluster.view.offers, configuration.policy),
            Address(HOST, port),
            denials=False,
            why=explained(client, configuration.policy),
        ) as url,
    ):
        click.echo(f"{bold(url)}  shows the cluster\n")
        stage = Stage(client, cluster)
        if stories:
            await tell_all(stories, stage, pace)
        await cluster.have(tuple(own or nodes))
        await _equipped(cluster, stage)
        for pod in () if own else SOME_PODS:
            await stage.create(pod)
        click.echo(f"\n{bold(url)}  keeps showing it, with all nodes; ^C ends it")
        click.echo(f"export KUBECONFIG={cluster.kubeconfig}  connects kubectl and tessera to it")
        await asyncio.Event().wait()
    return 0


async def _equipped(cluster: Embedded, stage: Stage) -> None:
    """Wait until every node offers some of its devices, and the webhook knows."""
    nodes = [node for node in cluster.cluster.nodes.values() if node.spec.devices]
    listed = {device.resource for node in nodes if node.spec.devices for device in node.spec.devices.static}
    await stage.until(
        lambda: stage.offers([node.name for node in nodes], listed),
        lambda found: all(any(has.values()) for has in found.values()),
    )
    await cluster.settled()
