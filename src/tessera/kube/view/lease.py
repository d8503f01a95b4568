"""Whether the holder of a Lease is at work, and what it does.

Clocks of two machines differ. So a Lease counts as held for as long as it keeps changing, by the clock of the process that follows it
(as in client-go's leader election); no decision reads its times. A process that follows nothing (`tessera admit`) reads it once and
believes that it was renewed lately; where two clocks disagree, it reads it a few times more and waits for a change.
"""

import asyncio
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from tessera.kube.clock import Clock
from tessera.kube.errors import ApiError
from tessera.kube.rest.client import Client, path_of
from tessera.kube.watch.follow import Follower
from tessera.kube.watch.table import Resource, single_entry
from tessera.protocol.kubernetes.lease import API_VERSION, Lease
from tessera.protocol.kubernetes.objects import seconds

CONTROLLER: Final = "tessera-controller"  # the Lease of the controller, in its own namespace
# its reconcilers, as the Lease names them
CLAIMS: Final = "claims"  # makes the templates of claims
PATIENCE: Final = "patience"  # evicts pods that wait
LAYOUTS: Final = "layouts"  # keeps the layouts of MigLayouts
_POLL: Final = 1.0  # seconds between two checks of the clock
_MORE_READS: Final = 4  # a second apart: the controller renews its Lease every two seconds


class WatchedLease:
    """A Lease as one process sees it: held while it keeps changing."""

    def __init__(self, clock: Clock, *, at_first: bool = True) -> None:
        """Watch a Lease; `at_first`: one that is seen for the first time counts as just renewed, else not at all."""
        self.lease: Lease | None = None
        self._clock = clock
        self._at_first = at_first
        self._since = 0.0

    def observe(self, lease: Lease | None) -> None:
        before, self.lease = self.lease, lease
        if lease is None:
            return
        if before is None:
            self._since = self._clock.now() if self._at_first else -math.inf
        elif before.beat != lease.beat:
            self._since = self._clock.now()

    @property
    def is_held(self) -> bool:
        """Whether its holder is at work."""
        lease = self.lease
        return lease is not None and bool(lease.holder) and self._clock.now() - self._since < lease.seconds

    def runs(self, reconciler: str) -> bool:
        """Whether its holder is at work, and runs a reconciler."""
        return self.lease is not None and self.is_held and self.lease.lists(reconciler)


class LeaseFollower(Follower):
    """Follows the controller's Lease, and reports every second and at each change whether claims get their templates."""

    def __init__(self, client: Client, namespace: str, name: str, report: Callable[[bool], object]) -> None:
        path = path_of(API_VERSION, "leases", namespace=namespace)
        resource = Resource("leases", path, fields=f"metadata.name={name}", optional=True)
        super().__init__(client, {resource: single_entry(Lease.read, self._observe)})
        # a holder that left its Lease behind is not at work; one that is renews it two seconds later
        self._watched = WatchedLease(client.clock, at_first=False)
        self._clock = client.clock
        self._report = report

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(super().run())
            tasks.create_task(self._polling())

    async def _polling(self) -> None:
        while True:
            self._report(self._watched.runs(CLAIMS))
            await self._clock.sleep(_POLL)

    def _observe(self, lease: Lease | None) -> None:
        self._watched.observe(lease)
        self._report(self._watched.runs(CLAIMS))


@dataclass(frozen=True, slots=True)
class SeenLease:
    """A Lease that was read once: whether its holder is at work, and the Lease itself; None where there is none."""

    at_work: bool = False
    lease: Lease | None = None

    def runs(self, reconciler: str) -> bool:
        """Whether its holder is at work, and runs a reconciler."""
        return self.at_work and (self.lease is None or self.lease.lists(reconciler))


async def read_lease(client: Client, namespace: str, clock: Clock) -> SeenLease:
    """Read the controller's Lease in a namespace; raises `ApiError` where it may not be read."""
    path = path_of(API_VERSION, "leases", namespace=namespace, name=CONTROLLER)
    try:
        first = Lease.read(await client.get(path))
        if not first.holder or _renewed_lately(first, clock.wall()):
            return SeenLease(bool(first.holder), first)
        for _ in range(_MORE_READS):
            await clock.sleep(1.0)
            again = Lease.read(await client.get(path))
            if again.beat != first.beat:
                return SeenLease(bool(again.holder), again)
    except ApiError as error:
        if not error.is_not_found:
            raise
        return SeenLease()
    return SeenLease(lease=first)


async def controller_at_work(client: Client, namespace: str) -> bool | None:
    """Whether the controller makes claims, by its Lease in a namespace; None where the Lease may not be read."""
    try:
        return (await read_lease(client, namespace, client.clock)).runs(CLAIMS)
    except ApiError as error:
        if not error.is_forbidden:
            raise
        return None


def controller_in(leases: Iterable[bytes]) -> bool | None:
    """Whether the controller makes claims by Leases from files, which no clock goes with: it names a holder; None without it."""
    found = [one for one in map(Lease.read, leases) if one.name == CONTROLLER]
    return any(one.holder and one.lists(CLAIMS) for one in found) if found else None


def _renewed_lately(lease: Lease, wall: float) -> bool:
    renewed = seconds(lease.renewed)
    return renewed is not None and wall - renewed < lease.seconds
