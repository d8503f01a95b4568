"""How a node's cards are cut, from every source there is: the one place that says so.

What a node reports (`run.ai/mig-mapping`) goes before what its annotation wishes. Else its devices are counted: in its capacity, and in
the labels of GPU Feature Discovery; where these differ, nothing is known. The configuration that the label `nvidia.com/mig.config`
names shows which card has what, where it makes just these devices. Without it counts are enough where they leave only one way.
A card is whole only if that is proven: the node has so many whole GPUs, or its configuration switches MIG off.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tessera.core.cache import cache_short
from tessera.core.errors import InvalidInput
from tessera.core.mig.geometry import Product
from tessera.core.mig.known import (
    KnownLayout,
    LayoutSource,
    Profiles,
    UnknownLayout,
    card_alike,
    is_placed,
    not_alike,
)
from tessera.core.mig.layout import CardLayout, LayoutEntry, NodeLayout, Strategy, resolve
from tessera.core.mig.profile import MigProfile
from tessera.core.resources import MIG_PREFIX, WHOLE_GPU, is_share, short
from tessera.core.text import counts_in_words
from tessera.protocol.mig.documents import PARTED_CONFIG, RUNAI_CONFIG
from tessera.protocol.mig.nodes import GpuNode, present_layout
from tessera.protocol.mig.operator import MigManagerConfig

_LONGEST: Final = (
    8 * 1024
)  # characters of a layout that is remembered: eight cards of seven devices take a half of it
NO_CONFIGURATIONS: Final = "mig-manager's configurations are not known"


def known_layout(gpus: GpuNode, mig_manager: MigManagerConfig | None = None) -> KnownLayout | UnknownLayout:
    """How a node's cards are cut, or why that is not known."""
    if gpus.product is None:
        return UnknownLayout(gpus.no_product)
    if gpus.mapping is not None:
        return _described(gpus)  # which names devices: no two nodes have the same
    if gpus.layout is not None and not gpus.by_mig_manager:
        return _annotated(gpus.layout, gpus.product, gpus.cards)
    return _observed(replace(gpus, name="", reason="", layout=None, in_use=None), mig_manager)


def _described(gpus: GpuNode) -> KnownLayout | UnknownLayout:
    try:
        layout = present_layout(gpus)
    except InvalidInput as error:
        return UnknownLayout(str(error))
    if layout is None:
        return UnknownLayout("nothing says how its cards are cut")
    return KnownLayout(LayoutSource.ANNOTATION if gpus.mapping is None else LayoutSource.MAPPING, layout)


@cache_short(512, _LONGEST, lambda layout, *_: len(layout))
def _annotated(layout: str, product: Product, cards: int | None) -> KnownLayout | UnknownLayout:
    """The same text means the same layout on nodes that are alike."""
    return _described(GpuNode("", "", product, cards, layout, Strategy.MIXED))


class _NotKnown(InvalidInput):
    """What a node says about its devices does not show how its cards are cut."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.unknown = UnknownLayout(reason, detail)


@dataclass(frozen=True, slots=True)
class _Seen:
    """The devices that a node has."""

    source: LayoutSource
    counts: Profiles
    whole: int | None  # cards with MIG off; None: their number is not known
    exact: bool = (
        True  # extra engines are distinguished, as GPU Feature Discovery does; NVIDIA's device plugin may not
    )

    def __str__(self) -> str:
        return _words(self.counts, self.whole)

    def agrees(self, layout: NodeLayout) -> bool:
        """Whether a layout makes just these devices."""
        makes = _counts(layout)
        same = self.counts == makes if self.exact else _same(self.counts, makes)
        return same and self.whole in (None, _whole(layout))


@cache_short(1024, _LONGEST, lambda gpus, _: gpus.length)  # thousands of nodes are cut alike
def _observed(gpus: GpuNode, mig_manager: MigManagerConfig | None) -> KnownLayout | UnknownLayout:
    if gpus.is_changing:
        return UnknownLayout(f"its layout is being changed (state {gpus.state})")
    try:
        seen = _seen(gpus)
    except _NotKnown as error:
        return error.unknown
    entry = _configured(gpus, mig_manager, seen)
    if isinstance(entry, NodeLayout) and (seen is None or seen.agrees(entry)):
        return KnownLayout(LayoutSource.MIG_MANAGER, _as_offered(entry, gpus), is_placed(entry))
    found = _counted(gpus, seen)
    if isinstance(entry, NodeLayout):  # which is not what is there
        other = f"its label {PARTED_CONFIG} says {gpus.config}, which makes other devices"
        makes = f"it has {seen}, not {_words(_counts(entry), _whole(entry))}"
        if isinstance(found, KnownLayout):
            return replace(found, note=f"{other} ({makes})")
        return UnknownLayout(f"{found.reason}; {other}", makes)
    if isinstance(found, UnknownLayout) and entry is not None:
        return UnknownLayout(f"{found.reason}; {entry.reason}", found.detail)
    return found


def _seen(gpus: GpuNode) -> _Seen | None:
    """The devices that a node's capacity and labels agree on; None where neither has any."""
    labelled, offered = dict(gpus.labelled), dict(gpus.offered)
    if gpus.strategy is Strategy.NONE:
        return None
    if shared := next(filter(is_share, offered), None):
        raise _NotKnown(f"it has {short(shared)}, and nothing says how many share one device")
    if gpus.strategy is Strategy.SINGLE:
        return _seen_single(gpus, labelled, offered)
    if not (labelled or offered):
        return None
    whole = offered.pop(WHOLE_GPU, 0) if offered else None
    if labelled and gpus.offered and not _same(_profiles(offered), _profiles(labelled)):
        raise _differ(offered, labelled)
    source = LayoutSource.CAPACITY if gpus.offered else LayoutSource.DISCOVERY
    return _Seen(source, _profiles(labelled or offered), whole, exact=bool(labelled))


