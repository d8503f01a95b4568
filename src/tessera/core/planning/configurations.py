"""What a plan makes of each node, and which of mig-manager's configurations gives a node that.

mig-manager cuts a node as one named configuration says, and the ConfigMap that holds them has some already. One that serves
all that the plan serves on the node is taken, with whatever else it makes; else the plan's own layout becomes a new entry. Its
name is made of its content: nodes that are cut alike share it, and the same plan has the same name tomorrow.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tessera.core.errors import InvalidInput
from tessera.core.mig.layout import LayoutEntry, NodeLayout, resolve
from tessera.core.mig.placement import Wish
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.changes import Counts, NodeChange, Way, profile_counts, total
from tessera.core.planning.kinds import NodeCards
from tessera.core.planning.planner import Plan

Configs = Mapping[str, tuple[LayoutEntry, ...]]

OURS: Final = "tessera-"  # what the names of entries begin with that Tessera adds to mig-manager's ConfigMap
_DIGITS: Final = 8  # of the hash: a ConfigMap holds few entries


@dataclass(frozen=True, slots=True)
class Instead:
    """What an existing configuration would do on nodes that get a new one."""

    served: int  # devices, of all that the new ones serve there
    of: int
    removed: Counts


# values of labels, as k8s.io/apimachinery/pkg/util/validation has it
_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", re.ASCII)


def is_label_value(name: str) -> bool:
    """Whether a node's label can name a configuration so."""
    return _LABEL_VALUE.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class PlanChanges:
    """A plan, and the nodes that it changes."""

    plan: Plan  # its cards as they really will be: a configuration may give more than the plan asks for
    nodes: tuple[NodeChange, ...] = ()
    new: Configs = field(default_factory=dict)  # configurations that mig-manager does not have yet
    instead: Mapping[str, Instead] = field(default_factory=dict)  # by the name of an existing configuration
    unknown: tuple[str, ...] = ()  # nodes that the plan uses, whose layout is not known
    beside: int = 0  # cards that change only because an existing configuration changes them

    @property
    def cards(self) -> int:
        """How many cards are cut."""
        return sum(len(node.changed) for node in self.nodes) if self.nodes else len(self.plan.used)

    @property
    def filled(self) -> dict[str, int]:
        """What cards get that no pod asked for."""
        of_cards = map(self.plan.filled, self.plan.serves)
        return total(map(profile_counts, (node.filled for node in self.nodes) if self.nodes else of_cards))


@dataclass(frozen=True, slots=True)
class Choice:
    """A configuration, and what it makes of the node's cards."""

    name: str
    layout: NodeLayout
    new: bool  # the ConfigMap does not have it yet
    # an existing configuration that serves some of it, where none will do: its name, how many devices, and what it makes
    instead: tuple[str, int, NodeLayout] | None = None


def changes_of(
    plan: Plan,
    places: Sequence[NodeCards],
    configs: Configs,
    needed: Collection[MigProfile] = (),
    *,
    as_planned: bool = False,
) -> PlanChanges:
    """The nodes that a plan changes; those of mig-manager get a configuration.

    `needed` is what pods ask for or hold. `as_planned`: no other cards may change than the plan's.
    """
    cards, kept = list(plan.cards), list(plan.kept)
    nodes, unknown, new = [], [], dict[str, tuple[LayoutEntry, ...]]()
    instead: dict[str, Instead] = {}
    beside = 0
    known: dict[tuple[object, ...], Choice] = {}  # thousands of nodes are cut alike
    for place in places:
        here = place.cards
        used = [number for number in here if number in plan.serves]
        if place.name is None or not used:
            continue
        present = [plan.present[number] for number in here]
        before = NodeLayout(tuple(one for one in present if one))
        if len(before.cards) < len(here):
            unknown.append(place.name)
            continue
        layout = NodeLayout(tuple(plan.cards[here.start : here.stop]))
        serves = sum((Counter(plan.serves[number]) for number in used), Counter[MigProfile]())
        choice = None
        if place.way is Way.MIG_MANAGER:
            fixed = [n - here.start for n in here if n in plan.fixed or (as_planned and n not in plan.serves)]
            key = (*map(id, layout.cards), *map(id, present), *fixed, *serves.items())
            if key not in known:
                known[key] = choose(layout, before, fixed, serves, configs, needed)
            choice = known[key]
            layout = choice.layout
        change = NodeChange(place.name, place.way, before, layout, {}, choice.name if choice else None)
        if not change.changed:  # what is free there already serves it
            continue
        beside += len({here[number] for number in change.changed} - set(used))
        every = _made(layout, range(len(here)))
        added = Counter({p: n for p in every if (n := change.added.get(str(p), 0))})
        nodes.append(replace(change, filled=added - serves))
        for number, card in zip(here, layout.cards, strict=True):
            if card != cards[number]:
                cards[number], kept[number] = card, ()
        if choice and choice.new:
            new[choice.name] = parted_entries(layout)
        if choice and choice.instead:
            name, count, other = choice.instead
            gone = NodeChange(place.name, place.way, before, other).removed
            one = instead.get(name, Instead(0, 0, {}))
            instead[name] = Instead(one.served + count, one.of + serves.total(), total([one.removed, gone]))
    real = replace(plan, cards=tuple(cards), kept=tuple(kept))
    return PlanChanges(real, tuple(nodes), new, instead, tuple(unknown), beside)


