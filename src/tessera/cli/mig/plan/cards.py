"""The cards that `tessera mig plan` is told of: products by name, nodes in files."""

import click

from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.resources import is_any_gpu
from tessera.core.mig.layout import NodeLayout, resolve
from tessera.core.mig.product import product_named
from tessera.core.planning.kinds import Card, NodeCards, card_of
from tessera.inventory.inventory import Inventory
from tessera.inventory.pending import skipping, uncut
from tessera.kube.object_files import called, objects_in
from tessera.protocol.mig import documents as mig
from tessera.protocol.mig.nodes import GpuNode


def product_cards(products: tuple[str, ...], cards: int | None, enough: int) -> list[Card]:
    """Cards of products that were named, each with a number; without a number as many as are enough."""
    found: list[Card] = []
    for text in products:
        name, separator, number = text.partition("=")
        if separator and not (number.isascii() and number.isdigit() and 0 < int(number[:9]) <= 1024):
            raise InvalidInput(
                f"--product {text}: expected a number of cards from 1 to 1024, such as {name}=4"
            )
        if not separator and len(products) > 1:
            raise InvalidInput(f"--product {text}: with several products give the number of each: {text}=4")
        if separator and cards is not None:
            raise InvalidInput(f"--product {text} and --cards {cards}: give the number only once")
        found += [Card(product_named(name))] * (int(number) if separator else cards or enough)
    return found


def node_cards(files: tuple[str, ...], *, keep: bool) -> tuple[list[NodeCards], list[Card]]:
    """The cards of nodes; nodes with unknown cards are skipped, with a warning."""
    places: list[NodeCards] = []
    cards: list[Card] = []
    skipped = []
    for file in files:
        inventory = Inventory(is_any_gpu)
        inventory.take(objects_in([file]))
        for node in inventory.gpus.values():
            if not node.label:
                continue
            try:
                layout = _node_layout(node, keep=keep)
            except InvalidInput as error:
                skipped.append(skipping(node.name, str(error)))
                continue
            places.append(NodeCards(node.name, range(len(cards), len(cards) + len(layout.cards))))
            cards += [card_of(card.product, card.instances) for card in layout.cards]
    for line in skipped:
        click.echo(line, err=True)
    if not cards:
        why = "no node has cards that could be cut" if skipped else "no node with GPUs"
        raise InvalidInput(f"{called(*files)}: {why}")
    return places, cards


def _node_layout(node: GpuNode, *, keep: bool) -> NodeLayout:
    layout = uncut(node)
    if not keep or not node.layout:
        return layout
    wanted = mig.read(node.layout, mig.RUNAI_CONFIG).select()
    return resolve(wanted, [card.product for card in layout.cards])
