"""`tessera demo`: what Tessera does, story by story, on an embedded cluster."""

import sys
from typing import TYPE_CHECKING, Final

import click

from tessera.cli.common import completing
from tessera.cli.common.exit_codes import ExitCode
from tessera.cli.common.help import Command
from tessera.cli.common.options import WholeNumber, option, read_parsed
from tessera.cli.common.output import echo
from tessera.cli.dashboard import PORT
from tessera.serving.ending import run_until_signalled

if TYPE_CHECKING:
    from tessera.simulation.stories.story import Story

_STEP_SECONDS: Final = 0.35  # for a person to read; a whole run takes half a minute
_STORY_SECONDS: Final = 1.2


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


@click.command(cls=Command)
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
    "--port PORT",
    "The dashboard's port on 127.0.0.1; 0 takes any free port.",
    type=WholeNumber(0, 65535),
    default=PORT,
)
@option("--own-nodes FILE", "With --serve: your own nodes, and no stories unless named.", "nodes_file")
def command(
    names: tuple[str, ...],
    list_only: bool,
    pause: bool,
    fast: bool,
    serve: bool,
    port: int,
    nodes_file: str | None,
) -> ExitCode:
    """See what Tessera does, story by story.

    The demo starts an embedded cluster in this process: stand-ins for API server, scheduler and kubelets, with
    the webhook, the controller, device plugins and DRA drivers of a real cluster. It touches nothing outside the process
    and leaves nothing behind. It ends with exit code 1 if a story did not end as expected.
    """
    stories = _stories()
    known = {story.name: story for story in stories}
    if list_only:
        echo(f"{story.name:<12} {story.title}" for story in stories)
        return ExitCode.DONE
    unknown = [name for name in names if name not in known]
    if unknown:
        raise click.UsageError(f"there is no story {unknown[0]}; there are {', '.join(known)}")
    if pause and not sys.stdin.isatty():
        raise click.UsageError("--pause waits for Enter, but there is no terminal")
    if nodes_file and not serve:
        raise click.UsageError("use --own-nodes only with --serve: stories have their own nodes")
    from tessera.cli.demo.playing import Pauses, play_demo, serve_demo
    from tessera.simulation.node_descriptions import parse

    own = read_parsed(nodes_file, parse) if nodes_file else None
    slow = sys.stdout.isatty() and not fast
    pace = Pauses(_STEP_SECONDS if slow else 0.0, _STORY_SECONDS if slow and not pause else 0.0, pause)
    chosen = [known[name] for name in names] or ([] if own else list(stories))
    played = serve_demo(chosen, pace, port, own) if serve else play_demo(chosen, pace)
    return ExitCode(run_until_signalled(played))
