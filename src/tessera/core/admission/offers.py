"""Which GPU resources can this pod get? Answered without walking all nodes.

Nodes with the same offer, the same taints and the same values of the labels that a pod looks at are one to a
decision. `Offers` groups them so, once for each set of label keys that pods use, and keeps the groups right as nodes
come, change and go: a pod that selects by product meets a handful of groups where the cluster has thousands of
nodes. Whether a node could hold the pod at all (cpu, memory, other resources) is mostly answered by the smallest and
the largest node of a group; only in between are its nodes looked at one by one. Updates and decisions take turns on
one thread, so a decision sees one consistent state.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final

from tessera.core.admission.quota import Quota
from tessera.core.kubernetes.node import (
    STATED_BY_EVERY_NODE,
    Namespace,
    Node,
    Offer,
    others,
    why_excluded,
    why_too_small,
)
from tessera.core.kubernetes.pod import Pod, named_nodes
from tessera.core.kubernetes.quantity import Number
from tessera.core.kubernetes.scheduling import NodeSelectorTerm, Taint, label_keys, untolerated

_MOST_TABLES: Final = (
    64  # sets of label keys kept at a time; clusters use a few, and each costs one walk to make
)

GRACE: Final = 120.0  # a plugin restarts within seconds, a whole operator within a minute
Needs = Mapping[str, Number]  # of resources that fallback does not look at
_Group = tuple[tuple[Taint, ...], Offer]
_Values = tuple[str | None, ...]
_NOTHING: Final[Needs] = {}


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


class _Members:
    """The nodes of a group, and bounds of what they have besides GPUs: none has less, none has more.

    Bounds only ever widen while the group lasts: a node that goes leaves them as they are, which is still true.
    """

    __slots__ = ("least", "most", "names", "unstated")

    def __init__(self, node: Node) -> None:
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


class _Terms:
    """Terms of an affinity, found by a value that they want: thousands of them meet thousands of rows."""

    __slots__ = ("_any", "_by_value")

    def __init__(self, terms: tuple[NodeSelectorTerm, ...]) -> None:
        self._any: list[NodeSelectorTerm] = []  # those that want no value: looked at one by one
        self._by_value: dict[tuple[str, str], list[NodeSelectorTerm]] = {}
        for term in dict.fromkeys(terms):
            wants = next((one for one in term.expressions if one.operator == "In"), None)
            if wants is None:
                self._any.append(term)
                continue
            for value in wants.values:
                self._by_value.setdefault((wants.key, value), []).append(term)

    def match(self, labels: Mapping[str, str]) -> bool:
        """Whether some term is satisfied."""
        return any(term.matches("", labels) for term in self._any) or any(
            term.matches("", labels) for item in labels.items() for term in self._by_value.get(item, ())
        )


class Offers:
    """What the nodes of a cluster offer, indexed for admission; and the namespaces' switches."""

    def __init__(self, nodes: Iterable[Node] = (), namespaces: Iterable[Namespace] = ()) -> None:
        self.version = 0  # grows with every change that a decision could see
        # seconds for which what is gone from a node still counts; whoever fills the offers has a clock, and reads it
        self.grace = GRACE
        self.namespaces: dict[str, Namespace] = {one.name: one for one in namespaces}
        # Of the namespaces that have any, by name. They change with every pod there, so they are no part of `version`:
        # decisions that are kept are kept with the very tuple that they were made by.
        self.quotas: dict[str, tuple[Quota, ...]] = {}
        self._nodes: dict[str, Node] = {}
        self._groups: dict[str, _Group] = {}  # of the nodes that offer anything
        self._members: dict[_Group, _Members] = {}
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
            members = self._members.get(group)
            if members is None:
                self._members[group] = _Members(node)
            else:
                members.add(node)
            self._count(node, group, 1)
        return True

    def remove(self, name: str) -> bool:
        """Forget a node."""
        node = self._nodes.pop(name, None)
        if node is None:
            return False
        group = self._groups.pop(name, None)
        if group is not None:
            members = self._members[group].names
            del members[name]
            if not members:
                del self._members[group]
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

    def put_quota(self, quota: Quota) -> None:
        """Add a quota or take its new state; one that names no GPU resource is none."""
        before = self.quotas.get(quota.namespace, ())
        if quota in before:
            return
        others = [one for one in before if one.name != quota.name]
        self._set_quotas(quota.namespace, [*others, quota] if quota.hard else others)

    def remove_quota(self, namespace: str, name: str) -> None:
        """Forget a quota."""
        before = self.quotas.get(namespace, ())
        self._set_quotas(namespace, [one for one in before if one.name != name])

    def _set_quotas(self, namespace: str, quotas: list[Quota]) -> None:
        if quotas:
            self.quotas[namespace] = tuple(sorted(quotas, key=lambda one: one.name))
        else:
            self.quotas.pop(namespace, None)

    def anywhere(self) -> dict[str, int]:
        """Every GPU resource of the cluster, with the most that one node has."""
        return most_of(offer for _, offer in self._members)

    def has_anywhere(self, resource: str) -> bool:
        """Whether some node with GPUs has, or had, any of a resource; of what no node states, nobody knows."""
        return any(resource in one.most or resource in one.unstated for one in self._members.values())

    def for_pod(self, pod: Pod, needs: Needs = _NOTHING, passing: tuple[str, ...] = ()) -> list[Offer]:
        """The distinct offers of the nodes that the pod could ever be placed on, in a fixed order.

        `needs` are the pod's, beside GPUs: nodes that could not hold it even if they were empty do not count.
        `passing` are taints that exclude nobody, beside those that everybody knows.
        """
        found = set(
            self._named(pod, needs, passing) if _names_nodes(pod) else self._selected(pod, needs, passing)
        )
        if len(found) < 2:
            return list(found)
        return sorted(found, key=lambda offer: (offer.counts, offer.card_memory_gb or 0, offer.whole))

    def _named(self, pod: Pod, needs: Needs, passing: tuple[str, ...]) -> Iterator[Offer]:
        """For pods that name nodes, as a DaemonSet's do: those nodes are looked at one by one."""
        names = {pod.node_name} if pod.node_name else named_nodes(pod.required_terms)
        for name in names or self._groups:
            group = self._groups.get(name)
            if group is not None and _could_hold(pod, self._nodes[name], needs, passing):
                yield group[1]

    def _selected(self, pod: Pod, needs: Needs, passing: tuple[str, ...]) -> Iterator[Offer]:
        terms = pod.required_terms
        table = self._table(tuple(sorted(set(label_keys(pod.node_selector, terms)))))
        for row in self._rows(table, pod.node_selector, terms):
            for group in row:
                taints, offer = group
                if taints and untolerated(taints, pod.tolerations, placed=False, passing=passing) is not None:
                    continue
                members = self._members[group]
                if (
                    not needs
                    or members.all_hold(needs)
                    or (
                        not members.none_holds(needs)
                        and any(_could_hold(pod, self._nodes[name], needs, passing) for name in members.names)
                    )
                ):
                    yield offer

    def _rows(
        self, table: _Table, selector: Mapping[str, str], terms: tuple[NodeSelectorTerm, ...] | None
    ) -> Iterator[dict[_Group, int]]:
        """The rows of a table whose labels a selector and an affinity want."""
        if terms is None:  # equality alone is one look-up
            row = table.rows.get(tuple(selector[key] for key in table.keys))
            if row is not None:
                yield row
            return
        wanted = _Terms(terms)
        for values, row in table.rows.items():
            labels = {key: value for key, value in zip(table.keys, values, strict=True) if value is not None}
            if all(labels.get(key) == value for key, value in selector.items()) and wanted.match(labels):
                yield row

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
            if count > most.get(resource, 0):
                most[resource] = count
    return most


def _could_hold(pod: Pod, node: Node, needs: Needs, passing: tuple[str, ...]) -> bool:
    return why_excluded(pod, node, passing) is None and why_too_small(needs, node) is None


def _names_nodes(pod: Pod) -> bool:
    return bool(pod.node_name) or any(term.fields for term in pod.required_terms or ())
