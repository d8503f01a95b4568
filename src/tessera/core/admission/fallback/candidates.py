"""What may stand for a profile, and what may not and why: one list, best first.

What was asked for; a whole GPU as its equal where the profile is a whole card; the smaller profiles from the largest
down, the larger ones from the smallest up, a whole GPU; or the chain that the operator wrote. What a setting or an
annotation forbids stays in the list with the reason, so that messages can name it.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple, Self

from tessera.core.admission.policy import GIB, Constraints, FallbackPolicy
from tessera.core.admission.view.usable import MOST_REMEMBERED, Usable, profiles_among
from tessera.core.kubernetes.quantity import Number
from tessera.core.mig.geometry import is_whole_card
from tessera.core.mig.profile import MigProfile
from tessera.core.resources import WHOLE_GPU
from tessera.core.values import value


class Step(IntEnum):
    """How far a candidate is from what was asked for; the lower, the better."""

    AS_ASKED = 0
    EQUAL = 1  # a whole GPU in place of a profile that is a whole card
    SMALLER = 2
    LARGER = 3
    WHOLE_GPU = 4


@value
class Candidate:
    """One resource that could stand for a profile."""

    resource: str
    kind: Step
    order: Step  # which of several to prefer; a chain has an order of its own, and all of it is one step away
    obstacle: str = ""  # why it may not be chosen


class Candidates(NamedTuple):
    """What may stand for a profile, best first."""

    every: Sequence[Candidate]
    allowed: Sequence[Candidate]  # those without an obstacle

    @classmethod
    def of(cls, every: Sequence[Candidate]) -> Self:
        return cls(every, tuple([one for one in every if not one.obstacle]))

    @classmethod
    def of_profile(
        cls,
        asked: str,
        profile: MigProfile,
        need: Number,
        usable: Usable,
        policy: FallbackPolicy,
        constraints: Constraints,
        over_quota: Callable[[str], str] | None,
    ) -> "Candidates":
        """What may stand for so many devices of a profile; `over_quota` says which quota forbids a resource, if one is about GPUs."""
        offered = tuple(usable.most)
        # a node's credentials can state thousands of resources, and others each time
        list_all = cls.list_all if len(offered) <= MOST_REMEMBERED else cls.list_all.__wrapped__
        listed = list_all(
            asked,
            profile,
            need > policy.max_whole_gpus,
            offered,
            usable.whole,
            usable.card_memory_gb,
            policy,
            constraints,
        )
        return listed if over_quota is None else listed.within_quota(over_quota)

    # Worked out once for all pods that ask for a profile where the same is offered: some 250 KiB.
    @staticmethod
    @lru_cache(maxsize=256)
    def list_all(
        asked: str,
        profile: MigProfile,
        too_many: bool,
        offered: tuple[str, ...],
        whole: bool,
        card_memory_gb: int | None,
        policy: FallbackPolicy,
        constraints: Constraints,
    ) -> "Candidates":
        """What may stand for a profile, whatever quotas say."""
        ladder = _Ladder(profile, too_many, offered, whole, card_memory_gb, policy, constraints)
        chain = policy.chains.get(asked)
        others = ladder.rungs() if chain is None else ladder.chained(to for to in chain if to != asked)
        return Candidates.of((Candidate(asked, Step.AS_ASKED, Step.AS_ASKED), *others))

    def within_quota(self, over_quota: Callable[[str], str]) -> "Candidates":
        """The same candidates, where a quota forbids some; what the pod asks for is the API server's to judge."""
        asked, *others = self.every
        return Candidates.of((
            asked,
            *(
                one
                if one.obstacle
                else Candidate(one.resource, one.kind, one.order, over_quota(one.resource))
                for one in others
            ),
        ))  # fmt: skip


