"""Which pods the bridge does not convert, and why."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, get_args

from tessera.core.admission.fallback.candidates import Candidate
from tessera.core.admission.fallback.search import FallbackSearch
from tessera.core.admission.view.view import ClusterView
from tessera.core.kubernetes.pod import Pod
from tessera.core.kubernetes.resources import WHOLE_GPU, short
from tessera.core.values import value

_OWN_SCHEDULERS: Final = ("", "default-scheduler")  # which run Kubernetes' plugin for claims

Conversion = Literal[
    "claim",
    "replaced",
    "controller_away",
    "kueue",
    "priority",
    "node_name",
    "scheduler",
    "own_claims",
    "never",
    "init_containers",
    "whole_gpus",
    "no_alternative",
    "not_dra",
    "quota",
    "too_many_devices",
    "invalid",
]
CONVERSIONS: Final[tuple[str, ...]] = get_args(Conversion)


@value
class NotConverted:
    """The request stays an extended resource."""

    skip_reason: Conversion
    why: str


def why_not(pod: Pod, search: FallbackSearch, offers: ClusterView) -> NotConverted | None:
    """What speaks against it before anything is looked for."""
    if not offers.controller:
        return NotConverted(
            "controller_away", "the Lease of tessera controller, which makes templates, is not fresh"
        )
    if offers.ticket_maker is None:
        return NotConverted(
            "controller_away",
            "the webhook has no key for tickets, and tessera controller makes no template without one",
        )
    if pod.queued:
        return NotConverted("kueue", "Kueue counts it before its admission, and cannot count alternatives")
    if pod.priority is None and pod.priority_class:
        return NotConverted("priority", f"the priority of class {pod.priority_class} is not known")
    if pod.priority is not None and pod.priority > 0:
        return NotConverted(
            "priority", f"its priority is {pod.priority}, and the scheduler evicts no pod for a claim"
        )
    if pod.node_name:
        return NotConverted("node_name", "spec.nodeName is set, and a claim needs the scheduler")
    if pod.scheduler not in _OWN_SCHEDULERS:
        return NotConverted("scheduler", f"its scheduler is {pod.scheduler}")
    if pod.claims:
        return NotConverted("own_claims", "it has claims of its own")
    if search.never:
        return NotConverted("never", search.never)
    if search.need((WHOLE_GPU,)):
        return NotConverted("whole_gpus", "it asks for whole GPUs besides")
    return None


def why_not_dra(
    lists: Mapping[str, Sequence[Candidate]], search: FallbackSearch, offers: ClusterView
) -> NotConverted | None:
    """The rule for mixed clusters: everything that could be taken comes from DRA, wherever the pod could go."""
    for resource in dict.fromkeys(one.resource for found in lists.values() for one in found):
        if search.usable.from_plugin(resource):
            return NotConverted(
                "not_dra", f"{short(resource)} can come without DRA, from a device plugin or an autoscaler"
            )
        if resource not in offers.classes:
            return NotConverted("not_dra", f"no DeviceClass has the name {resource}")
    return None
