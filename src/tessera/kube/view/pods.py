"""Pods on their way into the view of what is free: only where the configuration asks for it, and we may read them.

Where we may not, decisions are as without it, and a warning is logged.
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Final, NoReturn

from tessera.core.admission.view.offers import Offers
from tessera.core.admission.view.pods import ViewedPod
from tessera.kube.rest.client import Client
from tessera.kube.watch.reflector import Reflector
from tessera.kube.watch.resource import UNFINISHED_PODS, Key
from tessera.kube.watch.table import TableEntry
from tessera.protocol.admission.viewed_pod import read_viewed_pod

_log: Final = logging.getLogger("tessera.kube")
_PODS: Final = replace(UNFINISHED_PODS, optional=True)
_TICK: Final = 1.0  # seconds between two checks of what is kept for a while

_Read = tuple[str, ViewedPod | None]


class PodFollower:
    """Follows the pods of a cluster into the offers' index of what is free."""

    def __init__(self, client: Client, offers: Offers, transient: tuple[str, ...]) -> None:
        """`transient` are taints that pass, beside those of Kubernetes and autoscalers."""
        self._offers = offers
        self._clock = client.clock
        self._transient = transient
        self._stopped = False
        entry = TableEntry(read_viewed_pod, self._put, self._delete, replace=self._replace)
        self.reflector = Reflector(client, _PODS, entry)

    @property
    def unknown(self) -> str | None:
        """Why it is not known what is free; None where it is."""
        health = self.reflector.health
        if health.absent:
            return f"pods may not be read: {health.last_error}"
        return None if health.synced else "pods not listed yet"

    async def run(self) -> NoReturn:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.reflector.run())
            while True:
                await self._clock.sleep(_TICK)
                if self._offers.free is not None:
                    self._offers.free.expire(self._clock.now())

    def stop(self) -> None:
        """From now on it is not known what is free."""
        self._stopped = True
        self._offers.forget_pods()

    def use_transient(self, transient: tuple[str, ...]) -> None:
        """Other taints pass from now on."""
        free = self._offers.free
        if transient != self._transient:
            self._transient = transient
            if free is not None:
                self._offers.follow_pods(transient).replace_pods(free.pods.items(), self._clock.now())

    def _replace(self, pods: Iterable[_Read]) -> None:
        if self._stopped:
            return
        if self.reflector.health.absent:
            self._offers.forget_pods()
            _log.warning(
                "pods: not followed, so fallback goes by what nodes offer, not by what is free (fallback.when: missing): %s",
                self.reflector.health.last_error,
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
