"""Which pods' end would make room in a cluster: the pods that hold each device, and where else a pod could go."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tessera.core.devices.capacity import PodUse
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.pod import Pod
from tessera.core.kubernetes.scheduling import EVERYTHING, LabelSelector
from tessera.core.mig.known import UnknownLayout
from tessera.core.mig.layout import NodeLayout, Strategy
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.defragment import Advice, Bundle, HeldCard, defragment
from tessera.core.planning.fragmentation import CardUse, packed
from tessera.core.planning.program import Solver
from tessera.core.planning.waiting import DemandGroup, allowed_nodes, settle
from tessera.core.resources import WHOLE_GPU, is_any_gpu
from tessera.inventory.inventory import Inventory
from tessera.inventory.pending import room_of, skipped_nodes


def defragment_inventory(selector: LabelSelector = EVERYTHING) -> Inventory:
    """What to read of a cluster, to know whose end makes room: who holds GPUs, and all else that they ask for."""
    return Inventory(
        lambda _: True, selector, holds=lambda use: any(map(is_any_gpu, use.amounts)), places=True
    )


@dataclass(frozen=True, slots=True)
class PodMove:
    """A pod that must end or move, what it holds, and a node that has the same free."""

    pod: str
    node: str
    card: int | None  # None: on which card it is, is not known
    holds: Mapping[str, int]
    to: str | None


@dataclass(frozen=True, slots=True)
class Defragmentation:
    """The advice, in a cluster's words."""

    advice: Advice
    moves: tuple[PodMove, ...]
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
        found = inventory.known(name)
        if isinstance(found, UnknownLayout):
            skipped.setdefault(found.reason, []).append(name)
            continue
        layout = found.layout
        try:
            if node.by_mig_manager or not found.placed:
                here = list(_bundled(name, layout, used, holders.get(name, []), node.strategy))
                places += [(name, number) for number, _ in here]
                cards += [card for _, card in here]
                continue
            key = (tuple(map(id, layout.cards)), layout.plain, node.strategy, tuple(used.items()))
            if key not in known:
                known[key] = packed(layout, used, node.strategy)
        except InvalidInput as error:
            skipped.setdefault(str(error), []).append(name)
            continue
        places += [(name, number) for number in range(len(layout.cards))]
        cards += _held(known[key], holders.get(name, []), layout, node.strategy)
    if not cards:
        raise InvalidInput("no node has cards that could be cut")
    advice = defragment(wanted, cards, solve)
    return Defragmentation(
        advice,
        _moves(advice, places, cards, inventory),
        tuple(places),
        tuple(cards),
        tuple(skipped_nodes(skipped)),
    )


def _bundled(
    name: str, layout: NodeLayout, used: Mapping[str, int], pods: Sequence[PodUse], strategy: Strategy
) -> Iterator[tuple[int, HeldCard]]:
    """Cards that are cut only as a whole, of which is not known who is on them, by number: free ones, and those that many pods may be on.

    A card on which something is held that no pod's end would free is left out.
    """
    slots = layout.slots(strategy)
    on: list[set[str]] = [set() for _ in layout.cards]  # the resources of each card of which pods hold some
    for resource, some in slots.items():
        for slot in some if used.get(resource) else ():
            on[slot.card].add(resource)
    if used.keys() - slots.keys() and any(used[resource] for resource in used.keys() - slots.keys()):
        on = [{*used} for _ in layout.cards]  # of what the layout does not have, any card may have some
    for resources, pods_ in _together(on, pods):
        numbers = [number for number, one in enumerate(on) if one & resources]
        profiles = {p: r for r in resources if (p := MigProfile.of_resource(r)) and r in slots}
        free = tuple(sorted((p, n) for p, r in profiles.items() if (n := len(slots[r]) - used.get(r, 0)) > 0))
        bundle = Bundle(f"{name} {min(resources)}", pods_, free)
        if pods_:
            yield from ((number, HeldCard(layout.cards[number], bundle=bundle)) for number in numbers)
    yield from ((number, HeldCard(layout.cards[number])) for number, one in enumerate(on) if not one)


def _together(on: Sequence[set[str]], pods: Sequence[PodUse]) -> list[tuple[set[str], tuple[str, ...]]]:
    """Resources that are on the same cards or held by the same pods, with all pods that hold some of them."""
    groups: list[set[str]] = []
    held = [{resource for resource in use.amounts if is_any_gpu(resource)} for use in pods]
    for one in (*on, *held):
        if one:
            groups = [g for g in groups if not g & one] + [one.union(*(g for g in groups if g & one))]
    return [
        (
            group,
            tuple(
                sorted(
                    f"{use.namespace}/{use.name}" for use, of in zip(pods, held, strict=True) if of & group
                )
            ),
        )
        for group in groups
        if any(one & group for one in on)
    ]


def _held(
    uses: Sequence[CardUse], pods: Sequence[PodUse], layout: NodeLayout, strategy: Strategy
) -> Iterator[HeldCard]:
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
        names = [layout.name(instance, strategy) for instance in one.used]
        yield HeldCard(one.layout, one.used, tuple(dealt[name].pop() for name in names))


def _moves(
    advice: Advice, places: Sequence[tuple[str, int]], cards: Sequence[HeldCard], inventory: Inventory
) -> tuple[PodMove, ...]:
    """For each pod another node that may take it, and has free all that it asks for."""
    uses = {f"{use.namespace}/{use.name}": use for use in inventory.pods}
    alone = {places[one.card][0] for one in advice.cleared}
    rooms = [
        room_of(one)
        for one in sorted(inventory.capacity.nodes(), key=lambda one: one.node.name)
        if one.node.name not in alone
    ]
    moves = []
    of = {pod: one.card for one in reversed(advice.cleared) for pod in one.pods}
    for pod, card in of.items():
        use = uses[pod]
        asks = {resource: amount.number for resource, amount in use.amounts.items()}
        group = DemandGroup((pod,), replace(use.where or Pod(), node_name=""), asks, {}, waits=True)
        _, given = settle([group], allowed_nodes([group], rooms)[0], rooms)
        holds = {
            resource: int(amount.value) for resource, amount in use.amounts.items() if is_any_gpu(resource)
        }
        node, number = places[card]
        on = None if cards[card].bundle else number
        moves.append(PodMove(pod, node, on, holds, next((rooms[i].node.name for i in given), None)))
    return tuple(sorted(moves, key=lambda move: (move.node, move.card or 0, move.pod)))