def _seen_single(gpus: GpuNode, labelled: Mapping[str, int], offered: Mapping[str, int]) -> _Seen | None:
    """Under the single strategy `nvidia.com/gpu` is what the product says: a profile, or a whole card."""
    _, cut, profile = gpus.label.removesuffix("-SHARED").partition("-MIG-")
    if profile == "INVALID":
        raise _NotKnown("its cards are not cut alike, which the MIG strategy single does not allow")
    counted = labelled if cut else {WHOLE_GPU: gpus.cards} if gpus.cards else {}
    if offered and counted and offered != counted:
        raise _differ(offered, counted)
    number = (counted or offered).get(WHOLE_GPU)
    if number is None:
        return None
    if not cut:
        return _Seen(LayoutSource.DISCOVERY, (), number)
    return _Seen(LayoutSource.DISCOVERY, _profiles({MIG_PREFIX + profile: number}), 0)


def _configured(
    gpus: GpuNode, mig_manager: MigManagerConfig | None, seen: _Seen | None
) -> NodeLayout | UnknownLayout | None:
    """The layout that mig-manager has made, or why that is not known; None where no label names one."""
    product, config = gpus.product, gpus.config
    if not config or product is None:
        return None
    if gpus.state != "success":
        return UnknownLayout(f"mig-manager has not made {config} (state {gpus.state or 'not reported'})")
    if mig_manager is None or mig_manager.document is None:
        return UnknownLayout(NO_CONFIGURATIONS)
    entries = mig_manager.document.configs.get(config, ())
    if not entries:
        return UnknownLayout(f'{mig_manager} has no configuration "{config}"')
    entries = tuple(entry for entry in entries if entry.accepts(product))
    if not entries:
        return UnknownLayout(f"{config} has no entry for {product.name}")
    cards = gpus.cards or _cards_of(entries, seen)
    if not cards:
        return UnknownLayout(f"{config} does not say how many cards there are")
    silent = [n for n in range(cards) if not any(entry.concerns(n, product) for entry in entries)]
    # mig-parted leaves cards alone that no entry is for, and of a product's boards it may be for some only
    sure = all(not entry.device_filter or {*product.pci_ids} <= {*entry.device_filter} for entry in entries)
    if (silent or not sure) and (seen is None or seen.whole is None):
        return UnknownLayout(f"{config} may not be for all of its cards")
    try:
        layout = resolve(entries, [product] * cards)
        layout.slots(gpus.strategy)  # which does not allow every layout
    except InvalidInput as error:
        return UnknownLayout(f"{config} does not fit: {error}")
    return layout


def desired_layout(gpus: GpuNode, mig_manager: MigManagerConfig | None) -> NodeLayout | UnknownLayout:
    """The layout that a node is to have, whether it has it by now or not: by mig-manager's configuration, or by its annotation."""
    if gpus.by_mig_manager:
        return _desired(
            replace(gpus, name="", reason="", layout=None, state="success", in_use=None), mig_manager
        )
    if gpus.layout is None or gpus.product is None:
        return UnknownLayout("nothing says how its cards are to be cut")
    annotated = _annotated(gpus.layout, gpus.product, gpus.cards)
    return annotated.layout if isinstance(annotated, KnownLayout) else annotated


