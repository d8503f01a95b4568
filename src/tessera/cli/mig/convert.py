"""`tessera mig convert`: a layout in another format."""

from collections.abc import Sequence
from typing import Final

import click

from tessera.cli.common.options import option
from tessera.cli.mig.sources import Given, read_sources, source_options
from tessera.core.errors import InvalidInput
from tessera.core.text import first_of
from tessera.inventory.layouts import Source, Unreadable
from tessera.kube.object_files import called
from tessera.protocol.mig.documents import Format, MigDocument, convert, write

_MOST_NAMES: Final = 5


@click.command("convert")
@source_options
@option("--to", "The format to write.", type=click.Choice([one.value for one in Format]), required=True)
@option("--name NAME", "The configuration's new name.  [default: its present name]")
def command(given: Given, config: str | None, to: str, name: str | None) -> None:
    """Write a layout as a run.ai annotation, a mig-parted file or plain counts.

    run.ai's format names cards one by one: give --cards if the layout is for all of them. With --product devices get
    their positions. Standard error lists what the other format cannot express.

    \b
    tessera mig convert 2g.20gb=2,3g.40gb=1 --to runai --cards 4
    tessera mig convert annotation.yaml --to mig-parted --name two-and-one
    tessera mig convert mig-parted.yaml --config all-balanced --to runai --product H200 --cards 8
    tessera mig convert --cluster gpu-1 --to counts
    """  # fmt: skip
    sources = read_sources(given)
    if len(sources) != 1:
        raise InvalidInput(_several(sources, given))
    source = sources[0]
    if isinstance(source, Unreadable):
        raise InvalidInput(f"{source.where}: {source.reason}")
    document = source.document
    if config or name:
        chosen = next(iter(document.configs)) if len(document.configs) == 1 else config
        document = MigDocument(document.format, {name or chosen or "selected": document.select(config)})
    # a product that only the node's labels tell is no request for positions
    conversion = convert(document, Format(to), given.cards or source.cards, given.product)
    for loss in conversion.losses:
        click.echo(f"Warning: {loss}", err=True)
    click.echo(write(conversion.document), nl=False)


def _several(sources: Sequence[Source | Unreadable], given: Given) -> str:
    """Which layouts there are, and how to say which one is meant."""
    nodes = [source.where for source in sources if source.where.startswith("node ")]
    names = nodes or list(map(called, given.names))
    if given.in_cluster:
        how = "name one node"
    elif nodes:
        how = "give it one node, as kubectl get node NAME -o yaml prints it"
    else:
        how = "give it one of them"
    return f"{len(sources)} layouts ({first_of(names, _MOST_NAMES)}); convert takes one at a time: {how}"
