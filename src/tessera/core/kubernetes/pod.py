"""The little of a pod that decisions need, and how the scheduler counts it.

What decisions change in a pod is edits: the difference between two pods with the same containers.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from operator import is_
from types import MappingProxyType
from typing import Final, Literal

from tessera.core.kubernetes.quantity import Number, Quantity
from tessera.core.kubernetes.scheduling import NodeSelectorTerm, Toleration
from tessera.core.values import value

Amounts = Mapping[str, Quantity]
NOTHING: Final[Amounts] = MappingProxyType({})
ENDED: Final = ("Succeeded", "Failed")  # phases in which a pod holds nothing any more
DEFAULT_SCHEDULERS: Final = ("", "default-scheduler")  # the names of Kubernetes' own in a pod


@value
class Container:
    """A container's resources. A section that the pod does not have is empty here."""

    name: str
    requests: Amounts = field(default_factory=dict)
    limits: Amounts = field(default_factory=dict)
    restartable: bool = False  # an init container with restartPolicy Always: a sidecar

    def asked(self, resource: str) -> Quantity | None:
        """What the container requests; a limit without a request counts as one, as in Kubernetes."""
        amount = self.requests.get(resource)
        return self.limits.get(resource) if amount is None else amount

    def resources(self) -> Iterator[str]:
        """Every resource that it names, requests first."""
        yield from self.requests
        yield from (resource for resource in self.limits if resource not in self.requests)


@value
class Pod:
    """A pod as it asks to be admitted, or as it runs."""

    namespace: str = ""
    name: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    init_containers: tuple[Container, ...] = ()
    containers: tuple[Container, ...] = ()
    node_name: str = ""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    required_terms: tuple[NodeSelectorTerm, ...] | None = None  # of required node affinity; None: none is set
    tolerations: tuple[Toleration, ...] = ()
    overhead: Amounts = field(default_factory=dict)
    # spec.resources: what the pod as a whole requests, in place of the sum, and may use
    pod_requests: Amounts = field(default_factory=dict)
    pod_limits: Amounts = field(default_factory=dict)
    # what quotas ask about a pod besides
    has_deadline: bool = False
    priority_class: str = ""
    looks_across_namespaces: bool = False  # some pod affinity names namespaces
    # what decides whether its request can be a claim
    priority: int | None = None  # as the API server has computed it; None: not known
    scheduler: str = ""  # empty: the default one
    claims: tuple[str, ...] = ()  # its claims: the names of their templates, empty for a claim without one
    queued: bool = False  # Kueue manages the pod itself
    counted: bool = False  # Kueue counts the pod's workload by its template
    gated: bool = False  # it has scheduling gates

    @property
    def bound_to(self) -> str:
        """The one node that it can go to: `nodeName`, or a DaemonSet's `matchFields`; empty when there are others."""
        if self.node_name:
            return self.node_name
        names = named_nodes(self.required_terms)
        return next(iter(names)) if len(names) == 1 else ""

    def all_containers(self) -> Iterator[Container]:
        """Init containers first, as they run and as Kubernetes visits them."""
        yield from self.init_containers
        yield from self.containers

    def map_containers(
        self, change: Callable[[Container], Container], annotations: Mapping[str, str] | None = None
    ) -> "Pod":
        """The pod with every container changed, and other annotations if there are; the very same pod when nothing was."""
        init = tuple(map(change, self.init_containers))
        regular = tuple(map(change, self.containers))
        if annotations is None and _same(init, self.init_containers) and _same(regular, self.containers):
            return self
        return Pod(  # written out: `dataclasses.replace` costs four times as much
            self.namespace,
            self.name,
            self.annotations if annotations is None else annotations,
            init,
            regular,
            self.node_name,
            self.node_selector,
            self.required_terms,
            self.tolerations,
            self.overhead,
            self.pod_requests,
            self.pod_limits,
            self.has_deadline,
            self.priority_class,
            self.looks_across_namespaces,
            self.priority,
            self.scheduler,
            self.claims,
            self.queued,
            self.counted,
            self.gated,
        )


def _same(new: tuple[Container, ...], old: tuple[Container, ...]) -> bool:
    return all(map(is_, new, old))


def moments(pod: Pod) -> list[dict[str, Number]]:
    """What a pod's containers need of each resource at each moment that can be the peak: the last one is its running.

    As the scheduler counts: regular containers and sidecars run together, an ordinary init container beside the sidecars before it.
    """
    sidecars: dict[str, Number] = {}
    found = []
    for container in pod.init_containers:
        if container.restartable:
            _add(sidecars, container)
        else:
            found.append(_add(dict(sidecars), container))
    for container in pod.containers:
        _add(sidecars, container)
    found.append(sidecars)
    return found


def _add(total: dict[str, Number], container: Container) -> dict[str, Number]:
    requests = container.requests
    for resource, amount in requests.items():
        total[resource] = total.get(resource, 0) + amount.number
    for resource, amount in container.limits.items():
        if resource not in requests:
            total[resource] = total.get(resource, 0) + amount.number
    return total


def needs(
    pod: Pod, matters: Callable[[str], bool] | None = None, known: list[dict[str, Number]] | None = None
) -> dict[str, Number]:
    """What a pod needs of a node for itself, of some resources or all: as `requested`, in numbers; never zero.

    `known` are its moments, where they were computed before.
    """
    first, *rest = known or moments(pod)
    if matters is None:
        most = {resource: amount for resource, amount in first.items() if amount}
    else:
        most = {resource: amount for resource, amount in first.items() if amount and matters(resource)}
    for moment in rest:
        for resource, amount in moment.items():
            if amount > most.get(resource, 0) and (matters is None or matters(resource)):
                most[resource] = amount
    for resource, quantity in pod.pod_requests.items():
        most[resource] = quantity.number
    for resource, quantity in pod.overhead.items():
        most[resource] = most.get(resource, 0) + quantity.number
    return most


