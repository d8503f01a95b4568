"""What is wanted, in the order in which it is served, how much each want counts, and what is expected of demand.

No namespace counts for more than its part. Demand is how many devices are in use and wanted at a moment, and is expected to stay
as it has been lately. Of each profile three numbers are kept: the mean of its demand, the mean of its square, and the mean of
what was wanted and not there. Older moments count less and less."""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import erfc, exp, isfinite, pi, sqrt
from typing import Final

from tessera.core.autopilot.values import Kind, Level, Levels, ProfileDemand, Want
from tessera.core.mig.profile import InvalidProfile, MigProfile
from tessera.core.planning.kinds import ANYWHERE

MEMORY: Final = (
    12 * 3600.0
)  # seconds after which a moment counts a third: short enough to follow a day, long enough to remember its other half
_WAITED: Final = (
    30.0  # seconds between two looks while somebody waits: nobody waited for longer before a look
)
IN_DEMAND: Final = 0.5  # devices in use and wanted at a time: no place is kept for a profile with fewer
_CERTAIN: Final = 0.5  # devices: no demand is known better than this
_FORGOTTEN: Final = 0.01  # devices: a profile that nobody uses is no longer kept below this mean
_LARGEST: Final = 1e6  # devices: whatever stands in a status beyond that is not ours


def remembered(
    levels: Levels, in_use: Mapping[str, int], waits: Mapping[str, int], seconds: float | None
) -> dict[str, Level]:
    """What is kept after so many seconds with this demand, by the profile's name; None: nothing was kept before."""
    passed = 0.0 if seconds is None else max(0.0, seconds)
    fades, short = exp(-passed / MEMORY), exp(-min(passed, _WAITED) / MEMORY)
    found = {}
    for name in sorted({*levels, *in_use, *waits}):
        used, waiting = float(in_use.get(name, 0)), float(waits.get(name, 0))
        now = used + waiting
        # Of a profile that is new nothing is known: what is in use is taken to vary as independent pods do. What waits counts as it lasts.
        mean, square, waited = _sound(levels.get(name)) or (used, used * used + used, 0.0)
        mean, square = mean * fades + now * (1 - fades), square * fades + now * now * (1 - fades)
        if mean >= _FORGOTTEN or name in in_use:
            found[name] = (mean, square, waited * fades + waiting * (1 - short))
    return found


def profiles_in(levels: Levels) -> list[MigProfile]:
    """The profiles that have been wanted, also where no card has such a device now."""
    found = []
    for name, kept in levels.items():
        try:
            profile = MigProfile.parse(name)
        except InvalidProfile:
            continue  # a status can be edited
        if (level := _sound(kept)) and level[0] >= _FORGOTTEN:
            found.append(profile)
    return found


def lacking(level: Level, count: float, *, for_long: bool = False) -> float:
    """How many devices are expected to be lacking at a time, where there are so many. Demand is taken to be normally distributed.

    `for_long`: for longer than is remembered. Then demand varies at least as that of independent pods.
    """
    mean, square, _ = level
    spread = sqrt(max(square - mean * mean, _CERTAIN**2, mean if for_long else 0.0))
    far = (count - mean) / spread
    return spread * exp(-far * far / 2) / sqrt(2 * pi) - (count - mean) * erfc(far / sqrt(2)) / 2


def _sound(level: tuple[float, ...] | None) -> Level | None:
    """What was kept of a profile, if it can be right: a status can be edited."""
    if level is None or len(level) != 3 or not all(map(isfinite, level)):
        return None
    mean, square, waited = level
    sound = 0 <= mean <= _LARGEST and square >= mean * mean * 0.999 and 0 <= waited <= _LARGEST
    return (mean, square, waited) if sound else None


_FEW: Final = 8  # devices of a profile that every namespace may want
_PART: Final = 4  # beyond them: a quarter of all devices
_AGE: Final = 6 * 3600.0  # seconds after which a want counts twice, and so on
_OLDEST: Final = 24 * 3600.0
_FELL_BACK: Final = 0.25  # such a pod runs; only who comes after it gets the device


