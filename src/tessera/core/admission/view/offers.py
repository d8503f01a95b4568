"""Which GPU resources can this pod get? Answered without walking all nodes.

Nodes with the same offer, the same taints and the same values of the labels that a pod looks at are one to a
decision. `Offers` groups them so, once for each set of label keys that pods use, and keeps the groups right as nodes
come, change and go: a pod that selects by product meets a handful of groups where the cluster has thousands of
nodes. Whether a node could hold the pod at all (cpu, memory, other resources) is mostly answered by the smallest and
the largest node of a group; only in between are its nodes looked at one by one. Updates and decisions take turns on
one thread, so a decision sees one consistent state.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from tessera.core.admission.limits import Work, weight
from tessera.core.admission.view.groups import Group, Table, Terms
from tessera.core.admission.view.view import NOTHING_ELSE, Needs
from tessera.core.dra.slices import DeviceClass
from tessera.core.kubernetes.node import Namespace, Node, Offer, why_excluded, why_too_small
from tessera.core.kubernetes.pod import Pod, named_nodes
from tessera.core.kubernetes.quota import Quota
from tessera.core.kubernetes.scheduling import NodeSelectorTerm, Taint, label_keys, untolerated
from tessera.core.requests.tickets import NO_TICKETS, TicketMaker

# Sets of label keys that are kept: clusters use a few, and each costs one walk over the nodes to make.
_MOST_TABLES: Final = 64
_MOST_TABLE_BYTES: Final = 16 * 2**20  # of all of them; six of the largest at 5,000 nodes


class Offers:
    """The index behind a `ClusterView`. Whoever follows the cluster writes to it, between decisions; who decides reads it as a view."""

    def __init__(self, nodes: Iterable[Node] = (), namespaces: Iterable[Namespace] = ()) -> None:
        self.version = 0  # grows with every change that a decision could see
        self.namespaces: dict[str, Namespace] = {one.name: one for one in namespaces}
        # Of the namespaces that have any, by name. They change with every pod there, so they are no part of `version`:
        # decisions that are kept are kept with the very tuple that they were made by.
        self.quotas: dict[str, tuple[Quota, ...]] = {}
        # Whether tessera controller is at work, which makes the templates of claims; a view without a clock takes that for
        # granted.
        self.controller = True
        # What makes the tickets of pods, by which the controller knows them; a view that only shows decisions makes none.
        self.ticket_maker: TicketMaker | None = NO_TICKETS
        # The DeviceClass that serves an extended resource, as the scheduler chooses it; and the names of all classes.
        self.classes: Mapping[str, DeviceClass] = {}
        self.class_names: frozenset[str] = frozenset()
        self._nodes: dict[str, Node] = {}
        self._groups: dict[str, Group] = {}  # of the nodes that offer anything
        self._kinds: dict[tuple[tuple[Taint, ...], Offer], Group] = {}
        self._tables: dict[tuple[str, ...], Table] = {(): Table(())}
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
            kind = tuple(taint for taint in node.taints if taint.may_exclude), offer
            group = self._kinds.get(kind)
            if group is None:
                group = self._kinds[kind] = Group(*kind, node)
            else:
                group.add(node)
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
            del group.names[name]
            if not group.names:
                del self._kinds[group.taints, group.offer]
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

    def put_classes(self, serving: Mapping[str, DeviceClass], names: Iterable[str]) -> None:
        """Take the classes that there are now."""
        known = frozenset(names)
        if (self.classes, self.class_names) != (serving, known):
            self.classes, self.class_names = dict(serving), known
            self.version += 1

    def put_controller(self, at_work: bool) -> None:  # what its Lease says
        """Whether the controller is at work."""
        if self.controller != at_work:
            self.controller = at_work
            self.version += 1

    def put_ticket_maker(self, maker: TicketMaker | None) -> None:
        """Make tickets with this key in this hour. None: there is no key, and no request becomes a claim."""
        if self.ticket_maker != maker:
            self.ticket_maker = maker
            self.version += 1

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
        return most_of(group.offer for group in self._kinds.values())

    def has_anywhere(self, resource: str) -> bool:
        """Whether some node with GPUs has, or had, any of a resource, or does not state it."""
        return any(resource in one.most or resource in one.unstated for one in self._kinds.values())

    def for_pod(
        self,
        pod: Pod,
        needs: Needs = NOTHING_ELSE,
        transient: tuple[str, ...] = (),
        work: Work | None = None,
    ) -> list[Offer]:
        """The distinct offers of the nodes that the pod could ever be placed on, in a fixed order.

        `needs` are the pod's, beside GPUs: nodes that could not hold it even if they were empty do not count.
        `transient` are taints that exclude no pod, beside those of Kubernetes, autoscalers and GPU vendors. `work` is what may still be done for
        this pod: `BeyondLimits` when it is not enough.
        """
        find = self._named if _names_nodes(pod) else self._selected
        found = list(find(pod, needs, transient, work or Work()))
        if len(found) < 2:
            return found
        return sorted(set(found), key=_in_order)

    def _named(self, pod: Pod, needs: Needs, transient: tuple[str, ...], work: Work) -> Iterator[Offer]:
        """For pods that name nodes, as a DaemonSet's do: those nodes are looked at one by one."""
        names = {pod.node_name} if pod.node_name else named_nodes(pod.required_terms)
        steps = _steps(pod, needs)
        for name in names or self._groups:
            group = self._groups.get(name)
            if group is not None:
                work.spend(steps)
                if _could_hold(pod, self._nodes[name], needs, transient):
                    yield group.offer

    def _selected(self, pod: Pod, needs: Needs, transient: tuple[str, ...], work: Work) -> Iterator[Offer]:
        terms = pod.required_terms
        table = self._table(tuple(sorted(set(label_keys(pod.node_selector, terms)))))
        seen: set[int] = set()  # many rows are of a few groups, which are one object each
        for row in self._rows(table, pod.node_selector, terms, work):
            for group in row:
                if id(group) not in seen:
                    seen.add(id(group))
                    if self._holds(group, pod, needs, transient, work):
                        yield group.offer

    def _holds(self, group: Group, pod: Pod, needs: Needs, transient: tuple[str, ...], work: Work) -> bool:
        """Whether a group that the pod selects is open to it, and some node of it is large enough."""
        if group.taints:
            work.spend(1 + len(group.taints) * len(pod.tolerations))
            if untolerated(group.taints, pod.tolerations, placed=False, transient=transient) is not None:
                return False
        if not needs or group.all_hold(needs):
            return True
        if group.none_holds(needs):
            return False
        steps = _steps(pod, needs)
        for name in group.names:
            work.spend(steps)
            if _could_hold(pod, self._nodes[name], needs, transient):
                return True
        return False

    def _rows(
        self,
        table: Table,
        selector: Mapping[str, str],
        terms: tuple[NodeSelectorTerm, ...] | None,
        work: Work,
    ) -> Iterator[dict[Group, int]]:
        """The rows of a table whose labels a selector and an affinity want."""
        if terms is None:  # equality alone is one look-up
            row = table.rows.get(tuple(selector[key] for key in table.keys))
            if row is not None:
                yield row
            return
        wanted = Terms(table.keys, terms, work)
        selected = [(place, selector[key]) for place, key in enumerate(table.keys) if key in selector]
        work.spend(len(table.rows) * (1 + len(selected)))
        for values, row in table.rows.items():
            if all(values[place] == value for place, value in selected) and wanted.match(values):
                yield row

    def _table(self, keys: tuple[str, ...]) -> Table:
        table = self._tables.pop(keys, None)
        if table is None:
            table = Table(keys)
            for name, group in self._groups.items():
                table.add(self._nodes[name].labels, group, 1)
            self._tables[keys] = table
            self._shed_tables()
        else:
            self._tables[keys] = table
        return table

    def _shed_tables(self) -> None:
        """Forget the least recently used while there are too many; the one without keys always stays."""
        size = self.table_bytes
        while len(self._tables) > _MOST_TABLES or size > _MOST_TABLE_BYTES:
            oldest = next((keys for keys in self._tables if keys), None)
            if oldest is None:
                return
            size -= self._tables.pop(oldest).bytes

    @property
    def table_bytes(self) -> int:
        """About how much memory the tables take."""
        return sum(table.bytes for table in self._tables.values())

    def _count(self, node: Node, group: Group, by: int) -> None:
        self.version += 1  # nodes that offer nothing are not counted: they come and go unnoticed by decisions
        for table in self._tables.values():
            table.add(node.labels, group, by)
        self._shed_tables()  # they grow with the cluster


def _in_order(offer: Offer) -> tuple[object, ...]:
    return offer.counts, offer.card_memory_gb or 0, offer.whole, sorted(offer.dra)


def most_of(offers: Iterable[Offer]) -> dict[str, int]:
    """Every resource of some offers, with the most that one of them has."""
    most: dict[str, int] = {}
    for offer in offers:
        for resource, count in offer.counts:
            if count > most.get(resource, 0):
                most[resource] = count
    return most


def _could_hold(pod: Pod, node: Node, needs: Needs, transient: tuple[str, ...]) -> bool:
    return why_excluded(pod, node, transient) is None and why_too_small(needs, node) is None


def _steps(pod: Pod, needs: Needs) -> int:
    """How much work it is to look at one node by itself."""
    terms = sum(map(weight, pod.required_terms or ()))
    return 3 + len(needs) + len(pod.node_selector) + len(pod.tolerations) + terms


def _names_nodes(pod: Pod) -> bool:
    return bool(pod.node_name) or any(term.fields for term in pod.required_terms or ())
