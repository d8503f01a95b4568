"""Whose end would make room in a cluster: who holds which device, and where else a pod could go."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tessera.core.devices.capacity import PodUse
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.pod import Pod
from tessera.core.kubernetes.resources import WHOLE_GPU, is_any_gpu
from tessera.core.mig.layout import Strategy
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.defragment import Advice, HeldCard, defragment
from tessera.core.planning.fragmentation import CardUse, packed
from tessera.core.planning.program import Solver
from tessera.core.planning.waiting import Group, allowed_nodes, settle
from tessera.inventory.inventory import Inventory
from tessera.inventory.pending import room_of, skipped_nodes
from tessera.protocol.kubernetes.selector import EVERYTHING, LabelSelector


def defragment_inventory(selector: LabelSelector = EVERYTHING) -> Inventory:
    """What to read of a cluster, to know whose end makes room: who holds GPUs, and all else that they ask for."""
    return Inventory(
        lambda _: True, selector, holds=lambda use: any(map(is_any_gpu, use.amounts)), places=True
    )


@dataclass(frozen=True, slots=True)
class Move:
    """A pod that must end or move, what it holds, and a node that has the same free."""

    pod: str
    node: str
    card: int
    holds: Mapping[str, int]
    to: str | None


@dataclass(frozen=True, slots=True)
class Defragmentation:
    """The advice, in a cluster's words."""

    advice: Advice
    moves: tuple[Move, ...]
    places: tuple[tuple[str, int], ...]  # node and number, of every card
    cards: tuple[HeldCard, ...]
    skipped: tuple[str, ...]


def make_room(wanted: Mapping[MigProfile, int], inventory: Inventory, solve: Solver) -> Defragmentation:
    """The fewest pods whose end or move makes room."""
    holders: dict[str, list[PodUse]] = {}
    for use in inventory.pods:
        if use.node:
            holders.setdefault(use.node, []).append(use)
    cards: list[HeldCard] = []
    places: list[tuple[str, int]] = []
    skipped: dict[str, list[str]] = {}
    # thousands of nodes are cut and used in a few ways
    known: dict[tuple[object, ...], tuple[CardUse, ...]] = {}
    for name in sorted(inventory.gpus):
        node, used = inventory.gpus[name], inventory.used(name)
        try:
            layout = inventory.layout(name)
            key = (tuple(map(id, layout.cards)), node.strategy, tuple(used.items()))
            if key not in known:
                known[key] = packed(layout, used, node.strategy)
        except InvalidInput as error:
            skipped.setdefault(str(error), []).append(name)
            continue
        places += [(name, number) for number in range(len(layout.cards))]
        cards += _held(known[key], holders.get(name, []), node.strategy)
    if not cards:
        raise InvalidInput("no node has cards that could be cut")
    advice = defragment(wanted, cards, solve)
    return Defragmentation(
        advice,
        _moves(advice, places, {f"{use.namespace}/{use.name}": use for use in inventory.pods}, inventory),
        tuple(places),
        tuple(cards),
        tuple(skipped_nodes(skipped)),
    )


def _held(uses: Sequence[CardUse], pods: Sequence[PodUse], strategy: Strategy) -> Iterator[HeldCard]:
    """Deal a node's held devices out to its pods, in the order of cards and of names."""
    dealt: dict[str, list[str]] = {}
    for use in sorted(pods, key=lambda one: (one.namespace, one.name), reverse=True):
        for resource, amount in use.amounts.items():
            if is_any_gpu(resource):
                dealt.setdefault(resource, []).extend([f"{use.namespace}/{use.name}"] * int(amount.value))
    for one in uses:
        if one.whole_in_use:
            yield HeldCard(one.layout, (), (dealt[WHOLE_GPU].pop(),))
            continue
        names = [
            WHOLE_GPU if strategy is Strategy.SINGLE else instance.profile.resource for instance in one.used
        ]
        yield HeldCard(one.layout, one.used, tuple(dealt[name].pop() for name in names))


def _moves(
    advice: Advice, places: Sequence[tuple[str, int]], uses: Mapping[str, PodUse], inventory: Inventory
) -> tuple[Move, ...]:
    """For each pod another node that may take it, and has free all that it asks for."""
    alone = {places[one.card][0] for one in advice.cleared}
    rooms = [
        room_of(one)
        for one in sorted(inventory.capacity.nodes(), key=lambda one: one.node.name)
        if one.node.name not in alone
    ]
    moves = []
    for pod, card in {pod: one.card for one in reversed(advice.cleared) for pod in one.pods}.items():
        use = uses[pod]
        asks = {resource: amount.number for resource, amount in use.amounts.items()}
        group = Group((pod,), replace(use.where or Pod(), node_name=""), asks, {}, waits=True)
        _, given = settle([group], allowed_nodes([group], rooms)[0], rooms)
        holds = {
            resource: int(amount.value) for resource, amount in use.amounts.items() if is_any_gpu(resource)
        }
        moves.append(Move(pod, *places[card], holds, next((rooms[i].node.name for i in given), None)))
    return tuple(sorted(moves, key=lambda move: (move.node, move.card, move.pod)))
