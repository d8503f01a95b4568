"""`tessera mig convert`: a layout in another format."""

import click

from tessera.cli.mig_sources import Given, Unreadable, read_sources, source_options
from tessera.core.errors import InvalidInput
from tessera.protocol.mig import Format, MigDocument, write
from tessera.protocol.mig_convert import convert


@click.command("convert")
@source_options
@click.option(
    "--to",
    "to",
    type=click.Choice([format_.value for format_ in Format]),
    required=True,
    help="The format to write.",
)
@click.option("--name", metavar="NAME", help="What to call the configuration.  [default: as it is called]")
def command(given: Given, config: str | None, to: str, name: str | None) -> None:
    """Write a layout as a run.ai annotation, a mig-parted file or plain counts.

    run.ai's format names cards one by one: say --cards where the layout is for all of them. With --product devices get
    their positions. What the other format cannot say is told on standard error.

    \b
    tessera mig convert 2g.20gb=2,3g.30gb=1 --to runai --cards 4
    tessera mig convert annotation.yaml --to mig-parted --name two-and-one
    tessera mig convert mig-parted.yaml --config all-balanced --to runai --product H200 --cards 8
    tessera mig convert --cluster gpu-1 --to counts
    """  # fmt: skip
    sources = read_sources(given)
    if len(sources) != 1:
        raise InvalidInput(f"{len(sources)} layouts; convert takes one at a time")
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
