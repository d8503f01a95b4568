"""How long to wait before the next try."""

import random
from collections.abc import Callable
from typing import Final

# as client-go's reflector: 0.8 s, doubling, to 30 s; a quarter more or less, so that many clients do not move as one
FIRST: Final = 0.8
LONGEST: Final = 30.0
_JITTER: Final = 0.25


class Backoff:
    """Waits that double from failure to failure and begin anew after a success."""

    def __init__(self, uniform: Callable[[float, float], float] = random.uniform) -> None:
        self._uniform = uniform
        self._next = FIRST

    def next(self) -> float:
        """Seconds to wait now."""
        wait = self._next * self._uniform(1 - _JITTER, 1 + _JITTER)
        self._next = min(2 * self._next, LONGEST)
        return wait

    def reset(self) -> None:
        """Something went well."""
        self._next = FIRST
