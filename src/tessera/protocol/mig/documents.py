"""MIG layout documents: run.ai's annotation, mig-parted's file, and plain counts; read, written, and one turned into another.

A document holds named configurations; each is a list of entries that say what is wanted of which cards. Which of
the three formats a text has is seen from the text: `mig-devices` is a list in run.ai's, a map of counts in
mig-parted's, and counts (`2g.20gb=2,3g.40gb=1`) are no YAML at all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from tessera.core.errors import InvalidInput, InvalidInputs
from tessera.core.kubernetes.node import LAYOUT_STATE_LABEL
from tessera.core.mig.geometry import Product
from tessera.core.mig.layout import CardLayout, LayoutEntry, NodeLayout, entries_of, resolve
from tessera.core.mig.placement import Instance, Wish
from tessera.core.text import escaped
from tessera.protocol import yaml
from tessera.protocol.mig.entries import (
    MOST_DEVICES,
    EntryReader,
    counted,
    looks_like_counts,
    read_counts,
    repeated,
    write_counts,
    write_parted,
    write_runai,
)

RUNAI_CONFIG: Final = "run.ai/mig.config"  # the node annotation that holds a layout
PARTED_CONFIG: Final = "nvidia.com/mig.config"  # the node label that names one of mig-parted's configurations
CONFIG_REASON: Final = "nvidia.com/mig.config.reason"  # an annotation: why the state is not success
CONFIG_STATE: Final = LAYOUT_STATE_LABEL  # the node label that says what became of it
SELECTED: Final = "selected"  # what run.ai calls the one configuration in an annotation

MOST_BYTES: Final = 256 * 1024  # all annotations of an object together: the API server's limit
_MOST_ERRORS: Final = 20  # more than a person repairs in one go


Configs = Mapping[str, tuple[LayoutEntry, ...]]


class Format(StrEnum):
    RUNAI = "runai"
    MIG_PARTED = "mig-parted"
    COUNTS = "counts"


@dataclass(frozen=True, slots=True)
class MigDocument:
    format: Format
    configs: Configs

    def select(self, name: str | None = None) -> tuple[LayoutEntry, ...]:
        """The configuration of that name; without one, `selected` or the only one there is."""
        wanted = name or (SELECTED if len(self.configs) > 1 else next(iter(self.configs)))
        if wanted not in self.configs:
            known = ", ".join(self.configs)
            if name:
                raise InvalidInput(f'no configuration "{name}"; there are {known}')
            raise InvalidInput(f"{len(self.configs)} configurations, choose one (--mig-config NAME): {known}")
        return self.configs[wanted]


def read(text: str, source: str = "layout") -> MigDocument:
    """A layout document in any of the formats, or every error in it."""
    if len(text) > MOST_BYTES or len(text.encode("utf-8", "replace")) > MOST_BYTES:
        raise InvalidInput(f"{source}: longer than {MOST_BYTES // 1024} KiB, the most that is read")
    if looks_like_counts(text):
        wishes = repeated(read_counts(text, source, MOST_DEVICES))
        return MigDocument(
            Format.COUNTS, {SELECTED: (LayoutEntry(cards=None, mig_enabled=True, wishes=wishes),)}
        )
    document = yaml.load(text, source)
    if document is None:
        raise InvalidInput(f"{source}: empty; expected a layout")
    return read_object(document, source)


def read_object(document: Any, source: str = "layout") -> MigDocument:
    parted = _is_parted(document)
    reader = EntryReader(parted=parted)
    configs: dict[str, tuple[LayoutEntry, ...]] = {}
    if reader.known_fields(document, "", ("version", "mig-configs")):
        version = document.get("version", None if parted else "v1")
        if version != "v1":
            found = "missing" if version is None else "unknown"
            reader.errors.append(f"version: {found}; expected v1")
        configs = _read_configs(document.get("mig-configs"), reader)
    if reader.errors:
        more = len(reader.errors) - _MOST_ERRORS
        shown = reader.errors[:_MOST_ERRORS] + ([f"and {more} more"] if more > 0 else [])
        raise InvalidInputs(f"{source}: {error}" for error in shown)
    return MigDocument(Format.MIG_PARTED if parted else Format.RUNAI, configs)


def write(document: MigDocument) -> str:
    if document.format is Format.COUNTS:
        return write_counts(counted(document.select()[0])) + "\n"
    write_entry = write_runai if document.format is Format.RUNAI else write_parted
    configs = {name: [write_entry(entry) for entry in entries] for name, entries in document.configs.items()}
    return yaml.dump({"version": "v1", "mig-configs": configs})


def document_of(layout: NodeLayout) -> MigDocument:
    """What an annotation says of a layout, places included."""
    return MigDocument(Format.RUNAI, {SELECTED: entries_of(layout)})


def read_layout(
    text: str, cards: Sequence[Product], present: Sequence[Sequence[Instance]] = ()
) -> NodeLayout:
    """From an annotation's text to the layout of the cards that are there; of what is present as much stays as can."""
    return resolve(read(text, RUNAI_CONFIG).select(), cards, present)


