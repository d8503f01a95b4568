"""Fallback: what a pod gets when the MIG profiles it asks for are not offered.

For each profile there is one list of candidates: itself, the smaller ones from the largest down, the larger ones
from the smallest up, a whole GPU; or the chain that the operator wrote. A pod's profiles are replaced one by one
throughout the pod, and what is chosen for all of them must fit together on one node. With several profiles the
mildest step wins (as asked, smaller, larger, whole GPU: the worst one counts), then the fewest changes, then the
order of the containers.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Final

from tessera.core.admission.offers import Offers, most_of
from tessera.core.kubernetes.node import Offer
from tessera.core.kubernetes.pod import Container, Pod, peak
from tessera.core.kubernetes.quantity import Number, Quantity
from tessera.core.kubernetes.resources import WHOLE_GPU
from tessera.core.mig.profile import MigProfile

GIB: Final = 2**30
# A pod with more different profiles than any card has would make the search for a common node explode.
MOST_PROFILES: Final = 8
UNLIMITED: Final = 2**63 - 1
_MOST_TRIALS: Final = 10_000  # combinations looked at for one pod: some ten milliseconds


class Permission(Enum):
    """What a pod or its namespace allows (`gpu-webhook.k8s.io/fallback-policy`)."""

    NEVER = "never"
    SMALLER = "smaller"
    LARGER = "larger"
    ANY = "any"


class Step(IntEnum):
    """How far a candidate is from what was asked for; the lower, the better."""

    AS_ASKED = 0
    SMALLER = 1
    LARGER = 2
    WHOLE_GPU = 3


@dataclass(frozen=True, slots=True)
class FallbackPolicy:
    """What the operator allows."""

    enabled: bool = True
    downgrades: bool = True
    upgrades: bool = True
    whole_gpu: bool = True
    chains: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # resource → resources, in order
    autoscaled: frozenset[str] = frozenset()  # resources that the autoscaler can bring
    reject_unmatched: bool = True


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the pod, or else its namespace, says."""

    permission: Permission = Permission.ANY
    min_memory: Quantity | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """One resource that could stand for a profile."""

    resource: str
    step: Step


@dataclass(frozen=True, slots=True)
class AsAsked:
    """Everything asked for is offered, or nothing that fallback looks at is asked for."""


@dataclass(frozen=True, slots=True)
class Replace:
    """The profiles to replace: resource → resource, in container order."""

    by: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Unmatched:
    """Nothing that is allowed fits: what was asked, what was tried, what is there."""

    asked: tuple[tuple[str, int], ...]
    tried: tuple[str, ...]
    usable: tuple[tuple[str, int], ...]  # on the nodes that the pod could be placed on
    anywhere: tuple[tuple[str, int], ...]
    never: bool = False  # the pod's own wish to wait
    too_many: bool = False  # more profiles than can be searched


Outcome = AsAsked | Replace | Unmatched


def asked_profiles(pod: Pod) -> dict[str, MigProfile]:
    """The MIG resources that a pod asks for, not zero of them, in container order."""
    found: dict[str, MigProfile] = {}
    for container in pod.all_containers():
        for resource in container.resources():
            if resource not in found:
                profile = MigProfile.of_resource(resource)
                if profile is not None and container.asked(resource):
                    found[resource] = profile
    return found


