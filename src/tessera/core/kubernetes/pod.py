"""The little of a pod that decisions need, and how the scheduler counts it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from tessera.core.kubernetes.quantity import Number, Quantity
from tessera.core.kubernetes.scheduling import NodeSelectorTerm, Toleration

Amounts = Mapping[str, Quantity]
NOTHING: Final[Amounts] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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

    def all_containers(self) -> Iterator[Container]:
        """Init containers first, as they run and as Kubernetes visits them."""
        yield from self.init_containers
        yield from self.containers

    def map_containers(self, change: Callable[[Container], Container]) -> "Pod":
        """The pod with every container changed; the very same pod when none was."""
        init = tuple(change(container) for container in self.init_containers)
        regular = tuple(change(container) for container in self.containers)
        if _same(init, self.init_containers) and _same(regular, self.containers):
            return self
        return replace(self, init_containers=init, containers=regular)


def _same(new: tuple[Container, ...], old: tuple[Container, ...]) -> bool:
    return all(one is other for one, other in zip(new, old, strict=True))


def peak(pod: Pod, amount: Callable[[Container], Number]) -> Number:
    """What a pod needs at most at one time, as the scheduler counts.

    Regular containers and sidecars run together; an ordinary init container runs beside the sidecars before it.
    """
    sidecars: Number = 0
    most: Number = 0
    for container in pod.init_containers:
        if container.restartable:
            sidecars += amount(container)
            most = max(most, sidecars)
        else:
            most = max(most, sidecars + amount(container))
    return max(most, sidecars + sum(map(amount, pod.containers)))


def requested(pod: Pod) -> dict[str, Quantity]:
    """Everything a pod requests of its node, as the scheduler counts: containers, sidecars, overhead, pod level."""
    total: dict[str, Quantity] = {}
    names = {resource: None for container in pod.all_containers() for resource in container.resources()}
    for resource in names:
        first = next(asked for c in pod.all_containers() if (asked := c.asked(resource)) is not None)

        def amount(container: Container, resource: str = resource) -> Number:
            asked = container.asked(resource)
            return asked.number if asked is not None else 0

        total[resource] = first.with_value(peak(pod, amount))
    total.update(pod.pod_requests)
    for resource, amount_ in pod.overhead.items():
        total[resource] = total[resource] + amount_ if resource in total else amount_
    return total
