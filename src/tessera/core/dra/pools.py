"""Which node offers which extended resource through DRA, and how many.

Pools are taken as the scheduler takes them (k8s.io/dynamic-resource-allocation, GatherPools): of the slices that are
for a node those of the highest generation; none at all while slices of it are missing, a newer generation is being
written, or two of its devices, or of its counter sets, have one name: that pool is invalid.
Compared with the scheduler's own allocator (0.36.3) over 2,500 random sets of slices, two nodes and eight classes: never
fewer devices than it allocates, and more only where two counters together leave less room than either alone, a shared
device's capacity is used up, or a pool contradicts itself. Up to 1.36 that allocator confuses the counters of two drivers
whose pools have one name (1.37 does not): there it may allocate more than there is.

How many devices of a class a pool can give at most at one time.

Devices that take from shared counters are cards that may be cut: not all of them can be there together. What one
counter has room for, counted alone, is never less than what the scheduler can allocate: no pod is rejected for what
the cluster may serve.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final
from weakref import WeakKeyDictionary

from tessera.core.dra.slices import (
    DRIVER,
    Contents,
    DeviceClass,
    DeviceGroup,
    Kind,
    PoolId,
    Slice,
    Spot,
    Spots,
    is_at,
    serving,
    spots_of,
    spots_of_node,
    twice_in,
)
from tessera.core.kubernetes.node import MOST_OF_A_CLAIM, Node
from tessera.core.kubernetes.quantity import Number

CounterSets = Mapping[str, Mapping[str, Number]]
# a device that several claims may hold is never the reason why one more is refused
_ANY_NUMBER: Final = MOST_OF_A_CLAIM


def count_selected(groups: Iterable[DeviceGroup], sets: CounterSets, selects: Callable[[Kind], bool]) -> int:
    """The devices that a class selects, as many of them as the counters leave room for."""
    total = 0
    # by the first counter set that they take from
    cut: dict[str, list[tuple[Mapping[str, Number], int]]] = {}
    for group in groups:
        if not group.number or not selects(group.kind) or not _fits(group, sets):
            continue
        if group.kind.multiple:  # it takes from counters once, for the first of its claims
            total += group.number * _ANY_NUMBER
        elif group.consumes:
            name, taken = group.consumes[0]
            cut.setdefault(name, []).append((dict(taken), group.number))
        else:
            total += group.number
    return total + sum(_room(sets.get(name, {}), devices) for name, devices in cut.items())


def are_valid(groups: Iterable[DeviceGroup], sets: CounterSets) -> bool:
    """Whether all counters that devices take from are there; a pool where one is not is no pool for the scheduler."""
    return all(
        name in sets and all(counter in sets[name] for counter, _ in taken)
        for group in groups
        for name, taken in group.consumes
    )


def _fits(group: DeviceGroup, sets: CounterSets) -> bool:
    return all(amount <= sets[name][counter] for name, taken in group.consumes for counter, amount in taken)


def _room(counters: Mapping[str, Number], devices: list[tuple[Mapping[str, Number], int]]) -> int:
    """How many of some devices one counter set has room for: the scarcest counter decides."""
    least = sum(number for _, number in devices)
    for counter, has in counters.items():
        taken = sorted((amounts.get(counter, 0), number) for amounts, number in devices)
        least = min(least, _fitting(has, taken))
    return least


def _fitting(has: Number, taken: list[tuple[Number, int]]) -> int:
    """How many fit into one counter, the smallest first."""
    fitting = 0
    for amount, number in taken:
        fits = number if amount <= 0 else min(number, int(has // amount))
        fitting += fits
        if fits < number:
            break
        has -= amount * fits
    return fitting


# Whether a class selects a kind of devices; None when that cannot be said
Selects = Callable[[DeviceClass, Kind], bool | None]
Served = Mapping[str, int]  # extended resource → devices
NOTHING_SERVED: Final[Served] = MappingProxyType({})
_MOST_SHARED: Final = 4096  # answers: more than most clusters have at a time, 6 MB
_Verdicts = WeakKeyDictionary[Kind, bool | None]


class Pools:
    """The ResourceSlices and DeviceClasses of a cluster, kept as they come and go."""

    def __init__(self, selects: Selects) -> None:
        self._selects = selects
        self._slices: dict[str, Slice] = {}
        self._pools: dict[PoolId, dict[str, Slice]] = {}
        self._at: dict[Spot, dict[PoolId, int]] = {}  # pools with slices there, and how many
        self.classes: Mapping[str, DeviceClass] = {}  # by name
        self.serving: Mapping[str, DeviceClass] = {}  # the class that serves each extended resource
        self._verdicts: dict[tuple[str, ...], _Verdicts] = {}  # by a class's selectors
        self._users: dict[Contents, int] = {}  # how many slices have the same
        self._counts: dict[tuple[Contents, ...], dict[str, int]] = {}  # of equal pools, by class
        self._shared: dict[tuple[tuple[str, int], ...], Served] = {}  # equal answers are one object

    @property
    def slices(self) -> Mapping[str, Slice]:
        return self._slices

    # what changes

    def replace_classes(self, classes: Iterable[DeviceClass]) -> bool:
        fresh = {one.name: one for one in classes}
        if fresh == self.classes:
            return False
        self.classes = fresh
        self.serving = serving(fresh)
        self._shared.clear()
        self._counts.clear()
        used = {one.selectors for one in fresh.values()}
        for selectors in [one for one in self._verdicts if one not in used]:
            del self._verdicts[selectors]
        return True

    def put_slice(self, one: Slice) -> Spots:
        """Add a slice or take its new state; which nodes it may concern."""
        known = self._slices.get(one.name)
        if known == one:
            return frozenset()
        if known is not None:
            self._drop(known)
        self._slices[one.name] = one
        self._pools.setdefault(one.pool, {})[one.name] = one
        for spot in spots_of(one.where):
            there = self._at.setdefault(spot, {})
            there[one.pool] = there.get(one.pool, 0) + 1
        self._users[one.contents] = self._users.get(one.contents, 0) + 1
        return self._concerned(one) if known is None else self._concerned(known, one)

    def remove_slice(self, name: str) -> Spots:
        """Forget a slice; which nodes it may concern."""
        one = self._slices.get(name)
        if one is None:
            return frozenset()
        self._drop(one)
        return self._concerned(one)

    def replace_slices(self, slices: Iterable[Slice]) -> None:
        """Take a whole new list of slices; it may concern every node, and every kind of devices is evaluated again."""
        self._verdicts.clear()
        self._counts.clear()
        fresh = {one.name: one for one in slices}
        for name in [name for name in self._slices if name not in fresh]:
            self.remove_slice(name)
        for one in fresh.values():
            self.put_slice(one)

    # what is offered

    def served(self, node: Node) -> Served:
        """How many devices DRA serves on a node, by extended resource name."""
        if not self._slices or not self.classes:
            return NOTHING_SERVED
        total: dict[str, int] = {}
        for slices in self.slices_for(node):
            for name, number in self._count(slices, node).items():
                total[name] = total.get(name, 0) + number
        found = tuple(
            (resource, total[one.name]) for resource, one in self.serving.items() if total.get(one.name)
        )
        if not found:
            return NOTHING_SERVED
        known = self._shared.get(found)
        if known is None:
            if len(self._shared) >= _MOST_SHARED:
                self._shared.clear()  # most are of what is no more
            known = self._shared[found] = MappingProxyType(dict(found))
        return known

    def invalid(self, node: Node) -> dict[PoolId, str]:
        """The pools of a node that the scheduler allocates nothing from since a name is there twice; and that name."""
        found = {}
        for pool in self._near(node):
            twice = twice_in(one.contents for one in self._whole(self._pools[pool], node))
            if twice:
                found[pool] = twice
        return found

    def is_cut_on_demand(self, node: Node, driver: str = DRIVER) -> bool:
        """Whether a node's cards, by that driver or by any (empty), are cut as claims ask for it: they are counted."""
        return any(
            one.contents.counter_sets and one.where == node.name
            for pool in self._near(node)
            if driver in ("", pool.driver)
            for one in self._pools[pool].values()
        )

    def kind_of(self, pool: PoolId, device: str) -> Kind | None:
        """What a device is, where slices were read with their devices' names."""
        for one in self._pools.get(pool, {}).values():
            for name, kind in one.contents.devices:
                if name == device:
                    return kind
        return None

    def node_of(self, pool: PoolId) -> str:
        """The node that a pool's slices name; empty where they name none."""
        slices = self._pools.get(pool, {}).values()
        return next((one.where for one in slices if isinstance(one.where, str)), "")

    def resources_of(self, kind: Kind) -> list[str]:
        """The extended resources whose classes select a kind of devices."""
        return [resource for resource, one in self.serving.items() if self._may_select(one, kind)]

    def _near(self, node: Node) -> Iterable[PoolId]:
        """The pools that may have slices for a node."""
        return dict.fromkeys(pool for spot in spots_of_node(node) for pool in self._at.get(spot, ()))

    def slices_for(self, node: Node) -> Iterator[list[Slice]]:
        """The slices that the scheduler allocates from for a node, pool by pool."""
        for pool in self._near(node):
            usable = self._whole(self._pools[pool], node)
            if usable and not twice_in(one.contents for one in usable):
                yield usable

    def _whole(self, pool: Mapping[str, Slice], node: Node) -> list[Slice]:
        """The slices of a pool that are for a node; none while the pool is not whole."""
        for_node = [one for one in pool.values() if one.is_for(node.name, node.labels)]
        if not for_node:
            return []
        generation = max(one.generation for one in for_node)
        for_node = [one for one in for_node if one.generation == generation]
        # where slices of one generation have different totals, the scheduler takes that of any: so do we, if one is right
        totals = {one.total for one in for_node}
        if len(for_node) not in totals:
            if any(one.generation > generation for one in pool.values()):
                return []
            if sum(one.generation == generation for one in pool.values()) not in totals:
                return []
        return for_node

    def _count(self, slices: list[Slice], node: Node) -> Mapping[str, int]:
        """The devices of a pool by class; pools with the same contents have the same."""
        if any(one.per_device for one in slices):
            groups = [
                group
                for one in slices
                for group in one.contents.groups
                if not one.per_device or is_at(group.where, node.name, node.labels)
            ]
            return self._counted(groups, slices)
        key = tuple(sorted((one.contents for one in slices), key=id))
        known = self._counts.get(key)
        if known is None:
            groups = [group for one in slices for group in one.contents.groups]
            known = self._counts[key] = self._counted(groups, slices)
        return known

    def _counted(self, groups: list[DeviceGroup], slices: list[Slice]) -> dict[str, int]:
        sets = {name: dict(counters) for one in slices for name, counters in one.contents.counter_sets}
        if not are_valid(groups, sets):
            return {}
        found: dict[str, int] = {}
        for one in self.classes.values():
            if number := count_selected(groups, sets, partial(self._may_select, one)):
                found[one.name] = number
        return found

    def _may_select(self, one: DeviceClass, kind: Kind) -> bool:
        """Whether a class selects a kind; what cannot be said counts as if it did."""
        verdicts = self._verdicts.get(one.selectors)
        if verdicts is None:
            verdicts = self._verdicts[one.selectors] = WeakKeyDictionary()
        if kind not in verdicts:
            verdicts[kind] = self._selects(one, kind)
        return verdicts[kind] is not False

    # the indexes

    def _drop(self, one: Slice) -> None:
        del self._slices[one.name]
        pool = self._pools[one.pool]
        del pool[one.name]
        if not pool:
            del self._pools[one.pool]
        for spot in spots_of(one.where):
            there = self._at[spot]
            there[one.pool] -= 1
            if not there[one.pool]:
                del there[one.pool]
            if not there:
                del self._at[spot]
        self._users[one.contents] -= 1
        if not self._users[one.contents]:
            del self._users[one.contents]
            self._counts.clear()  # some are of what is no more

    def _concerned(self, *changed: Slice) -> Spots:
        """Which nodes a change of a slice, from one state to another, concerns.

        Where it is, if no more than its devices changed; else all of its pool's: a pool is whole or none, and counters are its own.
        """
        slices = list(changed)
        states = {(one.pool, one.generation, one.total, one.contents.counter_sets) for one in changed}
        if len(changed) < 2 or len(states) > 1:
            slices += [
                one for pool in {one.pool for one in changed} for one in self._pools.get(pool, {}).values()
            ]
        return frozenset[Spot]().union(*(spots_of(where) for where in {one.where for one in slices}))
