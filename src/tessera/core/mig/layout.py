"""MIG layouts: what one card is cut into, what a node's cards are, and which resources that makes.

A layout that exists fits its card. Layout files and annotations come in as `LayoutEntry` values (see
`tessera.protocol.mig.documents`), which say what is wanted of which cards; `resolve` turns them into a `NodeLayout` for the
cards that are really there, or says for every card why not.
"""

import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from tessera.core.errors import InvalidInput, InvalidInputs
from tessera.core.mig.geometry import Product
from tessera.core.mig.misfit import explain_misfit
from tessera.core.mig.placement import Instance, Wish, place, place_keeping
from tessera.core.mig.profile import MigProfile
from tessera.core.resources import WHOLE_GPU

# any fixed value would do; it keeps the names of simulated devices apart from other hashes of the same texts
_NAMES: Final = uuid.uuid5(uuid.NAMESPACE_DNS, "tessera-gpu")
WHOLE: Final = "gpu"  # the place of a device that is a whole card


class DoesNotFit(InvalidInput):
    """A set of MIG devices that no placement on the card can hold."""


class Strategy(StrEnum):
    """How NVIDIA's device plugin names the resources of cards that are cut."""

    NONE = "none"  # cards are whole GPUs, whatever they are cut into
    SINGLE = "single"  # all cards cut alike into one profile, whose devices are called GPUs
    MIXED = "mixed"  # each profile is a resource of its own, cards that are not cut are GPUs


@dataclass(frozen=True, slots=True)
class CardLayout:
    """A card and its MIG devices, ordered by position. With MIG off it is one whole GPU."""

    product: Product
    mig_enabled: bool = False
    instances: tuple[Instance, ...] = ()

    def __post_init__(self) -> None:
        if self.instances and not self.mig_enabled:
            raise DoesNotFit(f"{self.product.name}: MIG devices on a card with MIG off")
        wishes = [Wish(i.profile, i.position, i.size) for i in self.instances]
        placed = place(self.product, wishes)
        if placed is None:
            raise DoesNotFit(explain_misfit(self.product, wishes))
        object.__setattr__(self, "instances", placed)  # the same, in order

    @classmethod
    def cut(
        cls, product: Product, wishes: Iterable[Wish | MigProfile], present: Sequence[Instance] = ()
    ) -> "CardLayout":
        """A card cut as wished, or `DoesNotFit` with the reason; of the present instances as many stay as can."""
        asked = [wish if isinstance(wish, Wish) else Wish(wish) for wish in wishes]
        instances = place_keeping(product, asked, present)
        if instances is None:
            raise DoesNotFit(explain_misfit(product, asked))
        return cls(product, mig_enabled=True, instances=instances)

    @property
    def counts(self) -> dict[MigProfile, int]:
        """How many devices of each profile, smallest profile first."""
        counted = Counter(instance.profile for instance in self.instances)
        return {profile: counted[profile] for profile in sorted(counted)}

    @property
    def words(self) -> str:
        """`1g.18gb ×4 + 3g.71gb ×1`, `a whole GPU`, `empty`."""
        if not self.mig_enabled:
            return "a whole GPU"
        return " + ".join(f"{profile} ×{count}" for profile, count in self.counts.items()) or "empty"

    def has_devices_of(self, other: "CardLayout") -> bool:
        """Whether both have the same devices, wherever these lie: such a card mig-manager leaves alone."""
        return self.mig_enabled == other.mig_enabled and self.counts == other.counts


@dataclass(frozen=True, slots=True)
class Slot:
    """What a resource is made of: a card's MIG device, or the whole card."""

    card: int
    instance: Instance | None = None

    @property
    def place(self) -> str:
        """Where it lies on its card: `1g.18gb@4`, or `gpu` for the whole card."""
        one = self.instance
        return f"{one.profile}@{one.position}" if one else WHOLE

    def uuid(self, node: str) -> str:
        """The name that it has on a simulated node: `GPU-…`, `MIG-…`.

        A hash of what it is: the same layout has the same devices after a restart, and a card that stays as it is
        keeps its devices when another changes.
        """
        one = self.instance
        if one is None:
            return f"GPU-{uuid.uuid5(_NAMES, f'{node}/{self.card}')}"
        return f"MIG-{uuid.uuid5(_NAMES, f'{node}/{self.card}/{one.position}+{one.size}/{one.profile}')}"


