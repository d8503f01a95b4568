"""How a reflector is doing: when the API server was last heard, and when silence is too long."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from tessera.kube.clock import Clock
from tessera.kube.rest.connection import Lines

# Seconds without a line after which a watch is given up.
# Bookmarks come about every minute; a little more than that is a dead watch
SILENCE: Final = 65.0
# a server that knows nothing of sendInitialEvents never says that they are over
INITIAL_SILENCE: Final = 5.0


@dataclass(slots=True)
class Health:
    """What there is to know about a reflector; read by metrics and readiness."""

    synced: bool = False
    absent: bool = False  # the server does not have this collection, or not for us
    version: str = ""
    last_contact: float | None = None  # by the reflector's clock
    lists: int = 0
    watches: int = 0
    events: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    last_error: str = ""

    def age(self, now: float) -> float | None:
        """Seconds since the server last said anything; None when it never has."""
        return None if self.last_contact is None else max(0.0, now - self.last_contact)


class SilenceGuard:
    """Cuts a watch off when it has said nothing for too long."""

    def __init__(self, lines: Lines, clock: Clock, limit: float) -> None:
        self._lines = lines
        self._clock = clock
        self.limit = limit
        self._last = clock.now()
        self.silent = False

    def heard(self, limit: float) -> None:
        """A line came; from now on wait so long."""
        self._last, self.limit = self._clock.now(), limit

    async def run(self) -> None:
        """Sleep until the limit is over; with every line there is more of it."""
        while (left := self._last + self.limit - self._clock.now()) > 0:
            await self._clock.sleep(left)
        self.silent = True
        self._lines.abort()
