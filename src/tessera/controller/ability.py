"""Whether a reconciler can do its work in this cluster."""

from collections.abc import Callable
from typing import Final

from tessera.kube.clock import Clock
from tessera.kube.failures import Once

_POLL: Final = 5.0  # seconds; a follower asks for collections that are absent again every minute


class Ability:
    """Waits for what a reconciler lacks, as `lacks` says it (empty: nothing); `log` gets it once, and again when it is something else."""

    def __init__(self, clock: Clock, lacks: Callable[[], str], log: Callable[[str], None]) -> None:
        self._clock = clock
        self._lacks = lacks
        self._log = log
        self._once = Once()

    async def wait(self) -> None:
        """Wait until it lacks nothing."""
        while lack := self._lacks():
            if self._once.begin(lack):
                self._log(lack)
            await self._clock.sleep(_POLL)
        self._once.end()