def choose(
    planned: NodeLayout,
    present: NodeLayout,
    fixed: Collection[int],
    serves: Mapping[MigProfile, int],
    configs: Configs,
    needed: Collection[MigProfile] = (),
) -> Choice:
    """The configuration for one node: an existing one that serves as much as the plan, else a new one.

    `fixed` are cards that must stay as they are, `serves` what of the demand the plan's layout serves here. An existing configuration
    leaves as much of what is `needed` on the other cards as the plan does. Of several, the one that changes the fewest cards is
    taken, then the one that removes the least, then the one that comes first.
    """
    idle = [number for number in range(len(planned.cards)) if number not in fixed]
    wanted = {p: min(count, _made(planned, idle)[p]) for p, count in serves.items()}
    # what is free on cards that the plan leaves alone serves others, and must be there as well
    beside = _made(present, [n for n in idle if planned.cards[n] == present.cards[n]])
    found: list[tuple[tuple[bool, int, int, int], str, NodeLayout]] = []
    for name, entries in configs.items():
        if not is_label_value(name):
            continue
        try:
            layout = applied(entries, present)
        except InvalidInput:  # for other cards
            continue
        if any(not _alike(layout, present, number) for number in fixed):
            continue
        made = _made(layout, idle)
        served = sum(max(0, min(count, made[p] - beside[p])) for p, count in wanted.items())
        will_do = served == sum(wanted.values()) and all(made[p] >= beside[p] for p in needed)
        changes = sum(not _alike(layout, present, number) for number in idle)
        lost = sum(p.memory_gb * n for p, n in (_made(present, idle) - made).items())
        found.append(((not will_do, -served, changes, lost), name, layout))
    rank, existing, layout = min(found, default=((True, 0, 0, 0), "", planned), key=lambda one: one[0])
    if not rank[0]:
        return Choice(existing, layout, new=False)
    name = configuration_name(parted_entries(planned))
    return Choice(name, planned, name not in configs, (existing, -rank[1], layout) if rank[1] else None)


def applied(entries: Sequence[LayoutEntry], present: NodeLayout) -> NodeLayout:
    """What mig-manager makes of a node's cards: those that no entry concerns stay as they are."""
    layout = resolve(entries, [card.product for card in present.cards])
    return NodeLayout(
        tuple(
            new if any(entry.concerns(number, old.product) for entry in entries) else old
            for number, (new, old) in enumerate(zip(layout.cards, present.cards, strict=True))
        )
    )


def parted_entries(layout: NodeLayout) -> tuple[LayoutEntry, ...]:
    """A layout as mig-manager takes it: for each card how many devices of which profile, without places."""
    alike: dict[tuple[bool, tuple[tuple[MigProfile, int], ...]], list[int]] = {}
    for number, card in enumerate(layout.cards):
        alike.setdefault((card.mig_enabled, tuple(card.counts.items())), []).append(number)
    return tuple(
        LayoutEntry(tuple(numbers), enabled, tuple(Wish(p) for p, count in counts for _ in range(count)))
        for (enabled, counts), numbers in alike.items()
    )


def configuration_name(entries: Sequence[LayoutEntry]) -> str:
    """`tessera-1a2b3c4d`: the same for the same content."""
    content = [
        (entry.cards, entry.mig_enabled, [str(wish.profile) for wish in entry.wishes]) for entry in entries
    ]
    return OURS + hashlib.sha256(repr(content).encode()).hexdigest()[:_DIGITS]


def _made(layout: NodeLayout, cards: Collection[int]) -> Counter[MigProfile]:
    return sum((Counter(layout.cards[number].counts) for number in cards), Counter[MigProfile]())


def _alike(one: NodeLayout, other: NodeLayout, number: int) -> bool:
    return one.cards[number].has_devices_of(other.cards[number])


def named_for(
    layout: NodeLayout, present: NodeLayout | None, configs: Configs, prefer: Sequence[str] = ()
) -> str | None:
    """A configuration that makes exactly this of every card, preferred ones first; None where there is none."""
    names = [*(name for name in prefer if name in configs), *filter(is_label_value, configs)]
    return next((name for name in names if _makes(configs[name], layout, present)), None)


def _makes(entries: Sequence[LayoutEntry], layout: NodeLayout, present: NodeLayout | None) -> bool:
    """Whether every card gets its devices by one entry, or has them already and is named by none."""
    for number, card in enumerate(layout.cards):
        found = [entry for entry in entries if entry.concerns(number, card.product)]
        if not found and present is not None and _alike(layout, present, number):
            continue
        if len(found) != 1 or found[0].mig_enabled != card.mig_enabled:
            return False
        if Counter(wish.profile for wish in found[0].wishes) != card.counts:
            return False
    return True
