"""The cluster as decisions see it, kept right by list and watch.

Reflectors change the view between two decisions, on the same thread: a decision sees one consistent state, and no
admission calls the API server. Updates that change nothing a decision reads, such as the heartbeats of nodes, leave
the view's version alone.

Pods on their way into the view of what is free: only where the configuration asks for it, and we may read them.

Where we may not, decisions are as without it, and a warning is logged.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Container, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final, NoReturn, Self

from tessera.core.admission.policy import FallbackPolicy
from tessera.core.admission.view.free import FreeIndex
from tessera.core.admission.view.offers import Offers
from tessera.core.admission.view.pods import Shape, ViewedPod, WaitingPod, without_place
from tessera.core.devices.followed import MOST_STATED, place_bytes
from tessera.core.dra.slices import Spots
from tessera.core.kubernetes.node import Node
from tessera.core.kubernetes.pod import Pod
from tessera.core.resources import is_any_gpu
from tessera.kube.clock import Clock
from tessera.kube.rest.client import Client
from tessera.kube.view.dra import DraObjects
from tessera.kube.view.grace import NodesWithGrace, mentions_gpus, missing_devices
from tessera.kube.watch.follow import Follower, check_readable, while_running
from tessera.kube.watch.reflector import Reflector
from tessera.kube.watch.table import (
    DEVICE_CLASSES,
    NAMESPACES,
    NODES,
    RESOURCE_QUOTAS,
    RESOURCE_SLICES,
    UNFINISHED_PODS,
    Key,
    Resource,
    Table,
    TableEntry,
    entry_by_key,
    entry_by_name,
)
from tessera.protocol.admission.viewed_pod import forget_templates, read_viewed_pod
from tessera.protocol.kubernetes import objects
from tessera.protocol.kubernetes.nodes import (
    NodeIn,
    decode_node,
    decode_quota,
    namespace_of,
    node_of,
    quota_of,
)

_log: Final = logging.getLogger("tessera.kube")
_PODS: Final = replace(UNFINISHED_PODS, optional=True)
_FORGET: Final = 30.0  # seconds between two looks at the caches of templates
_LIST_AGAIN: Final = 60.0  # seconds at least between two lists for pods that are followed in part

_Read = tuple[str, ViewedPod | None]


class PodFollower:
    """Follows the pods of a cluster into the offers' index of what is free."""

    def __init__(self, follower: Follower, offers: Offers, clock: Clock, transient: tuple[str, ...]) -> None:
        """`transient` are taints that pass, beside those of Kubernetes and autoscalers."""
        self._follower = follower
        self._offers = offers
        self._clock = clock
        self._transient = transient
        self._stated = frozenset[str]()  # what nodes state, by which pods are read
        self._is_outdated = False  # whether pods were listed before nodes stated some of it
        self._listed_again = -_LIST_AGAIN
        self._forgot = -_FORGET
        entry = TableEntry(self._read, self._put, self._delete, replace=self._replace).bounded(
            _key, _size, _without_place
        )
        self.table: Table = {_PODS: entry}
        follower.add(self.table)

    @property
    def unknown(self) -> str | None:
        """Why it is not known what is free; None where it is."""
        if absent := self._follower.absent(_PODS):
            return f"pods may not be read: {absent.removeprefix('pods: ')}"
        return "pods not listed yet" if self._follower.missing(self.table) else None

    def expire(self) -> None:
        """Let go what was kept for a while; list the pods again where more of some pod counts than when it was read."""
        if self._offers.free is not None:
            self._offers.free.expire(self._clock.now())
            self._follow_stated(self._offers.free)
        if self._clock.now() >= self._forgot + _FORGET:
            self._forgot = self._clock.now()
            forget_templates()

    def stop(self) -> None:
        """From now on it is not known what is free."""
        self._follower.drop(self.table)
        self._offers.forget_pods()

    def use_transient(self, transient: tuple[str, ...]) -> None:
        """Other taints pass from now on."""
        free = self._offers.free
        if transient != self._transient:
            self._transient = transient
            if free is not None:
                self._offers.follow_pods(transient).replace_pods(free.pods.items(), self._clock.now())

    def _follow_stated(self, free: FreeIndex) -> None:
        """Read pods by the resources that nodes state now."""
        stated, now = self._offers.stated(), self._clock.now()
        if not stated <= self._stated:
            together = stated | self._stated
            self._stated = together if len(together) <= MOST_STATED else stated
            self._is_outdated = True
        if self._is_outdated and now >= self._listed_again + _LIST_AGAIN:
            self._is_outdated = False
            if free.partial:
                self._listed_again = now
                self._follower.relist(_PODS, self.table)

    def _read(self, raw: bytes) -> _Read:
        return read_viewed_pod(raw, self._stated)

    def _replace(self, pods: Iterable[_Read]) -> None:
        if absent := self._follower.absent(_PODS):
            self._offers.forget_pods()
            _log.warning(
                "%s: not followed, so fallback goes by what nodes offer, not by what is free (fallback.when: missing): %s",
                *absent.split(": ", 1),
            )
            return
        free = self._offers.free or self._offers.follow_pods(self._transient)
        free.replace_pods(((key, pod) for key, pod in pods if pod is not None), self._clock.now())

    def _put(self, read: _Read) -> None:
        key, pod = read
        free = self._offers.free
        if free is None:
            return
        if pod is None:
            free.remove_pod(key)
        else:
            free.put_pod(key, pod, self._clock.now())

    def _delete(self, key: Key) -> None:
        if self._offers.free is not None:
            self._offers.free.remove_pod(f"{key.namespace}/{key.name}")


