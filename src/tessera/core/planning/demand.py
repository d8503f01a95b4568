"""What MIG devices pods wait for, what they would rather have had, and what was asked for and rejected."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tessera.core.devices.capacity import PodUse
from tessera.core.kubernetes.pod import Amounts
from tessera.core.mig.profile import MigProfile
from tessera.core.resources import WHOLE_GPU

# Devices of one namespace that count with what their pods asked for before fallback, or asked for and were rejected. A pod's
# author can write the annotations that give the one, and ask for any number of the other, and must not have a cluster's cards
# cut for what no pod waits for.
MOST_MISSED: Final = 1000


@dataclass(frozen=True, slots=True)
class RejectedPods:
    """Pods that a workload wants and cannot create: the webhook rejects them, since no node offers what they ask for."""

    use: PodUse  # each of them
    number: int

    @property
    def devices(self) -> int:
        """The MIG devices that each asks for; none where it asks for more than is counted."""
        return 0 if self.use.is_partial else sum(profiles_of(self.use.asked or self.use.amounts).values())


@dataclass(frozen=True, slots=True)
class Demand:
    waiting: Mapping[MigProfile, int]  # of pods that no node has
    fell_back: Mapping[MigProfile, int]  # of pods that run with something else
    whole_gpus: int  # that waiting pods ask for: no matter of MIG layouts
    rejected: Mapping[MigProfile, int] = field(default_factory=dict)  # of pods that were never created
    uncounted: int = 0  # devices of rejected pods, beyond what counts of one namespace

    @property
    def all(self) -> dict[MigProfile, int]:
        counts = Counter(self.waiting) + Counter(self.fell_back) + Counter(self.rejected)
        return {profile: counts[profile] for profile in sorted(counts)}


def profiles_of(amounts: Amounts) -> dict[MigProfile, int]:
    """The MIG devices among what a pod asks for; a part of one is none."""
    every = ((MigProfile.of_resource(resource), int(amount.number)) for resource, amount in amounts.items())
    return {profile: number for profile, number in every if profile is not None and number > 0}


def demand_of(uses: Iterable[PodUse], since: str, rejected: Sequence[RejectedPods] = ()) -> Demand:
    """What pods ask for that no node has, what pods made since then asked for before fallback, and what was rejected.

    A waiting pod that fell back, or may fall back by its claim, counts with what it asked for first.
    """
    waiting: Counter[MigProfile] = Counter()
    fell_back: Counter[MigProfile] = Counter()
    never_made: Counter[MigProfile] = Counter()
    whole = 0
    for use in wanting(uses, since, rejected):
        if use.node:
            fell_back.update(use.missed)
            continue
        asks = use.asked or use.amounts
        (never_made if use.rejected else waiting).update(profiles_of(asks))
        if WHOLE_GPU in asks and not use.rejected:
            whole += int(asks[WHOLE_GPU].number)
    uncounted = sum(one.number * one.devices for one in rejected) - never_made.total()
    return Demand(waiting, fell_back, whole, never_made, uncounted)


def wanting(uses: Iterable[PodUse], since: str, rejected: Iterable[RejectedPods] = ()) -> list[PodUse]:
    """Pods that wait, and those made since then that run with less than they asked for, oldest first; last those rejected.

    Pods that ask for more than is counted of one pod want nothing that is known.
    Where a namespace has more of the second than count, the others count with what they ask for now; of the last, they do not.
    """
    counted: Counter[str] = Counter()
    found = []
    for use in sorted(uses, key=lambda one: (one.created, one.namespace, one.name)):
        if use.is_partial or (use.node and (use.ending or use.created < since or not use.asked)):
            continue
        missed = sum(use.missed.values())
        if missed:
            counted[use.namespace] += missed
            if counted[use.namespace] > MOST_MISSED:
                counted[use.namespace] -= missed
                use = replace(use, asked={})
        if not use.node or use.asked:
            found.append(use)
    for one in sorted(rejected, key=lambda one: (one.use.created, one.use.namespace, one.use.name)):
        if each := one.devices:
            number = min(one.number, (MOST_MISSED - counted[one.use.namespace]) // each)
            counted[one.use.namespace] += number * each
            found += [one.use] * number
    return found


def most_wanted(wanted: Mapping[MigProfile, int], have: Mapping[MigProfile, int]) -> tuple[MigProfile, ...]:
    """Profiles by how many are wanted in all, served or not; then by how many pods have. Of equals the larger goes first."""
    every = sorted({*wanted, *have}, reverse=True)
    return tuple(sorted(every, key=lambda one: (-wanted.get(one, 0), -have.get(one, 0))))
