"""The nodes by their labels, one column for each label; and by their taints.

The column of a label is made when the first pod needs it, or before, in idle time (`Labels.prepare`).
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from operator import or_
from sys import getsizeof
from types import MappingProxyType
from typing import Final

from tessera.core.admission.limits import Work, at_a_time
from tessera.core.admission.view.usable import Column, flip
from tessera.core.kubernetes.scheduling import (
    Requirement,
    Taint,
    Toleration,
    is_transient,
    label_number,
    taint_number,
)

# Of one row, beside its nodes (tracemalloc): of a value, and of a number.
_ROW_BYTES: Final = 30
_NUMBER_BYTES: Final = 60
_NONE: Final = 2**64  # beyond every number of a taint
_MOST_BYTES: Final = 16 * 2**20  # of all columns; a label that differs on each of 5,000 nodes takes 150 KiB
_MOST_COLUMNS: Final = 256  # a label that few nodes have is looked up quickly


class LabelColumn:
    """Value of one label → the nodes that have it."""

    __slots__ = ("_numbers", "all", "rows")

    def __init__(self, key: str = "", nodes: Mapping[int, Mapping[str, str]] = MappingProxyType({})) -> None:
        """Of a label; `nodes` have these labels."""
        self.rows: dict[str, int] = {}
        rows = self.rows  # thousands of nodes: each look at an attribute counts
        for node, labels in nodes.items():
            value = labels.get(key)
            if value is not None:
                row = rows.get(value)
                rows[value] = node if row is None else row | node
        self.all = reduce(or_, self.rows.values(), 0)  # the nodes that have the label
        self._numbers: Column | None = None  # of the values that are numbers, once a pod compares with one

    @property
    def bytes(self) -> int:
        """About how much memory it takes; values, and rows of one node, are the nodes' own."""
        rows = len(self.rows)
        shared = min(rows, self.all.bit_count() - rows)  # rows of several nodes, at most
        size = getsizeof(self.all)
        numbers = 0 if self._numbers is None else len(self._numbers)
        return rows * _ROW_BYTES + numbers * _NUMBER_BYTES + size + shared * size * 3 // 4

    def move(self, before: str | None, after: str | None, node: int) -> None:
        """A node has another value than before; None: it does not have the label."""
        if before is not None:
            row = self.rows[before] ^ node
            if row:
                self.rows[before] = row
            else:
                del self.rows[before]
            if self._numbers is not None and (number := label_number(before)) is not None:
                self._numbers.remove(number, node)
            self.all ^= node
        if after is not None:
            other = self.rows.get(after)
            self.rows[after] = node if other is None else other | node
            if self._numbers is not None and (number := label_number(after)) is not None:
                self._numbers.add(number, node)
            self.all |= node

    def matching(self, one: Requirement, every: int) -> int:
        """The nodes, among `every` one, that satisfy an expression over this label."""
        match one.operator:
            case "In":
                return self._having(one.values)
            case "NotIn":
                return every & ~self._having(one.values)
            case "Exists":
                return self.all
            case "DoesNotExist":
                return every & ~self.all
            case "Gt" | "Lt" if len(one.values) == 1:
                return self._compared(one.operator, one.values[0])
        return 0

    def _having(self, values: Iterable[str]) -> int:
        found, row_of = 0, self.rows.get
        for value in values:
            row = row_of(value)
            if row is not None:
                found |= row
        return found

    def _compared(self, operator: str, text: str) -> int:
        number = label_number(text)
        if number is None:
            return 0
        numbers = self.numbers()
        return numbers.at_least(number + 1) if operator == "Gt" else numbers.all & ~numbers.at_least(number)

    def numbers(self) -> Column:
        """The nodes by the values that are numbers."""
        if self._numbers is None:
            self._numbers = self._made_of_numbers()
        return self._numbers

    def _made_of_numbers(self) -> Column:
        numbers: dict[int, int] = {}
        for value, row in self.rows.items():
            if (number := label_number(value)) is not None:
                known = numbers.get(number)  # 7 and 07 are one number
                numbers[number] = row if known is None else known | row
        return Column(numbers)


_NO_LABELS: Final[Mapping[str, str]] = {}
_UNKNOWN: Final = LabelColumn()  # of a label that no node has: pods may name any


