"""`tessera help`."""

import click

from tessera.cli.common import completing


@click.command()
@click.argument("words", nargs=-1, metavar="[COMMAND]...", shell_complete=completing.commands)
@click.pass_context
def command(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Explain a command: `tessera help mig plan` prints what `tessera mig plan --help` does."""
    here = ctx.find_root()
    for word in words:
        if not isinstance(here.command, click.Group):
            raise click.UsageError("it has no subcommands", here)
        name, found, _ = here.command.resolve_command(here, [word])
        assert found is not None  # noqa: S101 # else there was a UsageError
        here = click.Context(found, info_name=name, parent=here)
    click.echo(here.command.get_help(here), color=here.color)
