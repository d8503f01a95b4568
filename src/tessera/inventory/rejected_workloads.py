"""Workloads whose pods the webhook rejects, because no node offers the MIG devices that they ask for.

A controller that cannot create a pod reports an Event `FailedCreate`, and again at each attempt. These Events say whose pods were
rejected, and why. Then only those kinds are read, in those namespaces. Objects in files may have the condition `ReplicaFailure` instead.
Pods that are rejected for another reason, such as a quota or another webhook, are no demand for a layout.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from tessera.core.planning.demand import RejectedPods
from tessera.kube.clock import SYSTEM_CLOCK, Clock
from tessera.kube.errors import ApiError
from tessera.kube.rest.client import collection
from tessera.kube.watch.table import FAILED_CREATES, Resource, Table, TableEntry
from tessera.protocol.kubernetes.controllers import (
    FAILED_CREATE,
    RECENT,
    EventIn,
    Workload,
    decode_event,
    decode_workload,
    denial_in,
)
from tessera.protocol.kubernetes.pod import decode_maker, pod_use_of

if TYPE_CHECKING:
    from tessera.kube.rest.client import Client

T = TypeVar("T")

# Whose pods are counted. A Deployment's are its ReplicaSet's; those of a DaemonSet are bound to nodes, and never rejected.
_KINDS: Final = frozenset({"ReplicaSet", "ReplicationController", "StatefulSet", "Job"})
_DEPLOYMENT: Final = "Deployment"
_MOST_WORKLOADS: Final = 1000  # of a namespace: as many as devices of it count (`MOST_MISSED`)
_LONGEST_NAME: Final = 253  # characters; an Event and an owner reference may name anything
_LONGEST_UID: Final = 64


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
        from tessera.kube.watch.listing import list_all, list_once

        refusals = _Refusals()

        async def listed(resource: Resource, read: Callable[[bytes], T]) -> list[T]:
            try:
                return await list_all(client, resource, read, odd={})
            except ApiError as error:
                if not error.is_absent:
                    raise
                self.unseen = self.unseen or str(error)
                return []

        self.unseen = ""
        try:
            await list_once(client, {FAILED_CREATES: refusals.entry()}, odd={})
        except ApiError as error:
            if not error.is_absent:
                raise
            self.unseen = str(error)
            refusals.clear()
        told = refusals.recent(clock.wall())
        asked = {(who.kind, who.namespace) for who, why in told.items() if why.is_demand}
        found = [
            one
            for kind, namespace in sorted(asked)
            for one in await listed(Resource(kind, collection(kind, namespace)), _reading(kind, told))
        ]
        self.found = [one for one in found if one is not None]


class RejectedFiles:
    """The same from objects in files, each of which counts once."""

    def __init__(self) -> None:
        self._refusals = _Refusals()
        self._workloads: dict[Who, tuple[Workload, bytes]] = {}

    def table(self) -> Table:
        """How the objects are taken."""
        workloads = {
            Resource(kind, collection(kind, ""), kind=kind): TableEntry(
                _read_workload, partial(self._put_workload, kind)
            )
            for kind in (*_KINDS, _DEPLOYMENT)
        }
        return {FAILED_CREATES: self._refusals.entry(), **workloads}

    def rejected(self) -> Iterator[RejectedPods]:
        """What was found, when all objects are taken."""
        # what was saved was saved at one time: the last event tells when
        told = self._refusals.recent(self._refusals.latest)
        owned = {owner for who, (state, _) in self._workloads.items() if (owner := _owner(who, state)) != who}
        for who, (state, raw) in self._workloads.items():
            if who not in owned and (one := _rejected(who, state, raw, told)):
                yield one

    def _put_workload(self, kind: str, read: tuple[Workload, bytes]) -> None:
        metadata = read[0].metadata
        self._workloads[Who(kind, metadata.namespace, metadata.name)] = read


def _read_workload(raw: bytes) -> tuple[Workload, bytes]:
    return decode_workload(raw), raw


class Refusal(NamedTuple):
    """What a controller last said that cannot create a pod, without its words."""

    owner: str  # the workload's uid
    seen: float | None
    is_demand: bool  # whether it is for GPUs that no node offers
    since: str | None  # when it first said that it is for such GPUs; None: it never did


class _Refusals:
    """Refusals by workload. Each Event is reduced while it is read: a tenant can write thousands, of a megabyte each."""

    def __init__(self) -> None:
        self.latest = 0.0  # when the last Event was reported
        self._by_workload: dict[Who, Refusal] = {}
        self._numbers = Counter[str]()  # of workloads, by namespace

    def entry(self) -> TableEntry[EventIn]:
        """How the Events are taken."""
        return TableEntry(decode_event, self._put, begin=self.clear)

    def clear(self) -> None:
        self.latest = 0.0
        self._by_workload.clear()
        self._numbers.clear()

    def _put(self, event: EventIn) -> None:
        about, seen = event.involved_object, event.last_seen
        self.latest = max(self.latest, seen or 0.0)
        if event.reason != FAILED_CREATE or about.kind not in _KINDS or len(about.name) > _LONGEST_NAME:
            return
        who = Who(about.kind, about.namespace or event.metadata.namespace, about.name)
        known = self._by_workload.get(who)
        if known is None:
            if self._numbers[who.namespace] >= _MOST_WORKLOADS:
                return
            self._numbers[who.namespace] += 1
        is_demand = _is_demand(event.message)
        since = known.since if known else None
        if is_demand:
            created = event.metadata.creation_timestamp or ""
            since = created if since is None else min(since, created)
        if known is None or (seen or 0.0) > (known.seen or 0.0):
            self._by_workload[who] = Refusal(about.uid[:_LONGEST_UID], seen, is_demand, since)
        else:
            self._by_workload[who] = known._replace(since=since)

    def recent(self, now: float) -> dict[Who, Refusal]:
        """The last refusal of each workload, without those after which the controller has stopped trying."""
        return {who: one for who, one in self._by_workload.items() if not one.seen or now - one.seen < RECENT}


def _reading(kind: str, told: Mapping[Who, Refusal]) -> Callable[[bytes], RejectedPods | None]:
    def read(raw: bytes) -> RejectedPods | None:
        state = decode_workload(raw)
        return _rejected(Who(kind, state.metadata.namespace, state.metadata.name), state, raw, told)

    return read


def _is_demand(message: str) -> bool:
    """Whether a pod was rejected for GPUs that no node offers."""
    denial = denial_in(message)
    return denial is not None and bool(denial.wanted)


def _rejected(who: Who, state: Workload, raw: bytes, told: Mapping[Who, Refusal]) -> RejectedPods | None:
    event, uid = told.get(who), state.metadata.uid
    if event is not None and event.owner not in ("", uid):
        event = None  # of an earlier one of its name
    is_demand = _is_demand(state.failure) if event is None else event.is_demand
    if not state.missing or not is_demand:
        return None
    owner = _owner(who, state)
    use = replace(
        pod_use_of(decode_maker(raw).spec.template, lambda _: True, where=lambda _: True),
        namespace=who.namespace,
        name=f"{owner.kind.lower()}/{owner.name[:_LONGEST_NAME]}",
        # its pods wait since they are rejected: a workload that is a year old may have been scaled up just now
        created=max(state.metadata.creation_timestamp or "", (event.since if event else None) or ""),
        rejected=True,
    )
    return RejectedPods(use, state.missing)


def _owner(who: Who, state: Workload) -> Who:
    """The Deployment of a ReplicaSet; any other is what people know it by."""
    by = state.metadata.controller
    return Who(by.kind, who.namespace, by.name) if by is not None and by.kind == _DEPLOYMENT else who