class Labels:
    """The labels of the nodes that offer anything: the columns, and how many nodes have each label."""

    __slots__ = ("_columns", "_known", "_nodes", "_prepared")

    def __init__(self) -> None:
        self._nodes: dict[int, Mapping[str, str]] = {}
        self._columns: dict[str, LabelColumn] = {}  # the least recently used first
        self._known: dict[str, int] = {}
        self._prepared = False  # from now on a label that comes gets its column at once

    @property
    def bytes(self) -> int:
        """About how much memory the columns take."""
        return sum(column.bytes for column in self._columns.values())

    def move(self, after: Mapping[str, str] | None, node: int) -> None:
        """A node has these labels now; None: it is gone, or offers nothing."""
        before = self._nodes.get(node, _NO_LABELS)
        if after is None:
            self._nodes.pop(node, None)
            after = _NO_LABELS
        else:
            self._nodes[node] = after
        if before == after:
            return
        known = self._known
        for key in after.keys() - before.keys():
            if self._prepared and key not in known and len(self._columns) < _MOST_COLUMNS:
                self._columns[key] = column = LabelColumn()
                column.numbers()
            known[key] = known.get(key, 0) + 1
        for key in before.keys() - after.keys():
            known[key] -= 1
            if not known[key]:
                del known[key]
                self._columns.pop(key, None)
        for key in {key for key, _ in before.items() ^ after.items()} & self._columns.keys():
            self._columns[key].move(before.get(key), after.get(key), node)
        if len(after) > len(before):
            self._shed()

    def column(self, key: str) -> LabelColumn:
        """The column of a label."""
        if key not in self._known:
            return _UNKNOWN
        column = self._columns.pop(key, None)
        if column is not None:
            self._columns[key] = column
            return column
        column = LabelColumn(key, self._nodes)
        self._columns[key] = column
        self._shed()
        return column

    def prepare(self) -> Iterator[None]:
        """Make the columns that decisions would make, one at a time, while they take no more than half of the room: what most nodes have first."""
        self._prepared = True
        for key in sorted(self._known, key=self._known.__getitem__, reverse=True)[:_MOST_COLUMNS]:
            if key in self._known and self.bytes < _MOST_BYTES // 2:
                self.column(key).numbers().put_together()
                yield

    def _shed(self) -> None:
        """Forget the least recently used while they are too many, or take too much room."""
        if not self._columns:
            return
        size = self.bytes
        while size > _MOST_BYTES or len(self._columns) > _MOST_COLUMNS:
            size -= self._columns.pop(next(iter(self._columns))).bytes


class Taints:
    """The nodes by the taints that can exclude a pod."""

    __slots__ = ("_asked", "_found", "_rows", "_steps")

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], dict[str, int]] = {}  # key and effect → value → nodes
        # the last question, its answer, and what that took: a decision by what is free asks twice
        self._asked: tuple[object, bool, tuple[str, ...]] = (None, False, ())
        self._found = self._steps = 0

    def flip(self, taint: Taint, node: int) -> None:
        """A node has a taint, or has it no more."""
        self._asked = (None, False, ())
        same = taint.key, taint.effect
        flip(self._rows.setdefault(same, {}), taint.value, node)
        if not self._rows[same]:
            del self._rows[same]

    def excluded(
        self, tolerations: tuple[Toleration, ...], work: Work, *, placed: bool, transient: tuple[str, ...]
    ) -> int:
        """The nodes that have a taint which excludes a pod; `untolerated` says the same of one node."""
        asked, was_placed, was_transient = self._asked
        if asked is tolerations and was_placed == placed and was_transient == transient:
            work.spend(self._steps)
            return self._found
        found = steps = 0
        by_kind: dict[tuple[str, str], list[Toleration]] = {}
        for one in tolerations if self._rows else ():
            by_kind.setdefault((one.key, one.effect), []).append(one)
        for (key, effect), rows in self._rows.items():
            if (placed and effect != "NoExecute") or (transient and is_transient(key, transient)):
                continue
            weight = at_a_time(len(rows))
            work.spend(weight)
            steps += weight
            if not by_kind:
                found |= reduce(or_, rows.values())
                continue
            kinds = ((key, effect), (key, ""), ("", effect), ("", ""))
            found |= _untolerated(rows, [one for kind in kinds for one in by_kind.get(kind, ())])
        self._asked, self._found, self._steps = (tolerations, placed, transient), found, steps
        return found


def _untolerated(rows: Mapping[str, int], tolerations: Iterable[Toleration]) -> int:
    """The nodes of values that no toleration covers; key and effect are covered."""
    values: set[str] = set()
    above: list[int] = []
    below: list[int] = []
    for one in tolerations:
        match one.operator:
            case "Exists":
                return 0
            case "" | "Equal" if one.key:
                values.add(one.value)
            case "Gt" | "Lt" if (number := taint_number(one.value)) is not None:
                (above if one.operator == "Gt" else below).append(number)
    if not (values or above or below):
        return reduce(or_, rows.values())
    least, most = min(above, default=_NONE), max(below, default=-_NONE)  # the others cover nothing more
    compares = bool(above or below)
    return reduce(or_, (
        nodes
        for value, nodes in rows.items()
        if value not in values
        and (not compares or (number := taint_number(value)) is None or most <= number <= least)
    ), 0)  # fmt: skip
