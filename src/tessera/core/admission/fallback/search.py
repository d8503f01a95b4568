"""Fallback: what a pod gets when the MIG profiles it asks for are not offered.

For each profile there is one list of candidates (`candidates`). A pod's profiles are replaced one by one throughout
the pod, and what is chosen for all of them must fit together on one node. With several profiles the mildest step wins
(as asked, an equal, smaller, larger, whole GPU: the worst one counts), then the fewest changes, then the order of the
containers.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Final

from tessera.core.admission.constraints import Constraints, counts_dra
from tessera.core.admission.fallback.candidates import Candidate, Step, Usable, candidates
from tessera.core.admission.fallback.found import (
    NO_ROOM,
    NOT_ENOUGH,
    NOT_OFFERED,
    NOT_TOGETHER,
    UNLIMITED,
    AsAsked,
    Found,
    Replace,
    Trial,
    Unmatched,
    offered_in_words,
)
from tessera.core.admission.limits import BeyondLimits, Work
from tessera.core.admission.policy import FallbackPolicy
from tessera.core.admission.view.view import ClusterView, Needs
from tessera.core.kubernetes.node import Offer, is_other
from tessera.core.kubernetes.pod import Pod, moments, needs
from tessera.core.kubernetes.quantity import Number
from tessera.core.kubernetes.quota import Allowance
from tessera.core.kubernetes.resources import WHOLE_GPU
from tessera.core.mig.profile import MigProfile
from tessera.core.requests.counts import asked_profiles

# A pod with more different profiles than any card has would make the search for a common node explode.
MOST_PROFILES: Final = 8
_MOST_LOOKS: Final = 10_000  # combinations looked at for one pod: some ten milliseconds

# What a pod needs of a node after injection, by the choices that injection goes by: (what is asked, what it becomes).
# A choice with which injection adds nothing has no needs here.
NeedsByChoice = Mapping[frozenset[tuple[str, str]], Needs]


class FallbackSearch:
    """One pod before the offers: all that a choice, and its explanation, is made from."""

    def __init__(
        self,
        pod: Pod,
        view: ClusterView,
        policy: FallbackPolicy,
        constraints: Constraints,
        *,
        asked: Mapping[str, MigProfile] | None = None,
        wanted: Needs | None = None,
        usable: Usable | None = None,
        injected: NeedsByChoice | None = None,
        work: Work | None = None,
        allowance: Allowance | None = None,
    ) -> None:
        """Ask about a pod; `wanted` is what a node must have for it besides GPUs, by default all that it needs.

        `usable` is what it can use with that need; `injected` what it needs instead once a choice was made.
        """
        self._allowance = allowance
        self.asked = asked_profiles(pod) if asked is None else asked
        self._moments = moments(pod)
        self._wanted = needs(pod, is_other, self._moments) if wanted is None else wanted
        self._pod, self._view, self._policy, self._constraints = pod, view, policy, constraints
        self._injected = injected or {}
        self._injects = frozenset[tuple[str, str]]().union(*self._injected)  # those that matter to it
        self._holding: dict[frozenset[tuple[str, str]], set[Offer]] = {}  # where each of them fits
        self._needs: dict[tuple[str, ...], Number] = {}
        self.looks = 0
        self._work = work or Work()
        self.usable = usable or Usable(self._usable_with(self._wanted))
        # the whole GPUs that the pod asks for besides must be there, whatever is chosen
        self._with_beside = self._with_room(self.usable.offers, WHOLE_GPU, ())

    @cached_property
    def lists(self) -> list[list[Candidate]]:
        """The candidates of each profile, best first."""
        return [list(self._candidates(resource)) for resource in self.asked]

    def _candidates(self, resource: str) -> Iterator[Candidate]:
        return candidates(
            resource,
            self.asked[resource],
            self.need((resource,)),
            self.usable,
            self._policy,
            self._constraints,
            None if self._allowance is None else lambda to: self._over_quota(to, (resource,)),
        )

    def choose(self) -> Found:
        """What each of the pod's profiles becomes."""
        if not self.asked or self._fits_as_asked():
            return AsAsked()
        chosen = self._best() if len(self.asked) <= MOST_PROFILES else None
        if chosen is None:
            return self._unmatched()
        return Replace(MappingProxyType({old: new for old, new in chosen.items() if old != new}))

    @property
    def never(self) -> str:
        """Who wants the pod to stay as it is."""
        return self._constraints.never

    def alternatives(self, resource: str) -> list[Candidate]:
        """All that may stand for a profile and is offered, best first: from these a scheduler can choose by what is free."""
        return [one for one in self._candidates(resource) if not one.obstacle and self._fits(resource, one)]

    def trials(self, chosen: Mapping[str, str] | None) -> Iterator[Trial]:
        """Every candidate in the order in which it is considered, and what speaks against it.

        `chosen` is what was chosen for each profile; None when nothing was.
        """
        alone = len(self.asked) == 1 and not self.need((WHOLE_GPU,))
        for (resource, _), found in zip(self.asked.items(), self.lists, strict=True):
            passed_over = True  # so far: those before the chosen one
            for one in found:
                taken = chosen is not None and one.resource == chosen.get(resource, resource)
                passed_over = passed_over and not taken
                reason = one.obstacle or self._lack(resource, one.resource)
                if not reason and passed_over:  # it is there, and something else keeps the pod from it
                    reason = NO_ROOM if alone else NOT_TOGETHER
                offered = reason in ("", NOT_TOGETHER)
                words = reason or offered_in_words(self.usable, one.resource)
                yield Trial(resource, one.resource, one.kind, offered, words, chosen=taken)

    def need(self, sources: tuple[str, ...]) -> Number:
        """How many the pod needs at most at one time of what takes the place of all these."""
        found = self._needs.get(sources)
        if found is None:
            found = 0
            for moment in self._moments:
                found = max(found, sum([moment.get(source, 0) for source in sources]))
            self._needs[sources] = found
        return found

    def _lack(self, resource: str, to: str) -> str:
        """Why one replacement alone is not there; empty when it is."""
        most = self.usable.most.get(to, 0)
        if not most:
            return NOT_OFFERED
        need = self.need((resource,))
        if most < need:
            return f"{NOT_ENOUGH}at most {most} a node, {_whole(need)} needed"
        return "" if self._with_room(self._with_beside, to, (resource,)) else NOT_TOGETHER

    def _unmatched(self) -> Unmatched:
        asked = [(resource, _whole(self.need((resource,)))) for resource in self.asked]
        if beside := self.need((WHOLE_GPU,)):
            asked.append((WHOLE_GPU, _whole(beside)))
        too_many = len(self.asked) > MOST_PROFILES or self.looks > _MOST_LOOKS
        return Unmatched(
            asked=tuple(asked),
            trials=() if too_many else tuple(self.trials(None)),
            usable=tuple(sorted(self.usable.most.items())),
            anywhere=tuple(sorted(self._view.anywhere().items())),
            too_small=tuple(self._too_small()),
            never=self._constraints.never,
            too_many=too_many,
        )

    def _too_small(self) -> Iterator[str]:
        """The needs without any one of which more would be offered; as far as there is time to find out."""
        try:
            every = len(self._usable_with({}))
            if every == len(self.usable.offers):
                return
            for resource, need in self._wanted.items():
                if len(self._usable_with({resource: need})) < every:
                    yield resource
        except BeyondLimits:
            return

    def _usable_with(self, wanted: Needs) -> list[Offer]:
        return usable_offers(self._pod, self._view, self._policy, wanted, self._work)

    # The search for candidates that fit together on one node

    def _fits_as_asked(self) -> bool:
        fitting = self._with_beside
        for resource in self.asked:
            fitting = self._with_room(fitting, resource, (resource,))
        return bool(fitting) and self._has_room_injected({}, fitting)

    def _best(self) -> dict[str, str] | None:
        """The first combination that fits, the mildest first."""
        if len(self.asked) == 1:  # the usual pod: the first that fits, and no further
            (asked,) = self.asked
            for one in self._candidates(asked):
                if one.kind is not Step.AS_ASKED and not one.obstacle and self._fits(asked, one):
                    return {asked: one.resource}
            return None
        lists = [[one for one in found if not one.obstacle] for found in self.lists]
        for worst in list(Step)[1:]:
            for changes in range(1, len(self.asked) + 1):
                for by in self._combinations(lists, worst, changes, (), Step.AS_ASKED, self._with_beside):
                    return by
        return None

    def _fits(self, asked: str, one: Candidate) -> bool:
        fitting = self._with_room(self._with_beside, one.resource, (asked,))
        return bool(fitting) and self._has_room_injected({asked: one.resource}, fitting)

    def _has_room_injected(self, by: Mapping[str, str], fitting: Sequence[Offer]) -> bool:
        """Whether one of the nodes that a choice fits on also has what the pod needs after injection."""
        if not self._injected:
            return True
        choice = self._injects.intersection((asked, by.get(asked, asked)) for asked in self.asked)
        needs_then = self._injected.get(choice)
        if not needs_then:
            return True
        holding = self._holding.get(choice)
        if holding is None:
            holding = self._holding[choice] = set(self._usable_with(needs_then))
        return any(one in holding for one in fitting)

    def _combinations(
        self,
        lists: Sequence[Sequence[Candidate]],
        worst: Step,
        changes: int,
        chosen: tuple[Candidate, ...],
        used: Step,
        fitting: Sequence[Offer],
    ) -> Iterator[dict[str, str]]:
        """Combinations whose worst step and number of changes are exactly these, in the candidates' order.

        `fitting` are the offers with room for what was chosen so far: each choice only narrows them down.
        """
        if len(chosen) == len(self.asked):
            by = dict(zip(self.asked, (one.resource for one in chosen), strict=True))
            if used == worst and not changes and self._has_room_injected(by, fitting):
                yield by
            return
        for candidate in lists[len(chosen)]:
            changed = candidate.order is not Step.AS_ASKED
            if candidate.order > worst or changed > changes or self.looks > _MOST_LOOKS:
                continue
            self.looks += 1
            self._work.spend(1 + len(fitting) // 4)
            more = (*chosen, candidate)
            if left := self._narrowed(more, fitting):
                yield from self._combinations(
                    lists, worst, changes - changed, more, max(used, candidate.order), left
                )

    def _narrowed(self, chosen: Sequence[Candidate], fitting: Sequence[Offer]) -> Sequence[Offer]:
        """The offers that still have room now that the last one was chosen too."""
        to = chosen[-1].resource
        pairs = [
            (resource, one) for resource, one in zip(self.asked, chosen, strict=False) if one.resource == to
        ]
        if to == WHOLE_GPU:
            lesser = tuple(resource for resource, one in pairs if one.kind is Step.WHOLE_GPU)
            if lesser and self.need(lesser) > self._policy.max_whole_gpus:
                return ()
        sources = tuple(resource for resource, _ in pairs)
        if sources != (to,) and self._over_quota(to, sources):
            return ()
        return self._with_room(fitting, to, sources)

    def _over_quota(self, to: str, sources: tuple[str, ...]) -> str:
        """Why a quota has no room for what takes the place of all these; what the pod has of it besides counts."""
        if self._allowance is None:
            return ""
        return self._allowance.obstacle(to, self.need(sources if to in self.asked else (*sources, to)))

    def _with_room(self, offers: Sequence[Offer], to: str, sources: tuple[str, ...]) -> Sequence[Offer]:
        need = self.need((*sources, WHOLE_GPU) if to == WHOLE_GPU else sources)
        return [one for one in offers if one.count(to) >= need] if need else offers


def usable_offers(
    pod: Pod, view: ClusterView, policy: FallbackPolicy, wanted: Needs, work: Work | None = None
) -> list[Offer]:
    """What the nodes offer that the pod could be placed on, now or once the autoscaler brings them."""
    usable = view.for_pod(pod, wanted, policy.transient_taints, work)
    if any(one.dra for one in usable) and not counts_dra(view.namespaces.get(pod.namespace), policy.dra):
        usable = [one.without_dra() for one in usable]
    if policy.autoscaled and not pod.bound_to:
        # a node that could come has any number of what the autoscaler can bring
        usable.append(Offer(tuple((resource, UNLIMITED) for resource in sorted(policy.autoscaled))))
    return usable


def _whole(amount: Number) -> int:
    return -(-amount.numerator // amount.denominator)
