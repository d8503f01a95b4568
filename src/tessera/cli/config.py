"""`tessera config`: the configuration file, checked and explained."""

import json

import click

from tessera.cli.common import completing
from tessera.cli.common.exit_codes import ExitCode
from tessera.cli.common.help import Command
from tessera.cli.common.output import echo, print_document, warn
from tessera.core.errors import InvalidInputs
from tessera.core.text import number_of
from tessera.kube.object_files import called, read_file
from tessera.protocol.configuration import webhook as config


@click.group()
def command() -> None:
    """Check the configuration file, print an example or its schema."""


@command.command(cls=Command, short_help="Check FILE and report every error in it.")
@click.argument("file", metavar="FILE", shell_complete=completing.files)
def check(file: str) -> ExitCode:
    """Check FILE (`-` for standard input) and report every error in it."""
    where = called(file)
    try:
        configuration = config.parse(read_file(file), where)
    except InvalidInputs as error:
        warn(*(f"{where}: {one}" for one in error.errors))
        return ExitCode.BAD_INPUT
    policy = configuration.policy
    types, chains = ", ".join(policy.injection.default) or "none", len(policy.fallback.chains)
    echo([f"{where}: fine ({number_of(chains, 'fallback chain')}; injection for GPU types: {types})"])
    return ExitCode.DONE


@command.command(cls=Command)
def example() -> None:
    """Print a commented example to start from."""
    print_document(config.EXAMPLE, ends_line=False)


@command.command(cls=Command)
def schema() -> None:
    """Print the JSON Schema of the file, for editors."""
    print_document(json.dumps(config.json_schema(), indent=2))


@command.command(cls=Command)
def reference() -> None:
    """Print the reference of every field, as Markdown."""
    print_document(config.reference(), ends_line=False)
