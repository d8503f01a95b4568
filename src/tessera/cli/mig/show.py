"""`tessera mig show`: cards drawn as tiles."""

import shutil
import sys
from collections.abc import Sequence
from typing import Final

import click

from tessera.cli.common.terminal import Style
from tessera.cli.mig.sources import Given, read_sources, source_options
from tessera.cli.mig.tiles import draw_cards
from tessera.core.errors import InvalidInputs
from tessera.core.mig.layout import DoesNotFit, NodeLayout, Slot
from tessera.core.planning.fragmentation import CardUse, packed
from tessera.inventory.layouts import Source, Unreadable

ASSUMED: Final = "which devices are in use only their node knows; they are drawn on as few cards as possible"


@click.command("show")
@source_options
def command(given: Given, config: str | None) -> int:
    """Draw a node's cards as tiles, as wide as their memory slices.

    Takes what `tessera mig validate` takes. Where pods are known too (--cluster, or among the objects of a file) it
    shows how many devices are in use. Colour only on a terminal, and not where NO_COLOR is set; in a terminal that is too
    narrow for tiles (or where COLUMNS says so) they are listed.

    \b
    tessera mig show 4g.71gb=1,3g.71gb=1 --product H200
    tessera mig show --cluster gpu-1
    kubectl get nodes,pods -A -o json | tessera mig show
    """
    style = Style.of(sys.stdout)
    width = shutil.get_terminal_size((0, 0)).columns or None
    sources = read_sources(given, with_pods=True)
    failed = assumed = False
    for number, source in enumerate(sources):
        if isinstance(source, Unreadable):
            click.echo(f"{source.where}: {source.reason}", err=True)
            failed = True
            continue
        try:
            layout = source.present if source.present and not config else _desired(source, config)
            used = packed(layout, source.used, source.strategy) if source.used is not None else None
        except (InvalidInputs, DoesNotFit) as error:
            click.echo(f"{source.where}: {error}", err=True)
            failed = True
            continue
        if len(sources) > 1:
            click.echo(("\n" if number else "") + style.bold(source.where), color=style.enabled)
        for line in draw_cards(layout.cards, style, None if used is None else _slots(used), width):
            click.echo(line, color=style.enabled)
        if source.used:
            offered = layout.resources(source.strategy)
            assumed |= any(0 < source.used.get(resource, 0) < number for resource, number in offered.items())
        if source.pending and not config:
            click.echo(f"{source.where}: the layout is pending: {source.pending}", err=True)
    if assumed:
        click.echo(ASSUMED, err=True)
    return int(failed)


def _desired(source: Source, config: str | None) -> NodeLayout:
    return source.layout(source.document.select(config))


def _slots(cards: Sequence[CardUse]) -> frozenset[Slot]:
    found = {Slot(number, instance) for number, card in enumerate(cards) for instance in card.used}
    return frozenset(found | {Slot(number) for number, card in enumerate(cards) if card.whole_in_use})
