"""Which GPU resources can this pod get? Answered without walking all nodes.

Each node with GPUs is one bit of a number. Columns say which nodes have a label's value, a taint, so much of a
resource; a pod's selector, affinity, tolerations and needs are then a few operations on such numbers, however different the nodes
are. A node that comes, changes or goes touches its own rows of those columns. Updates and decisions take turns on one thread, so a
decision sees one consistent state.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from tessera.core.admission.limits import Work, weight
from tessera.core.admission.view.labels import LabelColumn, Labels, Taints
from tessera.core.admission.view.usable import COMING, Column, OfferColumns
from tessera.core.admission.view.view import Needs
from tessera.core.dra.slices import DeviceClass
from tessera.core.kubernetes.node import (
    NO_OFFER,
    STATED_BY_EVERY_NODE,
    Namespace,
    Node,
    Offer,
    is_other,
    others,
)
from tessera.core.kubernetes.pod import Pod
from tessera.core.kubernetes.quantity import Number
from tessera.core.kubernetes.quota import Quota
from tessera.core.kubernetes.scheduling import NodeSelectorTerm, Requirement, Taint
from tessera.core.requests.tickets import NO_TICKETS, TicketMaker

_NO_NUMBERS: Final = Column()


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
        # Of the nodes that offer anything: their bits, and the columns.
        self.columns = OfferColumns()
        self._bits: dict[str, int] = {}
        self._offered: dict[str, Offer] = {}
        self._every = 0  # all bits together
        self._free: list[int] = []  # bits of nodes that are gone
        self._labels = Labels()
        self._taints = Taints()
        self._others: dict[str, Column] = {}  # resources that fallback does not look at
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
        before = self._nodes.get(node.name)
        if before == node:
            return False
        self._nodes[node.name] = node
        self._move(node.name, before, node)
        return True

    def remove(self, name: str) -> bool:
        """Forget a node."""
        node = self._nodes.pop(name, None)
        if node is None:
            return False
        self._move(name, node, None)
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
        return self.columns.most(self._every)

    def has_anywhere(self, resource: str) -> bool:
        """Whether some node with GPUs states a resource, or should and does not."""
        stated = self._others.get(resource, _NO_NUMBERS).all
        return bool(stated) or (resource in STATED_BY_EVERY_NODE and stated != self._every)

    def for_pod(self, pod: Pod, transient: tuple[str, ...] = (), work: Work | None = None) -> int:
        """The nodes with GPUs that the pod could ever be placed on, by its selectors and tolerations; each one bit.

        `transient` are taints that exclude no pod, beside those of Kubernetes, autoscalers and GPU vendors. `work` is what may still be done for
        this pod: `BeyondLimits` when it is not enough.
        """
        work = work or Work()
        found = self._selected(pod, work)
        if found:
            found &= ~self._taints.excluded(
                pod.tolerations, work, placed=bool(pod.node_name), transient=transient
            )
        return found

    def large_enough(self, nodes: int, needs: Needs) -> int:
        """Those of some nodes that could hold a pod with these needs, beside GPUs, if they were empty."""
        for resource, need in needs.items():
            if nodes and need > 0:
                nodes &= self._holding(resource, need)
        return nodes

    def _holding(self, resource: str, need: Number) -> int:
        """The nodes that have so much, or may: one that does not state cpu or memory was not measured yet."""
        column = self._others.get(resource, _NO_NUMBERS)
        found = column.at_least(_nanos(need))
        return found | self._every & ~column.all if resource in STATED_BY_EVERY_NODE else found

    def _selected(self, pod: Pod, work: Work) -> int:
        """The nodes that a pod's own selectors let it go to."""
        found = self._bits.get(pod.node_name, 0) if pod.node_name else self._every
        for key, value in pod.node_selector.items():
            found &= self._labels.column(key).rows.get(value, 0)
            if not found:
                return 0
        if pod.required_terms is None or not found:
            return found
        columns: dict[str, LabelColumn] = {}  # terms name the same labels again and again
        wanted = 0
        for term in pod.required_terms:
            work.spend(weight(term))
            if term.expressions or term.fields:  # else it is satisfied by no node
                wanted |= self._satisfying(term, found, columns)
                if wanted == found:
                    break
        return wanted

    def _satisfying(self, term: NodeSelectorTerm, among: int, columns: dict[str, LabelColumn]) -> int:
        for one in term.expressions:
            column = columns.get(one.key)
            if column is None:
                column = columns[one.key] = self._labels.column(one.key)
            among &= column.matching(one, self._every)
            if not among:
                return 0
        for one in term.fields:
            among &= self._named(one)
        return among

    def _named(self, one: Requirement) -> int:
        """The nodes whose name satisfies an expression; `metadata.name` is the only field that Kubernetes knows."""
        if one.key != "metadata.name":
            return 0
        found = 0
        for name in one.values:
            found |= self._bits.get(name, 0)
        match one.operator:
            case "In":
                return found
            case "NotIn":
                return self._every & ~found
            case "Exists":
                return self._every
        return 0

    @property
    def label_bytes(self) -> int:
        """About how much memory the columns of labels take."""
        return self._labels.bytes

    def _move(self, name: str, before: Node | None, after: Node | None) -> None:
        """Bring the columns from what a node was to what it is; nodes that offer nothing are in no column."""
        offer = after.offer if after is not None else NO_OFFER
        bit = self._bits.get(name, 0)
        if not bit and not offer.counts:
            return  # they come and go unnoticed by decisions
        self.version += 1
        old = before if bit else None
        new = after if offer.counts else None
        if not bit:
            bit = self._bits[name] = self._free.pop() if self._free else COMING << 1 + len(self._bits)
            self._every |= bit
        self.columns.move(self._offered.get(name, NO_OFFER), offer, bit)
        self._labels.move(None if new is None else new.labels, bit)
        for taint in _taints(old) ^ _taints(new):
            self._taints.flip(taint, bit)
        self._move_others(_others(old), _others(new), bit)
        if new is not None:
            self._offered[name] = offer
        else:
            del self._offered[name], self._bits[name]
            self._every ^= bit
            self._free.append(bit)

    def _move_others(self, before: Mapping[str, int], after: Mapping[str, int], bit: int) -> None:
        for resource, amount in before.items():
            if after.get(resource) != amount:
                column = self._others[resource]
                column.remove(amount, bit)
                if not column.all:
                    del self._others[resource]
        for resource, amount in after.items():
            if before.get(resource) != amount:
                self._others.setdefault(resource, Column()).add(amount, bit)


def _taints(node: Node | None) -> AbstractSet[Taint]:
    return frozenset() if node is None else {one for one in node.taints if one.may_exclude}


def _others(node: Node | None) -> Mapping[str, int]:
    """What a node states of resources that fallback does not look at, in billionths."""
    if node is None:
        return {}
    if not node.unavailable and not node.dra:
        return {name: _nanos(has.number) for name, has in node.allocatable.items() if is_other(name)}
    return {resource: _nanos(node.amount(resource) or 0) for resource, _ in others(node)}


def _nanos(amount: Number) -> int:
    """Billionths, rounded up; Kubernetes knows nothing finer, and whole numbers compare ten times faster than fractions."""
    return -(-amount.numerator * 10**9 // amount.denominator)
