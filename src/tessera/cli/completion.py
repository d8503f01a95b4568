"""`tessera completion`: shell completion scripts."""

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", metavar="SHELL", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script for SHELL.

    \b
    bash:  source <(tessera completion bash)
    zsh:   source <(tessera completion zsh)
    fish:  tessera completion fish | source
    """
    completion = get_completion_class(shell)
    if completion is None:
        raise click.UsageError(f"click knows no completion for {shell}")
    click.echo(completion(ctx.find_root().command, {}, "tessera", "_TESSERA_COMPLETE").source())
