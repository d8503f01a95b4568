"""`tessera version`."""

import click

from tessera import __version__
from tessera.cli.common.output import Output, output_option


@click.command()
@output_option("text")
def command(output: Output) -> None:
    """Print the version of this command, as --version does."""
    output.show(lambda: {"version": __version__}, lambda _: [f"tessera {__version__}"])
