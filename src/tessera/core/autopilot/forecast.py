"""What is expected of a profile's demand: that it stays as it has been lately.

Demand is how many devices are in use and wanted at a moment. Of each profile three numbers are kept: the mean of its demand, the mean of its
square, and the mean of what was wanted and not there. Older moments count less and less.
"""

from collections.abc import Mapping
from math import erfc, exp, isfinite, pi, sqrt
from typing import Final

from tessera.core.autopilot.values import Level, Levels
from tessera.core.mig.profile import InvalidProfile, MigProfile

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
