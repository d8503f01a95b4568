"""A Lease: how one process tells all others that it is at work (`coordination.k8s.io/v1`).

Clocks of two machines differ. So a Lease counts as held for as long as it keeps changing, by the clock of who looks
(as in client-go's leader election); what its times say matters to no decision.
"""

import asyncio
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from tessera.kube.clock import SYSTEM_CLOCK, Clock
from tessera.kube.rest.client import Client
from tessera.kube.rest.paths import path_of
from tessera.kube.watch.follow import Follower
from tessera.kube.watch.resource import Resource, Sink
from tessera.protocol.kubernetes.objects import decoder

API_VERSION: Final = "coordination.k8s.io/v1"
CONTROLLER: Final = "tessera-controller"  # the Lease of the controller, in its own namespace
_LOOK: Final = 1.0  # seconds between two looks at the clock
_MOST_SECONDS: Final = (
    60  # that a Lease is believed without a change, whatever it says; the controller's has 15
)


class _MetaIn(msgspec.Struct, gc=False):
    name: str = ""
    resourceVersion: str = ""  # noqa: N815 # as in the API


class _SpecIn(msgspec.Struct, gc=False):
    holderIdentity: str | None = None  # noqa: N815
    leaseDurationSeconds: int | None = None  # noqa: N815
    acquireTime: str | None = None  # noqa: N815
    renewTime: str | None = None  # noqa: N815
    leaseTransitions: int | None = None  # noqa: N815


class _LeaseIn(msgspec.Struct, gc=False):
    metadata: _MetaIn = msgspec.field(default_factory=_MetaIn)
    spec: _SpecIn | None = None


_decode: Final = decoder(_LeaseIn)


@dataclass(frozen=True, slots=True)
class Lease:
    """A Lease as the API server has it."""

    name: str
    version: str = ""
    holder: str = ""
    seconds: int = 0  # for which it holds once it was renewed
    acquired: str = ""
    renewed: str = ""
    transitions: int = 0  # how often the holder has changed

    @classmethod
    def read(cls, raw: bytes) -> "Lease":
        """A Lease from its JSON."""
        one = _decode(raw)
        spec = one.spec or _SpecIn()
        return cls(
            one.metadata.name,
            one.metadata.resourceVersion,
            spec.holderIdentity or "",
            min(spec.leaseDurationSeconds or 0, _MOST_SECONDS),
            spec.acquireTime or "",
            spec.renewTime or "",
            spec.leaseTransitions or 0,
        )

    @property
    def beat(self) -> tuple[str, str, int]:
        """What changes as long as its holder is at work, or another takes over."""
        return self.holder, self.renewed, self.transitions

    def document(self, namespace: str) -> dict[str, Any]:
        """The Lease as JSON; with its version, a write fails when another was first."""
        version = {"resourceVersion": self.version} if self.version else {}
        return {
            "apiVersion": API_VERSION,
            "kind": "Lease",
            "metadata": {"name": self.name, "namespace": namespace, **version},
            "spec": {
                "holderIdentity": self.holder,
                "leaseDurationSeconds": self.seconds,
                "acquireTime": self.acquired,
                "renewTime": self.renewed,
                "leaseTransitions": self.transitions,
            },
        }

    def held(self, holder: str, seconds: int, wall: float) -> "Lease":
        """The Lease renewed, or taken over."""
        now = datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        renewed = replace(self, holder=holder, seconds=seconds, renewed=now)
        if holder == self.holder:
            return renewed
        return replace(renewed, acquired=now, transitions=self.transitions + (1 if self.version else 0))


class Watched:
    """A Lease as one process sees it: held while it keeps changing."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK, *, at_first: bool = True) -> None:
        """Watch a Lease; `at_first`: one that is seen for the first time counts as just renewed, else not at all."""
        self.lease: Lease | None = None
        self._clock = clock
        self._at_first = at_first
        self._since = 0.0

    def see(self, lease: Lease | None) -> None:
        """This is how it is now."""
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


class LeaseFollower(Follower):
    """Follows a Lease, and tells whether its holder is at work whenever that changes."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        name: str,
        tell: Callable[[bool], object],
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        path = path_of(API_VERSION, "leases", namespace=namespace)
        resource = Resource("leases", path, fields=f"metadata.name={name}", optional=True)
        sink = Sink(Lease.read, self._replace, self._see, lambda _: self._see(None))
        super().__init__(client, {resource: sink}, clock=clock)
        # one that was left behind is not at work; one that is renews it two seconds later
        self._watched = Watched(clock, at_first=False)
        self._clock = clock
        self._tell = tell

    async def run(self) -> None:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(super().run())
            tasks.create_task(self._looking())

    async def _looking(self) -> None:
        while True:
            self._tell(self._watched.is_held)
            await self._clock.sleep(_LOOK)

    def _replace(self, found: Iterable[Lease]) -> None:
        self._see(next(iter(found), None))

    def _see(self, lease: Lease | None) -> None:
        self._watched.see(lease)
        self._tell(self._watched.is_held)
