"""What a plan makes of each node: how its cards are cut now, how they will be, and what that removes and adds.

A node is changed its own way. By the annotation single devices come and go, and those that stay are left alone. NVIDIA's
mig-manager clears a card whose devices differ, and cuts it again: all that was on it is removed, and all that it gets is added.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tessera.core.mig.layout import CardLayout, NodeLayout, Slot
from tessera.core.mig.profile import MigProfile
from tessera.core.resources import WHOLE_GPU, short

Counts = Mapping[str, int]  # a profile's name, or `gpu` for a whole card → how many


class Way(StrEnum):
    """By what a node's cards are cut."""

    ANNOTATION = "annotation"  # run.ai/mig.config, which Tessera's device plugin and DRA driver follow
    MIG_MANAGER = (
        "mig-manager"  # the label nvidia.com/mig.config, which names one of mig-manager's configurations
    )


@dataclass(frozen=True, slots=True)
class NodeChange:
    """One node of a plan; how its cards are cut now is known."""

    name: str
    way: Way
    present: NodeLayout
    layout: NodeLayout  # how they will be
    filled: Mapping[MigProfile, int] = field(default_factory=dict)  # of what is added, what no pod asked for
    configuration: str | None = None  # the name of mig-manager's configuration that gives this layout
    by_card: tuple[tuple[Counts, Counts], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        both = zip(self.present.cards, self.layout.cards, strict=True)
        by_card = tuple(difference(*one, cleared=self.way is Way.MIG_MANAGER) for one in both)
        object.__setattr__(self, "by_card", by_card)

    @property
    def removed(self) -> dict[str, int]:
        return total(one for one, _ in self.by_card)

    @property
    def added(self) -> dict[str, int]:
        return total(one for _, one in self.by_card)

    @property
    def changed(self) -> tuple[int, ...]:
        """The cards that are cut differently, by number."""
        return tuple(number for number, both in enumerate(self.by_card) if any(both))


def difference(before: CardLayout, after: CardLayout, *, cleared: bool) -> tuple[Counts, Counts]:
    """What is removed from a card, and what is added to it; `cleared`: a card that differs is cleared first."""
    if before is after:
        return {}, {}
    if cleared:
        same = before.has_devices_of(after)
        return ({}, {}) if same else (_named(_slots(before)), _named(_slots(after)))
    old, new = _slots(before), _slots(after)
    return _named(old - new), _named(new - old)


def total(some: Iterable[Counts]) -> dict[str, int]:
    """All of them together, the smallest profile first and whole cards last."""
    counts: Counter[str] = Counter()
    for one in some:
        counts.update(one)
    return {name: counts[name] for name in sorted(counts, key=_order)}


def profile_counts(counts: Mapping[MigProfile, int]) -> dict[str, int]:
    return {str(profile): counts[profile] for profile in sorted(counts)}


def _slots(card: CardLayout) -> set[Slot]:
    return {Slot(0, one) for one in card.instances} if card.mig_enabled else {Slot(0)}


def _named(slots: Iterable[Slot]) -> Counts:
    return Counter(str(slot.instance.profile) if slot.instance else short(WHOLE_GPU) for slot in slots)


def _order(name: str) -> tuple[bool, tuple[int, int, int, str]]:
    whole = name == short(WHOLE_GPU)
    return whole, (0, 0, 0, "") if whole else MigProfile.parse(name).rank
