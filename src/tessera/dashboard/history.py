"""How capacity, use and waiting went while this server watched, in bounded memory.

A point is kept only where a number changed. When a resource has too many points, every second one of the older half is
left out: the last minutes stay exact, the hours before keep their outline.
"""

from collections.abc import Mapping
from typing import Final

Point = tuple[int, int, int, int]  # seconds since 1970, allocatable, allocated, waiting

SPAN: Final = 6 * 3600  # seconds; what a person asks about who comes to work
MOST_POINTS: Final = 240  # of one resource: two for each pixel of the chart would not be seen
MOST_RESOURCES: Final = 64  # twice what a cluster with five products has


class History:
    """Points by resource, the oldest first."""

    def __init__(self) -> None:
        self._points: dict[str, list[Point]] = {}

    def see(self, now: int, numbers: Mapping[str, tuple[int, int, int]]) -> list[str]:
        """Take what is allocatable, allocated and waited for, by resource; the resources that have a new point."""
        changed = []
        for resource in [*self._points, *(one for one in numbers if one not in self._points)]:
            found = numbers.get(resource, (0, 0, 0))
            points = self._points.get(resource, [])
            if (points and points[-1][1:] == found) or (not points and len(self._points) >= MOST_RESOURCES):
                continue
            self._points[resource] = _bounded([*points, (now, *found)], now)
            changed.append(resource)
        return changed

    def of(self, resource: str) -> list[Point]:
        """The points of a resource."""
        return self._points.get(resource, [])


def _bounded(points: list[Point], now: int) -> list[Point]:
    """What is still to be shown; the last point before that says how things were when it begins."""
    first = max((at for at, point in enumerate(points) if point[0] <= now - SPAN), default=0)
    kept = points[first:]
    if len(kept) > MOST_POINTS:
        half = len(kept) // 2
        kept = [*kept[:half:2], *kept[half:]]
    return kept
