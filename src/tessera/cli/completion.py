"""`tessera completion`: shell completion scripts, and what `kubectl` asks for `kubectl tessera`."""

import sys
from typing import Final

import click
from click.shell_completion import ShellComplete, get_completion_class

from tessera.cli.common.help import Command

# cobra's directives, which end the answer: nothing special, so that the shell may offer files; and no files
_FILES: Final = ":0"
_NO_FILES: Final = ":4"


@click.command(cls=Command)
@click.argument("shell", metavar="SHELL", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script for SHELL.

    \b
    bash:  source <(tessera completion bash)
    zsh:   source <(tessera completion zsh)
    fish:  tessera completion fish | source

    kubectl's own script completes `kubectl tessera`: it runs kubectl_complete-tessera from the PATH, which is installed
    with tessera.
    """
    completion = get_completion_class(shell)
    if completion is None:
        raise click.UsageError(f"click knows no completion for {shell}")
    click.echo(completion(ctx.find_root().command, {}, "tessera", "_TESSERA_COMPLETE").source())


def kubectl() -> None:
    """`kubectl_complete-tessera WORD…`: what may stand for the last word, a line each, then what the shell should do."""
    from tessera.cli.app import tessera

    *words, incomplete = sys.argv[1:] or [""]
    found = ShellComplete(tessera, {}, "tessera", "_TESSERA_COMPLETE").get_completions(words, incomplete)
    for one in found:
        if one.type == "plain":
            click.echo(f"{one.value}\t{one.help}" if one.help else one.value)
    click.echo(_FILES if any(one.type != "plain" for one in found) else _NO_FILES)