@cache_short(1024, _LONGEST, lambda gpus, _: gpus.length)
def _desired(gpus: GpuNode, mig_manager: MigManagerConfig | None) -> NodeLayout | UnknownLayout:
    made = _configured(gpus, mig_manager, None)
    return made or UnknownLayout(f"no label {PARTED_CONFIG} says how its cards are to be cut")


def _cards_of(entries: Sequence[LayoutEntry], seen: _Seen | None) -> int:
    """How many cards a node has whose labels count slices; 0 where the configuration does not say."""
    each = {len(entry.wishes) for entry in entries}
    total = sum(number for _, number in seen.counts) if seen else 0
    if any(entry.cards is None for entry in entries):
        per_card = each.pop() if len(each) == 1 else 0
        return total // per_card if per_card and total % per_card == 0 else 0
    return max((number + 1 for entry in entries for number in entry.cards or ()), default=0)


def _counted(gpus: GpuNode, seen: _Seen | None) -> KnownLayout | UnknownLayout:
    """What counts alone say about the cards."""
    product, cards = gpus.product, gpus.cards
    if product is None or seen is None:
        label = "" if gpus.config else f"no label {PARTED_CONFIG}, "
        missing = f"no annotation {RUNAI_CONFIG}, {label}no GPUs or MIG devices in its capacity"
        none = "under the MIG strategy none nothing says how its cards are cut"
        return UnknownLayout(
            none if gpus.strategy is Strategy.NONE else f"nothing says how its cards are cut: {missing}"
        )
    if cards is None:
        return UnknownLayout(
            "nothing says how many cards have its slices"
            if "-MIG-" in gpus.label
            else f'no number of cards for "{gpus.label}"'
        )
    card: CardLayout | UnknownLayout
    if seen.whole == cards and not seen.counts:
        card = CardLayout(product)
    elif seen.whole or not seen.counts:
        card = not_alike(str(seen), cards)
    else:
        card = card_alike(product, cards, seen.counts)
    if isinstance(card, UnknownLayout):
        return card
    layout = NodeLayout((card,) * cards)
    return KnownLayout(seen.source, _as_offered(layout, gpus), is_placed(layout))


def _as_offered(layout: NodeLayout, gpus: GpuNode) -> NodeLayout:
    """The same with the names that the node's devices have: where its capacity shows none with extra engines, they are among the plain ones."""
    offered = {profile for resource, _ in gpus.offered if (profile := MigProfile.of_resource(resource))}
    made = {profile for profile, _ in _counts(layout) if profile.extras}
    return replace(layout, plain=True) if made and made.isdisjoint(offered) else layout


def _profiles(counts: Mapping[str, int]) -> Profiles:
    """Counts by profile, in their order."""
    found = {}
    for resource, number in counts.items():
        profile = MigProfile.of_resource(resource)
        if profile is None:
            raise _NotKnown(f"it has {short(resource)}, which is no known MIG profile")
        found[profile] = number
    return tuple(sorted(found.items()))


def _counts(layout: NodeLayout) -> Profiles:
    return tuple(sorted(sum((Counter(card.counts) for card in layout.cards), Counter[MigProfile]()).items()))


def _whole(layout: NodeLayout) -> int:
    return sum(not card.mig_enabled for card in layout.cards)


def _same(seen: Profiles, counts: Profiles) -> bool:
    """Whether devices are as many as were seen: NVIDIA's device plugin (0.19) takes those with media engines for plain ones."""
    plain = Counter[MigProfile]()
    for profile, number in counts:
        plain[profile.plain] += number
    return seen in (counts, tuple(sorted(plain.items())))


def _words(counts: Profiles, whole: int | None) -> str:
    return counts_in_words([*counts, *([("gpu", whole)] if whole else [])]) or "no MIG devices"


def _differ(offered: Mapping[str, int], labelled: Mapping[str, int]) -> _NotKnown:
    has, labels = (
        counts_in_words((short(name), n) for name, n in some.items()) or "none"
        for some in (offered, labelled)
    )
    return _NotKnown(
        f"its capacity and the {LayoutSource.DISCOVERY} differ", f"it has {has}, they say {labels}"
    )
