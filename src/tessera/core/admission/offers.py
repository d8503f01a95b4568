"""Which GPU resources can this pod get? Answered without walking all nodes.

Nodes with the same offer, the same taints and the same values of the labels that a pod looks at are one to a
decision. `Offers` groups them so, once for each set of label keys that pods use, and keeps the groups right as nodes
come, change and go: a pod that selects by product meets a handful of groups where the cluster has thousands of
nodes. Updates and decisions take turns on one thread, so a decision sees one consistent state.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final

from tessera.core.kubernetes.node import Namespace, Node, Offer, why_excluded
from tessera.core.kubernetes.pod import Pod
from tessera.core.kubernetes.scheduling import Taint, label_keys, untolerated

_MOST_TABLES: Final = (
    64  # sets of label keys kept at a time; clusters use a few, and each costs one walk to make
)

_Group = tuple[tuple[Taint, ...], Offer]
_Values = tuple[str | None, ...]


@lru_cache(maxsize=512)
def _shared(group: _Group) -> _Group:
    """One object for all groups that are equal: thousands of nodes are in a few."""
    return group


class _Table:
    """The nodes, grouped by the values of some labels: values → group → how many nodes."""

    __slots__ = ("keys", "rows")

    def __init__(self, keys: tuple[str, ...]) -> None:
        self.keys = keys
        self.rows: dict[_Values, dict[_Group, int]] = {}

    def add(self, labels: Mapping[str, str], group: _Group, by: int) -> None:
        values = tuple(labels.get(key) for key in self.keys)
        row = self.rows.setdefault(values, {})
        count = row.get(group, 0) + by
        if count:
            row[group] = count
        else:
            del row[group]
            if not row:
                del self.rows[values]


class Offers:
    """What the nodes of a cluster offer, indexed for admission; and the namespaces' switches."""

    def __init__(self, nodes: Iterable[Node] = (), namespaces: Iterable[Namespace] = ()) -> None:
        self.version = 0  # grows with every change that a decision could see
        self.namespaces: dict[str, Namespace] = {one.name: one for one in namespaces}
        self._nodes: dict[str, Node] = {}
        self._groups: dict[str, _Group] = {}  # of the nodes that offer anything
        self._tables: dict[tuple[str, ...], _Table] = {(): _Table(())}
        for node in nodes:
            self.put(node)

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def nodes(self) -> Mapping[str, Node]:
        """The nodes by name."""
        return self._nodes

    def put(self, node: Node) -> bool:
        """Add a node or take its new state; False when nothing that matters here changed."""
        if self._nodes.get(node.name) == node:
            return False
        self.remove(node.name)
        self._nodes[node.name] = node
        offer = node.offer
        if offer.counts:
            group = _shared((tuple(taint for taint in node.taints if taint.may_exclude), offer))
            self._groups[node.name] = group
            self._count(node, group, 1)
        return True

    def remove(self, name: str) -> bool:
        """Forget a node."""
        node = self._nodes.pop(name, None)
        if node is None:
            return False
        group = self._groups.pop(name, None)
        if group is not None:
            self._count(node, group, -1)
        return True

    def replace(self, nodes: Iterable[Node]) -> None:
        """Take a whole new list of nodes: what is not in it is gone."""
        fresh = {node.name: node for node in nodes}
        for name in [name for name in self._nodes if name not in fresh]:
            self.remove(name)
        for node in fresh.values():
            self.put(node)

    def put_namespace(self, namespace: Namespace) -> bool:
        """Add a namespace or take its new state."""
        if self.namespaces.get(namespace.name) == namespace:
            return False
        self.namespaces[namespace.name] = namespace
        self.version += 1
        return True

    def remove_namespace(self, name: str) -> bool:
        """Forget a namespace."""
        if self.namespaces.pop(name, None) is None:
            return False
        self.version += 1
        return True

    def anywhere(self) -> dict[str, int]:
        """Every GPU resource of the cluster, with the most that one node has."""
        return most_of(offer for row in self._tables[()].rows.values() for _, offer in row)

    def for_pod(self, pod: Pod) -> list[Offer]:
        """The distinct offers of the nodes that the pod could ever be placed on, in a fixed order."""
        found = set(self._named(pod) if _names_nodes(pod) else self._selected(pod))
        return sorted(found, key=lambda offer: (offer.counts, offer.card_memory_gb or 0))

    def _named(self, pod: Pod) -> Iterator[Offer]:
        """For pods that name nodes, as a DaemonSet's do: those nodes are looked at one by one."""
        for name in _names(pod) or self._groups:
            group = self._groups.get(name)
            if group is not None and why_excluded(pod, self._nodes[name]) is None:
                yield group[1]

    def _selected(self, pod: Pod) -> Iterator[Offer]:
        terms = pod.required_terms
        table = self._table(tuple(sorted(set(label_keys(pod.node_selector, terms)))))
        rows: Iterable[tuple[_Values, dict[_Group, int]]]  # equality alone is one look-up
        if terms is None:
            wanted: _Values = tuple(pod.node_selector[key] for key in table.keys)
            rows = [(wanted, table.rows.get(wanted, {}))]
        else:
            rows = table.rows.items()
        for values, row in rows:
            if terms is not None:
                labels = {
                    key: value for key, value in zip(table.keys, values, strict=True) if value is not None
                }
                if any(labels.get(key) != value for key, value in pod.node_selector.items()):
                    continue
                if not any(term.matches("", labels) for term in terms):
                    continue
            for taints, offer in row:
                if untolerated(taints, pod.tolerations, placed=False) is None:
                    yield offer

    def _table(self, keys: tuple[str, ...]) -> _Table:
        table = self._tables.pop(keys, None)
        if table is None:
            table = _Table(keys)
            for name, group in self._groups.items():
                table.add(self._nodes[name].labels, group, 1)
            if (
                len(self._tables) >= _MOST_TABLES
            ):  # the least recently used goes; the one without keys always stays
                del self._tables[next(key for key in self._tables if key)]
        self._tables[keys] = table
        return table

    def _count(self, node: Node, group: _Group, by: int) -> None:
        self.version += 1  # nodes that offer nothing are not counted: they come and go unnoticed by decisions
        for table in self._tables.values():
            table.add(node.labels, group, by)


def most_of(offers: Iterable[Offer]) -> dict[str, int]:
    """Every resource of some offers, with the most that one of them has."""
    most: dict[str, int] = {}
    for offer in offers:
        for resource, count in offer.counts:
            most[resource] = max(count, most.get(resource, 0))
    return most


def _names(pod: Pod) -> set[str]:
    """The only nodes that come into question; empty when the names do not narrow it down."""
    if pod.node_name:
        return {pod.node_name}
    names: set[str] = set()
    for term in pod.required_terms or ():
        listed = next((one.values for one in term.fields if one.operator == "In"), ())
        if not listed:
            return set()
        names.update(listed)
    return names


def _names_nodes(pod: Pod) -> bool:
    return bool(pod.node_name) or any(term.fields for term in pod.required_terms or ())
