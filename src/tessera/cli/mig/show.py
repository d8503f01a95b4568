"""`tessera mig show`: cards drawn as tiles."""

import shutil
import sys
from typing import Final

import click

from tessera.cli.common.terminal import Style, echo
from tessera.cli.mig.sources import Given, read_sources, source_options
from tessera.cli.mig.tiles import draw_cards
from tessera.core.errors import InvalidInputs
from tessera.core.mig.layout import DoesNotFit
from tessera.inventory.layouts import Unreadable

ASSUMED: Final = (
    "the API does not say which devices are in use (kubelets write it from Kubernetes 1.36); "
    "drawn on as few cards as possible"
)


@click.command("show")
@source_options
def command(given: Given, config: str | None) -> int:
    """Draw a node's cards as tiles, as wide as their memory slices.

    Takes what `tessera mig validate` takes. If it also gets pods (--cluster, or among the objects of a file) it shows which devices
    are in use: as the kubelets report it, with DRA as claims report it, else on as few cards as possible. Cards that are cut on demand
    show what claims hold now. Colour only on a terminal, and not where NO_COLOR is set; a terminal that is too narrow for tiles (or
    where COLUMNS says so) gets a list.

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
            present = None if config else source.present
            layout = present or source.layout(source.document.select(config))
            in_use = source.in_use(layout)
        except (InvalidInputs, DoesNotFit) as error:
            click.echo(f"{source.where}: {error}", err=True)
            failed = True
            continue
        if len(sources) > 1:
            click.echo(("\n" if number else "") + style.bold(source.where))
        echo(draw_cards(layout.cards, style, in_use.slots if in_use else None, width))
        assumed |= in_use is not None and not in_use.certain
        if source.pending and not config:
            click.echo(f"{source.where}: the layout is pending: {source.pending}", err=True)
    if assumed:
        click.echo(ASSUMED, err=True)
    return int(failed)
