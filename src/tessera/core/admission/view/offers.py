"""The index behind a view of the cluster, for who follows the cluster and writes to it.

A node that comes, changes or goes touches its own rows of the columns.
"""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import TYPE_CHECKING

from tessera.core.admission.view.usable import COMING, move_columns
from tessera.core.admission.view.view import ClusterView, nanos
from tessera.core.devices.followed import MOST_STATED
from tessera.core.dra.slices import DeviceClass
from tessera.core.kubernetes.node import NO_OFFER, Namespace, Node, Offer, is_other, others
from tessera.core.kubernetes.quota import Quota
from tessera.core.kubernetes.scheduling import Taint
from tessera.core.requests.tickets import TicketMaker

if TYPE_CHECKING:
    from tessera.core.admission.view.free import FreeIndex


class Offers(ClusterView):
    """A view that can be written to, between decisions."""

    def __init__(self, nodes: Iterable[Node] = (), namespaces: Iterable[Namespace] = ()) -> None:
        super().__init__()
        self.namespaces.update((one.name, one) for one in namespaces)
        self._offered: dict[str, Offer] = {}
        self._unused: list[int] = []  # bits of nodes that are gone
        for node in nodes:
            self.put(node)

    def __len__(self) -> int:
        return len(self.nodes)

    def put(self, node: Node) -> bool:
        """Add a node or take its new state; False when nothing that matters here changed."""
        before = self.nodes.get(node.name)
        if before == node:
            if before.ready != node.ready:  # which is no part of an offer, but of what is free
                self.nodes[node.name] = node
                self._update_free(node)
            return False
        self.nodes[node.name] = node
        self._move(node.name, before, node)
        return True

    def remove(self, name: str) -> bool:
        node = self.nodes.pop(name, None)
        if node is None:
            return False
        self._move(name, node, None)
        return True

    def replace(self, nodes: Iterable[Node]) -> None:
        """Take a whole new list of nodes: what is not in it is gone."""
        fresh = {node.name: node for node in nodes}
        for name in [name for name in self.nodes if name not in fresh]:
            self.remove(name)
        for node in fresh.values():
            self.put(node)

    def follow_pods(self, transient: tuple[str, ...] = ()) -> "FreeIndex":
        """From now on it is known what is free: by the pods that are written to this index.

        `transient` are taints that pass, beside those of Kubernetes and autoscalers.
        """
        from tessera.core.admission.view.free import FreeIndex  # by few: others do not pay for it

        self.free = FreeIndex(self, transient)
        self.version += 1  # by what is free, other decisions are made
        for name in self._bits:
            self._update_free(self.nodes[name])
        return self.free

    def forget_pods(self) -> None:
        """From now on it is not known what is free."""
        if self.free is not None:
            self.free = None
            self.version += 1

    def put_namespace(self, namespace: Namespace) -> bool:
        if self.namespaces.get(namespace.name) == namespace:
            return False
        self.namespaces[namespace.name] = namespace
        self.version += 1
        return True

    def remove_namespace(self, name: str) -> bool:
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
        before = self.quotas.get(namespace, ())
        self._set_quotas(namespace, [one for one in before if one.name != name])

    def _set_quotas(self, namespace: str, quotas: list[Quota]) -> None:
        if quotas:
            self.quotas[namespace] = tuple(sorted(quotas, key=lambda one: one.name))
        else:
            self.quotas.pop(namespace, None)

    def prepare(self) -> Iterator[None]:
        """Do, piece by piece, what the first decisions would do: for a process that decides about many pods, between them."""
        yield from self._labels.prepare()
        for column in (*self._others.values(), *self.columns.counts.values(), self.columns.sums):
            column.put_together()
            yield

    def stated(self) -> frozenset[str]:
        """The resources that nodes with GPUs state, of any kind."""
        return frozenset(islice((*self.columns.counts, *self._others), MOST_STATED))

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
            bit = self._bits[name] = self._unused.pop() if self._unused else COMING << 1 + len(self._bits)
            self._every |= bit
        self.columns.move(self._offered.get(name, NO_OFFER), offer, bit)
        self._labels.move(None if new is None else new.labels, bit)
        for taint in _taints(old) ^ _taints(new):
            self._taints.flip(taint, bit)
        move_columns(self._others, _others(old), _others(new), bit)
        if new is not None:
            self._offered[name] = offer
            self._update_free(new)
        else:
            del self._offered[name], self._bits[name]
            self._every ^= bit
            self._unused.append(bit)
            if self.free is not None:
                self.free.remove_node(name)

    def _update_free(self, node: Node) -> None:
        if self.free is not None and node.name in self._bits:
            offer = self._offered[node.name]
            self.free.put_node(node, self._bits[node.name], offer, _others(node))


def _taints(node: Node | None) -> AbstractSet[Taint]:
    return frozenset() if node is None else {one for one in node.taints if one.may_exclude}


def _others(node: Node | None) -> Mapping[str, int]:
    """What a node states of resources that fallback does not look at, in billionths."""
    if node is None:
        return {}
    if not node.unavailable and not node.dra:
        return {name: nanos(has.number) for name, has in node.allocatable.items() if is_other(name)}
    return {resource: nanos(node.amount(resource) or 0) for resource, _ in others(node)}