class WantQueue:
    """Wants of one profile that count, device by device, the first to be served first. A place is a want's number in it."""

    def __init__(self, wants: Sequence[Want], weights: Sequence[float]) -> None:
        self.wants, self.weights = wants, weights
        self.left = len(wants)  # that are not served
        self._served = bytearray(len(wants))
        self._first_left = 0
        # by the queue of pods: the places that are left. Of a queue the first ones are always served first
        self._places: dict[int, deque[int]] = {}
        for place, want in enumerate(wants):
            self._places.setdefault(want.queue, deque()).append(place)
        self._first: dict[tuple[frozenset[int], int], tuple[int, ...]] = {}

    @property
    def kinds(self) -> Collection[int]:
        """The queues of all its wants."""
        return self._places.keys()

    @property
    def highest_priority(self) -> int:
        """Of the wants that are left."""
        while self._served[self._first_left]:
            self._first_left += 1
        return self.wants[self._first_left].priority

    def first(self, queues: frozenset[int], most: int) -> tuple[int, ...]:
        """The places of the first wants, at most so many, that devices on nodes with these queues serve."""
        key = queues, most
        first = self._first.get(key)
        if first is None or any(self._served[place] for place in first):
            useful = (
                places for queue, places in self._places.items() if queue == ANYWHERE or queue in queues
            )
            first = tuple(sorted(place for places in useful for place in islice(places, most))[:most])
            self._first[key] = first
        return first

    def serve(self, places: Iterable[int]) -> None:
        """These wants get their devices: the first ones of what a node serves."""
        for place in places:
            self._places[self.wants[place].queue].popleft()
            self._served[place] = True
            self.left -= 1

    def withdraw(self, namespace: str) -> int:
        """The wants of this namespace do not count any more; returns how many were left."""
        before = self.left
        for queue, places in self._places.items():
            kept = deque(place for place in places if self.wants[place].namespace != namespace)
            self.left -= len(places) - len(kept)
            for place in places:
                self._served[place] = self.wants[place].namespace == namespace
            self._places[queue] = kept
        return before - self.left


@dataclass(frozen=True, slots=True)
class Wanted:
    queues: Mapping[MigProfile, WantQueue]
    pods: tuple[tuple[Want, float], ...]  # those that want several devices of one node, with their weights
    beyond: Mapping[MigProfile, int]  # devices that do not count: their namespaces want too many


def wanted(wants: Sequence[Want], devices: int, now: float) -> Wanted:
    """Wants in order: by priority, then in turns of the namespaces, the oldest first. `devices`: how many there are."""
    most = max(_FEW, devices // _PART)
    counted = Counter[tuple[str, MigProfile]]()
    turns = Counter[tuple[str, int]]()
    beyond = Counter[MigProfile]()
    ordered = []
    for want in sorted(wants, key=lambda one: (-one.priority, one.since)):
        key = want.namespace, want.profile
        pods = min(want.number, most - counted[key]) // want.together
        number = pods * want.together
        counted[key] += number
        beyond[want.profile] += want.number - number
        one = want if want.number == want.together else replace(want, number=want.together)
        for _ in range(pods):
            turn = turns[want.namespace, want.priority]
            turns[want.namespace, want.priority] += 1
            ordered.append(((-want.priority, turn, want.since), one))
    ordered.sort(key=lambda one: one[0])
    queues: dict[MigProfile, list[Want]] = {}
    several: list[tuple[Want, float]] = []
    for _, want in ordered:
        if want.together == 1:
            queues.setdefault(want.profile, []).append(want)
        else:
            several.append((want, _weight(want, now)))
    return Wanted(
        {profile: WantQueue(some, [_weight(want, now) for want in some]) for profile, some in queues.items()},
        tuple(several),
        +beyond,
    )


def demand_of(
    wants: Sequence[Want],
    there: Mapping[MigProfile, int],
    held: Mapping[MigProfile, int],
    used: Mapping[MigProfile, int] | None,
    known: Iterable[MigProfile] = (),
) -> dict[MigProfile, ProfileDemand]:
    """How many devices of each profile are wanted, and how many there are; the smallest profile first.

    `used`: by pods; None: all that is held. `known`: profiles that have been wanted before.
    """
    counts = {kind: Counter[MigProfile]() for kind in Kind}
    for want in wants:
        counts[want.kind][want.profile] += want.number
    return {
        profile: ProfileDemand(
            counts[Kind.WAITING][profile],
            counts[Kind.FELL_BACK][profile],
            counts[Kind.REJECTED][profile],
            (held if used is None else used).get(profile, 0),
            there.get(profile, 0) - held.get(profile, 0),
        )
        for profile in sorted({*there, *(used or ()), *(want.profile for want in wants), *known})
    }


def _weight(want: Want, now: float) -> float:
    age = 1 + min(max(0.0, now - want.since), _OLDEST) / _AGE
    priority = 2.0 if want.priority > 0 else 0.5 if want.priority < 0 else 1.0
    return age * priority * (_FELL_BACK if want.kind is Kind.FELL_BACK else 1.0)
