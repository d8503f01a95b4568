"""`tessera demo`: what Tessera does, story by story, on an embedded cluster."""

import asyncio
import shutil
import sys
import textwrap
import time
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click

from tessera.cli.common import completing
from tessera.cli.common.options import option, read_parsed
from tessera.cli.common.terminal import Style, echo
from tessera.cli.dashboard import PORT

if TYPE_CHECKING:
    from tessera.simulation.stories.stage import Stage
    from tessera.simulation.stories.story import Story

_STEP_SECONDS: Final = 0.35  # for a person to read; a whole run takes half a minute
_STORY_SECONDS: Final = 1.2
_WIDEST: Final = 100  # columns

_OPENING: Final = (
    "An embedded cluster. Its API server, scheduler and kubelets are stand-ins. The rest is what a real cluster would "
    "run: the webhook over HTTPS, a device plugin or DRA driver per node over gRPC, the controller, CDI specs in files."
)


@dataclass(frozen=True, slots=True)
class Pace:
    """How long to wait for the person who reads."""

    step: float = 0.0
    story: float = 0.0
    pause: bool = False  # until Enter is pressed


def _stories() -> "tuple[Story, ...]":
    """The stories, where this installation has them."""
    try:
        from tessera.simulation.stories.table import STORIES
    except ModuleNotFoundError as error:
        raise click.UsageError(
            "the container image does not contain the embedded cluster; "
            "run `pipx install .` in a clone of the project, then `tessera demo`"
        ) from error
    return tuple(STORIES)


@click.command()
@option(
    "--story NAME",
    "Play only this story. Repeatable.",
    "names",
    multiple=True,
    shell_complete=completing.names(lambda: [story.name for story in _stories()]),
)
@option("--list", "List the stories.", "list_only")
@option("--pause", "Wait for Enter after each story.")
@option("--fast", "Do not pause for the reader.")
@option("--serve", "Show the cluster on the dashboard, and keep it running until ^C.")
@option(
    "--port",
    "The dashboard's port on 127.0.0.1; 0 takes any free port.",
    type=click.IntRange(0, 65535),
    default=PORT,
)
@option("--nodes FILE", "With --serve: your own nodes, and no stories unless named.", "nodes_file")
def command(
    names: tuple[str, ...],
    list_only: bool,
    pause: bool,
    fast: bool,
    serve: bool,
    port: int,
    nodes_file: str | None,
) -> int:
    """See what Tessera does, story by story.

    The demo starts an embedded cluster in this process: stand-ins for API server, scheduler and kubelets, with
    the webhook, the controller, device plugins and DRA drivers of a real cluster. It touches nothing outside the process
    and leaves nothing behind.
    Exit code 0 only if every story ended as expected.
    """
    stories = _stories()
    known = {story.name: story for story in stories}
    if list_only:
        for story in stories:
            click.echo(f"{story.name:<12} {story.title}")
        return 0
    unknown = [name for name in names if name not in known]
    if unknown:
        raise click.UsageError(f"there is no story {unknown[0]}; there are {', '.join(known)}")
    if pause and not sys.stdin.isatty():
        raise click.UsageError("--pause waits for Enter, but there is no terminal")
    if nodes_file and not serve:
        raise click.UsageError("use --nodes only with --serve: stories have their own nodes")
    from tessera.serving.ending import run_until_signalled
    from tessera.simulation.node.descriptions import parse

    own = read_parsed(nodes_file, parse) if nodes_file else None
    slow = sys.stdout.isatty() and not fast
    pace = Pace(_STEP_SECONDS if slow else 0.0, _STORY_SECONDS if slow and not pause else 0.0, pause)
    chosen = [known[name] for name in names] or ([] if own else list(stories))
    if not serve:
        return run_until_signalled(_demo(chosen, pace))
    from tessera.cli.demo.serving import serve_demo

    return run_until_signalled(serve_demo(chosen, pace, port, own))


async def _demo(stories: "list[Story]", pace: Pace) -> int:
    from tessera.protocol.configuration import webhook as config
    from tessera.simulation.embedded import embedded
    from tessera.simulation.node.descriptions import known_nodes
    from tessera.simulation.stories.stage import Stage

    async with (
        embedded(known_nodes(), config.parse(config.EXAMPLE)) as cluster,
        cluster.cluster.client() as client,
    ):
        return await tell_all(stories, Stage(client, cluster), pace)


async def tell_all(stories: "list[Story]", stage: "Stage", pace: Pace) -> int:
    """Tell stories, one after the other; the exit code."""
    style, width = Style.of(sys.stdout), min(_WIDEST, shutil.get_terminal_size((_WIDEST, 24)).columns)
    began = time.monotonic()
    echo([*textwrap.wrap(_OPENING, width), ""])
    good = 0
    for number, story in enumerate(stories):
        good += await _tell(story, stage, pace, style, width)
        if number + 1 < len(stories):
            await _wait(pace, style)
    last = f"{good} of {len(stories)} stories ended as expected, in {time.monotonic() - began:.0f} s."
    click.echo((style.good if good == len(stories) else style.bad)(last))
    return 0 if good == len(stories) else 1


async def _tell(story: "Story", stage: "Stage", pace: Pace, style: Style, width: int) -> bool:
    from tessera.cli.demo.narrator import heading, tell
    from tessera.simulation.stories.playing import play
    from tessera.simulation.stories.scenes import NodesCame

    echo(heading(story, style, width))
    right, first = True, True
    async with aclosing(play(story, stage)) as scenes:
        async for _, scene in scenes:
            if isinstance(scene, NodesCame) and not first:
                click.echo()  # another cluster
            echo(tell(scene, style, width))
            right, first = right and not scene.wrong, False
            await asyncio.sleep(pace.step)
    echo([style.good("  ✓ as expected") if right else style.bad("  ✗ not as expected"), ""])
    return right


async def _wait(pace: Pace, style: Style) -> None:
    if not pace.pause:
        await asyncio.sleep(pace.story)
        return
    click.echo(style.dim("Enter: the next story"))
    loop = asyncio.get_running_loop()
    pressed = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), pressed.set)  # the cluster goes on running meanwhile
    try:
        await pressed.wait()
    finally:
        loop.remove_reader(sys.stdin.fileno())
    if not sys.stdin.readline():
        raise KeyboardInterrupt  # ^D means the same here
