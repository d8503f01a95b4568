"""The same layout in another of the three formats, and what that format cannot say."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tessera.core.errors import InvalidInput
from tessera.core.mig.geometry import Product
from tessera.core.mig.layout import CardLayout, LayoutEntry
from tessera.core.mig.placement import Wish
from tessera.protocol.mig.documents import SELECTED, Format, MigDocument
from tessera.protocol.mig.entries import counted, repeated

_Configs = Mapping[str, tuple[LayoutEntry, ...]]


@dataclass(frozen=True, slots=True)
class Conversion:
    """A document in another format, and what was lost on the way."""

    document: MigDocument
    losses: tuple[str, ...] = ()


def convert(
    document: MigDocument, to: Format, cards: int | None = None, product: Product | None = None
) -> Conversion:
    """The same layout in another format.

    run.ai names cards one by one: `cards` says how many there are where the document says `all`. With `product`
    device filters are decided, and places are written into run.ai's format.
    """
    if to is Format.RUNAI:
        return Conversion(MigDocument(to, _to_runai(document.configs, cards, product)))
    placed = any(w.position is not None for es in document.configs.values() for e in es for w in e.wishes)
    losses = (f"positions are left out: {to} has none",) if placed else ()
    configs = {name: tuple(map(_unplaced, entries)) for name, entries in document.configs.items()}
    if to is Format.COUNTS:
        entries = MigDocument(to, configs).select()
        configs = {SELECTED: (_same_of_all(_unfiltered(entries, product), cards),)}
    return Conversion(MigDocument(to, configs), losses)


def _to_runai(configs: _Configs, cards: int | None, product: Product | None) -> _Configs:
    return {
        name: tuple(
            _with_places(_with_cards(entry, cards), product) for entry in _unfiltered(entries, product)
        )
        for name, entries in configs.items()
    }


def _unfiltered(entries: Sequence[LayoutEntry], product: Product | None) -> list[LayoutEntry]:
    """The entries without device filters, which only mig-parted knows."""
    if product is None and any(entry.device_filter for entry in entries):
        raise InvalidInput(
            "device-filter: only mig-parted has it; give the cards' product with --product NAME"
        )
    kept = [
        replace(entry, device_filter=()) for entry in entries if product is None or entry.accepts(product)
    ]
    if not kept:
        raise InvalidInput("device-filter: no entry is for this product")
    return kept


def _with_cards(entry: LayoutEntry, cards: int | None) -> LayoutEntry:
    if entry.cards is not None:
        return entry
    if cards is None:
        raise InvalidInput(
            "devices: all: run.ai's format names cards one by one; give their number with --cards N"
        )
    return replace(entry, cards=tuple(range(cards)))


def _with_places(entry: LayoutEntry, product: Product | None) -> LayoutEntry:
    if product is None or not entry.mig_enabled:
        return entry
    instances = CardLayout.cut(product, entry.wishes).instances
    return replace(entry, wishes=tuple(Wish(i.profile, i.position, i.size) for i in instances))


def _unplaced(entry: LayoutEntry) -> LayoutEntry:
    return replace(entry, wishes=repeated(counted(entry)))


def _same_of_all(entries: Sequence[LayoutEntry], cards: int | None) -> LayoutEntry:
    """The one entry that holds for all cards, which is all that counts can say."""
    named = {number for entry in entries for number in entry.cards or ()}
    everywhere = any(entry.cards is None for entry in entries) or cards in (None, len(named))
    if len({frozenset(counted(entry).items()) for entry in entries}) > 1 or not everywhere:
        raise InvalidInput("counts are the same for all cards, but these cards differ")
    if not entries[0].wishes:
        raise InvalidInput("counts cannot express a card without MIG devices")
    return replace(entries[0], cards=None)