def choose(pod: Pod, offers: Offers, policy: FallbackPolicy, wishes: Wishes) -> Outcome:
    """Decide what each of the pod's profiles becomes."""
    asked = asked_profiles(pod)
    if not asked:
        return AsAsked()
    usable = usable_offers(pod, offers, policy)
    lists = [candidates(resource, asked[resource], usable, policy, wishes) for resource in asked]
    search = _Search(pod, list(asked), usable, wishes)
    chosen = search.best(lists) if len(asked) <= MOST_PROFILES else None
    if chosen is None:
        return Unmatched(
            asked=tuple((resource, _whole(search.need((resource,)))) for resource in asked),
            tried=tuple(
                dict.fromkeys(c.resource for one in lists for c in one if c.step is not Step.AS_ASKED)
            ),
            usable=tuple(sorted(most_of(usable).items())),
            anywhere=tuple(sorted(offers.anywhere().items())),
            never=wishes.permission is Permission.NEVER,
            too_many=len(asked) > MOST_PROFILES or search.trials > _MOST_TRIALS,
        )
    changed = {resource: to for resource, to in chosen.items() if resource != to}
    return Replace(MappingProxyType(changed)) if changed else AsAsked()


def usable_offers(pod: Pod, offers: Offers, policy: FallbackPolicy) -> list[Offer]:
    """What the nodes offer that the pod could be placed on, now or once the autoscaler brings them."""
    usable = offers.for_pod(pod)
    if policy.autoscaled:  # a node that could come has any number of what the autoscaler can bring
        usable.append(Offer(tuple((resource, UNLIMITED) for resource in sorted(policy.autoscaled))))
    return usable


def fits(pod: Pod, resource: str, by: str, usable: Sequence[Offer], wishes: Wishes) -> bool:
    """Whether one node has room for one replacement, and for the whole GPUs asked for besides."""
    search = _Search(pod, [resource], usable, wishes)
    return bool(search.narrowed([by], search.usable))


def candidates(
    resource: str, profile: MigProfile, usable: Sequence[Offer], policy: FallbackPolicy, wishes: Wishes
) -> list[Candidate]:
    """What may stand for a profile, best first. What was asked for always comes first."""
    found = [Candidate(resource, Step.AS_ASKED)]
    if not policy.enabled or wishes.permission is Permission.NEVER:
        return found
    chain = policy.chains.get(resource)
    if chain is not None:
        rest = [_Rung(to, step_to(profile, to), MigProfile.of_resource(to)) for to in chain if to != resource]
    else:
        offered = sorted(
            (p.rank, p)
            for p in map(MigProfile.of_resource, most_of(usable))
            if p is not None and p != profile
        )
        at = bisect_left(offered, (profile.rank, profile))
        rest = [
            *(_Rung(p.resource, Step.SMALLER, p) for _, p in reversed(offered[:at])),
            *(_Rung(p.resource, Step.LARGER, p) for _, p in offered[at:]),
            _Rung(WHOLE_GPU, Step.WHOLE_GPU, None),
        ]
    # an explicit chain is tried in its own order: every rung of it is one step away
    found += [
        Candidate(rung.resource, Step.SMALLER if chain is not None else rung.step)
        for rung in rest
        if _allowed(rung, policy, wishes)
    ]
    return found


def step_to(profile: MigProfile, resource: str) -> Step:
    """Which kind of step it is from a profile to a resource."""
    to = MigProfile.of_resource(resource)
    if to is None:
        return Step.WHOLE_GPU
    return Step.AS_ASKED if to == profile else Step.SMALLER if to < profile else Step.LARGER


@dataclass(frozen=True, slots=True)
class _Rung:
    resource: str
    step: Step
    profile: MigProfile | None


def _allowed(rung: _Rung, policy: FallbackPolicy, wishes: Wishes) -> bool:
    match rung.step:
        case Step.SMALLER:
            allowed = policy.downgrades and wishes.permission is not Permission.LARGER
        case Step.LARGER:
            allowed = policy.upgrades and wishes.permission is not Permission.SMALLER
        case _:
            allowed = policy.whole_gpu
    if wishes.min_memory is not None and rung.profile is not None:
        # a profile's 20gb counts as 20 GiB
        allowed = allowed and rung.profile.memory_gb * GIB >= wishes.min_memory.value
    return allowed


