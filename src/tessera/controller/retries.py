"""When what failed is tried again: each thing by itself, so that none waits for another."""

from collections.abc import Hashable

from tessera.kube.clock import Clock


class Retries:
    """Waits that double from failure to failure of one thing."""

    def __init__(self, clock: Clock, first: float, longest: float) -> None:
        self._clock = clock
        self._first, self._longest = first, longest  # seconds
        self._waits: dict[Hashable, tuple[float, float]] = {}  # until when, and how long that is

    def is_due(self, what: Hashable) -> bool:
        wait = self._waits.get(what)
        return wait is None or wait[0] <= self._clock.now()

    def has_failed(self, what: Hashable) -> bool:
        """Whether it was put off lately."""
        return what in self._waits

    def put_off(self, what: Hashable) -> None:
        _, before = self._waits.get(what, (0.0, self._first / 2))
        seconds = min(2 * before, self._longest)
        self._waits[what] = self._clock.now() + seconds, seconds

    def let_be(self, what: Hashable, seconds: float) -> None:
        """Leave it alone for so long at least; after the next failure the first wait is short again."""
        until, _ = self._waits.get(what, (0.0, 0.0))
        self._waits[what] = max(until, self._clock.now() + seconds), self._first / 2

    def forget(self, what: Hashable) -> None:
        """It went well."""
        self._waits.pop(what, None)

    def clear(self) -> None:
        self._waits.clear()

    def next(self) -> float | None:
        """Seconds until something is due; None where nothing waits. What was due long ago is forgotten: it was done, or is not needed."""
        now = self._clock.now()
        self._waits = {what: wait for what, wait in self._waits.items() if wait[0] > now - self._longest}
        waiting = [until for until, _ in self._waits.values() if until > now]
        return min(waiting) - now if waiting else None