def _is_parted(document: Any) -> bool:
    """Whether this is mig-parted's dialect; a document that could be either is run.ai's if it says `selected`."""
    configs = document.get("mig-configs") if isinstance(document, dict) else None
    if not isinstance(configs, dict):
        return False
    lists = [entries for entries in configs.values() if isinstance(entries, list)]
    devices = [e.get("mig-devices") for entries in lists for e in entries if isinstance(e, dict)]
    if any(isinstance(value, list) for value in devices):
        return False
    return any(isinstance(value, dict) for value in devices) or list(configs) != [SELECTED]


def _read_configs(value: Any, reader: EntryReader) -> dict[str, tuple[LayoutEntry, ...]]:
    if not isinstance(value, dict) or not value:
        reader.errors.append("mig-configs: expected a map of configurations, at least one")
        return {}
    configs = {}
    for name, entries in value.items():
        path = f"mig-configs.{escaped(name)}"
        if not isinstance(entries, list) or not entries:
            reader.errors.append(f"{path}: expected a list of entries, at least one")
            continue
        found = [reader.read(entry, f"{path}[{index}]") for index, entry in enumerate(entries)]
        configs[name] = tuple(entry for entry in found if entry)
    return configs


@dataclass(frozen=True, slots=True)
class Conversion:
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
        named = {
            name: tuple(
                _with_places(_with_cards(entry, cards), product) for entry in _unfiltered(entries, product)
            )
            for name, entries in document.configs.items()
        }
        return Conversion(MigDocument(to, named))
    placed = any(w.position is not None for es in document.configs.values() for e in es for w in e.wishes)
    losses = (f"positions are left out: {to} has none",) if placed else ()
    configs = {
        name: tuple(replace(entry, wishes=repeated(counted(entry))) for entry in entries)
        for name, entries in document.configs.items()
    }
    if to is Format.COUNTS:
        entries = MigDocument(to, configs).select()
        configs = {SELECTED: (_same_of_all(_unfiltered(entries, product), cards),)}
    return Conversion(MigDocument(to, configs), losses)


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


def _same_of_all(entries: Sequence[LayoutEntry], cards: int | None) -> LayoutEntry:
    """The one entry that holds for all cards, which is all that counts can say."""
    named = {number for entry in entries for number in entry.cards or ()}
    everywhere = any(entry.cards is None for entry in entries) or cards in (None, len(named))
    if len({frozenset(counted(entry).items()) for entry in entries}) > 1 or not everywhere:
        raise InvalidInput("counts are the same for all cards, but these cards differ")
    if not entries[0].wishes:
        raise InvalidInput("counts cannot express a card without MIG devices")
    return replace(entries[0], cards=None)