def named_nodes(terms: tuple[NodeSelectorTerm, ...] | None) -> set[str]:
    """The only nodes that come into question by name; empty when names do not narrow it down."""
    names: set[str] = set()
    for term in terms or ():
        listed = next(
            (one.values for one in term.fields if one.key == "metadata.name" and one.operator == "In"), ()
        )
        if not listed:
            return set()
        names.update(listed)
    return names


def peak(pod: Pod, resource: str) -> Number:
    """What a pod's containers need of a resource at most at one time."""
    return max(moment.get(resource, 0) for moment in moments(pod))


def requested(pod: Pod) -> dict[str, Quantity]:
    """Everything a pod requests of its node, as the scheduler counts: containers, sidecars, overhead, pod level."""
    total: dict[str, Quantity] = {}  # as the first container that asks for it writes it
    for container in pod.all_containers():
        for resource in container.resources():
            if resource not in total and (asked := container.asked(resource)) is not None:
                total[resource] = asked
    known = moments(pod)
    for resource, first in total.items():
        total[resource] = first.with_value(max(moment.get(resource, 0) for moment in known))
    total.update(pod.pod_requests)
    for resource, amount in pod.overhead.items():
        total[resource] = total[resource] + amount if resource in total else amount
    return total


# What a pod's own `spec.resources` can hold, beside huge pages (component-helpers/resource, SupportedPodLevelResources)
_OF_WHOLE_PODS: Final = ("cpu", "memory")


def why_pod_level_broken(before: Pod, after: Pod, names: Iterable[str]) -> str | None:
    """Which of the pod's own `spec.resources` the API server would find broken, and what to do about it.

    It compares limits container by container (not those of init containers), and requests as a sum
    (`validatePodResourceConsistency` and `defaultPodRequests` in Kubernetes' pkg/apis/core).
    """
    if not before.pod_requests and not before.pod_limits:
        return None
    remedy = "raise that, or remove spec.resources"
    for name in names:
        most, whole, needs = before.pod_limits.get(name), _pod_request(before, name), peak(after, name)
        for container in after.containers:
            limit = container.limits.get(name)
            if limit is not None and most is not None and limit > most:
                return (
                    f"container {container.name} would have a limit of {limit} {name}, more than the {most} of "
                    f"spec.resources.limits; {remedy}"
                )
        if whole is not None and needs > whole.value:
            hint = " (set by the API server where there are only limits)" if before.pod_limits else ""
            return (
                f"the containers would request {whole.with_value(needs)} {name} in all, more than the {whole} of "
                f"spec.resources.requests{hint}; {remedy}"
            )
    return None


def _pod_request(pod: Pod, name: str) -> Quantity | None:
    """What the pod as a whole requests: where it has limits only, the API server sets that before it asks us."""
    if name in pod.pod_requests or not pod.pod_limits or name not in _OF_WHOLE_PODS:
        return pod.pod_requests.get(name)
    first = next((asked for c in pod.all_containers() if (asked := c.asked(name)) is not None), None)
    return pod.pod_limits.get(name) if first is None else first.with_value(peak(pod, name))


Section = Literal["requests", "limits"]
ContainerList = Literal["initContainers", "containers"]


@value
class SetAmount:
    containers: ContainerList
    index: int
    section: Section
    resource: str
    amount: Quantity


@value
class DropAmount:
    containers: ContainerList
    index: int
    section: Section
    resource: str


@value
class SetAnnotation:
    key: str
    value: str


@value
class ClaimRequest:
    claim: str
    request: str


@value
class SetClaims:
    """Write which claims a container uses; it has none before."""

    containers: ContainerList
    index: int
    claims: tuple[ClaimRequest, ...]


@value
class SetPodClaims:
    """Write the pod's one claim, and the template that it is made from; it has none before."""

    claim: str
    template: str


Edit = SetAmount | DropAmount | SetAnnotation | SetClaims | SetPodClaims


def difference(before: Pod, after: Pod) -> Iterator[Edit]:
    """The edits that turn one pod into the other, which has the same containers."""
    if before is after:
        return
    lists: tuple[tuple[ContainerList, tuple[Container, ...], tuple[Container, ...]], ...] = (
        ("initContainers", before.init_containers, after.init_containers),
        ("containers", before.containers, after.containers),
    )
    for name, old, new in lists:
        for index, (one, other) in enumerate(zip(old, new, strict=True)):
            if one is not other:
                yield from _section_difference(name, index, "requests", one.requests, other.requests)
                yield from _section_difference(name, index, "limits", one.limits, other.limits)
    if before.annotations is not after.annotations:
        for key, value in after.annotations.items():
            if before.annotations.get(key) != value:
                yield SetAnnotation(key, value)


def _section_difference(
    name: ContainerList, index: int, section: Section, old: Amounts, new: Amounts
) -> list[Edit]:
    if old is new:
        return []
    edits: list[Edit] = [
        DropAmount(name, index, section, resource) for resource in old if resource not in new
    ]
    edits += [
        SetAmount(name, index, section, resource, amount)
        for resource, amount in new.items()
        if (before := old.get(resource)) is None or (before is not amount and before != amount)
    ]
    return edits
