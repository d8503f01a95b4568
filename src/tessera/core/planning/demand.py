"""What MIG devices pods wait for, and what they would rather have had."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tessera.core.devices.capacity import PodUse
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.resources import WHOLE_GPU, of_short
from tessera.core.mig.profile import MigProfile


@dataclass(frozen=True, slots=True)
class Demand:
    """MIG devices, by profile."""

    waiting: Mapping[MigProfile, int]  # of pods that no node has
    fell_back: Mapping[MigProfile, int]  # of pods that run with something else
    whole_gpus: int  # that waiting pods ask for: no matter of MIG layouts

    @property
    def all(self) -> dict[MigProfile, int]:
        """Both together, smallest profile first."""
        counts = Counter(self.waiting) + Counter(self.fell_back)
        return {profile: counts[profile] for profile in sorted(counts)}


def demand_of(claims: Iterable[PodUse], since: str) -> Demand:
    """What pods ask for that no node has, and what pods made since then asked for before fallback.

    A waiting pod that fell back, or may fall back by its claim, counts with what it asked for first.
    """
    waiting: Counter[MigProfile] = Counter()
    fell_back: Counter[MigProfile] = Counter()
    whole = 0
    for claim in claims:
        wished = first_wishes(claim.record)
        for resource, amount in claim.amounts.items():
            number = int(amount.value)
            profile = wished.get(resource) or MigProfile.of_resource(resource)
            if not claim.node and profile is not None:
                waiting[profile] += number
            elif not claim.node and resource == WHOLE_GPU:
                whole += number
            elif claim.node and resource in wished and not claim.ending and claim.created >= since:
                fell_back[wished[resource]] += number
    return Demand(waiting, fell_back, whole)


def first_wishes(record: str) -> dict[str, MigProfile]:
    """What stands in a record of fallbacks, turned round: resource → the profile that was asked for first.

    Where several became the same one, the largest counts: it can do the others' work. What cannot be read is no wish.
    """
    wishes: dict[str, MigProfile] = {}
    for entry in record.split(","):
        old, arrow, new = entry.partition("->")
        try:
            profile, resource = MigProfile.parse(old), of_short(new) if arrow else ""
        except InvalidInput:
            continue
        if resource:
            wishes[resource] = max(profile, wishes.get(resource, profile))
    return wishes
