"""A decision, taken apart for a person: what was asked, which nodes counted, what was tried."""

from collections.abc import Iterable
from dataclasses import dataclass

from tessera.core.admission import fallback
from tessera.core.admission.decision import Policy, wishes_of
from tessera.core.admission.fallback import Step
from tessera.core.admission.offers import Offers
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.node import Node, Offer, why_excluded
from tessera.core.kubernetes.pod import Pod
from tessera.core.kubernetes.resources import is_whole_or_mig


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """Whether a node counted, and why not."""

    node: Node
    offer: Offer
    excluded: str | None


@dataclass(frozen=True, slots=True)
class Trial:
    """One candidate for one profile, looked at alone."""

    asked: str
    candidate: str
    step: Step
    offered: bool
    most: int  # that one of the pod's nodes has


def asked(pod: Pod) -> list[tuple[str, str]]:
    """The GPU resources a pod asks for, by container: `("main", "nvidia.com/gpu: 1")`."""
    return [
        (container.name, f"{resource}: {container.asked(resource)}")
        for container in pod.all_containers()
        for resource in container.resources()
        if is_whole_or_mig(resource)
    ]


def nodes(pod: Pod, every: Iterable[Node]) -> list[NodeVerdict]:
    """Each node, and whether it counts for the pod."""
    return [NodeVerdict(node, node.offer, why_excluded(pod, node)) for node in every]


def trials(pod: Pod, offers: Offers, policy: Policy) -> list[Trial]:
    """Every candidate in the order in which it is considered."""
    try:
        wishes = wishes_of(pod, offers.namespaces.get(pod.namespace))
    except InvalidInput:
        return []
    usable = fallback.usable_offers(pod, offers, policy.fallback)
    found = []
    for resource, profile in fallback.asked_profiles(pod).items():
        for candidate in fallback.candidates(resource, profile, usable, policy.fallback, wishes):
            fits = fallback.fits(pod, resource, candidate.resource, usable, wishes)
            most = max((offer.count(candidate.resource) for offer in usable), default=0)
            step = fallback.step_to(profile, candidate.resource)
            found.append(Trial(resource, candidate.resource, step, fits, most))
    return found
