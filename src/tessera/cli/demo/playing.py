"""The stories of `tessera demo`, played at the terminal; with `--serve` on the dashboard too, and the cluster after them."""

import asyncio
import shutil
import sys
import textwrap
import time
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Final

from tessera.cli.admit_explanation import explainer
from tessera.cli.common.exit_codes import ExitCode
from tessera.cli.common.output import Style, echo
from tessera.cli.demo.narrator import heading, narrate
from tessera.cli.why import explained
from tessera.dashboard.board import Board
from tessera.dashboard.reasons import asking
from tessera.dashboard.server import HOST, serve_dashboard
from tessera.kube.rest.client import path_of
from tessera.kube.view.policy import KEY, PolicySource
from tessera.protocol.configuration import webhook as config
from tessera.serving.address import Address
from tessera.simulation.cluster import EmbeddedCluster
from tessera.simulation.embedded import embedded
from tessera.simulation.node_descriptions import NodeSpec, known_nodes
from tessera.simulation.stories.scenes import NodesCame
from tessera.simulation.stories.stage import Stage
from tessera.simulation.stories.story import Story
from tessera.simulation.stories.table import CONFIGURATION, SOME_PODS

_WIDEST: Final = 100  # columns
_ABOUT: Final = "the embedded cluster of tessera demo"
_OPENING: Final = (
    "An embedded cluster. Its API server, scheduler and kubelets are stand-ins. The rest is what a real cluster would "
    "run: the webhook over HTTPS, a device plugin or DRA driver per node over gRPC, the controller, CDI specs in files."
)


@dataclass(frozen=True, slots=True)
class Pauses:
    """How long to wait for the person who reads."""

    step: float  # seconds
    story: float
    pause: bool  # until Enter is pressed


async def play_demo(stories: list[Story], pace: Pauses) -> ExitCode:
    """Play stories on a cluster of their own."""
    async with (
        embedded(known_nodes(), config.parse(CONFIGURATION)) as cluster,
        cluster.client() as client,
    ):
        return await _play_all(stories, Stage(client, cluster), pace)


async def serve_demo(
    stories: list[Story], pace: Pauses, port: int, own: dict[str, NodeSpec] | None
) -> ExitCode:
    """The same while the dashboard shows the cluster; then nodes and pods to look at, until interrupted."""
    configuration = config.parse(CONFIGURATION)
    decides_by = PolicySource()
    board = Board(_ABOUT, all_admissions=True)
    nodes = {**known_nodes(), **(own or {})}
    bold = Style.of(sys.stdout).bold
    async with (
        embedded(nodes, configuration, on_admission=board.admitted) as cluster,
        cluster.client() as client,
        serve_dashboard(
            client,
            board,
            explainer(cluster.view.offers, partial(decides_by.read, client)),
            Address(HOST, port),
            denials=False,
            why=explained(client, decides_by),
            ask=asking(client, decides_by),
        ) as url,
    ):
        installed = {"metadata": {"name": decides_by.name}, "data": {KEY: CONFIGURATION}}
        await client.create(path_of("v1", "configmaps", namespace=decides_by.namespace), installed)
        echo([f"{bold(url)}  shows the cluster", ""])
        stage = Stage(client, cluster)
        if stories:
            await _play_all(stories, stage, pace)
        await cluster.have(tuple(own or nodes))
        await _equipped(cluster, stage)
        for pod in () if own else SOME_PODS:
            await stage.create(pod)
        echo(["", f"{bold(url)}  keeps showing it, with all nodes; ^C ends it"])
        echo([f"export KUBECONFIG={cluster.kubeconfig}  connects kubectl and tessera to it"])
        await asyncio.Event().wait()
    return ExitCode.DONE


async def _equipped(cluster: EmbeddedCluster, stage: Stage) -> None:
    """Wait until every node offers some of its devices, and the webhook knows."""
    nodes = [node for node in cluster.nodes.values() if node.spec.devices]
    listed = {device.resource for node in nodes if node.spec.devices for device in node.spec.devices.static}
    await stage.until(
        lambda: stage.offers([node.name for node in nodes], listed),
        lambda found: all(any(has.values()) for has in found.values()),
    )
    await cluster.settled()


async def _play_all(stories: list[Story], stage: Stage, pace: Pauses) -> ExitCode:
    style, width = Style.of(sys.stdout), min(_WIDEST, shutil.get_terminal_size((_WIDEST, 24)).columns)
    began = time.monotonic()
    echo([*textwrap.wrap(_OPENING, width), ""])
    good = 0
    for number, story in enumerate(stories):
        good += await _play(story, stage, pace, style, width)
        if number + 1 < len(stories):
            await _wait(pace, style)
    last = f"{good} of {len(stories)} stories ended as expected, in {time.monotonic() - began:.0f} s."
    echo([(style.good if good == len(stories) else style.bad)(last)])
    return ExitCode.DONE if good == len(stories) else ExitCode.FAILED


async def _play(story: Story, stage: Stage, pace: Pauses, style: Style, width: int) -> bool:
    echo(heading(story, style, width))
    right, first = True, True
    async with aclosing(story.play(stage)) as scenes:
        async for _, scene in scenes:
            if isinstance(scene, NodesCame) and not first:
                echo([""])  # another cluster
            echo(narrate(scene, style, width))
            right, first = right and not scene.wrong, False
            await asyncio.sleep(pace.step)
    echo([style.good("  ✓ as expected") if right else style.bad("  ✗ not as expected"), ""])
    return right


async def _wait(pace: Pauses, style: Style) -> None:
    if not pace.pause:
        await asyncio.sleep(pace.story)
        return
    echo([style.dim("Enter: the next story")])
    loop = asyncio.get_running_loop()
    pressed = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), pressed.set)  # the cluster goes on running meanwhile
    try:
        await pressed.wait()
    finally:
        loop.remove_reader(sys.stdin.fileno())
    if not sys.stdin.readline():
        raise KeyboardInterrupt  # ^D means the same here
