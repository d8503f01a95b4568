"""A plan as a document: what `tessera mig plan -o json` prints of its nodes, and `tessera mig apply --plan` reads.

```
nodes: [{name: gpu-0, way: mig-manager, configuration: tessera-1a2b3c4d, removed: {1g.10gb: 7}, added: {4g.40gb: 1, 1g.10gb: 3}, filled: {1g.10gb: 3}}]
cards: [{node: gpu-0, card: 0, product: NVIDIA A100-80GB, migEnabled: true, devices: [{profile: 4g.40gb, position: 0, size: 4}, …],
         present: {migEnabled: true, devices: […]}}]
```

A card without `present` stays as it is. Cards of nodes that are not among `nodes` are only listed: they stay, they are of no node, or it is
not known how they are cut now (`present: null`). The document says more (the demand, what is served, sentences), which is for people and scripts.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from tessera.core.errors import InvalidInput
from tessera.core.mig.geometry import Product, product_named
from tessera.core.mig.layout import CardLayout, NodeLayout
from tessera.core.mig.placement import Instance, Wish
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.changes import NodeChange, Way, profile_counts
from tessera.protocol import yaml

_Natural = Annotated[int, msgspec.Meta(ge=0)]


class _Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    profile: str
    position: _Natural
    size: _Natural
    stays: bool = False


class _Cut(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    migEnabled: bool  # noqa: N815 # as in the document
    devices: list[_Device]


class _Card(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    node: str = ""
    card: _Natural
    product: str
    migEnabled: bool  # noqa: N815 # as in the document
    devices: list[_Device]
    present: _Cut | msgspec.UnsetType | None = msgspec.UNSET


class _Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: str
    way: Way
    configuration: str | msgspec.UnsetType = msgspec.UNSET
    removed: dict[str, _Natural]
    added: dict[str, _Natural]
    filled: dict[str, _Natural]


class _Plan(msgspec.Struct, frozen=True):
    nodes: list[_Node]
    cards: list[_Card]


def node_document(change: NodeChange) -> _Node:
    """One of the document's `nodes`."""
    return _Node(
        name=change.name,
        way=change.way,
        configuration=change.configuration or msgspec.UNSET,
        removed=change.removed,
        added=change.added,
        filled=profile_counts(change.filled),
    )


def card_document(
    number: int, card: CardLayout, present: CardLayout | None, stays: Sequence[Instance] = (), node: str = ""
) -> _Card:
    """One of the document's `cards`; of a node `present` shows how it is cut now, where that differs or is not known."""
    cut_now = _Cut(present.mig_enabled, _devices(present)) if present else None
    return _Card(
        node=node,
        card=number,
        product=card.product.name,
        migEnabled=card.mig_enabled,
        devices=_devices(card, stays),
        present=cut_now if node and present != card else msgspec.UNSET,
    )


def _devices(card: CardLayout, stay: Sequence[Instance] = ()) -> list[_Device]:
    return [_Device(str(one.profile), one.position, one.size, one in stay) for one in card.instances]


def read_plan(text: str, where: str = "plan") -> tuple[NodeChange, ...]:
    """The nodes of a plan in the document's order; `InvalidInput` says what is wrong with it."""
    document = yaml.load(text, where)
    if not isinstance(document, dict) or "nodes" not in document or "cards" not in document:
        raise InvalidInput(f"{where}: not a plan; expected what `tessera mig plan -o json` prints")
    try:
        plan = msgspec.convert(document, _Plan, strict=True)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{where}: not a plan as `tessera mig plan -o json` prints it: {error}") from error
    if not plan.nodes:
        raise InvalidInput(f"{where}: the plan changes no node")
    cards: dict[str, list[_Card]] = {}
    for card in plan.cards:
        cards.setdefault(card.node, []).append(card)
    changes = [_change(node, cards.pop(node.name, []), f"{where}: node {node.name}") for node in plan.nodes]
    if other := [card.node for some in cards.values() for card in some if card.present]:
        raise InvalidInput(f"{where}: cards of node {other[0]} change, which is not among the plan's nodes")
    return tuple(changes)


def _change(node: _Node, cards: Sequence[_Card], where: str) -> NodeChange:
    if [card.card for card in cards] != list(range(len(cards))) or not cards:
        raise InvalidInput(f"{where}: expected its cards, numbered from 0 in their order")
    try:
        layout = NodeLayout(tuple(_layout(card, product_named(card.product)) for card in cards))
        present = tuple(
            now if card.present is msgspec.UNSET else _layout(card.present, now.product)
            for card, now in zip(cards, layout.cards, strict=True)
        )
        filled = {MigProfile.parse(name): count for name, count in node.filled.items()}
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error}") from error
    configuration = None if node.configuration is msgspec.UNSET else node.configuration
    change = NodeChange(node.name, node.way, NodeLayout(present), layout, filled, configuration)
    if (change.removed, change.added) != (node.removed, node.added):
        raise InvalidInput(f"{where}: `removed` and `added` are not what its cards say")
    return change


def _layout(card: _Card | _Cut | None, product: Product) -> CardLayout:
    if card is None:
        raise InvalidInput("how its cards are cut now is not known (`present` is null)")
    wishes = [Wish(MigProfile.parse(one.profile), one.position, one.size) for one in card.devices]
    if card.migEnabled:
        return CardLayout.cut(product, wishes)
    if wishes:
        raise InvalidInput("`devices` must be empty while `migEnabled` is false")
    return CardLayout(product)
