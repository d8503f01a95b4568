"""Fallback: what a pod gets when the MIG profiles it asks for are not offered.

For each profile there is one list of candidates (`candidates`). A pod's profiles are replaced one by one throughout
the pod, and what is chosen for all of them must fit together on one node. With several profiles the mildest step wins
(as asked, an equal, smaller, larger, whole GPU: the worst one counts), then the fewest changes, then the order of the
containers.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property, partial
from types import MappingProxyType
from typing import Final

from tessera.core.admission.fallback.candidates import Candidate, Candidates, Step
from tessera.core.admission.fallback.found import (
    NO_ROOM,
    NOT_ENOUGH,
    NOT_OFFERED,
    NOT_TOGETHER,
    AsAsked,
    Found,
    Replace,
    Trial,
    Unmatched,
    free_in_words,
    offered_in_words,
)
from tessera.core.admission.fallback.together import MOST_COMBINATIONS, NO_RULES, Injecting, Together
from tessera.core.admission.limits import BeyondLimits, Work
from tessera.core.admission.policy import Constraints, FallbackPolicy, counts_dra
from tessera.core.admission.view.usable import COMING, Usable
from tessera.core.admission.view.view import NOTHING_ELSE, ClusterView, Needs
from tessera.core.kubernetes.node import is_other
from tessera.core.kubernetes.pod import Pod, moments, needs
from tessera.core.kubernetes.quantity import Number
from tessera.core.kubernetes.quota import Allowance
from tessera.core.mig.profile import MigProfile
from tessera.core.requests.asking import asked_profiles
from tessera.core.resources import WHOLE_GPU

# A pod with more different profiles than any card has would make the search for a common node explode.
MOST_PROFILES: Final = 8

Choice = frozenset[tuple[str, str]]  # (what is asked, what it becomes), of those that injection goes by


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
        allowance: Allowance | None = None,
    ) -> None:
        """Ask about a pod; `wanted` is what a node must have for it besides GPUs, by default all that it needs."""
        self._allowance = allowance
        self.asked = asked_profiles(pod) if asked is None else asked
        self.moments = moments(pod)
        self._wanted = needs(pod, is_other, self.moments) if wanted is None else wanted
        self._pod, self._policy, self.constraints = pod, policy, constraints
        self._injects, self._injects_anyway = Choice(), False
        self._needs_with: Callable[[Choice, Work], Needs] = lambda *_: NOTHING_ELSE
        self._at_least: Callable[[str, Collection[str]], Needs] = lambda *_: NOTHING_ELSE
        self._needs: dict[tuple[str, ...], Number] = {}
        self.work = Work()
        self._placeable = view.for_pod(pod, policy.transient_taints, self.work)
        self.use_view(view)

    def use_view(self, view: ClusterView) -> None:
        """Search in this view: the same nodes, and what is seen of them."""
        self._view = view
        self._holding: dict[Choice, int] = {}  # where each choice fits that injection goes by
        self._together: Together | None = None
        self.__dict__.pop("lists", None)
        nodes = view.large_enough(self._placeable, self._wanted)
        self.usable = usable_offers(self._pod, view, self._policy, nodes)
        # the whole GPUs that the pod asks for besides must be there, whatever is chosen
        self._with_beside = self._with_room(self.usable.nodes, WHOLE_GPU, ())

    def expect(
        self,
        injects: Choice,
        needs_with: Callable[[Choice, Work], Needs],
        at_least: Callable[[str, Collection[str]], Needs],
        *,
        stays: bool,
    ) -> None:
        """Choose only what leaves room for what injection adds then: it goes by these, and also by something that stays."""
        self._injects, self._needs_with, self._injects_anyway = injects, needs_with, stays
        self._at_least = at_least

    def in_view(self, view: ClusterView) -> "FallbackSearch":
        """The same search in the same cluster, of which something else is seen: what is free. It has a time of its own."""
        other = object.__new__(FallbackSearch)
        other.__dict__.update(self.__dict__)  # `copy` would ask how it is pickled
        other.work = Work()
        if self._allowance is not None and view.free is not None:
            counting = self._allowance.counting(view.free.admitted(self._pod.namespace))
            other._allowance = counting  # one like this
        other.use_view(view)
        return other

    @cached_property
    def lists(self) -> list[Sequence[Candidate]]:
        return [self._candidates(resource).every for resource in self.asked]

    def _candidates(self, resource: str) -> Candidates:
        profile, constraints = self.asked[resource], self.constraints
        for minimum in self._policy.minimums(profile):
            constraints = constraints.at_least(minimum)
        over_quota = None if self._allowance is None else partial(self._over_quota, sources=(resource,))
        need = self.need((resource,))
        return Candidates.of_profile(
            resource, profile, need, self.usable, self._policy, constraints, over_quota
        )

    def choose(self) -> Found:
        """What each of the pod's profiles becomes."""
        return self.first() or self._unmatched()

    def first(self) -> AsAsked | Replace | None:
        """What fits; None where nothing does."""
        if not self.asked or self._fits_as_asked():
            return AsAsked()
        chosen = self._best() if len(self.asked) <= MOST_PROFILES else None
        if chosen is None:
            return None
        return Replace(MappingProxyType({old: new for old, new in chosen.items() if old != new}))

    def alternatives(self, resource: str) -> list[Candidate]:
        """All that may stand for a profile and is offered, best first: from these a scheduler can choose by what is free."""
        return [one for one in self._candidates(resource).allowed if self._fits(resource, one)]

    def trials(
        self, chosen: Mapping[str, str] | None, now: "FallbackSearch | None" = None
    ) -> Iterator[Trial]:
        """Every candidate in the order in which it is considered, and what speaks against it.

        `chosen` is what was chosen for each profile; None when nothing was. `now` is the same search by what is free.
        """
        alone = len(self.asked) == 1 and not self.need((WHOLE_GPU,))
        for (resource, _), found in zip(self.asked.items(), self.lists, strict=True):
            passed_over = True  # so far: those before the chosen one
            for one in found:
                taken = chosen is not None and one.resource == chosen.get(resource, resource)
                passed_over = passed_over and not taken
                reason = one.obstacle or self._lack(resource, one.resource)
                taken_now = now is not None and now.usable.most.get(one.resource, 0) < self.need((resource,))
                if not reason and passed_over and not taken_now:  # something else keeps the pod from it
                    reason = NO_ROOM if alone else NOT_TOGETHER
                offered = reason in ("", NOT_TOGETHER)
                words = reason or offered_in_words(self.usable, one.resource)
                if now is not None and offered:
                    words += free_in_words(now.usable, one.resource, now.most_free(one.resource))
                yield Trial(resource, one.resource, one.kind, offered, words, chosen=taken)

    def most_free(self, resource: str) -> int:
        """How many of a resource one node has at most where the pod may go, whatever else it needs there."""
        column = self._view.columns.counts.get(resource)
        return 0 if column is None else column.most(self._placeable)

    def need(self, sources: tuple[str, ...]) -> Number:
        """How many the pod needs at most at one time of what takes the place of all these."""
        found = self._needs.get(sources)
        if found is None:
            found = 0
            for moment in self.moments:
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
        too_many = len(self.asked) > MOST_PROFILES or (
            self._together is not None and self._together.combinations > MOST_COMBINATIONS
        )
        return Unmatched(
            asked=tuple(asked),
            trials=() if too_many else tuple(self.trials(None)),
            usable=tuple(sorted(self.usable.most.items())),
            anywhere=tuple(sorted(self._view.anywhere().items())),
            too_small=tuple(self._too_small()),
            never=self.constraints.never,
            too_many=too_many,
            over_quota=not too_many and self._only_over_quota(),
        )

    def _only_over_quota(self) -> bool:
        """Whether a quota alone keeps the pod from something that nodes offer."""
        return self._allowance is not None and any(
            one.obstacle == self._over_quota(one.resource, (resource,))
            and not self._lack(resource, one.resource)
            for resource, found in zip(self.asked, self.lists, strict=True)
            for one in found
            if one.obstacle
        )

    def _too_small(self) -> Iterator[str]:
        """The needs without any one of which more would be offered; as far as there is time to find out."""
        try:
            if not self._loses(self._wanted):
                return
            for resource, need in self._wanted.items():
                if self._loses({resource: need}):
                    yield resource
        except BeyondLimits:
            return

    def _loses(self, wanted: Needs) -> bool:
        self.work.spend(1 + len(self._view.columns.alike) // 2)
        left = self._view.large_enough(self._placeable, wanted)
        return self._view.columns.lost(self._placeable, left)

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
            for one in self._candidates(asked).allowed:
                if one.kind is not Step.AS_ASKED and self._fits(asked, one):
                    return {asked: one.resource}
            return None
        lists = {asked: self._candidates(asked).allowed for asked in self.asked}
        injecting = NO_RULES
        if self._injects or self._injects_anyway:
            ruled = frozenset() if self._injects_anyway else frozenset(to for _, to in self._injects)
            injecting = Injecting(ruled, self._large_enough_injected)
        self._together = Together(lists, self._room, self._has_room_injected, self.work, injecting)
        found = self._together.first(self._with_beside)
        if found is not None:
            return found
        every = self.need((*self.asked, WHOLE_GPU))
        return self._together.best(self.usable.with_devices(self._with_beside, every))

    def _fits(self, asked: str, one: Candidate) -> bool:
        fitting = self._with_room(self._with_beside, one.resource, (asked,))
        return bool(fitting) and self._has_room_injected({asked: one.resource}, fitting)

    def _has_room_injected(self, by: Mapping[str, str], fitting: int) -> bool:
        """Whether one of the nodes that a choice fits on also has what the pod needs after injection."""
        choice = self._injects and self._injects.intersection(
            [(asked, by.get(asked, asked)) for asked in self.asked]
        )
        if not choice and not self._injects_anyway:
            return True
        holding = self._holding.get(choice)
        if holding is None:
            needs_then = self._needs_with(choice, self.work)
            holding = self._view.large_enough(self._placeable, needs_then) if needs_then else ~0
            self._holding[choice] = holding
        if fitting & (holding | COMING):
            return True
        opened = holding & ~self.usable.nodes  # where injection writes less than the pod asked for
        if not opened:
            return False
        self.work.spend(1 + len(self._view.columns.alike) // 2)
        return self._view.columns.share(fitting, opened)

    def _room(self, to: str, sources: tuple[str, ...]) -> int:
        """The nodes that have room for what takes the place of all these; none when there may not be so much of it."""
        if to == WHOLE_GPU:
            lesser = tuple(one for one in sources if self._is_lesser(one))
            if lesser and self.need(lesser) > self._policy.max_whole_gpus:
                return 0
        if self._allowance is not None and sources != (to,) and self._over_quota(to, sources):
            return 0
        return self._with_room(self._with_beside, to, sources)

    def _large_enough_injected(self, to: str, sources: tuple[str, ...]) -> int:
        """The nodes that can have what injection adds at least, with all these replaced; all where that is not known."""
        injecting = [one for one in sources if (one, to) in self._injects]
        added = self._at_least(to, injecting) if injecting else NOTHING_ELSE
        holding = self._view.large_enough(self._placeable, {**self._wanted, **added}) if added else ~0
        # where injection writes less than the pod asked for, other nodes may do as well
        return ~0 if holding & ~self.usable.nodes else holding | COMING

    def _is_lesser(self, asked: str) -> bool:
        """Whether a whole GPU would be more than was asked for."""
        place = list(self.asked).index(asked)
        return any(one.resource == WHOLE_GPU and one.kind is Step.WHOLE_GPU for one in self.lists[place])

    def _over_quota(self, to: str, sources: tuple[str, ...]) -> str:
        """Why a quota has no room for what takes the place of all these; what the pod has of it besides counts."""
        if self._allowance is None:
            return ""
        return self._allowance.obstacle(to, self.need(sources if to in self.asked else (*sources, to)))

    def _with_room(self, nodes: int, to: str, sources: tuple[str, ...]) -> int:
        if to == WHOLE_GPU:
            sources = (*sources, WHOLE_GPU)
        need = self._needs.get(sources)
        if need is None:
            need = self.need(sources)
        return self.usable.with_room(nodes, to, need) if need else nodes


def usable_offers(pod: Pod, view: ClusterView, policy: FallbackPolicy, nodes: int) -> Usable:
    """What these nodes offer, on which the pod could be placed, now or once the autoscaler brings them."""
    dra = not view.columns.dra or counts_dra(view.namespaces.get(pod.namespace), policy.dra)
    return Usable(view.columns, nodes, dra=dra, coming=frozenset() if pod.bound_to else policy.autoscaled)


def _whole(amount: Number) -> int:
    return -(-amount.numerator // amount.denominator)
