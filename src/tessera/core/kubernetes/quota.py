"""ResourceQuotas: what a namespace may have *instead* of what a pod asks for.

In a namespace whose quotas name any GPU resource, only named ones can replace what was asked, and only while
used + need ≤ hard. What was asked itself is the API server's to judge. Counted as Kubernetes' quota controller counts: a pod
by the most that it needs at one time, under `requests.<resource>`, against every quota whose scopes the pod is in.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Final

from tessera.core.kubernetes.pod import Amounts, Pod, needs
from tessera.core.kubernetes.quantity import Number
from tessera.core.kubernetes.scheduling import Requirement
from tessera.core.resources import is_any_gpu, short
from tessera.core.text import quoted

_QOS_RESOURCES: Final = ("cpu", "memory")  # those that make a pod more than best effort


@dataclass(frozen=True, slots=True)
class Quota:
    """A ResourceQuota that names GPU resources; of the others nothing is kept."""

    namespace: str
    name: str
    hard: Mapping[str, Number]  # resource → how many at most; as containers name it, without `requests.`
    used: Mapping[str, Number]
    scopes: tuple[Requirement, ...] = ()  # of `scopes` and `scopeSelector`; a pod is counted where all hold

    def __str__(self) -> str:
        left = ", ".join(
            f"{short(name)} {self.used.get(name, 0)} of {hard} used"
            for name, hard in sorted(self.hard.items())
        )
        return f"{quoted(self.name)} ({left})"

    def counts(self, pod: Pod, *, qos_known: bool = True) -> bool:
        """Whether a pod is counted here; where its quality of service is not known yet, it may be."""
        return all(_is_in(pod, scope, qos_known=qos_known) for scope in self.scopes)

    def without(self, pod: Pod) -> "Quota":
        """The quota as if a pod that is counted in it were not there."""
        if not self.counts(pod):
            return self
        own = needs(pod, self.hard.__contains__)
        used = {name: max(0, amount - own.get(name, 0)) for name, amount in self.used.items()}
        return replace(self, used=used)


class Allowance:
    """What a namespace's quotas leave for what could replace a pod's request."""

    __slots__ = ("_admitted", "_counting", "_named", "_names")

    def __init__(self, quotas: Sequence[Quota], pod: Pod, *, qos_known: bool = True) -> None:
        self._names = ", ".join(quoted(one.name) for one in quotas)
        self._named = {resource for one in quotas for resource in one.hard}
        self._counting = [one for one in quotas if one.counts(pod, qos_known=qos_known)]
        self._admitted: Mapping[str, Number] = {}

    def counting(self, admitted: Mapping[str, Number]) -> "Allowance":
        """The same, less what pods take that were admitted and that the quotas may not count yet."""
        other = copy(self)
        other._admitted = admitted  # noqa: SLF001 # one like this
        return other

    def obstacle(self, resource: str, need: Number) -> str:
        """Why the quota forbids so many of a resource; empty when it does not."""
        if resource not in self._named:
            return f"over the quota: {self._names} does not name {short(resource)}"
        return self.is_full(resource, need)

    def is_full(self, resource: str, need: Number) -> str:
        """Which quota has no room for so many of a resource, in words; empty when all have, or none counts it."""
        for one in self._counting:
            hard = one.hard.get(resource)
            used = one.used.get(resource, 0) + self._admitted.get(resource, 0)
            if hard is not None and used + need > hard:
                return f"over the quota {quoted(one.name)}: {used} used and {need} needed of {hard}"
        return ""


def of_containers(resource: str) -> str | None:
    """A resource as containers name it, of the GPU resources that a quota counts; None for all others."""
    name = resource.removeprefix("requests.")
    # without the prefix a quota is accepted, and counts nothing
    return name if name != resource and is_any_gpu(name) else None


def _is_in(pod: Pod, scope: Requirement, *, qos_known: bool) -> bool:
    match scope.key:
        case "Terminating":
            return pod.has_deadline
        case "NotTerminating":
            return not pod.has_deadline
        case "BestEffort":
            return _is_best_effort(pod)
        case "NotBestEffort":
            return not qos_known or not _is_best_effort(pod)
        case "PriorityClass":
            return scope.matches(pod.priority_class or None)
        case "CrossNamespacePodAffinity":
            return pod.looks_across_namespaces
        case _:  # of other objects, such as VolumeAttributesClass
            return False


def _is_best_effort(pod: Pod) -> bool:
    whole: tuple[Amounts, ...] = (pod.pod_requests, pod.pod_limits)
    sections = whole if any(whole) else [s for c in pod.all_containers() for s in (c.requests, c.limits)]
    return not any(section.get(resource) for section in sections for resource in _QOS_RESOURCES)
