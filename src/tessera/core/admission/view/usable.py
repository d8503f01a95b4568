"""What nodes offer, by resource, and what of it a pod can use.

Sets of nodes are numbers: each node is one bit, so one operation on two numbers compares thousands of nodes. A column says which nodes
have how much of one thing. A node that comes, changes or goes touches its own rows alone.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import reduce
from math import ceil
from operator import or_
from types import MappingProxyType
from typing import Final, TypeVar

from tessera.core.kubernetes.node import Offer
from tessera.core.kubernetes.quantity import Number
from tessera.core.mig.profile import MigProfile
from tessera.core.resources import WHOLE_GPU

UNLIMITED: Final = 2**63 - 1  # what a node has of a type that the autoscaler can bring
COMING: Final = 1  # the bit of a node that the autoscaler can bring; no node that is there has it
MOST_REMEMBERED: Final = 64  # resources that nodes offer together
_BLOCKS: Final = 64  # of one column: as much memory as so many rows, at most
Key = TypeVar("Key")


class Column:
    """Amount → the nodes that have just so much, in order."""

    __slots__ = ("_above", "_amounts", "_bounds", "_rows", "all")

    def __init__(self, rows: Mapping[int, int] = MappingProxyType({})) -> None:
        self._amounts = sorted(rows)
        self._rows = [rows[amount] for amount in self._amounts]  # the nodes of each
        self.all = reduce(or_, self._rows, 0)  # the nodes that state an amount
        self._bounds: list[int] = []  # where a block of rows begins; made when asked for
        self._above: list[int] = []  # the nodes from there on

    def __len__(self) -> int:
        return len(self._amounts)

    def add(self, amount: int, node: int) -> None:
        """A node, or several, have so much."""
        at = bisect_left(self._amounts, amount)
        if at < len(self._amounts) and self._amounts[at] == amount:
            self._rows[at] |= node
        else:
            self._amounts.insert(at, amount)
            # the very number that other columns have: rows of one node take no room
            self._rows.insert(at, node)
        self.all |= node
        self._keep_above(amount, node)

    def remove(self, amount: int, node: int) -> None:
        """A node has it no more."""
        at = bisect_left(self._amounts, amount)
        self._rows[at] ^= node
        if not self._rows[at]:
            del self._rows[at], self._amounts[at]
        self.all ^= node
        self._keep_above(amount, node)

    def move(self, before: int, after: int, node: int) -> None:
        """A node has another amount than before."""
        at = bisect_left(self._amounts, before)
        self._rows[at] ^= node
        if not self._rows[at]:
            del self._rows[at], self._amounts[at]
        at = bisect_left(self._amounts, after)
        if at < len(self._amounts) and self._amounts[at] == after:
            self._rows[at] |= node
        else:
            self._amounts.insert(at, after)
            self._rows.insert(at, node)
        if self._bounds:
            some, more = (before, after) if before < after else (after, before)
            for block in range(bisect_right(self._bounds, some), bisect_right(self._bounds, more)):
                self._above[block] ^= node
            self._keep_blocks()

    def at_least(self, amount: int) -> int:
        """The nodes that have so much or more."""
        at = bisect_left(self._amounts, amount)
        if not at:
            return self.all
        if not self._bounds:
            self.put_together()
        block = bisect_left(self._bounds, amount)
        if block == len(self._bounds):
            return reduce(or_, self._rows[at:], 0)
        end = bisect_left(self._amounts, self._bounds[block])
        return reduce(or_, self._rows[at:end], self._above[block])

    def most(self, among: int) -> int:
        """The most that one of these nodes has; 0 when they have none."""
        rows = self._rows
        for at in range(len(rows) - 1, -1, -1):
            if rows[at] & among:
                return self._amounts[at]
        return 0

    def least(self, among: int) -> int | None:
        """The least that one of these nodes has; None when they have none."""
        return next((self._amounts[at] for at, row in enumerate(self._rows) if row & among), None)

    def put_together(self) -> None:
        """Make the blocks, so that few rows are put together one by one."""
        above = [0]
        size = 1 + len(self._rows) // _BLOCKS
        for begin in range((len(self._rows) - 1) // size * size, -1, -size):
            above.append(reduce(or_, self._rows[begin : begin + size], above[-1]))
        self._bounds, self._above = self._amounts[::size], above[:0:-1]

    def _keep_above(self, amount: int, node: int) -> None:
        """A node came to a row, or left it."""
        self._keep_blocks()
        for block in range(bisect_right(self._bounds, amount)):
            self._above[block] ^= node

    def _keep_blocks(self) -> None:
        rows = len(self._rows)
        if rows > 2 * len(self._bounds) * (1 + rows // _BLOCKS):  # too many for so few blocks
            self._bounds = []


_NOTHING: Final = Column()


class OfferColumns:
    """The GPU resources of the nodes: counts, where they come from, and what is known of the cards."""

    __slots__ = ("alike", "cards", "counts", "dra", "shared", "sums")

    def __init__(self) -> None:
        self.counts: dict[str, Column] = {}
        self.dra: dict[str, int] = {}  # resource → the nodes where DRA serves it
        self.shared = 0  # the nodes whose nvidia.com/gpu is no whole card
        self.cards = Column()  # GB of a card
        self.alike: dict[Offer, int] = {}  # the nodes with the same offer
        self.sums = Column()  # devices of all resources together

    def move(self, before: Offer, after: Offer, node: int) -> None:
        """A node offers something else than before."""
        if before == after:
            return
        old, new = dict(before.counts), dict(after.counts)
        move_columns(self.counts, old, new, node)
        for resource in before.dra ^ after.dra:
            flip(self.dra, resource, node)
        if before.whole != after.whole:
            self.shared ^= node
        _move(self.cards, before.card_memory_gb, after.card_memory_gb, node)
        _move(self.sums, sum(old.values()) or None, sum(new.values()) or None, node)
        if old:
            flip(self.alike, before, node)
        if new:
            flip(self.alike, after, node)

    def most(self, nodes: int, *, dra: bool = True) -> dict[str, int]:
        """Every resource of some nodes, with the most that one of them has; `dra`: with what DRA serves."""
        found = {}
        for resource, column in self.counts.items():
            among = nodes if dra or resource not in self.dra else nodes & ~self.dra[resource]
            if most := column.most(among):
                found[resource] = most
        return found

    def lost(self, nodes: int, left: int) -> bool:
        """Whether some offer of these nodes is not among those that are left of them."""
        if not left or not nodes & ~left:
            return nodes != left
        return any(alike & nodes and not alike & left for alike in self.alike.values())

    def share(self, some: int, others: int) -> bool:
        """Whether some node has the same offer as one of the others."""
        return any(alike & some and alike & others for alike in self.alike.values())


def move_columns(
    columns: dict[str, Column], before: Mapping[str, int], after: Mapping[str, int], bit: int
) -> None:
    """Bring columns from what a node had to what it has; a column without nodes is none."""
    for resource, amount in after.items():
        was = before.get(resource)
        if was is None:
            if resource not in columns:
                columns[resource] = Column()
            columns[resource].add(amount, bit)
        elif was != amount:
            columns[resource].move(was, amount, bit)
    if before.keys() <= after.keys():
        return
    for resource in before.keys() - after.keys():
        column = columns[resource]
        column.remove(before[resource], bit)
        if not column.all:
            del columns[resource]


def _move(column: Column, before: int | None, after: int | None, node: int) -> None:
    """A node has another amount; None: it states none."""
    if before == after:
        return
    if before is None or after is None:
        if before is not None:
            column.remove(before, node)
        if after is not None:
            column.add(after, node)
    else:
        column.move(before, after, node)


class Usable:
    """What the nodes offer that a pod could be placed on; `nodes` are those nodes, each one bit."""

    __slots__ = ("_coming", "_dra", "_room", "card_memory_gb", "columns", "most", "nodes", "whole")

    def __init__(
        self, columns: OfferColumns, nodes: int, *, dra: bool = True, coming: AbstractSet[str] = frozenset()
    ) -> None:
        """`dra`: what DRA serves counts; `coming`: what the autoscaler can bring, any number on one node."""
        self.columns = columns
        self._dra, self._coming = dra, coming
        self.nodes = nodes | COMING if coming else nodes
        self._room: dict[
            tuple[str, Number], int
        ] = {}  # which nodes have so many: searches ask again and again
        self.most = columns.most(nodes, dra=dra)
        self.whole = True  # wherever nvidia.com/gpu is offered: the scheduler does not know the difference
        self.card_memory_gb: int | None = None  # the smallest of those cards
        if WHOLE_GPU in self.most:
            having = self._having(WHOLE_GPU)
            self.whole = not columns.shared & having
            self.card_memory_gb = columns.cards.least(having)
        for resource in coming:
            self.most[resource] = UNLIMITED

    def from_plugin(self, resource: str) -> bool:
        """Whether some node has it allocatable: a device plugin serves it there, or the autoscaler can bring it."""
        served = self.columns.dra.get(resource, 0)
        return resource in self._coming or bool(self._having(resource) & ~served)

    def from_dra(self, resource: str) -> bool:
        """Whether some node serves it through DRA."""
        return self._dra and bool(self.columns.dra.get(resource, 0) & self.nodes)

    def with_room(self, among: int, resource: str, need: Number) -> int:
        """Those of some nodes that have at least so many."""
        room = self._room.get((resource, need))
        if room is None:
            least = need if isinstance(need, int) else ceil(need)
            room = self.columns.counts.get(resource, _NOTHING).at_least(least)
            if not self._dra:
                room &= ~self.columns.dra.get(resource, 0)
            if resource in self._coming and need <= UNLIMITED:
                room |= COMING
            self._room[resource, need] = room
        return among & room

    def with_devices(self, among: int, number: Number) -> int:
        """Those of some nodes that have at least so many devices, of whatever resource."""
        room = self.columns.sums.at_least(ceil(number))
        return among & (room | COMING if self._coming else room)

    def _having(self, resource: str) -> int:
        found = self.nodes & self.columns.counts.get(resource, _NOTHING).all
        return found if self._dra else found & ~self.columns.dra.get(resource, 0)


def profiles_among(resources: Iterable[str]) -> list[MigProfile]:
    """The profiles among some resources, smallest first."""
    found = [p for p in map(MigProfile.of_resource, resources) if p is not None]
    return sorted(found, key=lambda one: one.rank)


def flip(rows: dict[Key, int], key: Key, node: int) -> None:
    """Add a node to a row, or take it from there; rows without nodes are none."""
    row = rows.get(key, 0) ^ node
    if row:
        rows[key] = row
    else:
        del rows[key]
