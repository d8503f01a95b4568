"""What a decision reads of a cluster: which GPU resources can this pod get? Answered without walking all nodes.

Each node with GPUs is one bit of a number. Columns say which nodes have a label's value, a taint, so much of a
resource; a pod's selector, affinity, tolerations and needs are then a few operations on such numbers, however different the nodes
are.
"""

from collections.abc import Iterable, Mapping
from copy import copy
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final, Self

from tessera.core.admission.limits import Work, weight
from tessera.core.admission.view.labels import LabelColumn, Labels, Taints
from tessera.core.admission.view.usable import Column, OfferColumns
from tessera.core.kubernetes.node import STATED_BY_EVERY_NODE, Namespace, Node
from tessera.core.kubernetes.pod import Pod
from tessera.core.kubernetes.quantity import Number
from tessera.core.kubernetes.scheduling import NodeSelectorTerm, Requirement
from tessera.core.requests.tickets import NO_TICKETS, TicketMaker

if TYPE_CHECKING:
    from tessera.core.admission.view.free import FreeIndex
    from tessera.core.dra.slices import DeviceClass
    from tessera.core.kubernetes.quota import Quota

Needs = Mapping[str, Number]  # of resources that fallback does not look at
NOTHING_ELSE: Final[Needs] = {}
_NO_NUMBERS: Final = Column()


class ClusterView:
    """The cluster at one moment: what is offered, allowed and free. Who decides takes this, and has nothing to write with.

    Updates and decisions take turns on one thread, so a decision sees one consistent state.
    """

    def __init__(self) -> None:
        self.version = 0  # grows with every change that a decision could see
        self.namespaces: dict[str, Namespace] = {}
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
        self.nodes: dict[str, Node] = {}
        # Of the nodes that offer anything: their bits, and the columns.
        self.columns = OfferColumns()
        self._bits: dict[str, int] = {}
        self._every = 0  # all bits together
        self._labels = Labels()
        self._taints = Taints()
        self._others: dict[str, Column] = {}  # resources that fallback does not look at
        self.free: FreeIndex | None = None  # None: pods are not followed

    def now(self, namespace: str = "") -> Self | None:
        """The same cluster with what is free for a namespace at this moment, in place of what is allocatable; None where it is not known."""
        free = self.free
        if free is None:
            return None
        free.settle(namespace)
        other = self.__copy__()
        other.columns, other._others = free.columns, free.others  # noqa: SLF001 # a view like this one
        return other

    def __copy__(self) -> Self:
        """The same view: `copy` would ask how a view is pickled, for each decision by what is free."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def without(self, pod: Pod) -> Self:
        """The cluster for a decision about a pod that is there already: its own use does not count against its quotas.

        Other namespaces have no quotas there: a decision is made in one namespace.
        """
        space = pod.namespace
        if space not in self.quotas:
            return self
        other = copy(self)
        other.quotas = {space: tuple(one.without(pod) for one in self.quotas[space])}
        return other

    def anywhere(self) -> dict[str, int]:
        """Every GPU resource of the cluster, with the most that one node has."""
        return self.columns.most(self._every)

    def most_on(self, names: Iterable[str]) -> dict[str, int]:
        """The GPU resources of some nodes, with the most that one of them has."""
        return self.columns.most(reduce(or_, (self._bits.get(name, 0) for name in names), 0))

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
        found = column.at_least(nanos(need))
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


def nanos(amount: Number) -> int:
    """Billionths, rounded up; Kubernetes knows nothing finer, and whole numbers compare ten times faster than fractions."""
    if isinstance(amount, int):
        return amount * 10**9
    return -(-amount.numerator * 10**9 // amount.denominator)