@dataclass(frozen=True, slots=True)
class NodeLayout:
    cards: tuple[CardLayout, ...]
    changing: bool = False  # devices of an earlier layout are among these: a strategy's rules do not hold yet
    # a profile's devices with extra engines have the plain ones' name, as NVIDIA's device plugin (0.19) offers them
    plain: bool = field(default=False, compare=False)

    def slots(self, strategy: Strategy = Strategy.MIXED) -> dict[str, tuple[Slot, ...]]:
        """What the node offers: resource name → its devices, in the order of cards and positions."""
        if strategy is Strategy.NONE:
            return {WHOLE_GPU: tuple(Slot(number) for number in range(len(self.cards)))} if self.cards else {}
        if strategy is Strategy.SINGLE and not self.changing:
            self._check_single()
        found: dict[str, list[Slot]] = {}
        for number, card in enumerate(self.cards):
            for slot in (
                [Slot(number, instance) for instance in card.instances]
                if card.mig_enabled
                else [Slot(number)]
            ):
                found.setdefault(self.name(slot.instance, strategy), []).append(slot)
        return {name: tuple(found[name]) for name in sorted(found)}

    def name(self, one: Instance | None, strategy: Strategy) -> str:
        """The resource that a device is one of; None: a whole card."""
        if one is None or strategy is Strategy.SINGLE:
            return WHOLE_GPU
        return (one.profile.plain if self.plain else one.profile).resource

    def resources(self, strategy: Strategy = Strategy.MIXED) -> dict[str, int]:
        """What the node offers, counted: `{"nvidia.com/mig-2g.20gb": 8, "nvidia.com/mig-3g.40gb": 4}`."""
        return {name: len(slots) for name, slots in self.slots(strategy).items()}

    def _check_single(self) -> None:
        if len({card.mig_enabled for card in self.cards}) > 1:
            raise DoesNotFit(
                "MIG strategy single: all cards must have MIG on, or all off; use strategy mixed"
            )
        empty = [number for number, card in enumerate(self.cards) if card.mig_enabled and not card.instances]
        if empty:
            raise DoesNotFit(f"MIG strategy single: {named_cards(empty)} has MIG on and no devices")
        profiles = sorted({instance.profile for card in self.cards for instance in card.instances})
        if len(profiles) > 1:
            names = " and ".join(map(str, profiles))
            raise DoesNotFit(
                f"MIG strategy single: one profile on all cards, not {names}; use strategy mixed"
            )


def going(
    before: NodeLayout | None, after: NodeLayout, offered: Mapping[str, int], strategy: Strategy
) -> dict[str, int]:
    """How many devices of each resource would go.

    A device stays where the new layout has the same one in the same place. Where it is not known how the cards are cut
    now, only the numbers that the node offers can be compared.
    """
    wanted = after.slots(strategy)
    try:
        present = before.slots(strategy) if before is not None else None
    except DoesNotFit:  # a layout that this strategy does not have
        present = None
    if present is None:
        lost = {resource: number - len(wanted.get(resource, ())) for resource, number in offered.items()}
    else:
        lost = {resource: len({*slots} - {*wanted.get(resource, ())}) for resource, slots in present.items()}
    return {resource: number for resource, number in lost.items() if number > 0}


def places_going(before: NodeLayout, after: NodeLayout) -> dict[int, tuple[str, ...]]:
    """The devices that would go: card → their places."""
    found = {}
    for number, (old, new) in enumerate(zip(before.cards, after.cards, strict=True)):
        if old.mig_enabled:
            stay = {*new.instances}
            gone = tuple(Slot(number, one).place for one in old.instances if one not in stay)
        else:
            gone = (WHOLE,) if new.mig_enabled else ()
        if gone:
            found[number] = gone
    return found