class _Search:
    """The search for candidates that fit together on one node."""

    def __init__(self, pod: Pod, asked: Sequence[str], usable: Sequence[Offer], wishes: Wishes) -> None:
        self.pod, self.asked, self.min_memory = pod, asked, wishes.min_memory
        self.trials = 0
        self._needs: dict[tuple[str, ...], Number] = {}
        # the whole GPUs that the pod asks for besides must be there, whatever is chosen
        self.usable = self._with_room(usable, WHOLE_GPU, ())

    def best(self, lists: Sequence[Sequence[Candidate]]) -> dict[str, str] | None:
        """The first combination that fits, the mildest first."""
        for worst in Step:
            for changes in range(1, len(self.asked) + 1) if worst else (0,):
                for chosen in self._combinations(lists, worst, changes, (), Step.AS_ASKED, self.usable):
                    return dict(zip(self.asked, chosen, strict=True))
        return None

    def _combinations(
        self,
        lists: Sequence[Sequence[Candidate]],
        worst: Step,
        changes: int,
        chosen: tuple[str, ...],
        used: Step,
        fitting: Sequence[Offer],
    ) -> Iterator[tuple[str, ...]]:
        """Combinations whose worst step and number of changes are exactly these, in the candidates' order.

        `fitting` are the offers with room for what was chosen so far: each choice only narrows them down.
        """
        if len(chosen) == len(self.asked):
            if used == worst and not changes:
                yield chosen
            return
        for candidate in lists[len(chosen)]:
            changed = candidate.step is not Step.AS_ASKED
            if candidate.step > worst or changed > changes or self.trials > _MOST_TRIALS:
                continue
            self.trials += 1
            more = (*chosen, candidate.resource)
            if left := self.narrowed(more, fitting):
                yield from self._combinations(
                    lists, worst, changes - changed, more, max(used, candidate.step), left
                )

    def narrowed(self, chosen: Sequence[str], fitting: Sequence[Offer]) -> list[Offer]:
        """The offers that still have room now that the last one was chosen too."""
        to = chosen[-1]
        return self._with_room(
            fitting, to, tuple(r for r, by in zip(self.asked, chosen, strict=False) if by == to)
        )

    def _with_room(self, offers: Sequence[Offer], to: str, sources: tuple[str, ...]) -> list[Offer]:
        need = self.need((*sources, WHOLE_GPU) if to == WHOLE_GPU else sources)
        return [
            one for one in offers if one.count(to) >= need and (not sources or self._is_large_enough(one, to))
        ]

    def _is_large_enough(self, offer: Offer, to: str) -> bool:
        if self.min_memory is None or to != WHOLE_GPU or offer.card_memory_gb is None:
            return True
        return offer.card_memory_gb * GIB >= self.min_memory.value

    def need(self, sources: tuple[str, ...]) -> Number:
        """How many the pod needs at most at one time of what takes the place of all these."""
        if sources not in self._needs:

            def amount(container: Container) -> Number:
                return sum(q.number for s in sources if (q := container.asked(s)) is not None)

            self._needs[sources] = peak(self.pod, amount)
        return self._needs[sources]


def apply(pod: Pod, by: Mapping[str, str]) -> Pod:
    """The pod with its resources replaced, in requests and in limits; a key that is there already is added to."""

    def section(amounts: Mapping[str, Quantity]) -> Mapping[str, Quantity]:
        if not any(resource in amounts and amounts[resource] for resource in by):
            return amounts
        replaced = {r: amount for r, amount in amounts.items() if r not in by or not amount}
        for resource, to in by.items():
            if amounts.get(resource):
                replaced[to] = replaced[to] + amounts[resource] if to in replaced else amounts[resource]
        return replaced

    def container(one: Container) -> Container:
        requests, limits = section(one.requests), section(one.limits)
        if requests is one.requests and limits is one.limits:
            return one
        return Container(one.name, requests, limits, one.restartable)

    return pod.map_containers(container)


def _whole(amount: Number) -> int:
    return -(-amount.numerator // amount.denominator)
