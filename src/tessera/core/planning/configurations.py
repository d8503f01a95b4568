"""Which of mig-manager's configurations gives a node what a plan wants of it, and what to call a new one.

mig-manager cuts a node as one named configuration says, and the ConfigMap that holds them has some already. One that serves
all that the plan serves on the node is taken, with whatever else it makes; else the plan's own layout becomes a new entry. Its
name is made of its content: nodes that are cut alike share it, and the same plan has the same name tomorrow.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tessera.core.errors import InvalidInput
from tessera.core.mig.layout import LayoutEntry, NodeLayout, resolve
from tessera.core.mig.placement import Wish
from tessera.core.mig.profile import MigProfile

Configs = Mapping[str, tuple[LayoutEntry, ...]]

OURS: Final = "tessera-"  # what the names of entries begin with that Tessera adds to mig-manager's ConfigMap
_DIGITS: Final = 8  # of the hash: a ConfigMap holds few entries


@dataclass(frozen=True, slots=True)
class Choice:
    """A configuration, and what it makes of the node's cards."""

    name: str
    layout: NodeLayout
    new: bool  # the ConfigMap does not have it yet
    # an existing configuration that serves some of it, where none serves all: its name and how many devices
    instead: tuple[str, int] | None = None


def choose(
    planned: NodeLayout,
    present: NodeLayout,
    fixed: Collection[int],
    serves: Mapping[MigProfile, int],
    configs: Configs,
) -> Choice:
    """The configuration for one node: an existing one that serves as much as the plan, else a new one.

    `fixed` are cards that must stay as they are, `serves` what of the demand the plan's layout serves here. Of several that
    serve it, the one that changes the fewest cards is taken, then the one that comes first.
    """
    idle = [number for number in range(len(planned.cards)) if number not in fixed]
    wanted = {p: min(count, _made(planned, idle)[p]) for p, count in serves.items()}
    # what is free on cards that the plan leaves alone serves others, and must be there as well
    beside = _made(present, [n for n in idle if planned.cards[n] == present.cards[n]])
    found: list[tuple[int, int, str, NodeLayout]] = []
    for name, entries in configs.items():
        try:
            layout = applied(entries, present)
        except InvalidInput:  # for other cards
            continue
        if any(not _alike(layout, present, number) for number in fixed):
            continue
        made = _made(layout, idle)
        served = sum(max(0, min(count, made[p] - beside[p])) for p, count in wanted.items())
        changes = sum(not _alike(layout, present, number) for number in idle)
        found.append((-served, changes, name, layout))
    best = min(found, default=None, key=lambda one: one[:2])
    if best and -best[0] >= sum(wanted.values()):
        return Choice(best[2], best[3], new=False)
    name = configuration_name(parted_entries(planned))
    instead = (best[2], -best[0]) if best and best[0] else None
    return Choice(name, planned, name not in configs, instead)


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
    """Whether mig-manager leaves the card alone: it compares counts, not places."""
    mine, its = one.cards[number], other.cards[number]
    return mine.mig_enabled == its.mig_enabled and mine.counts == its.counts


def named_for(
    layout: NodeLayout, present: NodeLayout | None, configs: Configs, prefer: Sequence[str] = ()
) -> str | None:
    """A configuration that makes exactly this of every card, preferred ones first; None where there is none."""
    names = [*(name for name in prefer if name in configs), *configs]
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
