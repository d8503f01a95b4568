"""Which connection is answered next when there is much to do at once.

All connections share one thread. A small request is answered as it comes, in microseconds. Large ones, and those of a
client that sends many without waiting for answers, take turns: together they get a few milliseconds of each round of
the event loop, in the order in which they came, and between rounds all other clients are heard.
"""

import asyncio
from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # a connection takes turns
    from tessera.webhook.http.connection import Connection

_ROUND_SECONDS: Final = 0.005  # for all; one that has begun is not interrupted, and takes 20 ms at most


class FairQueue:
    """The connections that wait for their turn."""

    def __init__(self) -> None:
        self._waiting: deque[Connection] = deque()
        self._spent = 0.0  # seconds of this round
        self._begun = 0.0
        self._scheduled = False  # the next round

    @property
    def free(self) -> bool:
        """Whether there is time left in this round, and no connection waits already."""
        return not self._waiting and self._spent < _ROUND_SECONDS

    def begin(self) -> None:
        """Some work is done now."""
        self._begun = perf_counter()
        self._schedule()

    def end(self) -> float:
        """It is done; how many seconds it took."""
        now = perf_counter()
        taken, self._begun = now - self._begun, now
        self._spent += taken
        return taken

    def wait(self, connection: "Connection") -> None:
        """Go on with this connection when its turn comes."""
        self._waiting.append(connection)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._round)

    def _round(self) -> None:
        self._spent = 0.0
        self._scheduled = False
        waiting = self._waiting
        while waiting and self._spent < _ROUND_SECONDS:
            waiting.popleft().go_on()
        if waiting:
            self._schedule()