@dataclass(frozen=True, slots=True)
class LayoutEntry:
    """What a layout document wants of some of a node's cards."""

    cards: tuple[int, ...] | None  # None: all
    mig_enabled: bool
    wishes: tuple[Wish, ...] = ()
    device_filter: tuple[int, ...] = ()  # PCI ids; empty: any

    def concerns(self, number: int, product: Product) -> bool:
        return (self.cards is None or number in self.cards) and self.accepts(product)

    def accepts(self, product: Product) -> bool:
        return not self.device_filter or not {*self.device_filter}.isdisjoint(product.pci_ids)


def count_devices(entries: Iterable[LayoutEntry], cards: int) -> Counter[str]:
    """The MIG devices that entries make on a node of so many cards, by resource.

    Entries for some kinds of cards are left out: which of the node's cards these are is not known.
    """
    counts: Counter[str] = Counter()
    for entry in entries:
        if entry.mig_enabled and not entry.device_filter:
            for wish in entry.wishes:
                counts[wish.profile.resource] += cards if entry.cards is None else len(entry.cards)
    return counts


def resolve(
    entries: Sequence[LayoutEntry], cards: Sequence[Product], present: Sequence[Sequence[Instance]] = ()
) -> NodeLayout:
    """The layout that the entries give these cards; cards that no entry concerns are whole GPUs.

    Where it is known what is present on each card, as much of it stays as can.
    Every error is reported, cards that share one in one sentence.
    """
    reasons: dict[str, list[int]] = {}
    layouts = []
    for number, product in enumerate(cards):
        concerned = [index for index, entry in enumerate(entries) if entry.concerns(number, product)]
        if len(concerned) > 1:
            reason = f"named by entries {' and '.join(map(str, concerned))}; one entry per card"
            reasons.setdefault(reason, []).append(number)
            continue
        try:
            entry = entries[concerned[0]] if concerned else None
            cut = entry is not None and entry.mig_enabled
            stay = present[number] if number < len(present) else ()
            layouts.append(
                CardLayout.cut(product, entry.wishes, stay) if entry and cut else CardLayout(product)
            )
        except DoesNotFit as error:
            reasons.setdefault(str(error), []).append(number)
    absent = sorted({n for entry in entries for n in entry.cards or () if n >= len(cards)})
    sentences = [f"{named_cards(numbers)}: {reason}" for reason, numbers in reasons.items()]
    if absent:
        there = f"the node has {named_cards(range(len(cards)))}" if cards else "the node has no cards"
        sentences.append(f"{named_cards(absent)}: not there; {there}")
    if sentences:
        raise InvalidInputs(sentences)
    return NodeLayout(tuple(layouts))


def resolve_alike(entries: Sequence[LayoutEntry], product: Product, cards: int | None) -> NodeLayout:
    """The same for cards of one product; as many as the entries name where their number is unknown."""
    named = [number for entry in entries for number in entry.cards or ()]
    return resolve(entries, [product] * (cards or max(named, default=0) + 1))


def entries_of(layout: NodeLayout) -> tuple[LayoutEntry, ...]:
    """The entries that give this layout, places included; cards that are alike share one."""
    alike: dict[tuple[bool, tuple[Wish, ...]], list[int]] = {}
    for number, card in enumerate(layout.cards):
        wishes = tuple(Wish(i.profile, i.position, i.size) for i in card.instances)
        alike.setdefault((card.mig_enabled, wishes), []).append(number)
    return tuple(LayoutEntry(tuple(numbers), enabled, wishes) for (enabled, wishes), numbers in alike.items())


def named_cards(numbers: Iterable[int]) -> str:
    """`card 3`, `cards 0-3`, `cards 0, 2, 5-7`."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and spans[-1][-1] == number - 1:
            spans[-1] = [spans[-1][0], number]
        else:
            spans.append([number, number])
    text = ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in spans)
    return f"card {text}" if text.isdigit() else f"cards {text}"
