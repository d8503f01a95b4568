"""`tessera mig show`: cards drawn as tiles."""

import sys

import click

from tessera.cli.mig_sources import Unreadable, read_sources, source_options
from tessera.cli.mig_tiles import draw_cards
from tessera.cli.terminal import Style
from tessera.core.errors import InvalidInputs
from tessera.core.geometry import Product


@click.command("show")
@source_options
def command(layouts: tuple[str, ...], product: Product | None, cards: int | None, config: str | None) -> int:
    """Draw a node's cards as tiles, as wide as their memory slices.

    Takes what `tessera mig validate` takes. Colour only on a terminal, and not where NO_COLOR is set.

    \b
    tessera mig show 4g.71gb=1,3g.71gb=1 --product H200
    kubectl get nodes -o json | tessera mig show
    """
    style = Style.of(sys.stdout)
    sources = read_sources(layouts, product, cards)
    failed = False
    for number, source in enumerate(sources):
        if isinstance(source, Unreadable):
            click.echo(f"{source.where}: {source.reason}", err=True)
            failed = True
            continue
        entries = source.document.select(config)
        try:
            layout = source.layout(entries)
        except InvalidInputs as error:
            click.echo(f"{source.where}: {error}", err=True)
            failed = True
            continue
        if len(sources) > 1:
            click.echo(("\n" if number else "") + style.bold(source.where), color=style.enabled)
        for line in draw_cards(layout.cards, style):
            click.echo(line, color=style.enabled)
    return int(failed)
