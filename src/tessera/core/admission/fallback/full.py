"""Fallback by what is free (`fallback.when: full`): who is decided about so, who is not and why, and what is found then.

What a pod asks for stays if one node has all of it free now. Else the first candidate that is free takes its place. Where nothing is free,
the pod gets what it would get without this (`missing`), and waits for it. So it is never rejected for want of what is free.
"""

from typing import Final, Literal, get_args

from tessera.core.admission.fallback.found import AsAsked, Found, Replace
from tessera.core.admission.fallback.search import FallbackSearch
from tessera.core.admission.injection import GPU_TYPE_ANNOTATION, Refused, inject
from tessera.core.admission.limits import BeyondLimits
from tessera.core.admission.outcome import Cause
from tessera.core.admission.policy import Policy
from tessera.core.admission.view.view import ClusterView
from tessera.core.kubernetes.pod import DEFAULT_SCHEDULERS, Pod
from tessera.core.requests.record import DECIDED_ANNOTATION, Mark, apply, can_be_marked, mark_of
from tessera.core.values import value

By = Literal[
    "full",  # by what is free; all others: as `missing`
    "no_view",
    "marked",
    "template",
    "bound",
    "kueue",
    "gated",
    "scheduler",
    "priority",
    "too_long",
]
EVERY_BY: Final[tuple[str, ...]] = get_args(By)


@value
class AsMissing:
    """What is free does not matter for a pod."""

    by: By
    why: str


def why_as_missing(pod: Pod, view: ClusterView, *, is_template: bool = False) -> AsMissing | None:
    """Why a pod for which `full` holds is decided about as if it were `missing`; None where what is free matters."""
    if view.free is None:
        return AsMissing("no_view", "nobody follows pods, so what is free is not known")
    if is_template or DECIDED_ANNOTATION in pod.annotations:
        return AsMissing("template", "all pods of a template get the same")
    if mark_of(pod) is Mark.AGREES:
        return AsMissing("marked", "it was decided about by what was free when it came first")
    if pod.bound_to:
        return AsMissing("bound", f"it is bound to node {pod.bound_to}")
    if pod.queued or pod.counted:
        return AsMissing("kueue", "Kueue counts what it asks for, and lets it in when that is free")
    if pod.gated:
        return AsMissing("gated", "it has scheduling gates: it waits for something else first")
    if pod.scheduler not in DEFAULT_SCHEDULERS:
        return AsMissing("scheduler", f"its scheduler is {pod.scheduler}")
    if pod.priority is None and pod.priority_class:
        return AsMissing("priority", f"the priority of class {pod.priority_class} is not known")
    if pod.priority is not None and pod.priority > 0:
        return AsMissing(
            "priority", f"its priority is {pod.priority}, and the scheduler may evict pods for it"
        )
    if not can_be_marked(pod):
        return AsMissing("too_long", "it has too many containers with GPUs for a mark")
    return None


@value
class Chosen:
    """What was found for a pod, and the words for it: by what is offered, unless they are others."""

    found: Found
    by: By | Literal[""] = ""  # empty: `missing` holds
    cause: Cause = "missing"  # of what is replaced
    as_asked: str = "what it asks for is offered"
    replaced: str = "{} is not offered, {} is the first that is"
    why: str = "no node that this pod can use offers {} as asked"
    after: str = ""  # behind what is replaced


def choose(
    pod: Pod, search: FallbackSearch, view: ClusterView, policy: Policy, *, is_template: bool
) -> Chosen:
    """What a pod gets for which `full` holds: the first that is free, or else what is offered, for which it waits."""
    skipped = why_as_missing(pod, view, is_template=is_template)
    if skipped is not None:
        return Chosen(search.choose(), skipped.by)
    now = search_now(search, view, pod.namespace)
    found = first_free(pod, now, policy)
    if isinstance(found, AsAsked):
        return Chosen(found, "full", as_asked="what it asks for is free")
    offered = search.choose()
    if found is None:
        waits = "; nothing that it may get is free now, so it waits"
        return Chosen(offered, "full", as_asked=f"what it asks for is offered{waits}", after=waits)
    if found == offered:
        return Chosen(offered, "full")
    if not isinstance(offered, AsAsked):
        why = "no node that this pod can use offers {} as asked; {} is free"
        return Chosen(
            found, "full", "full", replaced="{} is not offered, {} is the first that is free", why=why
        )
    why = "{} is taken on every node that this pod can use; {} is free"
    if any(now.most_free(old) >= now.need((old,)) for old in found.by):
        why = "no node has {} free with all else that this pod needs; {} is free"
    return Chosen(found, "full", "full", replaced="{} is taken, {} is the first that is free", why=why)


def search_now(search: FallbackSearch, view: ClusterView, namespace: str) -> FallbackSearch:
    """The same search by what is free; the view knows that."""
    free = view.now(namespace)
    assert free is not None  # noqa: S101 # else `why_as_missing` says so
    now = search.in_view(free)
    # all nodes that the pod can use define what a whole GPU is, and not only those where one is free
    now.usable.whole, now.usable.card_memory_gb = search.usable.whole, search.usable.card_memory_gb
    return now


def first_free(pod: Pod, now: FallbackSearch, policy: Policy) -> AsAsked | Replace | None:
    """The first that is free; None where nothing is, it takes too long to find, or injection would refuse it: then the pod is not rejected."""
    try:
        found = now.first()
    except BeyondLimits:
        return None
    if not isinstance(found, Replace) or GPU_TYPE_ANNOTATION not in pod.annotations:
        return found
    if isinstance(inject(apply(pod, found.by), policy.injection), Refused):
        return None
    return found
