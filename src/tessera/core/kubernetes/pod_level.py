"""A pod's own `spec.resources`, beside those of its containers, as the API server checks them.

The rules are `validatePodResourceConsistency` and `defaultPodRequests` of Kubernetes (pkg/apis/core).
"""

from collections.abc import Iterable
from typing import Final

from tessera.core.kubernetes.pod import Pod, peak
from tessera.core.kubernetes.quantity import Number, Quantity

# what spec.resources can hold, beside huge pages (component-helpers/resource, SupportedPodLevelResources)
_SUPPORTED: Final = ("cpu", "memory")


def why_broken(before: Pod, after: Pod, names: Iterable[str]) -> str | None:
    """Which of the pod's own `spec.resources` the API server would find broken, and what to do about it.

    It compares limits container by container (not those of init containers), and requests as a sum.
    """
    mend = "raise that, or remove spec.resources"
    for name in names:
        most, whole, needs = before.pod_limits.get(name), _pod_request(before, name), _sum(after, name)
        for container in after.containers:
            limit = container.limits.get(name)
            if limit is not None and most is not None and limit > most:
                return (
                    f"container {container.name} would have a limit of {limit} {name}, more than the {most} of "
                    f"spec.resources.limits; {mend}"
                )
        if whole is not None and needs > whole.value:
            hint = " (set by the API server where there are only limits)" if before.pod_limits else ""
            return (
                f"the containers would request {whole.with_value(needs)} {name} in all, more than the {whole} of "
                f"spec.resources.requests{hint}; {mend}"
            )
    return None


def _pod_request(pod: Pod, name: str) -> Quantity | None:
    """What the pod as a whole requests: where it has limits only, the API server sets that before it asks us."""
    if name in pod.pod_requests or not pod.pod_limits or name not in _SUPPORTED:
        return pod.pod_requests.get(name)
    first = next((asked for c in pod.all_containers() if (asked := c.asked(name)) is not None), None)
    return pod.pod_limits.get(name) if first is None else first.with_value(_sum(pod, name))


def _sum(pod: Pod, name: str) -> Number:
    return peak(pod, lambda container: asked.number if (asked := container.asked(name)) is not None else 0)
