"""A plan's nodes, each changed its own way; a node that has changed since the plan was made is refused, with the reason."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from tessera.core.autopilot.values import Recut
from tessera.core.errors import InvalidInput
from tessera.core.mig.known import KnownLayout, UnknownLayout
from tessera.core.mig.layout import NodeLayout
from tessera.core.planning.changes import NodeChange, Way, difference
from tessera.inventory.known import known_layout
from tessera.kube.rest.client import Client
from tessera.protocol.kubernetes.nodes import NodeIn
from tessera.protocol.mig.nodes import gpu_node
from tessera.rollout.change import Change, Changes
from tessera.rollout.changes import Surroundings, layout_change, named_nodes
from tessera.rollout.in_use import named, uses_of
from tessera.rollout.progress import offered_on
from tessera.rollout.values import NodeSnapshot


class NotNow(InvalidInput):
    """Why the autopilot leaves a node as it is for a while."""


async def planned_changes(client: Client, plan: Sequence[NodeChange]) -> Changes:
    """What happens to each node of a plan."""
    nodes = await named_nodes(client, [one.name for one in plan])
    around = await Surroundings.read(client, nodes.values())
    changes = await asyncio.gather(*(_change(client, one, nodes.get(one.name), around) for one in plan))
    return Changes(changes, around.manager, around.warnings)


async def _change(client: Client, one: NodeChange, node: NodeIn | None, around: Surroundings) -> Change:
    refused = Change(one.name, None, "", "", {}, None, label=one.way is Way.MIG_MANAGER)
    if node is None:
        return replace(refused, refused="the cluster has no such node")
    gpus = gpu_node(node)
    known = known_layout(gpus, around.manager)
    if why := outdated(one, by_mig_manager=gpus.by_mig_manager, known=known):
        return replace(refused, refused=why)
    uses, prefer = await uses_of(client, one.name), one.configuration
    try:
        return layout_change(
            node, await offered_on(client, node), uses, one.layout, known, around, prefer=prefer
        )
    except InvalidInput as error:
        return replace(refused, refused=str(error))


def recut_change(seen: NodeSnapshot, recuts: Sequence[Recut], around: Surroundings) -> Change:
    """What happens to a node whose cards the autopilot re-cuts; `NotNow` says why it is not done."""
    if around.dra.unseen:
        raise NotNow(f"what claims hold is not known: {around.dra.unseen}")
    known = known_layout(seen.gpus, around.manager)
    if isinstance(known, UnknownLayout):
        raise NotNow(f"its layout is not known: {known.reason}")
    cards = list(known.layout.cards)
    for one in recuts:
        if one.number >= len(cards) or cards[one.number] != one.before:
            raise NotNow("its layout has changed since it was looked at")
        cards[one.number] = one.after
    layout = replace(known.layout, cards=tuple(cards))
    change = layout_change(seen.node, seen.offered, seen.uses, layout, known, around)
    if why := change.refused or around.not_written(change):
        raise NotNow(why)
    if held := seen.holding(change.going):
        raise NotNow(f"pods hold devices that would go: {named(held)}")
    return change


def outdated(one: NodeChange, *, by_mig_manager: bool, known: KnownLayout | UnknownLayout) -> str:
    """Why a plan is no longer one for this node; empty when it is."""
    way = Way.MIG_MANAGER if by_mig_manager else Way.ANNOTATION
    if way is not one.way:
        return f"the plan changes it by {one.way}, but it is changed by {way} now"
    if isinstance(known, UnknownLayout):
        return f"the plan knows how its cards are cut, but now that is not known: {known.reason}"
    now = known.layout
    if [card.product for card in now.cards] != [card.product for card in one.present.cards]:
        return f"the plan has {_cards(one.present)}, but the node has {_cards(now)} now"
    cleared = way is Way.MIG_MANAGER or not known.placed

    def same(other: NodeLayout) -> bool:
        return not any(
            any(difference(*both, cleared=cleared)) for both in zip(now.cards, other.cards, strict=True)
        )

    if same(one.present) or same(one.layout):  # the same plan again goes on where it stopped
        return ""
    return "its layout has changed since the plan was made: " + "; ".join(
        f"card {number} was {before.words}, and is {after.words}"
        for number, (before, after) in enumerate(zip(one.present.cards, now.cards, strict=True))
        if any(difference(before, after, cleared=cleared))
    )


def _cards(layout: NodeLayout) -> str:
    products = {card.product.name: None for card in layout.cards}
    return f"{len(layout.cards)} × {', '.join(products)}"