def _key(read: _Read) -> Key:
    return Key(*read[0].split("/", 1))


def _size(read: _Read) -> int:
    """About how many bytes it takes to keep where a pod may go."""
    pod = read[1]
    return place_bytes(pod.shape.placement) if isinstance(pod, WaitingPod) else 0


def _without_place(read: _Read) -> _Read:
    """The same pod, for which no room is kept."""
    key, pod = read
    if isinstance(pod, WaitingPod):
        pod = replace(pod, shape=Shape(Pod(), without_place(pod.usage)), held=True)
    return key, pod


Keep = Callable[[str], bool]

_TICK: Final = 1.0  # seconds between two checks of what is kept for a while


class LiveView:
    """Nodes, namespaces, their quotas, and what DRA serves, as the API server has them."""

    def __init__(
        self,
        client: Client,
        *,
        keep: Keep | None = is_any_gpu,
        first_sight: bool = True,
        follower: Follower | None = None,
    ) -> None:
        """Follow a cluster; `keep` says by which resources a node matters (None: all do).

        `first_sight`: what a node's labels or layout say, when it is first seen, counts for the grace. `follower`: the
        process has one for all who follow the cluster, and runs it.
        """
        self._client = client
        self._runs_follower = follower is None
        self.follower = Follower(client) if follower is None else follower
        self.offers = offers = Offers()
        self._keep = keep
        self._first_sight = first_sight
        self.dra = dra = DraObjects(self._dra_changed, self._read_slices)
        self._nodes = nodes = NodesWithGrace(offers, client.clock, dra.pools)
        self._classes: Table = {DEVICE_CLASSES: dra.classes()}
        self._others: Table = {
            NODES: TableEntry(self._read_node, nodes.put, nodes.delete, replace=nodes.replace),
            **spaces_table(offers),
        }
        self._slices: Table = {}  # while there is no class, slices say nothing
        self.pods: PodFollower | None = None  # None: what is free is not asked for
        self._pods_followed = asyncio.Event()
        self._reading = asyncio.Event()  # set when anything but classes is being read
        self._complete = False
        self.follower.add(self._classes)

    @asynccontextmanager
    async def following(self, *, complete: bool = True) -> AsyncIterator[Self]:
        """Follow: complete when this begins, unless the caller waits itself, and right until it ends."""
        if complete:
            await check_readable(self._client, (NODES, NAMESPACES))
        async with while_running(self.run()):
            if complete:
                await self.synced()
            yield self

    async def run(self) -> None:
        """Follow the cluster until cancelled: first the classes, by which nodes and slices are read."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._nodes.run())
            tasks.create_task(self._expire_pods())
            if self._runs_follower:
                tasks.create_task(self.follower.run())
            await self.follower.synced(self._classes)
            if not self._reading.is_set():
                self.follower.add(self._others)
                self._reading.set()

    @property
    def table(self) -> Table:
        """All that it follows now, or will when the classes are there."""
        pods = {} if self.pods is None else self.pods.table
        return {**self._others, **self._classes, **pods, **self._slices}

    @property
    def reflectors(self) -> list[Reflector]:
        """What it reads."""
        every = self.follower.reflectors
        return [one for resource in self.table for one in every if one.follows(resource)]

    async def synced(self) -> None:
        """Wait until everything has been listed once."""
        await self._reading.wait()
        await self.follower.synced(self.table)

    def missing(self) -> str | None:
        """What keeps the view from being complete; once it is, the first class that comes later does not make it less."""
        if self._complete:
            return None
        waiting = [] if self._reading.is_set() else [f"{one.name} not listed yet" for one in self._others]
        problems = [*waiting, self.follower.missing(self.table)]
        problem = "; ".join(filter(None, problems)) or None
        self._complete = problem is None
        return problem

    def follow_pods(self, transient: tuple[str, ...] | None = ()) -> None:
        """Know what is free from now on, once the pods are listed; or no longer (None).

        `transient` are taints that pass, beside those of Kubernetes and autoscalers.
        """
        if self.pods is not None and transient is not None:
            self.pods.use_transient(transient)
        elif self.pods is not None:
            self.pods.stop()
            self.pods = None
            self._pods_followed.clear()
        elif transient is not None:
            from tessera.kube.view.live import PodFollower  # by few: others do not pay for it

            self.pods = PodFollower(self.follower, self.offers, self._client.clock, transient)
            self._pods_followed.set()

    @property
    def follows_pods(self) -> bool:
        return self.pods is not None

    async def _expire_pods(self) -> NoReturn:
        while True:
            await self._pods_followed.wait()
            await self._client.clock.sleep(_TICK)
            if self.pods is not None:
                self.pods.expire()

    def configure(self, policy: FallbackPolicy) -> None:
        """Keep what is gone from a node for as long as the operator says; follow pods where it matters what is free."""
        self._nodes.grace = policy.grace
        self.follow_pods(policy.transient_taints if policy.full_enabled else None)

    def _read_node(self, raw: bytes) -> Node:
        """A node; once there are classes, DRA may serve anything on any node, so all of them matter."""
        keep = None if self._slices else self._keep
        return read_node(raw, keep, self.offers.nodes if self._first_sight else None)

    def _read_slices(self) -> None:
        """Classes read more than the slices were read for; with the first class, slices are followed."""
        if self._slices:
            self.follower.relist(RESOURCE_SLICES, self._slices)
            return
        self._slices = {RESOURCE_SLICES: self.dra.slices()}
        self.follower.add(self._slices)
        if self._keep is not None and self._reading.is_set():  # of some nodes the name alone was read
            self.follower.relist(NODES, self._others)

    def _dra_changed(self, concerned: Spots) -> None:
        if None in concerned:  # classes, too
            self.offers.put_classes(self.dra.pools.serving, self.dra.pools.classes)
        self._nodes.refresh(concerned)


def read_node(raw: bytes, keep: Keep | None = None, known: Container[str] | None = None) -> Node:
    """A node; `keep` says which resources make one matter. Of a node that has none of them the name is enough.

    Devices that labels or layout of a node give it, and that it does not offer, are unavailable where the node is not among the
    `known`: they may be back in a moment.
    """
    one = decode_node(raw)
    if keep is not None and not _has_any(one, keep):
        return Node(one.metadata.name)
    node = node_of(one)
    if known is not None and node.name not in known and (lacking := missing_devices(one, node)):
        return replace(node, unavailable={**lacking, **node.unavailable})
    return node


def _has_any(node: NodeIn, keep: Keep) -> bool:
    """Whether a node has, had, or is labelled to have something that matters."""
    status = node.status
    return mentions_gpus(node) or any(
        keep(resource) for amounts in (status.allocatable, status.capacity) for resource in amounts or ()
    )


def spaces_table(offers: Offers, namespace: str = "") -> dict[Resource, TableEntry[Any]]:
    """How offers take namespaces and their quotas. `namespace` is that of quotas that name none."""
    return {
        NAMESPACES: entry_by_name(
            lambda raw: namespace_of(objects.decode_any(raw)),
            offers.put_namespace,
            offers.remove_namespace,
            key=lambda space: space.name,
            known=lambda: offers.namespaces,
        ),
        RESOURCE_QUOTAS: entry_by_key(
            lambda raw: quota_of(decode_quota(raw), namespace),
            offers.put_quota,
            lambda key: offers.remove_quota(*key),
            key=lambda quota: Key(quota.namespace, quota.name),
            known=lambda: [Key(space, one.name) for space, some in offers.quotas.items() for one in some],
        ),
    }
