"""The cards that `tessera mig plan` is given: of products that are named, or of nodes in files."""

from tessera.cli.common.output import warn
from tessera.core.errors import InvalidInput
from tessera.core.mig.known import KnownLayout, UnknownLayout
from tessera.core.mig.product import product_named
from tessera.core.planning.kinds import CardToCut, NodeCards, card_of
from tessera.inventory.inventory import Inventory
from tessera.inventory.pending import skipped_nodes, uncut, way_of
from tessera.kube.object_files import called, objects_in
from tessera.protocol.mig.nodes import GpuNode


def product_cards(products: tuple[str, ...], cards: int | None, enough: int) -> list[CardToCut]:
    """Cards of products that were named, each with a number; without a number as many as are enough."""
    found: list[CardToCut] = []
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
        found += [CardToCut(product_named(name))] * (int(number) if separator else cards or enough)
    return found


def node_cards(
    inventory: Inventory, files: tuple[str, ...], *, keep: bool
) -> tuple[list[NodeCards], list[CardToCut]]:
    """The cards of nodes; nodes with unknown cards are skipped, with a warning, and to keep devices, those with unknown layouts."""
    places: list[NodeCards] = []
    cards: list[CardToCut] = []
    skipped: dict[str, list[str]] = {}
    inventory.take(objects_in(files))
    for node in inventory.gpus.values():
        if not node.label:
            continue
        try:
            here = _cards(node, inventory.known(node.name), keep=keep)
        except InvalidInput as error:
            skipped.setdefault(str(error), []).append(node.name)
            continue
        places.append(NodeCards(node.name, range(len(cards), len(cards) + len(here)), way=way_of(node)))
        cards += here
    warn(*skipped_nodes(skipped))
    if not cards:
        why = "no node has cards that could be cut" if skipped else "no node with GPUs"
        raise InvalidInput(f"{called(*files)}: {why}")
    return places, cards


def _cards(node: GpuNode, known: KnownLayout | UnknownLayout, *, keep: bool) -> list[CardToCut]:
    if isinstance(known, KnownLayout):
        whole_only = node.by_mig_manager or not known.placed
        return [
            card_of(card.product, card.instances if keep else (), card, whole_only=whole_only)
            for card in known.layout.cards
        ]
    if keep:
        raise InvalidInput(known.reason)
    return [card_of(card.product) for card in uncut(node).cards]
