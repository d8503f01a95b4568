"""How large a pod may be for a decision, and how much work one decision may be.

Tenants write pods, and all pods are decided on one thread: what one pod takes, all others wait for. So a pod that is
larger in some direction than any that people run is not decided about (`BeyondLimits`), and neither is one for which
the nodes take too long to look through. The configured verdict (`server.onError`) is then given in its place.
"""

from typing import Final

from tessera.core.errors import TesseraError
from tessera.core.kubernetes.pod import Pod
from tessera.core.kubernetes.scheduling import NodeSelectorTerm, label_keys

# Ten times and more of what the largest pods in use have. Together they keep a decision below some 20 ms.
MOST_CONTAINERS: Final = 200  # init containers included
MOST_AMOUNTS: Final = 1000  # requests and limits of all containers
MOST_RESOURCES: Final = 64  # different names among them; no node offers more GPU resources than that
MOST_TERMS: Final = 500  # of required node affinity
MOST_VALUES: Final = 5000  # in all their conditions
MOST_KEYS: Final = 16  # labels that selector and affinity look at
MOST_TOLERATIONS: Final = 200
MOST_TEMPLATES: Final = 10  # of one workload, which has all their containers: some 70 ms at worst
# A step is one comparison of a pod with a node or with what it offers, some 0.3 µs.
MOST_STEPS: Final = 50_000
_VALUES_A_STEP: Final = 16  # looked through in the time of one comparison


class BeyondLimits(TesseraError):
    """A pod that no decision is made about: it is too large, or takes too long."""


def check(pod: Pod) -> None:
    """Refuse a pod that is too large in some direction, before anything is computed with it."""
    containers = pod.init_containers + pod.containers
    amounts = len(pod.pod_requests) + len(pod.pod_limits) + len(pod.overhead)
    for one in containers:
        amounts += len(one.requests) + len(one.limits)
    if amounts > MOST_RESOURCES or len(containers) > MOST_RESOURCES:  # else nothing is too many
        at_most(len(containers), MOST_CONTAINERS, "containers")
        at_most(amounts, MOST_AMOUNTS, "requests and limits")
        sections = (part for one in containers for part in (one.requests, one.limits))
        names = set().union(*sections, pod.pod_requests, pod.pod_limits, pod.overhead)
        at_most(len(names), MOST_RESOURCES, "different resources")
    if pod.tolerations:
        at_most(len(pod.tolerations), MOST_TOLERATIONS, "tolerations")
    if pod.required_terms or len(pod.node_selector) > MOST_KEYS:
        _check_terms(pod, pod.required_terms or ())


def _check_terms(pod: Pod, terms: tuple[NodeSelectorTerm, ...]) -> None:
    at_most(len(terms), MOST_TERMS, "terms of node affinity")
    conditions = [one for term in terms for one in (*term.expressions, *term.fields)]
    values = len(conditions) + sum(len(one.values) for one in conditions)
    at_most(values, MOST_VALUES, "values of node affinity")
    at_most(len(set(label_keys(pod.node_selector, terms))), MOST_KEYS, "labels of nodes")


def at_most(count: int, most: int, what: str, whose: str = "the pod") -> None:
    """Refuse what is more than can be looked at."""
    if count > most:
        raise BeyondLimits(f"{whose} has {count:,} {what}, and the webhook looks at no more than {most:,}")


class Work:
    """What one decision may still do."""

    __slots__ = ("_left",)

    def __init__(self, steps: int = MOST_STEPS) -> None:
        self._left = steps

    def spend(self, steps: int) -> None:
        """Do so many steps; raises `BeyondLimits` when there are not so many left."""
        self._left -= steps
        if self._left < 0:
            raise BeyondLimits(f"comparing the pod with the nodes takes more than {MOST_STEPS:,} steps")


def weight(term: NodeSelectorTerm) -> int:
    """The steps that one look at a term takes."""
    conditions = (*term.expressions, *term.fields)
    return len(conditions) + at_a_time(sum([len(one.values) for one in conditions]))


def at_a_time(values: int) -> int:
    """The steps that it takes to look through so many values."""
    return 1 + values // _VALUES_A_STEP
