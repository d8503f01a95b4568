"""Where `tessera mig` gets layouts from: files of any format, standard input, Node objects, counts as they are typed."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec

from tessera.cli.terminal import read_file
from tessera.core.errors import InvalidInput
from tessera.core.geometry import Product
from tessera.core.layout import Entry, NodeLayout, Strategy, resolve
from tessera.core.products import product_named
from tessera.protocol import mig, mig_nodes, objects, yaml
from tessera.protocol.mig_counts import looks_like_counts


@dataclass(frozen=True, slots=True)
class Source:
    """A layout document, and what is known of the cards that it is for."""

    where: str
    document: mig.MigDocument
    product: Product | None = None
    cards: int | None = None
    strategy: Strategy = Strategy.MIXED

    def configs(self, name: str | None) -> dict[str, tuple[Entry, ...]]:
        """The configuration of that name, or all there are."""
        return {name: self.document.select(name)} if name else dict(self.document.configs)

    def layout(self, entries: tuple[Entry, ...]) -> NodeLayout:
        """The layout that the entries give the cards; as many as they name when nobody knows how many there are."""
        if self.product is None:
            raise InvalidInput(f"{self.where}: which product are the cards? Say it with --product")
        named = [number for entry in entries for number in entry.cards or ()]
        return resolve(entries, [self.product] * (self.cards or max(named, default=0) + 1))


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A node whose layout cannot be read, or whose cards nobody knows."""

    where: str
    reason: str


def product_option(_ctx: click.Context, _param: click.Parameter, value: str | None) -> Product | None:
    """The product that an option names; a callback for click."""
    return product_named(value) if value else None


def source_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The arguments and options of every command that reads layouts."""
    for decorate in (
        click.option("--config", "config", metavar="NAME", help="The configuration to take, where there are several."),
        click.option("--cards", type=click.IntRange(1, 1024), show_default="as many as the layout names", help="How many cards the node has."),
        click.option("--product", callback=product_option, metavar="NAME", help="The cards' product, such as H200, A100-40GB or H200-70GB."),
        click.argument("layouts", nargs=-1, metavar="[FILE|COUNTS]..."),
    ):  # fmt: skip
        command = decorate(command)
    return command


def read_sources(
    arguments: tuple[str, ...], product: Product | None = None, cards: int | None = None
) -> list[Source | Unreadable]:
    """Everything that the arguments name: files, `-` for standard input, counts such as 2g.20gb=2.

    What a person says about the cards goes before what a node says.
    """
    if not arguments and sys.stdin.isatty():
        raise click.UsageError("name a file, counts such as 2g.20gb=2,3g.30gb=1, or - for standard input")
    if arguments.count("-") > 1:
        raise InvalidInput("standard input (-) can be read only once")
    return [source for argument in arguments or ("-",) for source in _read(argument, product, cards)]


def read_nodes(documents: list[Any], where: str) -> list[mig_nodes.GpuNode]:
    """The nodes among some objects."""
    try:
        given = [one for one in objects.items(documents) if one.get("kind") == "Node"]
        return [mig_nodes.gpu_node(objects.decode_node(msgspec.json.encode(one))) for one in given]
    except objects.InvalidObject as error:
        raise InvalidInput(f"{where}: {error}") from error


def read_text(argument: str) -> tuple[str, str]:
    """What an argument names, and its text: a file, standard input, or counts as they stand."""
    if looks_like_counts(argument) and not Path(argument).exists():
        return "counts", argument
    where = "standard input" if argument == "-" else argument
    try:
        return where, read_file(argument).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{where}: not UTF-8 text (byte {error.start})") from error


def _read(argument: str, product: Product | None, cards: int | None) -> list[Source | Unreadable]:
    where, text = read_text(argument)
    if looks_like_counts(text):
        return [Source(where, mig.read(text, where), product, cards)]
    documents = yaml.load_all(text, where)
    if any(isinstance(document, dict) and "kind" in document for document in documents):
        nodes = [node for node in read_nodes(documents, where) if node.layout is not None]
        if not nodes:
            raise InvalidInput(f"{where}: no node with the annotation {mig.RUNAI_CONFIG}")
        return [_of_node(node, product, cards) for node in nodes]
    if len(documents) < 2:
        return [Source(where, mig.read(text, where), product, cards)]
    return [Source(where, mig.read_object(document, where), product, cards) for document in documents]


def _of_node(node: mig_nodes.GpuNode, product: Product | None, cards: int | None) -> Source | Unreadable:
    where, known = f"node {node.name}", product or node.product
    if known is None:
        called = f'unknown product "{node.label}"' if node.label else f"no label {mig_nodes.PRODUCT}"
        return Unreadable(where, f"{called}; say it with --product")
    try:
        document = mig.read(node.layout or "", mig.RUNAI_CONFIG)
    except InvalidInput as error:
        return Unreadable(where, str(error))
    return Source(where, document, known, cards or node.cards, node.strategy)
