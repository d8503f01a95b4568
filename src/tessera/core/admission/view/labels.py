"""The nodes by their labels: one column for each label that pods look at, made when the first pod does."""

from collections.abc import Iterable, Mapping
from functools import reduce
from operator import or_
from sys import getsizeof
from typing import Final

from tessera.core.admission.view.usable import Column
from tessera.core.kubernetes.scheduling import Requirement, label_number

# Of one row, beside its nodes (tracemalloc): of a value, and of a number.
_ROW_BYTES: Final = 30
_NUMBER_BYTES: Final = 50
_MOST_BYTES: Final = 16 * 2**20  # of all columns; a label that differs on each of 5,000 nodes takes 150 KiB


class LabelColumn:
    """Value of one label → the nodes that have it."""

    __slots__ = ("_numbers", "all", "rows")

    def __init__(self, values: Iterable[tuple[str, int]] = ()) -> None:
        self.rows: dict[str, int] = {}
        for value, node in values:
            row = self.rows.get(value)
            self.rows[value] = node if row is None else row | node
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
        if self._numbers is None:
            self._numbers = self._made_of_numbers()
        if operator == "Gt":
            return self._numbers.at_least(number + 1)
        return self._numbers.all & ~self._numbers.at_least(number)

    def _made_of_numbers(self) -> Column:
        numbers: dict[int, int] = {}
        for value, row in self.rows.items():
            if (number := label_number(value)) is not None:
                known = numbers.get(number)  # 7 and 07 are one number
                numbers[number] = row if known is None else known | row
        return Column(numbers)


_UNKNOWN: Final = LabelColumn()  # of a label that no node has: pods may name any


class Labels:
    """The columns of labels, and how many nodes have each label."""

    __slots__ = ("_columns", "_known")

    def __init__(self) -> None:
        self._columns: dict[str, LabelColumn] = {}  # the least recently used first
        self._known: dict[str, int] = {}

    @property
    def bytes(self) -> int:
        """About how much memory the columns take."""
        return sum(column.bytes for column in self._columns.values())

    def move(self, before: Mapping[str, str], after: Mapping[str, str], node: int) -> None:
        """A node has other labels than before."""
        if before == after:
            return
        known = self._known
        for key in after.keys() - before.keys():
            known[key] = known.get(key, 0) + 1
        for key in before.keys() - after.keys():
            known[key] -= 1
            if not known[key]:
                del known[key]
        for key, column in self._columns.items():
            old, new = before.get(key), after.get(key)
            if old != new:
                column.move(old, new, node)
        if len(after) > len(before):
            self._shed()

    def column(self, key: str, nodes: Iterable[tuple[Mapping[str, str], int]]) -> LabelColumn:
        """The column of a label; `nodes` are all there are, to make it from."""
        if key not in self._known:
            return _UNKNOWN
        column = self._columns.pop(key, None)
        if column is not None:
            self._columns[key] = column
            return column
        column = LabelColumn((labels[key], node) for labels, node in nodes if key in labels)
        self._columns[key] = column
        self._shed()
        return column

    def _shed(self) -> None:
        """Forget the least recently used while they take too much room."""
        if not self._columns:
            return
        size = self.bytes
        while size > _MOST_BYTES and self._columns:
            size -= self._columns.pop(next(iter(self._columns))).bytes
