"""List and watch: a copy of one kind of objects, kept right whatever the API server does.

A relist replaces the copy; between relists a watch changes it. What is lost is never the copy: when nothing can be
reached, the last known state stays, and its age shows in `Status`.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Final, Generic, NoReturn

import msgspec

from tessera.core.errors import InvalidInput
from tessera.kube.clock import SYSTEM_CLOCK, Clock
from tessera.kube.errors import NOT_JSON, ApiError, BadResponse, KubeError, error_of
from tessera.kube.rest.client import Client
from tessera.kube.rest.connection import Lines
from tessera.kube.watch.backoff import Backoff
from tessera.kube.watch.listing import PAGE, read_list
from tessera.kube.watch.remedies import Next, WatchFailed, refuses_streamed_list, remedy
from tessera.kube.watch.resource import Key, Pace, Resource, Sink, Status, T

_log: Final = logging.getLogger("tessera.kube")

INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"
_SERVER_TIMEOUT: Final = (300, 600)  # seconds; random, so that watches do not all end at once
_SHORT_LIFE: Final = 1.0  # seconds; a watch that ends sooner is waited for before the next
_UNREADABLE: Final = (InvalidInput, UnicodeDecodeError)  # of one object: the others are still good
# in a row; then the list is read again, for a watch may wait for a version that never comes
_SILENT_WATCHES: Final = 2


class _Meta(msgspec.Struct, frozen=True, gc=False, rename={"version": "resourceVersion"}):
    name: str = ""
    namespace: str = ""
    version: str = ""
    annotations: dict[str, str] | None = None


class _Object(msgspec.Struct, gc=False):
    metadata: _Meta = _Meta()


class _Event(msgspec.Struct, gc=False):
    type: str
    object: msgspec.Raw


_event: Final = msgspec.json.Decoder(_Event).decode
_object: Final = msgspec.json.Decoder(_Object).decode


class Reflector(Generic[T]):
    """Keeps a sink equal to a collection of the API server."""

    def __init__(
        self,
        client: Client,
        resource: Resource[T],
        sink: Sink[T],
        *,
        pace: Pace = Pace(),  # noqa: B008 # frozen
        clock: Clock = SYSTEM_CLOCK,
        uniform: Callable[[float, float], float] = random.uniform,
        watch_list: bool = True,
    ) -> None:
        self.resource = resource
        self.status = Status()
        self._client = client
        self._sink = sink
        self._pace = pace
        self._clock = clock
        self._uniform = uniform
        self._backoff = Backoff(uniform)
        self._watch_list = watch_list
        self._anew = False  # whether our version means nothing to the server any more
        self._next = Next.LIST
        self._initial: list[T] | None = None  # objects of a streamed list that is not complete yet
        self._streaming = False  # whether a watch is open
        self._silent_watches = 0
        self._synced = asyncio.Event()

    @property
    def age(self) -> float | None:
        """Seconds since the server last said anything."""
        return self.status.age(self._clock.now())

    async def synced(self) -> None:
        """Wait until the sink holds a complete list."""
        await self._synced.wait()

    async def run(self) -> NoReturn:
        """Follow the collection until cancelled."""
        while True:
            try:
                self._streaming = False
                if self._next is not Next.WATCH and not self._watch_list:
                    await self._list()
                began = self._clock.now()
                await self._watch()
                wait = 0.0 if self._clock.now() - began >= _SHORT_LIFE else self._backoff.next()
            except KubeError as error:
                wait = self._after(error)
            if wait:
                await self._clock.sleep(wait)

    def _after(self, error: KubeError) -> float:
        """Note a failure, decide what comes next, and say how long to wait before it."""
        self.status.errors[error.kind] += 1
        self.status.last_error = str(error)
        listing = self._next is not Next.WATCH
        if listing and self._watch_list and refuses_streamed_list(error):
            self._watch_list = False
            _log.info("%s: no streamed list (%s); reading pages instead", self.resource.name, error)
            return 0.0
        after = remedy(error, as_event=self._streaming)
        self._anew = self._anew or after is Next.LIST_ANEW
        if not listing:
            self._next = after
        wait = self._backoff.next()
        if isinstance(error, ApiError) and error.retry_after is not None:
            wait = max(wait, error.retry_after)
        _log.warning("%s: %s; in %.1f s: %s", self.resource.name, error, wait, self._next.value)
        return wait

    async def _list(self) -> None:
        objects: list[T] = []

        def begin() -> Callable[[bytes], None]:
            objects.clear()
            return lambda raw: self._decode_into(objects, raw)

        # any state the first time, which is cheap; then none older than ours
        wanted = "" if self._anew else self.status.version or "0"
        query: dict[str, str | int] = {**self.resource.query, "resourceVersion": wanted}
        if wanted in ("", "0"):
            query["limit"] = PAGE
        else:  # from the server's cache, where pages would send it to etcd
            query["resourceVersionMatch"] = "NotOlderThan"
        version = await read_list(self._client, self.resource.path, query, begin)
        if _is_before(version, wanted):
            raise WatchFailed("backwards", f"asked for version {wanted} or later, got a list of {version}")
        self._replace(objects, version)

    async def _watch(self) -> None:
        """One watch, from its first line to its end."""
        initial = self._next is not Next.WATCH
        self._initial = [] if initial else None
        query: dict[str, str | int] = {
            **self.resource.query,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": round(self._uniform(*_SERVER_TIMEOUT)),
        }
        if initial:
            query |= {
                "resourceVersion": "" if self._anew else self.status.version,
                "sendInitialEvents": "true",
                "resourceVersionMatch": "NotOlderThan",
            }
        else:
            query["resourceVersion"] = self.status.version
        self.status.watches += 1
        async with self._client.watch(self.resource.path, query) as lines:
            self._streaming = True
            guard = _SilenceGuard(lines, self._clock, self._patience)
            guarding = asyncio.create_task(guard.run())
            heard = False
            try:
                while batch := await lines.batch():
                    heard = True
                    for line in batch:
                        self._handle(line)
                    self._heard()
                    guard.heard(self._patience)
            except KubeError as error:
                if guard.silent:
                    raise self._silence(guard.patience) from error
                raise
            finally:
                guarding.cancel()
        if self._initial is not None:
            raise WatchFailed("incomplete", "the streamed list ended before it was complete")
        if not heard:
            self._silent_watches += 1
            if self._silent_watches >= _SILENT_WATCHES:
                self._next = Next.LIST

    @property
    def _patience(self) -> float:
        return self._pace.silence if self._initial is None else self._pace.initial_silence

    def _heard(self) -> None:
        self.status.last_contact = self._clock.now()
        self._silent_watches = 0
        if self._initial is None:
            self._backoff.reset()

    def _silence(self, seconds: float) -> WatchFailed:
        if self._initial is not None:
            return WatchFailed("ignored", f"no end of the streamed list, and nothing more for {seconds:g} s")
        self._silent_watches += 1
        kind = "silent" if self._silent_watches < _SILENT_WATCHES else "mute"
        return WatchFailed(kind, f"the watch said nothing for {seconds:g} s, not even a bookmark")

    def _handle(self, line: bytes) -> None:
        try:
            event = _event(line)
            raw = bytes(event.object)
            if event.type == "ERROR":
                raise error_of(500, raw)
            metadata = _object(raw).metadata
        except NOT_JSON as error:
            raise BadResponse(f"a watch line that is no event: {error}") from error
        self.status.events[event.type] += 1
        if self._initial is not None:
            self._handle_initial(event.type, raw, metadata)
            return
        if _is_before(metadata.version, self.status.version):
            raise WatchFailed(
                "backwards",
                f"version {metadata.version} after {self.status.version}: the server's past has changed",
            )
        if event.type == "DELETED":
            self._sink.delete(Key(metadata.namespace, metadata.name))
        elif event.type != "BOOKMARK":
            self._upsert(raw)
        self.status.version = metadata.version or self.status.version

    def _handle_initial(self, type_: str, raw: bytes, metadata: _Meta) -> None:
        if self._initial is None or type_ not in ("ADDED", "BOOKMARK"):
            raise WatchFailed("ignored", f"a {type_} event inside the streamed list")
        if type_ == "ADDED":
            self._decode_into(self._initial, raw)
        elif (metadata.annotations or {}).get(INITIAL_EVENTS_END) == "true":
            objects, self._initial = self._initial, None
            self._replace(objects, metadata.version)
        else:
            raise WatchFailed("ignored", "a bookmark that is not the end of the streamed list")

    def _replace(self, objects: list[T], version: str) -> None:
        self._sink.replace(objects)
        self.status.lists += 1
        self.status.version = version
        self._anew = False
        self.status.last_contact = self._clock.now()
        self.status.synced = True
        self._next = Next.WATCH
        self._silent_watches = 0
        self._synced.set()
        _log.info("%s: %d objects at version %s", self.resource.name, len(objects), version)

    def _decode_into(self, objects: list[T], raw: bytes) -> None:
        try:
            objects.append(self.resource.decode(raw))
        except _UNREADABLE as error:
            self._undecodable(error)

    def _upsert(self, raw: bytes) -> None:
        try:
            one = self.resource.decode(raw)
        except _UNREADABLE as error:
            self._undecodable(error)  # its last good state stays
        else:
            self._sink.upsert(one)

    def _undecodable(self, error: Exception) -> None:
        self.status.errors["object"] += 1
        self.status.last_error = str(error)
        _log.warning("%s: left out an object: %s", self.resource.name, error)


class _SilenceGuard:
    """Cuts a watch off when it has said nothing for too long."""

    def __init__(self, lines: Lines, clock: Clock, patience: float) -> None:
        self._lines = lines
        self._clock = clock
        self.patience = patience
        self._last = clock.now()
        self.silent = False

    def heard(self, patience: float) -> None:
        """A line came; from now on wait so long."""
        self._last, self.patience = self._clock.now(), patience

    async def run(self) -> None:
        """Sleep until the patience is over; with every line there is more of it."""
        while (left := self._last + self.patience - self._clock.now()) > 0:
            await self._clock.sleep(left)
        self.silent = True
        self._lines.abort()


def _is_before(version: str, other: str) -> bool:
    """Whether a version is older; versions are numbers on every server there is, but need not be."""
    return version.isdigit() and other.isdigit() and int(version) < int(other)
