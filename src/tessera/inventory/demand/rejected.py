"""Workloads whose pods the webhook rejects, because no node offers the MIG devices that they ask for.

A controller that cannot create a pod reports an Event `FailedCreate`, and again at each attempt. These Events say whose pods were
rejected, and why. Then only those kinds are read, in those namespaces. Objects in files may have the condition `ReplicaFailure` instead.
Pods that are rejected for another reason, such as a quota or another webhook, are no demand for a layout.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from tessera.core.planning.demand import RejectedPods
from tessera.kube.clock import SYSTEM_CLOCK, Clock
from tessera.kube.errors import ApiError
from tessera.kube.rest.paths import collection
from tessera.kube.watch.resource import FAILED_CREATES, Resource
from tessera.kube.watch.table import Table, TableEntry
from tessera.protocol.kubernetes.controllers import (
    FAILED_CREATE,
    EventIn,
    Workload,
    decode_event,
    decode_workload,
    denial_in,
    latest_refusal,
)
from tessera.protocol.kubernetes.pod import decode_maker, pod_use_of

if TYPE_CHECKING:
    from tessera.kube.rest.client import Client

T = TypeVar("T")

# Whose pods are counted. A Deployment's are its ReplicaSet's; those of a DaemonSet are bound to nodes, and never rejected.
_KINDS: Final = frozenset({"ReplicaSet", "ReplicationController", "StatefulSet", "Job"})
_DEPLOYMENT: Final = "Deployment"


class Who(NamedTuple):
    """A workload."""

    kind: str
    namespace: str
    name: str


@dataclass(slots=True)
class RejectedWorkloads:
    """What was found of them."""

    found: list[RejectedPods] = field(default_factory=list)
    unseen: str = ""  # why it is not known

    async def read(self, client: "Client", clock: Clock = SYSTEM_CLOCK) -> None:
        """Ask an API server. What may not be read is told; the rest counts."""
        from tessera.kube.watch.listing import list_all

        async def listed(resource: Resource, read: Callable[[bytes], T]) -> list[T]:
            try:
                return await list_all(client, resource, read, odd={})
            except ApiError as error:
                if not error.is_absent:
                    raise
                self.unseen = self.unseen or str(error)
                return []

        self.unseen = ""
        told = _latest(await listed(FAILED_CREATES, decode_event), clock.wall())
        asked = {(who.kind, who.namespace) for who, why in told.items() if _is_demand(why.last.message)}
        found = [
            one
            for kind, namespace in sorted(asked)
            for one in await listed(Resource(kind, collection(kind, namespace)), _reading(kind, told))
        ]
        self.found = [one for one in found if one is not None]


class RejectedFiles:
    """The same from objects in files, each of which counts once."""

    def __init__(self) -> None:
        self._events: list[EventIn] = []
        self._workloads: dict[Who, tuple[Workload, bytes]] = {}

    def table(self) -> Table:
        """How the objects are taken."""
        workloads = {
            Resource(kind, collection(kind, ""), kind=kind): TableEntry(
                _read_workload, partial(self._put_workload, kind)
            )
            for kind in (*_KINDS, _DEPLOYMENT)
        }
        return {FAILED_CREATES: TableEntry(decode_event, self._events.append), **workloads}

    def rejected(self) -> Iterator[RejectedPods]:
        """What was found, when all objects are taken."""
        # what was saved was saved at one time: the last event tells when
        told = _latest(self._events, max((one.last_seen or 0.0 for one in self._events), default=0.0))
        owned = {owner for who, (state, _) in self._workloads.items() if (owner := _owner(who, state)) != who}
        for who, (state, raw) in self._workloads.items():
            if who not in owned and (one := _rejected(who, state, raw, told)):
                yield one

    def _put_workload(self, kind: str, read: tuple[Workload, bytes]) -> None:
        metadata = read[0].metadata
        self._workloads[Who(kind, metadata.namespace, metadata.name)] = read


def _read_workload(raw: bytes) -> tuple[Workload, bytes]:
    return decode_workload(raw), raw


class Told(NamedTuple):
    """What a controller says that cannot create a pod."""

    last: EventIn
    since: str  # when it first said that it is for GPUs that no node offers, as far as it is still known


def _latest(events: Iterable[EventIn], now: float) -> dict[Who, Told]:
    """The last word of each controller that could not create a pod of late."""
    by: dict[Who, list[EventIn]] = {}
    for one in events:
        about = one.involved_object
        if one.reason == FAILED_CREATE and about.kind in _KINDS:
            space = about.namespace or one.metadata.namespace
            by.setdefault(Who(about.kind, space, about.name), []).append(one)
    found = {}
    for who, some in by.items():
        if (last := latest_refusal(some, now)) is not None:
            first = (one.metadata.creation_timestamp or "" for one in some if _is_demand(one.message))
            found[who] = Told(last, min(first, default=""))
    return found


def _reading(kind: str, told: Mapping[Who, Told]) -> Callable[[bytes], RejectedPods | None]:
    def read(raw: bytes) -> RejectedPods | None:
        state = decode_workload(raw)
        return _rejected(Who(kind, state.metadata.namespace, state.metadata.name), state, raw, told)

    return read


def _is_demand(message: str) -> bool:
    """Whether a pod was rejected for GPUs that no node offers."""
    denial = denial_in(message)
    return denial is not None and bool(denial.wanted)


def _rejected(who: Who, state: Workload, raw: bytes, told: Mapping[Who, Told]) -> RejectedPods | None:
    event, uid = told.get(who), state.metadata.uid
    if event is not None and event.last.involved_object.uid not in ("", uid):
        event = None  # of an earlier one of its name
    if not state.missing or not _is_demand(event.last.message if event else state.failure):
        return None
    owner = _owner(who, state)
    use = replace(
        pod_use_of(decode_maker(raw).spec.template, lambda _: True, where=lambda _: True),
        namespace=who.namespace,
        name=f"{owner.kind.lower()}/{owner.name}",
        # its pods wait since they are rejected: a workload that is a year old may have been scaled up just now
        created=max(state.metadata.creation_timestamp or "", event.since if event else ""),
        rejected=True,
    )
    return RejectedPods(use, state.missing)


def _owner(who: Who, state: Workload) -> Who:
    """The Deployment of a ReplicaSet; any other is what people know it by."""
    by = state.metadata.controller
    return Who(by.kind, who.namespace, by.name) if by is not None and by.kind == _DEPLOYMENT else who
