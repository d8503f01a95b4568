"""When the controller tries again what failed: each object by itself, so that none waits for another."""

from collections.abc import Hashable
from typing import Final

from tessera.kube.clock import SYSTEM_CLOCK, Clock

_FIRST: Final = 1.0  # seconds
# seconds: thousands of pods in a namespace that is being deleted, or with a quota on templates, make some ten requests a second
_LONGEST: Final = 300.0


class Retries:
    """Waits that double from failure to failure of one thing."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._waits: dict[Hashable, tuple[float, float]] = {}  # until when, and how long that is

    def is_due(self, what: Hashable) -> bool:
        """Whether it may be tried."""
        wait = self._waits.get(what)
        return wait is None or wait[0] <= self._clock.now()

    def put_off(self, what: Hashable) -> None:
        """It failed."""
        _, before = self._waits.get(what, (0.0, _FIRST / 2))
        seconds = min(2 * before, _LONGEST)
        self._waits[what] = self._clock.now() + seconds, seconds

    def let_be(self, what: Hashable, seconds: float) -> None:
        """Leave it alone for so long at least; after the next failure the first wait is short again."""
        until, _ = self._waits.get(what, (0.0, 0.0))
        self._waits[what] = max(until, self._clock.now() + seconds), _FIRST / 2

    def next(self) -> float | None:
        """Seconds until something is due; None where nothing waits. What was due long ago is forgotten: it was done, or is not needed."""
        now = self._clock.now()
        self._waits = {what: wait for what, wait in self._waits.items() if wait[0] > now - _LONGEST}
        waiting = [until for until, _ in self._waits.values() if until > now]
        return min(waiting) - now if waiting else None
