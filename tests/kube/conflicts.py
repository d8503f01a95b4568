"""An API server that answers writes with 409 for ever, and how often it is asked then."""

from collections.abc import Awaitable, Callable
from itertools import pairwise

from tessera.serving.http_messages import Request, Response
from tessera.simulation.control_plane.store import StatusError
from tests.kube.apiserver import MisbehavingApiServer, status
from tests.kube.clock import FakeClock

MINUTE = 60.0
WRITES = ("PATCH", "POST", "PUT", "DELETE")


class EndlessConflicts:
    """Refuses every write to the paths with this part, from now on, and notes by the clock when."""

    def __init__(self, server: MisbehavingApiServer, clock: FakeClock, part: str) -> None:
        self.writes: list[float] = []
        self._part = part
        self._clock = clock
        self._server = server
        self._begun = clock.time
        server.intercept = self._refuse

    def _refuse(self, request: Request) -> Response | None:
        if self._part not in request.path or request.method not in WRITES:
            return None
        self.writes.append(self._clock.time - self._begun)
        return status(StatusError(409, "Conflict", "the object has been modified"))

    async def last(self, step: Callable[[], Awaitable[object]], seconds: float = 20 * MINUTE) -> None:
        """Let a loop go on for so long: a turn each half second."""
        while self._clock.time < self._begun + seconds:
            await step()
            self._clock.time += 0.5


def check_writes(writes: list[float]) -> None:
    """At most ten writes in the first minute, and at most one a minute from then on; but it is tried again."""
    first = [at for at in writes if at < MINUTE]
    later = [at for at in writes if at >= MINUTE]
    assert 1 < len(first) <= 10, writes
    assert len(later) > 2, writes
    assert all(second - first >= MINUTE for first, second in pairwise(later)), writes
