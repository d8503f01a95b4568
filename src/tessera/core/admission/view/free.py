"""What is free in a cluster: allocatable, less bound pods, less rooms. The follower of pods writes them here, beside the offers.

There is no clock here: who writes says what time it is, in seconds of any clock that only grows.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Final

from tessera.core.admission.limits import BeyondLimits
from tessera.core.admission.view.free_nodes import FreeNodes
from tessera.core.admission.view.pods import (
    BoundPod,
    Origin,
    Shape,
    Usage,
    ViewedPod,
    WaitingPod,
    gpus_of,
    usage_of,
)
from tessera.core.admission.view.rooms import Rooms
from tessera.core.admission.view.usable import Column, OfferColumns
from tessera.core.admission.view.view import ClusterView
from tessera.core.kubernetes.blocked import Block
from tessera.core.kubernetes.node import Node, Offer
from tessera.core.kubernetes.pod import Pod

RESERVED: Final = 10.0  # seconds until a pod that was admitted must have been seen
_RESERVATION: Final = " reservation "  # begins the names of their rooms; no pod is called so

_Admitted = tuple[Origin, Usage]  # by which a pod is known that was admitted


class FreeIndex:
    """What is free on every node with GPUs, in the bits of a view."""

    def __init__(self, view: ClusterView, transient: tuple[str, ...] = ()) -> None:
        """Begin without pods and nodes; `transient` are taints that pass, beside those of Kubernetes and autoscalers."""
        self._view = view
        self._transient = transient
        self._nodes = FreeNodes(transient)
        self._rooms = Rooms(self._nodes, self._where)
        self.pods: dict[str, ViewedPod] = {}
        self.partial = 0  # how many of them have more than is counted
        self._held = 0  # how many of them are held
        self._reserved: dict[_Admitted, list[str]] = {}  # the rooms of pods just admitted, oldest first
        self._until: dict[str, tuple[float, _Admitted]] = {}  # until when, oldest first
        self._unseen: dict[str, Counter[str]] = {}  # their GPUs, by namespace
        self._number = 0
        self._now = 0.0
        self._is_lent = False  # a pod's own place is given back for a moment: no other pod is offered it

    # What decisions read

    @property
    def columns(self) -> OfferColumns:
        """The GPU resources that are free."""
        return self._nodes.columns

    @property
    def others(self) -> dict[str, Column]:
        """What is free of the resources that fallback does not look at."""
        return self._nodes.others

    def settle(self, namespace: str = "") -> None:
        """Bring everything up to date, before it is read: as a namespace sees it."""
        if not self._is_lent:
            self._rooms.settle(self._now)
        self._nodes.look_as(namespace)
        self._nodes.refresh()

    @contextmanager
    def without_room(self, key: str) -> Iterator[None]:
        """For a decision about a pod that is there: its own room does not count, or what it has taken of its node."""
        self.settle()
        nodes, holder, pod, freed = (
            self._nodes,
            self._rooms.holders.get(key),
            self.pods.get(key),
            self._nodes.freed,
        )
        if isinstance(pod, BoundPod):
            give_back, take = (
                partial(nodes.unbind, pod.node, pod.usage),
                partial(nodes.bind, pod.node, pod.usage),
            )
        elif holder is not None and holder.node:
            room = holder.node, holder.group.shape.usage, holder.space
            give_back, take = partial(nodes.give_back, *room), partial(nodes.keep, *room)
        else:
            yield
            return
        give_back()
        nodes.freed, self._is_lent = freed, True
        try:
            yield
        finally:
            self._is_lent = False
            take()

    def has_room(self, pod: Pod) -> bool:
        """Whether one node that a pod can use has all that it asks for free."""
        self.settle()
        return self._nodes.first(self._where(pod), usage_of(pod), pod.namespace) is not None

    # What is shown

    @property
    def reservations(self) -> int:
        return len(self._until)

    @property
    def waiting(self) -> int:
        """How many pods wait for a node, and may have one."""
        return len(self._rooms.holders) - len(self._until)

    @property
    def rooms(self) -> int:
        """How many of these have room."""
        return self._rooms.kept

    @property
    def own_rooms(self) -> int:
        """How many rooms count against their own namespace alone."""
        return self._rooms.shares.own

    @property
    def blocked(self) -> dict[Block, int]:
        """How many pods wait for something else."""
        return {**dict.fromkeys(Block, 0), **self._rooms.blocked, Block.HELD: self._held}

    def block_of(self, key: str) -> Block | None:
        """Why a pod waits for something else; None: it does not."""
        pod, holder = self.pods.get(key), self._rooms.holders.get(key)
        if isinstance(pod, WaitingPod) and pod.held:
            return Block.HELD
        return None if holder is None else holder.block

    def block_by_times(self, wall: float) -> None:
        """Block pods by their own times, for a command that looks once; `wall` is Unix time."""
        self._rooms.block_by_times(wall, self._judged_at)

    def _judged_at(self, key: str) -> float | None:
        pod = self.pods.get(key)
        return pod.judged if isinstance(pod, WaitingPod) else None

    def room_of(self, key: str) -> str:
        """The node on which a pod has room; empty: it has none."""
        self.settle()
        holder = self._rooms.holders.get(key)
        return "" if holder is None else holder.node

    # Nodes, by the offers that this belongs to

    def put_node(self, node: Node, bit: int, offer: Offer, others: Mapping[str, int]) -> None:
        self._nodes.put(node.name, bit, node, offer, others)
        self._rooms.node_changed(node.name)

    def remove_node(self, name: str) -> None:
        if name in self._nodes:
            self._rooms.node_gone(name)
            self._nodes.remove(name)

    # Pods

    def put_pod(self, key: str, pod: ViewedPod, now: float) -> None:
        """A pod that is not over is new or changed; `key` is its namespace and name."""
        self._now = now
        before = self.pods.get(key)
        if before == pod:
            return
        if before is None and self._reserved and pod.origin is not None:
            self._drop_first(pod.origin, gpus_of(pod.usage))
        if isinstance(before, WaitingPod) and isinstance(pod, WaitingPod) and _is_only_judged(before, pod):
            self.pods[key] = pod
            if not pod.held:
                self._rooms.judge(key, pod.verdict, now)
            return
        if before is not None:
            if isinstance(pod, BoundPod):
                self._rooms.take_bound(key, pod.node, now)
            self._forget(key, before)
        self.pods[key] = pod
        self.partial += pod.is_partial
        if isinstance(pod, BoundPod):
            self._nodes.bind(pod.node, pod.usage)
            if pod.node in self._nodes:
                self._rooms.make_fit(pod.node)
        elif pod.held:
            self._held += 1
        else:
            space = pod.origin.namespace
            self._rooms.add(key, space, pod.shape, pod.priority, pod.created, now, pod.verdict)

    def remove_pod(self, key: str) -> None:
        """A pod is gone, or over; one that is not known is none of those that count."""
        before = self.pods.pop(key, None)
        if before is not None:
            self._forget(key, before)

    def replace_pods(self, pods: Iterable[tuple[str, ViewedPod]], now: float) -> None:
        """Take a whole new list of pods: what is not in it is gone. Those that are bound come first, then by priority and age."""
        fresh = dict(pods)
        for key in [key for key in self.pods if key not in fresh]:
            self.remove_pod(key)
        waiting = []
        for key, pod in fresh.items():
            if isinstance(pod, BoundPod):
                self.put_pod(key, pod, now)
            else:
                waiting.append((-pod.priority, pod.created, key))
        for _, _, key in sorted(waiting):
            self.put_pod(key, fresh[key], now)

    def _forget(self, key: str, pod: ViewedPod) -> None:
        self.partial -= pod.is_partial
        if isinstance(pod, BoundPod):
            self._nodes.unbind(pod.node, pod.usage)
        elif pod.held:
            self._held -= 1
        else:
            self._rooms.drop(key)

    # Pods that were admitted here, and were not seen yet

    def reserve(self, pod: Pod, origin: Origin, now: float) -> None:
        """Keep room for a pod as it was admitted, until it is seen; but not for long."""
        self._let_go(now)
        shape = Shape.of(pod)
        if not shape.gpus:
            return
        self._number += 1
        key, known_by = f"{_RESERVATION}{self._number:012}", (origin, shape.gpus)
        self._reserved.setdefault(known_by, []).append(key)
        self._until[key] = now + RESERVED, known_by
        self._count(known_by, 1)
        self._rooms.add(key, origin.namespace, shape, pod.priority or 0, float("inf"), now)

    def admitted(self, namespace: str) -> dict[str, int]:
        """The GPUs of the pods of a namespace that were admitted here and were not seen yet: its quotas may not count them."""
        return dict(self._unseen.get(namespace, ()))

    def release(self, origin: Origin) -> None:
        """Give back what was reserved last for such a pod: it is decided about again, with more containers."""
        for key, (_, known_by) in reversed(self._until.items()):
            if known_by[0] == origin:
                self._drop_reservation(key)
                return

    def expire(self, now: float) -> None:
        """Let go what was kept for long enough; to be called every second or so."""
        self._let_go(now)
        self._rooms.expire(now)

    def _let_go(self, now: float) -> None:
        self._now = now
        while self._until:
            key, (until, _) = next(iter(self._until.items()))
            if until > now:
                break
            self._drop_reservation(key)

    def _drop_first(self, origin: Origin, gpus: Usage) -> None:
        keys = self._reserved.get((origin, gpus))
        if keys:
            self._drop_reservation(keys[0])

    def _drop_reservation(self, key: str) -> None:
        _, known_by = self._until.pop(key)
        keys = self._reserved[known_by]
        keys.remove(key)
        if not keys:
            del self._reserved[known_by]
        self._count(known_by, -1)
        self._rooms.drop(key)

    def _count(self, known_by: _Admitted, times: int) -> None:
        origin, gpus = known_by
        counted = self._unseen.get(origin.namespace)
        if counted is None:
            counted = self._unseen[origin.namespace] = Counter()
        for resource, amount in gpus:
            counted[resource] += times * (amount // 10**9)
        if not any(counted.values()):
            del self._unseen[origin.namespace]

    def _where(self, placement: Pod) -> int:
        try:
            return self._view.for_pod(placement, self._transient)
        except BeyondLimits:
            return 0


def _is_only_judged(before: WaitingPod, after: WaitingPod) -> bool:
    """Whether the scheduler's verdict alone is another one."""
    return (before.shape, before.priority, before.created, before.held) == (
        after.shape,
        after.priority,
        after.created,
        after.held,
    )
