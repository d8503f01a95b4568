"""Kinds of devices, each kept once, and not too many of them."""

from typing import Final
from weakref import WeakValueDictionary

from tessera.core.dra.slices import Attribute, Kind

# Kinds of devices that are distinguished. A cluster has dozens; thousands come from a class that looks at what each device
# has for itself, such as its UUID, and each costs an evaluation of every class (some 50 µs). Beyond it what varies most is
# no longer kept: classes that look at that count such devices as selected, all others select as before.
MOST_KINDS: Final = 4096


class KindCache:
    def __init__(self) -> None:
        self._kinds: WeakValueDictionary[object, Kind] = WeakValueDictionary()
        self._varied: frozenset[str] = frozenset()  # names of what is not kept, since it makes too many kinds

    @property
    def is_crowded(self) -> bool:
        return bool(self._varied)

    def keep_all(self) -> None:
        self._varied = frozenset()

    def kept(self, kind: Kind) -> Kind:
        """The one object for all that are like it."""
        if self._varied and kind.known:
            kind = _without(kind, self._varied)
        known = self._kinds.get(_key(kind))
        if known is not None:
            return known
        if kind.known and len(self._kinds) >= MOST_KINDS:
            if not self._varied:
                self._varied = _most_varied(list(self._kinds.values()))
                return self.kept(kind)
            if len(self._kinds) >= 2 * MOST_KINDS:
                return self.kept(Kind(kind.driver, multiple=kind.multiple, known=False))
        self._kinds[_key(kind)] = kind
        return kind


def _key(kind: Kind) -> object:
    return kind.driver, kind.attributes, kind.capacity, kind.multiple, kind.lacks, kind.known


def _without(kind: Kind, names: frozenset[str]) -> Kind:
    """A kind of which some attributes and capacities are not kept."""
    lacks = names.intersection(one.name for one in (*kind.attributes, *kind.capacity))
    if not lacks:
        return kind
    attributes, capacity = (
        tuple(one for one in given if one.name not in lacks) for given in (kind.attributes, kind.capacity)
    )
    return Kind(kind.driver, attributes, capacity, kind.multiple, lacks)


def _most_varied(kinds: list[Kind]) -> frozenset[str]:
    """What makes kinds many: without it, at most half as many kinds are left."""
    values: dict[str, set[Attribute]] = {}
    for kind in kinds:
        for one in (*kind.attributes, *kind.capacity):
            values.setdefault(one.name, set()).add(one)
    found: frozenset[str] = frozenset()
    for name in sorted(values, key=lambda name: -len(values[name])):
        found |= {name}
        if 2 * len({_key(_without(kind, found)) for kind in kinds}) <= MOST_KINDS:
            break
    return found
