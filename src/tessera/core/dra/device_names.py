"""How the driver calls its devices: `gpu-0`, `gpu-0-mig-2g-20gb-4`, the same over restarts and layouts; and a node's pool of them."""

import re
from collections.abc import Collection
from typing import Final

from tessera.core.mig.geometry import Product
from tessera.core.mig.layout import CardLayout, NodeLayout, Slot
from tessera.core.mig.placement import every_place

MOST_NAME: Final = 63  # a DNS label, as Kubernetes wants it
_POOL: Final = "/tessera"


def pool_of(node: str) -> str:
    """The name of a node's pool; not the bare node's: until 1.36.3 the scheduler distinguished drivers' counters by pool alone."""
    return f"{node}{_POOL}"


def node_of(pool: str) -> str:
    """The node whose pool has that name."""
    return pool.removesuffix(_POOL)


def label(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:MOST_NAME].strip("-") or "device"


def card_name(card: int) -> str:
    return f"gpu-{card}"


def slice_name(card: int, profile: object, start: int) -> str:
    return label(f"gpu-{card}-mig-{profile}-{start}")


def slot_name(slot: Slot) -> str:
    one = slot.instance
    return card_name(slot.card) if one is None else slice_name(slot.card, one.profile, one.position)


def name_at(card: int, place: str) -> str:
    """The name of the device at a place of a card: `1g.18gb@4`, or `gpu` for the whole card."""
    profile, _, start = place.partition("@")
    return slice_name(card, profile, int(start)) if start.isdigit() else card_name(card)


def cut_now(product: Product, cards: int, held: Collection[str]) -> NodeLayout:
    """How cards that are cut on demand are cut now: the devices that claims hold, by their names, and nothing else.

    `DoesNotFit` where the names cannot be there together.
    """
    return NodeLayout(tuple(_card_now(product, number, held) for number in range(cards)))


def _card_now(product: Product, number: int, held: Collection[str]) -> CardLayout:
    if card_name(number) in held:
        return CardLayout(product)
    there = [one for one in every_place(product) if slice_name(number, one.profile, one.position) in held]
    return CardLayout(product, mig_enabled=True, instances=tuple(there))
