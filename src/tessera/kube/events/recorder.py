"""Writes events beside everything else: a queue that never blocks, and one task that empties it."""

import asyncio
import logging
from collections import deque
from typing import Any, Final

from tessera.kube.errors import ApiError, KubeError
from tessera.kube.events.correlator import Correlator, Event, Written
from tessera.kube.failures import CONFLICTS, Once, Retries
from tessera.kube.rest.client import Client
from tessera.kube.rest.paths import path_of
from tessera.protocol.kubernetes.objects import moment

log = logging.getLogger(__name__)

RESULTS: Final = ("written", "limited", "full", "failed")

_MOST_WAITING: Final = 1000  # events; each about 1 KiB at most
# Events that are handled before the task rests, and for how many seconds. Each takes some 4 µs, if it is not written: so a flood
# of them takes a hundredth of a processor, whatever else the process does.
_AT_ONCE: Final = 32
_REST: Final = 0.01
_LIVE: Final = 3600.0  # seconds for which the API server keeps an event, by default
_SECONDS: Final = 10.0  # for one write; an API server that is busy for longer has better things to do
# Events about what has no namespace live in this one, as the kubelet's do: `kubectl describe node` looks everywhere.
_CLUSTER_NAMESPACE: Final = "default"


class Recorder:
    """Events of one component; what became of them is in `counts`.

    `counts_up`: the same event again is counted in the one that was written, which takes the right to patch events. Without it,
    the same event is written once an hour.
    """

    def __init__(self, client: Client, component: str, *, instance: str = "", counts_up: bool = True) -> None:
        self.counts: dict[tuple[str, ...], int] = {(result,): 0 for result in RESULTS}
        self._client = client
        self._component = component
        self._instance = instance
        self._counts_up = counts_up
        self._clock = client.clock
        self._correlator = Correlator()
        self._waiting: deque[Event] = deque()
        self._recorded = asyncio.Event()
        self._once = Once()
        self._conflicts = Retries(client.clock.now, *CONFLICTS)  # of events that were written before

    def record(self, event: Event) -> None:
        """Write this when there is time; it is dropped when too many wait. Never blocks, never raises."""
        if not self.is_full():
            self._waiting.append(event)
            self._recorded.set()

    def is_full(self) -> bool:
        """Whether too many wait, so that one more is dropped: it is counted, and need not even be made."""
        full = len(self._waiting) >= _MOST_WAITING
        if full:
            self._count("full")
        return full

    async def run(self) -> None:
        """Write until cancelled; what waits then is lost."""
        handled = 0
        while True:
            await self._recorded.wait()
            self._recorded.clear()
            self._conflicts.forget_old()
            while self._waiting:
                written = self._correlator.correlate(self._waiting.popleft(), self._clock.wall())
                if written is not None and not (self._counts_up or written.is_new):
                    old = written.last - written.first >= _LIVE
                    written = self._correlator.forget(written) if old else None
                if written is None or not self._conflicts.is_due(written.key):
                    self._count("limited")
                else:
                    await self._write(written)
                handled += 1
                if handled % _AT_ONCE == 0:
                    await self._clock.sleep(_REST)

    async def _write(self, written: Written) -> None:
        try:
            async with asyncio.timeout(_SECONDS):
                await self._send(written)
        except (KubeError, TimeoutError) as error:
            self._correlator.lost(written)
            self._count("failed")
            if self._once.begin(str(error)):
                log.warning("an event could not be written: %s", error)
            return
        self._once.end()
        self._count("written")

    async def _send(self, written: Written) -> None:
        namespace = written.event.about.namespace or _CLUSTER_NAMESPACE
        if not written.is_new:
            path = path_of("v1", "events", namespace=namespace, name=written.name)
            patch = {
                "count": written.count,
                "lastTimestamp": moment(written.last),
                "message": written.event.message,
            }
            try:
                await self._client.patch(path, patch)
            except ApiError as error:
                if not error.is_not_found:
                    self._conflicts.put_off(written.key)
                    raise
                written = self._correlator.forget(written)
            else:
                self._conflicts.forget(written.key)
                return
        await self._client.create(path_of("v1", "events", namespace=namespace), self._document(written))

    def _document(self, written: Written) -> dict[str, Any]:
        event, about = written.event, written.event.about
        involved = {"apiVersion": about.api_version, "kind": about.kind, "name": about.name, "uid": about.uid}
        namespace = {"namespace": about.namespace} if about.namespace else {}
        host = {"host": self._instance} if self._instance else {}
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": written.name, "namespace": about.namespace or _CLUSTER_NAMESPACE},
            "involvedObject": {**involved, **namespace},
            "type": event.type,
            "reason": event.reason,
            "message": event.message,
            "source": {"component": self._component, **host},
            "reportingComponent": self._component,
            "reportingInstance": self._instance,
            "firstTimestamp": moment(written.first),
            "lastTimestamp": moment(written.last),
            "count": written.count,
        }

    def _count(self, result: str) -> None:
        self.counts[(result,)] += 1
