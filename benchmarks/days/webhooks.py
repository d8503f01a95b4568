"""What decides about pods: nothing, or replicas of the webhook with the production decision and views of their own."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from benchmarks.days.layouts import node_of
from benchmarks.days.scheduler import Options
from tessera.core.admission.decision import decide
from tessera.core.admission.outcome import Denied, Patched
from tessera.core.admission.policy import Dra, FallbackPolicy, Policy
from tessera.core.admission.view.offers import Offers
from tessera.core.dra.slices import DeviceClass
from tessera.core.kubernetes.pod import Container, DropAmount, Edit, Pod, SetAmount, SetAnnotation, needs
from tessera.core.requests import alternatives
from tessera.core.resources import is_any_gpu

Offered = Iterable[tuple[str, Mapping[str, int]]]
BRIDGE: Final = Policy(FallbackPolicy(dra=Dra.FIRST_AVAILABLE))


class NoWebhook:
    """Pods are let in as they are."""

    def admit(self, pod: Pod, owner: str, now: float) -> tuple[Pod, Options]:
        return pod, options_of(pod)


class Webhook:
    """One replica that decides by what nodes offer."""

    def __init__(self, nodes: Offered, policy: Policy) -> None:
        self.policy = policy
        dra = policy.fallback.dra is Dra.FIRST_AVAILABLE
        self.view = Offers(node_of(name, offered, dra=dra) for name, offered in nodes)
        if dra:
            classes = {one: _class(one) for one in self.view.anywhere()}
            self.view.put_classes(
                classes, [alternatives.GENERAL_CLASS, *(one.name for one in classes.values())]
            )

    def admit(self, pod: Pod, owner: str, now: float) -> tuple[Pod, Options] | None:
        decision = decide(pod, self.view, self.policy)
        if isinstance(decision, Denied):
            return None
        if isinstance(decision, Patched):
            pod = edited(pod, decision.edits)
        if decision.momentary is not None:
            self.reserve(decision.momentary.pod, owner, now)
            pod = edited(pod, [decision.momentary.mark])
        return pod, options_of(pod)

    def reserve(self, pod: Pod, owner: str, now: float) -> None:
        """Keep room for a pod that was decided about by what is free."""


def options_of(pod: Pod) -> Options:
    """What a pod can run on, best first."""
    text = pod.annotations.get(alternatives.ALTERNATIVES_ANNOTATION)
    choices = [needs(pod, is_any_gpu)] if text is None else alternatives.read(text).choices()
    return tuple(tuple((name, int(count)) for name, count in sorted(one.items())) for one in choices)


def edited(pod: Pod, edits: Iterable[Edit]) -> Pod:
    """The pod with amounts and annotations as edits have them."""
    amounts: dict[str, list[SetAmount | DropAmount]] = {"initContainers": [], "containers": []}
    annotations = dict(pod.annotations)
    for edit in edits:
        if isinstance(edit, SetAnnotation):
            annotations[edit.key] = edit.value
        elif isinstance(edit, SetAmount | DropAmount):
            amounts[edit.containers].append(edit)
    init = tuple(_edited(one, i, amounts["initContainers"]) for i, one in enumerate(pod.init_containers))
    regular = tuple(_edited(one, i, amounts["containers"]) for i, one in enumerate(pod.containers))
    return replace(pod, annotations=annotations, init_containers=init, containers=regular)


def _edited(container: Container, index: int, edits: Iterable[SetAmount | DropAmount]) -> Container:
    sections = {"requests": dict(container.requests), "limits": dict(container.limits)}
    for edit in edits:
        if edit.index == index and isinstance(edit, SetAmount):
            sections[edit.section][edit.resource] = edit.amount
        elif edit.index == index:
            sections[edit.section].pop(edit.resource, None)
    return replace(container, requests=sections["requests"], limits=sections["limits"])


def _class(resource: str) -> DeviceClass:
    name = f"tessera-{resource.rpartition('-')[2]}"
    return DeviceClass(name, selectors=(alternatives.own_expression(resource),), resource=resource)
