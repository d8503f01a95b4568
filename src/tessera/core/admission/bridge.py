"""The bridge: a pod's request for a profile becomes a claim, and the scheduler falls back by what is free.

Where DRA serves everything that could stand for what a pod asks for, the order of the candidates, with all policies,
minimums and quotas applied, becomes the order of a claim's alternatives. Who is bridged, and who is not and why, is
here; the alternatives themselves are the fallback's candidates (`FallbackSearch.alternatives`), in its order. Their text is in
`core.requests.alternatives`; the controller makes the claims' templates from it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal, get_args

from tessera.core.admission.fallback.candidates import Candidate, Step
from tessera.core.admission.fallback.search import MOST_PROFILES, FallbackSearch
from tessera.core.admission.policy import FallbackPolicy
from tessera.core.admission.view.view import ClusterView
from tessera.core.kubernetes.pod import (
    DEFAULT_SCHEDULERS,
    Amounts,
    ClaimRequest,
    Container,
    ContainerList,
    Edit,
    Pod,
    SetClaims,
    SetPodClaims,
)
from tessera.core.kubernetes.quota import Allowance
from tessera.core.requests.alternatives import (
    ALTERNATIVES_ANNOTATION,
    CLAIM,
    GENERAL_CLASS,
    MOST_ALTERNATIVES,
    MOST_DEVICES,
    MOST_REQUESTS,
    Alternative,
    Alternatives,
    DeviceRequest,
    is_writable,
    own_expression,
    request_name,
)
from tessera.core.requests.tickets import TICKET_ANNOTATION
from tessera.core.resources import WHOLE_GPU, short
from tessera.core.values import value

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


@value
class Converted:
    """The request becomes a claim with these alternatives."""

    alternatives: Alternatives
    uses: tuple[tuple[ContainerList, int, tuple[ClaimRequest, ...]], ...]  # which container has which request
    cut: tuple[tuple[str, tuple[str, ...]], ...] = ()  # what was asked, and the alternatives beyond the limit
    ticket: str = ""  # by which the controller knows the pod; empty in a view that makes none

    def edits(self) -> Iterator[Edit]:
        """What is written beside the amounts that go."""
        for containers, index, claims in self.uses:
            yield SetClaims(containers, index, claims)
        yield SetPodClaims(CLAIM, self.alternatives.template)


def bridge(
    pod: Pod, search: FallbackSearch, offers: ClusterView, policy: FallbackPolicy
) -> Converted | NotConverted:
    """The claim that a pod's request becomes, or why it does not; the pod's limits are complete."""
    kept = why_not(pod, search, offers)
    if kept is not None:
        return kept
    uses = _uses(pod, search.asked)
    if isinstance(uses, NotConverted):
        return uses
    lists = {asked: search.alternatives(asked) for asked in search.asked}
    if len(lists) > 1 and search.need(tuple(lists)) > policy.max_whole_gpus:
        # each profile alone may become a whole GPU, and all of them together may not
        lists = {a: [one for one in found if one.kind is not Step.WHOLE_GPU] for a, found in lists.items()}
    if (kept := why_not_dra(lists, search, offers)) is not None:
        return kept
    quotas = offers.quotas.get(pod.namespace, ())
    # injection may still make the pod more than best effort
    if any(one.scopes and one.counts(pod, qos_known=False) for one in quotas):
        return NotConverted(
            "quota", "a quota with scopes counts the pod, and such quotas do not count claims"
        )
    if quotas:
        lists = _within(lists, uses, Allowance(quotas, pod))
        if not all(lists.values()):
            return NotConverted(
                "quota", "its request is over a quota; the API server checks that on the pod itself"
            )
    if not all(lists.values()) or all(len(found) < 2 for found in lists.values()):
        stays = all(one.resource in search.asked for found in lists.values() for one in found)
        only = "no other type may replace what it asks for"
        return NotConverted("no_alternative", only if stays else "there is only one type to choose from")
    bridged = _bridged(lists, uses, _classes(lists, offers, per_type=bool(quotas)))
    if not is_writable(bridged.alternatives):  # some class has a very long name
        return NotConverted("too_many_devices", "its alternatives are too long for an annotation")
    if offers.ticket_maker is None:
        return bridged
    return replace(bridged, ticket=offers.ticket_maker.ticket(pod.namespace, str(bridged.alternatives)))


def without_amounts(pod: Pod, bridged: Converted) -> Pod:
    """The pod without the amounts that its claim has instead, and with the annotations for the controller."""
    asked = {one.asked for one in bridged.alternatives.requests}

    def section(amounts: Amounts) -> Amounts:
        if asked.isdisjoint(amounts):
            return amounts
        return {resource: amount for resource, amount in amounts.items() if resource not in asked}

    def container(one: Container) -> Container:
        return Container(one.name, section(one.requests), section(one.limits), one.restartable)

    annotations = {**pod.annotations, ALTERNATIVES_ANNOTATION: str(bridged.alternatives)}
    if bridged.ticket:
        annotations[TICKET_ANNOTATION] = bridged.ticket
    return pod.map_containers(container, annotations)


# Who is not converted


def why_not(pod: Pod, search: FallbackSearch, offers: ClusterView) -> NotConverted | None:
    """Why the request cannot become a claim, as far as that is known before the search."""
    if not offers.controller:
        return NotConverted(
            "controller_away", "tessera controller does not renew its Lease; it makes the templates"
        )
    if offers.ticket_maker is None:
        return NotConverted(
            "controller_away",
            "the webhook has no key for tickets; tessera controller makes no template without one",
        )
    if pod.queued:
        return NotConverted("kueue", "Kueue counts the pod's request, and cannot count alternatives")
    if pod.priority is None and pod.priority_class:
        return NotConverted("priority", f"the priority of class {pod.priority_class} is not known")
    if pod.priority is not None and pod.priority > 0:
        return NotConverted(
            "priority", f"its priority is {pod.priority}, and the scheduler evicts no pod for a claim"
        )
    if pod.node_name:
        return NotConverted("node_name", "spec.nodeName is set, and a claim needs the scheduler")
    if pod.scheduler not in DEFAULT_SCHEDULERS:  # they run Kubernetes' plugin for claims
        return NotConverted("scheduler", f"its scheduler is {pod.scheduler}")
    if pod.claims:
        return NotConverted("own_claims", "it has claims of its own")
    if search.constraints.never:
        return NotConverted("never", search.constraints.never)
    if search.need((WHOLE_GPU,)):
        return NotConverted("whole_gpus", "it also asks for whole GPUs")
    return None


def why_not_dra(
    lists: Mapping[str, Sequence[Candidate]], search: FallbackSearch, offers: ClusterView
) -> NotConverted | None:
    """The rule for mixed clusters: everything that could be taken comes from DRA, wherever the pod could go."""
    for resource in dict.fromkeys(one.resource for found in lists.values() for one in found):
        if search.usable.from_plugin(resource):
            return NotConverted(
                "not_dra", f"{short(resource)} can also come from a device plugin or an autoscaler"
            )
        if resource not in offers.classes:
            return NotConverted("not_dra", f"no DeviceClass has the name {resource}")
    return None


# What is claimed


@value
class _Use:
    """What one container asks for of one profile."""

    containers: ContainerList
    index: int
    asked: str
    count: int
    passing: bool  # of an ordinary init container: it has ended before the containers begin


def _uses(pod: Pod, profiles: Mapping[str, object]) -> list[_Use] | NotConverted:
    """What is asked for: first what lasts, then what init containers use of it."""
    if len(profiles) > MOST_PROFILES:
        return NotConverted("too_many_devices", f"it asks for more than {MOST_PROFILES} different profiles")
    uses = sorted(
        (
            _Use(where, index, asked, int(amount.number), where == "initContainers" and not one.restartable)
            for where, containers in _lists(pod)
            for index, one in enumerate(containers)
            for asked in profiles
            if (amount := one.asked(asked))
        ),
        key=lambda use: use.passing,
    )
    if any(
        one.requests.get(r, one.limits.get(r)) != one.limits.get(r)
        for one in pod.all_containers()
        for r in profiles
    ):
        return NotConverted("invalid", "a limit differs from its request; the API server refuses such a pod")
    lasting = [one for one in uses if not one.passing]
    known = {(one.asked, one.count) for one in lasting}
    if any((one.asked, one.count) not in known for one in uses):
        return NotConverted(
            "init_containers", "an init container asks for devices that no container asks for"
        )
    if len(lasting) > MOST_REQUESTS or sum(one.count for one in lasting) > MOST_DEVICES:
        return NotConverted("too_many_devices", f"a claim has {MOST_DEVICES} devices at most")
    return uses


def _lists(pod: Pod) -> tuple[tuple[ContainerList, tuple[Container, ...]], ...]:
    return ("initContainers", pod.init_containers), ("containers", pod.containers)


def _within(
    lists: Mapping[str, Sequence[Candidate]], uses: Sequence[_Use], allowance: Allowance
) -> dict[str, list[Candidate]]:
    """The alternatives that the quotas have room for; nothing at all where what was asked has none.

    A claim is charged for each of its alternatives in full.
    """
    charged: dict[str, int] = {}
    for use in uses:
        for one in () if use.passing else lists[use.asked]:
            charged[one.resource] = charged.get(one.resource, 0) + use.count
    return {
        asked: []
        if allowance.is_full(asked, charged.get(asked, 0))
        else [one for one in found if not allowance.is_full(one.resource, charged[one.resource])]
        for asked, found in lists.items()
    }


def _classes(
    lists: Mapping[str, Sequence[Candidate]], offers: ClusterView, *, per_type: bool
) -> dict[str, str]:
    """By which class each type is claimed.

    Without a quota on GPUs, one general class, as long as the types are those of Tessera's own driver: a claim is then charged
    once. With a quota, each type's own class: the claim is charged for every alternative, and never out of the quota.
    """
    every = dict.fromkeys(one.resource for found in lists.values() for one in found)
    own = {resource: offers.classes[resource] for resource in every}
    general = GENERAL_CLASS in offers.class_names and all(
        one.selectors == (own_expression(resource),) for resource, one in own.items()
    )
    if general and not per_type:
        return dict.fromkeys(every, GENERAL_CLASS)
    return {resource: one.name for resource, one in own.items()}


def _bridged(
    lists: Mapping[str, Sequence[Candidate]], uses: Sequence[_Use], classes: Mapping[str, str]
) -> Converted:
    alternatives: dict[str, tuple[Alternative, ...]] = {}
    cut: dict[str, tuple[str, ...]] = {}
    for asked, found in lists.items():
        every = {
            one.name: one for one in (Alternative(f.resource, classes[f.resource]) for f in reversed(found))
        }
        ordered = list(reversed(every.values()))  # of two with one name the better one
        alternatives[asked] = tuple(ordered[:MOST_ALTERNATIVES])
        if beyond := ordered[MOST_ALTERNATIVES:]:
            cut[asked] = tuple(one.resource for one in beyond)
    requests: list[DeviceRequest] = []
    named: dict[tuple[ContainerList, int], list[ClaimRequest]] = {}
    for use in uses:
        request = DeviceRequest(use.asked, use.count, alternatives[use.asked])
        number = requests.index(request) if use.passing else len(requests)
        if not use.passing:
            requests.append(request)
        named.setdefault((use.containers, use.index), []).append(ClaimRequest(CLAIM, request_name(number)))
    used = tuple((where, index, tuple(some)) for (where, index), some in named.items())
    return Converted(Alternatives(tuple(requests)), used, tuple(cut.items()))
