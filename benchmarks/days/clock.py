"""A clock that jumps from event to event."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count


class Clock:
    """What is to be done at which moment; what is due at the same moment is done in the order in which it was put down."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def at(self, moment: float, action: Callable[[], None]) -> None:
        """Do something then; what is past is done at once."""
        heappush(self._due, (max(moment, self.now), next(self._order), action))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self.at(self.now + seconds, action)

    def run(self, until: float) -> None:
        """Do all that is due until then."""
        due = self._due
        while due and due[0][0] <= until:
            self.now, _, action = heappop(due)
            action()
        self.now = until
