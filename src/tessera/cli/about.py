"""`tessera version`, `tessera help` and `tessera options`."""

import click

from tessera import __version__
from tessera.cli.common import completing
from tessera.cli.common.help import Command
from tessera.cli.common.options import ClusterChoice, cluster_options
from tessera.cli.common.output import Output, output_option


@click.command(cls=Command)
@output_option("text")
def version(output: Output) -> None:
    """Print the version of this command, as --version does."""
    output.show(lambda: {"version": __version__}, lambda _: [f"tessera {__version__}"])


@click.command()
@cluster_options
def _connect(cluster: ClusterChoice) -> None:
    """Hold the connection options, so that their help can be printed."""


@click.command(cls=Command)
@click.pass_context
def options(ctx: click.Context) -> None:
    """Print the options of every command that asks a cluster: which cluster, and as whom."""
    formatter = ctx.make_formatter()
    with formatter.section("Every command that asks a cluster takes these options"):
        records = (parameter.get_help_record(ctx) for parameter in _connect.params)
        formatter.write_dl([record for record in records if record])
    click.echo(formatter.getvalue(), nl=False)


@click.command(cls=Command)
@click.argument("words", nargs=-1, metavar="[COMMAND]...", shell_complete=completing.commands)
@click.pass_context
def explain(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Explain a command: `tessera help mig plan` prints what `tessera mig plan --help` does."""
    here = ctx.find_root()
    for word in words:
        if not isinstance(here.command, click.Group):
            raise click.UsageError("it has no subcommands", here)
        name, found, _ = here.command.resolve_command(here, [word])
        assert found is not None  # noqa: S101 # else there was a UsageError
        here = click.Context(found, info_name=name, parent=here)
    click.echo(here.command.get_help(here), color=here.color)
