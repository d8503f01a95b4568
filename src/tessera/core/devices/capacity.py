"""What there is, what is taken and what is left, counted as the scheduler counts.

A pod becomes a `PodUse`: what it takes of its node, or asks for while it has none. `Capacity` adds uses up as they
come and keeps none of them, so that a cluster of any size is read in one pass; a watcher keeps the uses
and takes the old one out before the new one goes in.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from sys import intern
from typing import Final, TypeVar

from tessera.core.devices.followed import (
    UNCOUNTED,
    is_small_place,
    kept_resources,
    place_bytes,
    resource_bytes,
)
from tessera.core.kubernetes.node import GPU_PRODUCT_LABEL, Node
from tessera.core.kubernetes.pod import ENDED, NOTHING, Amounts, Pod
from tessera.core.kubernetes.quantity import ZERO, Quantity
from tessera.core.mig.profile import MigProfile
from tessera.core.requests.alternatives import Alternatives, read
from tessera.core.requests.asking import alternatives_of, asked, asked_before_fallback
from tessera.core.requests.record import RECORD_ANNOTATION, record_with
from tessera.core.resources import PODS, is_any_gpu, is_extended

_T = TypeVar("_T")
Keep = Callable[[str], bool]  # says which resources matter

_ONE: Final = Quantity(1)
NOWHERE: Final = Pod(node_selector={UNCOUNTED: ""})  # no label's name has spaces
_LONGEST_RECORD: Final = 1024  # characters that are kept as they are
POD: Final = 8  # letters of a pod's UID that distinguish it from the others of its node


@dataclass(frozen=True, slots=True)
class PodUse:
    """What one pod takes of its node, or asks for while it has none."""

    namespace: str
    name: str
    node: str = ""  # empty: no node has it yet
    amounts: Amounts = field(default_factory=dict)
    ending: bool = False  # deleted, and not gone yet
    created: str = ""  # as the API writes it, 2026-11-15T09:30:00Z: later texts are later times
    record: str = ""  # what fallback replaced, as the pod's annotation has it
    asked: Amounts = field(default_factory=dict)  # before fallback; empty: nothing was replaced
    where: Pod | None = None  # where it may go, and nothing else of it; None: not read
    claim: str = ""  # the text of its alternatives, where the bridge made a claim of its request
    rejected: bool = False  # it was never created; its name is that of its workload, `deployment/web`
    uid: str = ""  # at least its first letters, by which devices are known to be its own
    priority: int = 0  # read where `where` is
    gated: bool = False  # it has scheduling gates: it waits for something else first
    judged: str = (
        ""  # since when the scheduler finds no place, as the API writes it; empty: it has said nothing
    )

    @property
    def is_partial(self) -> bool:
        """Whether it waits, and asks for more than is counted here: then the scheduler alone knows where it may go."""
        return UNCOUNTED in self.amounts

    def bounded(self) -> "PodUse":
        """What is kept of it: all, or without resources that may be invented, and no place to go."""
        is_small, kept = self.where is None or is_small_place(self.where), kept_resources(self.amounts)
        if is_small and len(kept) == len(self.amounts):
            return self
        amounts = {name: self.amounts[name] for name in kept}
        asked = {name: self.asked[name] for name in kept_resources(self.asked)}
        use = replace(self, amounts=amounts, asked=asked, where=self.where if is_small else NOWHERE)
        return use if use.node else use.without_place()

    def without_place(self) -> "PodUse":
        """The same pod, of which only the scheduler knows where it may go."""
        return replace(self, amounts={**self.amounts, UNCOUNTED: _ONE}, where=self.where and NOWHERE)

    @property
    def size(self) -> int:
        """About how many bytes it takes to keep where it may go and what it asks for."""
        return (
            0 if self.node or self.where is None else place_bytes(self.where) + resource_bytes(self.amounts)
        )

    @property
    def missed(self) -> dict[MigProfile, int]:
        """The MIG devices that it asked for and was not given."""
        return {
            profile: number
            for resource, amount in self.asked.items()
            if (profile := MigProfile.of_resource(resource)) is not None
            and (number := int(amount.number - self.amounts.get(resource, ZERO).number)) > 0
        }

    @property
    def alternatives(self) -> Alternatives | None:
        """What its claim may be served with: read when it is needed, since it takes many times the memory of its text."""
        return read(self.claim) if self.claim else None


def pod_use(
    pod: Pod,
    phase: str,
    *,
    deleted: bool = False,
    created: str = "",
    uid: str = "",
    keep: Keep = lambda _: True,
    amounts: Amounts | None = None,
) -> PodUse:
    """What a pod uses of the resources that matter; nothing when it is over, or will never be scheduled.

    A deleted pod holds what it has until its containers have ended; one that has no node yet never gets one.
    `amounts` are those that it asks for, where they are known.
    """
    over = phase in ENDED or (deleted and not pod.node_name)
    first = {} if over else asked_before_fallback(pod)
    if amounts is None and not over:
        amounts = amounts_asked(pod, keep)
    claim = alternatives_of(pod)
    return PodUse(
        intern(pod.namespace),  # thousands of pods have the same
        pod.name,
        intern(pod.node_name),
        NOTHING if over or amounts is None else amounts,
        ending=deleted,
        created=created,
        record=_kept_record(pod.annotations.get(RECORD_ANNOTATION, "")),
        asked=_kept_amounts(first, keep) if first else NOTHING,  # one for all: there are tens of thousands
        claim=str(claim) if claim else "",
        uid=uid[:POD],
    )


def amounts_asked(pod: Pod, keep: Keep) -> Amounts:
    """What a pod asks for of the resources that matter, whether it ends or not."""
    return _kept_amounts({**asked(pod), PODS: _ONE}, keep)


def _kept_amounts(amounts: Amounts, keep: Keep) -> Amounts:
    return {resource: amount for resource, amount in amounts.items() if amount and keep(resource)}


def _kept_record(record: str) -> str:
    """A record; of one that no decision has written, as much as is read."""
    return record if len(record) <= _LONGEST_RECORD else record_with(record, ())


def in_effect(spec: Amounts, actual: Amounts, allocated: Amounts, *, infeasible: bool) -> Amounts:
    """What counts while a running pod is resized: the most of what is asked for, promised and there.

    A resize that the node has refused for good counts for nothing.
    """
    most = {} if infeasible else dict(spec)
    for amounts in (actual, allocated):
        for resource, amount in amounts.items():
            if resource not in most or most[resource] < amount:
                most[resource] = amount
    return most


@dataclass(frozen=True, slots=True)
class Usage:
    allocatable: Quantity = ZERO
    allocated: Quantity = ZERO

    @property
    def available(self) -> Quantity:
        """What is left; less than nothing where devices vanished under their pods."""
        return self.allocatable - self.allocated

    def __bool__(self) -> bool:
        return bool(self.allocatable or self.allocated)

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(self.allocatable + other.allocatable, self.allocated + other.allocated)


Usages = Mapping[str, Usage]


@dataclass(frozen=True, slots=True)
class NodeUse:
    node: Node
    resources: Usages

    @property
    def product(self) -> str:
        return self.node.labels.get(GPU_PRODUCT_LABEL, "")

    def source(self, resource: str) -> str:
        """Where a resource comes from: `dra`, `plugin`, or empty for what Kubernetes has by itself."""
        if self.node.is_served(resource):
            return "dra"
        return "plugin" if is_extended(resource) else ""


class Capacity(dict[str, Node]):
    """The nodes of a cluster by name, and the sums of what pods use.

    Pods that are bound to a node that is gone count again should it come back.
    """

    def __init__(self) -> None:
        super().__init__()
        self._taken: dict[str, dict[str, Quantity]] = {}  # by node; empty: of pods that no node has
        # by node and GPU resource: how many each pod holds
        self._holders: dict[tuple[str, str], dict[str, int]] = {}
        self._editions: dict[str, int] = {}  # by node that pods use: the change of it that was last
        self._changes = 0
        # by node, of what DRA serves there: whichever way a pod asked, a claim holds the device
        self.claimed: Mapping[str, Mapping[str, int]] = {}

    def put_node(self, node: Node) -> None:
        self[node.name] = node

    def edition(self, node: str) -> int:
        """A number that changes with what pods use of a node."""
        return self._editions.get(node, 0)

    def add(self, use: PodUse) -> None:
        self._touch(use.node)
        taken = self._taken.setdefault(use.node, {})
        for resource, amount in _taken_by(use):
            known = taken.get(resource)
            taken[resource] = amount if known is None else known + amount
            if use.node and is_any_gpu(resource):
                self._holders.setdefault((use.node, resource), {})[use.uid[:POD]] = int(amount.number)

    def remove(self, use: PodUse) -> None:
        self._touch(use.node)
        taken = self._taken.get(use.node, {})
        for resource, amount in _taken_by(use):
            taken[resource] = taken.get(resource, ZERO) - amount
            if some := self._holders.get((use.node, resource)):
                some.pop(use.uid[:POD], None)
            if not taken[resource]:
                del taken[resource]
        if not taken:
            self._taken.pop(use.node, None)
            if use.node not in self:  # a pod can name a node that never was
                del self._editions[use.node]

    def _touch(self, node: str) -> None:
        self._changes += 1
        self._editions[node] = self._changes

    def holders(self, node: str, resource: str) -> Mapping[str, int]:
        """How many of a GPU resource each pod of a node holds; pods by the first letters of their UIDs."""
        return self._holders.get((node, resource), {})

    def forget_pods(self) -> None:
        self._editions = {node: edition for node, edition in self._editions.items() if node in self}
        for node in self._editions:
            self._touch(node)
        self._taken.clear()
        self._holders.clear()

    @property
    def asked(self) -> Amounts:
        return in_order(self._taken.get("", {}))

    def usage(self, name: str) -> Usages:
        """The resources of one node: those that it has, and those that pods hold there."""
        node, taken = self[name], self._taken.get(name, {})
        allocatable, claimed = node.allocatable, self.claimed.get(name, {})
        return {
            resource: Usage(_number(node.dra[resource]), _number(claimed.get(resource, 0)))
            if node.is_served(resource)
            else Usage(allocatable.get(resource, ZERO), taken.get(resource, ZERO))
            for resource in in_order({**allocatable, **taken, **node.dra})
        }

    def nodes(self) -> Iterator[NodeUse]:
        """Every node that has anything, those with the same GPUs together."""
        for node in sorted(
            self.values(), key=lambda node: (node.labels.get(GPU_PRODUCT_LABEL, ""), node.name)
        ):
            if resources := self.usage(node.name):
                yield NodeUse(node, resources)


def _taken_by(use: PodUse) -> Iterator[tuple[str, Quantity]]:
    """What a pod takes or asks for, less the devices that it has by a claim: these are in `Capacity.claimed`."""
    by_claim = use.claim and use.node
    return ((r, amount) for r, amount in use.amounts.items() if not (by_claim and is_any_gpu(r)))


def _number(count: int) -> Quantity:
    return Quantity(count)


def total(usages: Iterable[Usages]) -> Usages:
    """Several nodes together."""
    sums: dict[str, Usage] = {}
    for usage in usages:
        for resource, one in usage.items():
            sums[resource] = sums[resource] + one if resource in sums else one
    return in_order(sums)


def in_order(resources: Mapping[str, _T]) -> dict[str, _T]:
    """Whole GPUs first, then MIG devices from small to large, then everything else by name."""
    return {resource: resources[resource] for resource in sorted(resources, key=_rank)}


def _rank(resource: str) -> tuple[int, MigProfile, str]:
    profile = MigProfile.of_resource(resource)
    if profile is not None:
        return (1, profile, resource)
    return (0 if is_any_gpu(resource) else 2, _NO_PROFILE, resource)


_NO_PROFILE: Final = MigProfile(0, 0)
