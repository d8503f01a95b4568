"""Which events are written, and how: the rules of client-go (`tools/record/events_cache.go`), without its caches of objects.

The same event again is counted in the one that was written. Events that differ in their message alone are written one by one
up to ten in ten minutes, then in one that says so. And an object gets 25 writes at once, then one every five minutes: what is
beyond that is not written, and what was not written is in the count of the next. Memory is bounded: what did not happen for the
longest time is forgotten, and begins again.

Writes events beside everything else: a queue that never blocks, and one task that empties it.
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from tessera.kube.clock import CONFLICTS, Once, Retries
from tessera.kube.errors import ApiError, KubeError
from tessera.kube.rest.client import Client, path_of
from tessera.protocol.kubernetes.objects import moment

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

# client-go's defaults
_BURST: Final = 25.0
_SECONDS_PER_TOKEN: Final = 300.0
_MOST_SIMILAR: Final = 10
_SIMILAR_SECONDS: Final = 600.0
_COMBINED: Final = "(combined from similar events): "
# of objects, and of events; client-go has 4096. Some 300 bytes each: under 1 MiB together
_MOST_REMEMBERED: Final = 1024
_LONGEST_MESSAGE: Final = 1024  # bytes: the API server refuses longer notes in events.k8s.io
_LONGEST_NAME: Final = 253 - 1 - 16  # a name has 253 characters at most, and a part of its own behind a dot


class About(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """The object that an event is about: a key of all that is remembered, so its hash is worked out once."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""  # empty: it has none
    uid: str = ""


class Event(msgspec.Struct, frozen=True, gc=False):
    """Something that happened."""

    about: About
    reason: str  # one word in CamelCase
    message: str
    type: str = "Normal"  # or Warning


class Written(msgspec.Struct, frozen=True, gc=False):
    """An event as it is to be written: for the first time, or as one more of the one of this name."""

    event: Event
    key: Hashable  # by which the same event is known again
    name: str
    count: int
    first: float  # Unix time
    last: float

    @property
    def is_new(self) -> bool:
        """Whether nothing of that name was written yet."""
        return self.count == 1


class Correlator:
    """Remembers what was written lately."""

    def __init__(self, token: Callable[[], str] = lambda: secrets.token_hex(8)) -> None:
        self._token = token
        self._buckets: _Lately[About, tuple[float, float]] = _Lately()  # tokens, and when they were counted
        self._similar: _Lately[Hashable, tuple[float, dict[int, None]]] = _Lately()
        self._written: _Lately[Hashable, Written] = _Lately()

    def correlate(self, event: Event, now: float) -> Written | None:
        """What to write about one more event; None: nothing now."""
        message = _cut(event.message)
        group = (event.about, event.type, event.reason)
        key: Hashable = (group, hash(message))
        if self._are_many(group, hash(message), now):
            key = group
            message = _cut(_COMBINED + message)
        event = Event(event.about, event.reason, message, event.type)
        known, taken = self._written.get(key), self._take(event.about, now)
        if known is not None:  # counted, if not now then for the next time
            written = Written(event, key, known.name, known.count + 1, known.first, now)
        elif taken:
            name = f"{event.about.name[:_LONGEST_NAME]}.{self._token()}"
            written = Written(event, key, name, 1, now, now)
        else:  # what was never written cannot be counted up
            return None
        self._written.put(key, written)
        return written if taken else None

    def forget(self, written: Written) -> Written:
        """The event is not there any more (they live for an hour) or was never made: begin a new one."""
        name = f"{written.name.rpartition('.')[0]}.{self._token()}"
        again = replace(written, count=1, first=written.last, name=name)
        self._written.put(written.key, again)
        return again

    def lost(self, written: Written) -> None:
        if written.is_new:
            self._written.pop(written.key, None)

    def _are_many(self, group: Hashable, message: int, now: float) -> bool:
        """Whether so many messages of one kind came lately that they are written as one."""
        last, messages = self._similar.get(group) or (now, {})
        if now - last > _SIMILAR_SECONDS:
            messages = {}
        messages[message] = None
        many = len(messages) >= _MOST_SIMILAR
        if many:
            del messages[next(iter(messages))]
        self._similar.put(group, (now, messages))
        return many

    def _take(self, about: About, now: float) -> bool:
        """A token of the object's, if it has one left."""
        tokens, since = self._buckets.get(about) or (_BURST, now)
        tokens = min(_BURST, tokens + (now - since) / _SECONDS_PER_TOKEN)
        enough = tokens >= 1.0
        self._buckets.put(about, (tokens - 1.0 if enough else tokens, now))
        return enough


class _Lately(dict[K, V]):
    """A map that forgets what was not put for the longest time."""

    __slots__ = ()

    def put(self, key: K, value: V) -> None:
        self.pop(key, None)
        self[key] = value
        if len(self) > _MOST_REMEMBERED:
            del self[next(iter(self))]


def _cut(text: str) -> str:
    """A message of as many bytes as are allowed; `…` where more followed."""
    if len(text.encode()) <= _LONGEST_MESSAGE:
        return text
    return text.encode()[: _LONGEST_MESSAGE - 3].decode(errors="ignore") + "…"


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