@value
class _Ladder:
    """What leads down and up from a profile that is asked for, and what holds for it: settings, constraints, offers."""

    profile: MigProfile
    too_many: bool  # more devices than whole GPUs may take the place of
    offered: tuple[str, ...]
    whole: bool  # as in `Usable`
    card_memory_gb: int | None
    policy: FallbackPolicy
    constraints: Constraints

    def chained(self, chain: Iterable[str]) -> Iterator[Candidate]:
        """The operator's own order."""
        for to in chain:
            kind = self._step_to(to)
            yield Candidate(to, kind, Step.SMALLER, self._obstacle(kind, to))

    def rungs(self) -> Iterator[Candidate]:
        """The computed order."""
        profile, offered = self.profile, profiles_among(self.offered)
        whole = self._step_to(WHOLE_GPU)
        if whole is Step.EQUAL:
            yield self._rung(whole, WHOLE_GPU)
        at = bisect_left(offered, profile.rank, key=attrgetter("rank"))
        yield from (self._profile_rung(Step.SMALLER, one) for one in reversed(offered[:at]))
        yield from (self._profile_rung(Step.LARGER, one) for one in offered[at:] if one != profile)
        if whole is Step.WHOLE_GPU:
            yield self._rung(whole, WHOLE_GPU)

    def _step_to(self, resource: str) -> Step:
        """Which kind of step it is to a resource; a share is less than any profile.

        A whole GPU is the equal of a whole card only where no card that the pod could get has less memory.
        """
        profile = self.profile
        if resource == WHOLE_GPU:
            equal = is_whole_card(profile) and not self._has_cards_below(profile.memory_gb * GIB)
            return Step.EQUAL if equal else Step.WHOLE_GPU
        to = MigProfile.of_resource(resource)
        if to is None:
            return Step.SMALLER
        return Step.AS_ASKED if to == profile else Step.SMALLER if to < profile else Step.LARGER

    def _profile_rung(self, kind: Step, to: MigProfile) -> Candidate:
        if not self.profile.engines <= to.engines:
            return Candidate(to.resource, kind, kind, f"it does not have the engines of {self.profile.label}")
        return self._rung(kind, to.resource)

    def _rung(self, kind: Step, to: str) -> Candidate:
        return Candidate(to, kind, kind, self._obstacle(kind, to))

    def _obstacle(self, kind: Step, to: str) -> str:
        """Why it may not be chosen; empty when it may."""
        return self._forbidden(kind) or self._too_little(to)

    def _has_cards_below(self, amount: Number) -> bool:
        """Whether some whole GPU is known to have less memory."""
        return self.card_memory_gb is not None and self.card_memory_gb * GIB < amount

    def _forbidden(self, kind: Step) -> str:
        policy, constraints = self.policy, self.constraints
        reason, setting = constraints.never, ""
        if kind is Step.SMALLER:
            setting = "" if policy.downgrades else "fallback.downgrades: false"
            reason = reason or constraints.no_smaller
        elif kind is Step.LARGER:
            setting = "" if policy.upgrades else "fallback.upgrades: false"
            reason = reason or constraints.no_larger
        elif not policy.whole_gpu:
            setting = "fallback.wholeGPU: false"
        elif not self.whole:
            return "some nodes offer slices or shares under that name"
        elif kind is Step.WHOLE_GPU and self.too_many:
            setting = f"fallback.maxWholeGPUs: {policy.max_whole_gpus}"
        if constraints.never or not setting:
            return f"forbidden: {reason}" if reason else ""
        return f"forbidden by {setting}"

    def _too_little(self, to: str) -> str:
        minimum = self.constraints.minimum
        if minimum is None:
            return ""
        if to == WHOLE_GPU:
            enough = not self._has_cards_below(minimum.amount.number)
        elif (profile := MigProfile.of_resource(to)) is not None:
            enough = profile.memory_gb * GIB >= minimum.amount.number  # a profile's 20gb counts as 20 GiB
        else:
            return f"a share has no memory of its own, and the minimum is {minimum}"
        return "" if enough else f"below the minimum of {minimum}"
