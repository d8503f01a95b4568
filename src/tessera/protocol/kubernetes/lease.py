"""A Lease: how one process shows all others that it is at work (`coordination.k8s.io/v1`)."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from tessera.protocol.kubernetes.objects import Metadata, Part, decoder

API_VERSION: Final = "coordination.k8s.io/v1"
# Which reconcilers its holder runs, on the controller's Lease: "claims,patience". A controller of before wrote none, and had one.
RECONCILERS_ANNOTATION: Final = "tessera.dev/reconcilers"
_BEFORE: Final = ("claims",)
# that a Lease is believed without a change, whatever it says; the controller's has 15
_MOST_SECONDS: Final = 60


class _SpecIn(Part):
    holder_identity: str = ""
    lease_duration_seconds: int = 0
    acquire_time: str = ""
    renew_time: str = ""
    lease_transitions: int = 0


class _LeaseIn(Part):
    metadata: Metadata = msgspec.field(default_factory=Metadata)
    spec: _SpecIn = msgspec.field(default_factory=_SpecIn)


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
    reconcilers: tuple[str, ...] | None = None  # that its holder runs; None: it does not say

    @classmethod
    def read(cls, raw: bytes) -> "Lease":
        """A Lease from its JSON."""
        one = _decode(raw)
        spec = one.spec
        runs = (one.metadata.annotations or {}).get(RECONCILERS_ANNOTATION)
        return cls(
            one.metadata.name,
            one.metadata.resource_version,
            spec.holder_identity,
            min(spec.lease_duration_seconds, _MOST_SECONDS),
            spec.acquire_time,
            spec.renew_time,
            spec.lease_transitions,
            None if runs is None else tuple(filter(None, runs.split(","))),
        )

    @property
    def beat(self) -> tuple[str, str, int]:
        """What changes as long as its holder is at work, or another takes over."""
        return self.holder, self.renewed, self.transitions

    def lists(self, reconciler: str) -> bool:
        """Whether its holder runs a reconciler, while it is at work; one that does not say is of before there were others."""
        return reconciler in (_BEFORE if self.reconcilers is None else self.reconcilers)

    def document(self, namespace: str) -> dict[str, Any]:
        """The Lease as JSON; with its version, a write fails when another was first."""
        version = {"resourceVersion": self.version} if self.version else {}
        runs = self.reconcilers
        annotations = {} if runs is None else {"annotations": {RECONCILERS_ANNOTATION: ",".join(runs)}}
        spec = _SpecIn(self.holder, self.seconds, self.acquired, self.renewed, self.transitions)
        return {
            "apiVersion": API_VERSION,
            "kind": "Lease",
            "metadata": {"name": self.name, "namespace": namespace, **version, **annotations},
            "spec": msgspec.to_builtins(spec),
        }

    def held(self, holder: str, seconds: int, wall: float) -> "Lease":
        """The Lease renewed, or taken over."""
        now = datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        renewed = replace(self, holder=holder, seconds=seconds, renewed=now)
        if holder == self.holder:
            return renewed
        return replace(renewed, acquired=now, transitions=self.transitions + (1 if self.version else 0))
