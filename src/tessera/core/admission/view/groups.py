"""Nodes that are one to a decision: groups of them, tables of groups by labels, and the terms of an affinity, found by value."""

from collections.abc import Callable, Iterable, Mapping
from sys import getsizeof
from typing import Final

from tessera.core.admission.limits import Work, weight
from tessera.core.admission.view.view import Needs
from tessera.core.kubernetes.node import STATED_BY_EVERY_NODE, Node, Offer, others
from tessera.core.kubernetes.scheduling import NodeSelectorTerm, Taint

_ROW_BYTES: Final = 300  # of one row, beside its values (tracemalloc)

_Values = tuple[str | None, ...]
# a term: the steps that one look at it takes, and for each condition where its key stands and what it wants there
_Conditions = tuple[int, tuple[tuple[int, Callable[[str | None], bool]], ...]]


class Table:
    """The nodes, grouped by the values of some labels: values → group → how many nodes."""

    __slots__ = ("_own_bytes", "keys", "rows")

    def __init__(self, keys: tuple[str, ...]) -> None:
        self.keys = keys
        self._own_bytes = sum(map(getsizeof, keys))  # a pod's author chose them
        self.rows: dict[_Values, dict[Group, int]] = {}

    @property
    def bytes(self) -> int:
        """About how much memory it takes; the values are the nodes' own."""
        return self._own_bytes + len(self.rows) * (_ROW_BYTES + 8 * len(self.keys))

    def add(self, labels: Mapping[str, str], group: "Group", by: int) -> None:
        values = tuple(labels.get(key) for key in self.keys)
        row = self.rows.setdefault(values, {})
        count = row.get(group, 0) + by
        if count:
            row[group] = count
        else:
            del row[group]
            if not row:
                del self.rows[values]


class Group:
    """Nodes with the same taints and the same offer, and bounds of what they have besides: none has less, none has more.

    Bounds only ever widen while the group lasts: a node that goes leaves them as they are, which is still true.
    """

    __slots__ = ("least", "most", "names", "offer", "taints", "unstated")

    def __init__(self, taints: tuple[Taint, ...], offer: Offer, node: Node) -> None:
        self.taints = taints
        self.offer = offer
        self.names: dict[str, None] = {node.name: None}
        self.least = dict(others(node))
        self.most = dict(self.least)
        self.unstated = STATED_BY_EVERY_NODE - self.least.keys()  # of some node: it may have any amount

    def add(self, node: Node) -> None:
        self.names[node.name] = None
        has = dict(others(node))
        for resource in [name for name in self.least if name not in has and name not in STATED_BY_EVERY_NODE]:
            del self.least[resource]
        for resource, amount in has.items():
            if resource in self.least:
                self.least[resource] = min(amount, self.least[resource])
            elif resource in self.unstated:
                self.least[resource] = amount
            self.most[resource] = max(amount, self.most.get(resource, 0))
        self.unstated |= STATED_BY_EVERY_NODE - has.keys()

    def all_hold(self, needs: Needs) -> bool:
        least = self.least
        for resource, need in needs.items():
            if resource in least:
                if least[resource] < need:
                    return False
            elif resource not in self.unstated:
                return False
        return True

    def none_holds(self, needs: Needs) -> bool:
        most = self.most
        return any(
            most.get(resource, 0) < need and resource not in self.unstated for resource, need in needs.items()
        )


class Terms:
    """Terms of an affinity, found by a value that they want: thousands of rows meet hundreds of terms."""

    __slots__ = ("_any", "_by_value", "_work")

    def __init__(self, keys: tuple[str, ...], terms: tuple[NodeSelectorTerm, ...], work: Work) -> None:
        at = {key: place for place, key in enumerate(keys)}
        self._work = work
        self._any: list[_Conditions] = []  # of those that want no value: looked at one by one
        self._by_value: dict[int, dict[str, list[_Conditions]]] = {}  # place of the key → value
        for term in dict.fromkeys(terms):
            if not term.expressions:  # satisfied by no node
                continue
            one = weight(term), tuple((at[each.key], each.matches) for each in term.expressions)
            wants = next((each for each in term.expressions if each.operator == "In"), None)
            if wants is None:
                self._any.append(one)
                continue
            found = self._by_value.setdefault(at[wants.key], {})
            for value in wants.values:
                found.setdefault(value, []).append(one)

    def match(self, values: _Values) -> bool:
        """Whether some term is satisfied by the values of the keys."""
        return self._some(self._any, values) or any(
            value is not None and self._some(found.get(value, ()), values)
            for place, found in self._by_value.items()
            for value in (values[place],)
        )

    def _some(self, terms: Iterable[_Conditions], values: _Values) -> bool:
        spend = self._work.spend
        for steps, conditions in terms:
            spend(steps)
            for place, matches in conditions:
                if not matches(values[place]):
                    break
            else:
                return True
        return False
