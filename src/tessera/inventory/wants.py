"""What the autopilot is told of a cluster: what pods want and do not have, and the cards that may be cut for it.

How much of what pods ask for is looked at: whoever may create pods can ask for anything, in as many ways as there are pods.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Final

from tessera.core.admission.limits import weight
from tessera.core.autopilot.values import CardSupply, Kind, Want
from tessera.core.kubernetes.blocked import Block
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.waiting import DemandGroup, WaitingGroups
from tessera.core.text import number_of
from tessera.inventory.inventory import Inventory
from tessera.inventory.pending import NodeMemory, Pending
from tessera.protocol.kubernetes.objects import moment, seconds
from tessera.protocol.mig.nodes import GpuNode

# Groups of pods that ask for the same and may go to the same nodes. At 4,000 nodes that all differ, 500 groups take about 3 s; the controller's Lease
# must be renewed within 10 s.
MOST_GROUPS: Final = 500
MOST_OF_A_NAMESPACE: Final = 50
# What it takes to compare a group with one node, in steps of a microsecond or less: a pod has room for a hundred thousand values of node affinity. A group
# that people make takes some five.
_STEPS_OF_A_GROUP: Final = 10
_MOST_CARDS: Final = 16  # of a node that does not say how many it has; NVIDIA's largest has 16


def fair(groups: Sequence[DemandGroup]) -> list[DemandGroup]:
    """The oldest groups of each namespace, in turns, as many as are looked at; in their order."""
    steps = [_steps(one) for one in groups]
    if len(_first(range(len(groups)), steps, MOST_OF_A_NAMESPACE)) == len(groups):
        return list(groups)
    of: dict[str, list[int]] = {}
    for number, group in enumerate(groups):
        for namespace in {name.partition("/")[0] for name in group.names}:
            of.setdefault(namespace, []).append(number)
    turns = zip_longest(*(_first(some, steps, MOST_OF_A_NAMESPACE) for some in of.values()))
    chosen = dict.fromkeys(one for turn in turns for one in turn if one is not None)
    return [groups[number] for number in sorted(_first(chosen, steps, MOST_GROUPS))]


def _first(numbers: Iterable[int], steps: Sequence[int], most: int) -> list[int]:
    """The first so many groups, without those for which there are not enough steps left."""
    found, left = list[int](), most * _STEPS_OF_A_GROUP
    for number in numbers:
        if len(found) < most and steps[number] <= left:
            found.append(number)
            left -= steps[number]
    return found


def _steps(group: DemandGroup) -> int:
    where = group.where
    terms = sum(weight(one) for one in where.required_terms or ())
    return len(where.node_selector) + len(where.tolerations) + terms


def most_on_a_node(nodes: Iterable[GpuNode]) -> Callable[[MigProfile], int]:
    """How many devices of a profile a node can have at most, however its cards are cut; 0: no card knows it."""
    kinds = {(one.product, one.cards or _MOST_CARDS) for one in nodes if one.product is not None}
    known: dict[MigProfile, int] = {}

    def most(profile: MigProfile) -> int:
        if profile not in known:
            shapes = ((product.shape(profile), cards) for product, cards in kinds)
            known[profile] = max((shape.most * cards for shape, cards in shapes if shape), default=0)
        return known[profile]

    return most


_FELL_BACK: Final = 86400.0  # seconds: pods made before count with what they have, as for `mig plan`
_HELD: Final = "pods hold it, or may"


def wanting_inventory() -> Inventory:
    """What to read of a cluster, to know what its pods want."""
    return Inventory(
        lambda _: True,
        holds=lambda use: not use.node or bool(use.record),
        places=True,
        with_rejected=True,
    )


@dataclass(frozen=True, slots=True)
class Situation:
    """What is wanted, and the cards that there are."""

    wants: tuple[Want, ...]
    cards: Mapping[str, tuple[CardSupply, ...]]  # by node
    unknown: Mapping[str, str]  # nodes whose layout is not known, and why
    queues: Mapping[str, frozenset[int]]  # by node: the wants that devices on it could serve
    unseen: str = ""  # what could not be read
    used: Mapping[str, Mapping[MigProfile, int]] | None = (
        None  # by node: devices that pods have; None: all that is held
    )
    blocked: Mapping[Block, int] = field(default_factory=dict)  # pods that wait for something else


def situation(
    inventory: Inventory,
    now: float,
    *,
    coming: Mapping[str, Mapping[str, int]],
    left: Mapping[str, str],
    without: Mapping[str, str],
    memory: NodeMemory | None = None,
) -> Situation:
    """What the autopilot is told.

    `coming`: what nodes whose layout is being changed will have. `left`: nodes that are left as they are, and why; `without`: those of
    them that take no pods now. `memory`: for who asks again and again.
    """
    since = moment(now - _FELL_BACK)
    pending = Pending(
        inventory,
        since,
        coming=coming,
        without=without,
        for_running=False,
        memory=memory,
        bound=fair,
        now=now,
    )
    found = pending.cards()
    cards = {
        place.name: tuple(
            CardSupply(
                place.name,
                number,
                card.present,
                card.kept,
                place.way,
                place.queues,
                left.get(place.name, "") or (_HELD if card.fixed else ""),
            )
            for number, card in enumerate(found.cards[place.cards.start : place.cards.stop])
            if card.present is not None
        )
        for place in found.places
        if place.name is not None
    }
    most = most_on_a_node(inventory.gpus.values())
    return Situation(
        tuple(wants_of(pending.waiting, inventory, most)),
        cards,
        {name: reason for reason, names in found.without.items() for name in names},
        pending.waiting.queues,
        "; ".join(_unseen(inventory, pending)),
        {name: dict(_used(inventory, name, most)) for name in cards},
        Counter(pending.blocked.values()),
    )


def _used(
    inventory: Inventory, node: str, most: Callable[[MigProfile], int]
) -> Iterator[tuple[MigProfile, int]]:
    """Devices that pods and claims have on a node, wherever on its cards; no more than it can have: a pod that names its node may ask for anything."""
    for resource, one in inventory.capacity.usage(node).items():
        profile = MigProfile.of_resource(resource)
        if profile is not None and (number := min(int(one.allocated.number), most(profile))) > 0:
            yield profile, number


def _unseen(inventory: Inventory, pending: Pending) -> Iterator[str]:
    """What does not count."""
    if blocked := len(pending.blocked):
        wait = "waits" if blocked == 1 else "wait"
        yield f"not counted: {number_of(blocked, 'pod')} that {wait} for something else than a device"
    if pods := pending.not_considered:
        yield f"not counted: {number_of(pods, 'pod')} in namespaces that ask for too many different things"
    if inventory.rejected.unseen:
        yield f"workloads whose pods are rejected are not counted: {inventory.rejected.unseen}"


def wants_of(
    waiting: WaitingGroups, inventory: Inventory, most: Callable[[MigProfile], int]
) -> Iterator[Want]:
    """What pods want and do not have, after free devices were given out; those of one namespace that are alike together.

    What no node can have, however its cards are cut, is no want; `most`: how many it can have of a profile.
    """
    known = {f"{one.namespace}/{one.name}": one for one in inventory.pods}
    known |= {f"{one.use.namespace}/{one.use.name}": one.use for one in inventory.rejected.found}
    counts: Counter[Want] = Counter()
    for group, queue in waiting.to_plan:
        if any(number > most(profile) for profile, number in group.devices.items()):
            continue
        kind = Kind.REJECTED if group.rejected else Kind.WAITING if group.waits else Kind.FELL_BACK
        for name in group.names:
            use = known[name]
            since = seconds(use.created) or 0.0
            for profile, number in group.devices.items():
                want = Want(profile, use.namespace, since, queue, use.priority, kind, together=number)
                counts[want] += number
    for want, number in counts.items():
        yield replace(want, number=number)
