"""Pods on their way into the view of what is free: only where the configuration asks for it, and we may read them.

Where we may not, decisions are as without it, and a warning is logged.
"""

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from tessera.core.admission.view.free import FreeIndex
from tessera.core.admission.view.offers import Offers
from tessera.core.admission.view.pods import Shape, ViewedPod, WaitingPod, without_place
from tessera.core.devices.followed import MOST_STATED, place_bytes
from tessera.core.kubernetes.pod import Pod
from tessera.kube.clock import Clock
from tessera.kube.watch.follow import Follower
from tessera.kube.watch.table import UNFINISHED_PODS, Key, Table, TableEntry
from tessera.protocol.admission.viewed_pod import forget_templates, read_viewed_pod

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
