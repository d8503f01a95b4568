"""What MIG devices pods wait for, and what they would rather have had."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from tessera.core.devices.capacity import PodUse
from tessera.core.kubernetes.resources import WHOLE_GPU
from tessera.core.mig.profile import MigProfile

# Devices of one namespace that count with what their pods asked for before fallback. A pod's author can write the
# annotations that tell it, and must not have a cluster's cards cut for what nobody waits for.
MOST_MISSED: Final = 1000


@dataclass(frozen=True, slots=True)
class Demand:
    waiting: Mapping[MigProfile, int]  # of pods that no node has
    fell_back: Mapping[MigProfile, int]  # of pods that run with something else
    whole_gpus: int  # that waiting pods ask for: no matter of MIG layouts

    @property
    def all(self) -> dict[MigProfile, int]:
        counts = Counter(self.waiting) + Counter(self.fell_back)
        return {profile: counts[profile] for profile in sorted(counts)}


def demand_of(uses: Iterable[PodUse], since: str) -> Demand:
    """What pods ask for that no node has, and what pods made since then asked for before fallback.

    A waiting pod that fell back, or may fall back by its claim, counts with what it asked for first.
    """
    waiting: Counter[MigProfile] = Counter()
    fell_back: Counter[MigProfile] = Counter()
    whole = 0
    for use in wanting(uses, since):
        if use.node:
            fell_back.update(use.missed)
            continue
        for resource, amount in (use.asked or use.amounts).items():
            profile = MigProfile.of_resource(resource)
            if profile is not None:
                waiting[profile] += int(amount.value)
            elif resource == WHOLE_GPU:
                whole += int(amount.value)
    return Demand(waiting, fell_back, whole)


def wanting(uses: Iterable[PodUse], since: str) -> list[PodUse]:
    """Pods that wait, and those made since then that run with less than they asked for, oldest first.

    Where a namespace has more of the latter than count, the others count with what they ask for now.
    """
    counted: Counter[str] = Counter()
    found = []
    for use in sorted(uses, key=lambda one: (one.created, one.namespace, one.name)):
        if use.node and (use.ending or use.created < since or not use.asked):
            continue
        missed = sum(use.missed.values())
        if missed:
            counted[use.namespace] += missed
            if counted[use.namespace] > MOST_MISSED:
                counted[use.namespace] -= missed
                use = replace(use, asked={})
        if not use.node or use.asked:
            found.append(use)
    return found
