"""List and watch: a copy of one kind of objects, kept right whatever the API server does.

A relist replaces the copy; between relists a watch changes it. What is lost is never the copy: when nothing can be
reached, the last known state stays, and its age shows in `Health`.

Several consumers may share a reflector, each with an entry of its own (`shared_entries`).
"""

import asyncio
import logging
import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

from tessera.kube.clock import Backoff, Clock
from tessera.kube.errors import ApiError, KubeError
from tessera.kube.rest.client import Client
from tessera.kube.watch.health import Health, Next, WatchFailed, refuses_streamed_list, remedy
from tessera.kube.watch.listing import PAGE, read_list
from tessera.kube.watch.shared_entries import DecodedList, SharedEntries
from tessera.kube.watch.table import Resource, TableEntry, WatchEvent, is_before, read_event

if TYPE_CHECKING:
    from tessera.kube.rest.connection import BodyLines

_log: Final = logging.getLogger("tessera.kube")

_SERVER_TIMEOUT: Final = (300, 600)  # seconds; random, so that watches do not all end at once
# seconds without a line after which a watch is given up: bookmarks come about every minute
_SILENCE: Final = 65.0
# the same for a streamed list: a server that knows nothing of sendInitialEvents never says that they are over
_INITIAL_SILENCE: Final = 5.0
_SHORT_LIFE: Final = 1.0  # seconds; a watch that ends sooner is waited for before the next
# in a row; then the list is read again, for a watch may wait for a version that never comes
_SILENT_WATCHES: Final = 2
_RECHECK: Final = 60.0  # seconds until a collection that the server does not have is listed again
# seconds in which what could be read before may be refused: a server that has just started does not know all roles yet
_ROLES_UNKNOWN: Final = 30.0


class Reflector:
    """Keeps the entries of one or more tables equal to a collection of the API server."""

    def __init__(
        self,
        client: Client,
        resource: Resource,
        entry: TableEntry[Any],
        *,
        uniform: Callable[[float, float], float] = random.uniform,
        watch_list: bool = True,
    ) -> None:
        self.resource = resource
        self.health = Health()
        self.entries = SharedEntries(self._leave_out)
        self.entries.add(entry, optional=resource.optional)
        self._client = client
        self._clock = client.clock
        self._uniform = uniform
        self._backoff = Backoff(uniform=uniform)
        self._watch_list = watch_list  # whether the server may be asked for streamed lists
        self._paged = False  # whether the next list is an ordinary one, for the last streamed one failed
        self._newest = False  # whether our version means nothing to the server any more
        self._restored = False  # whether that is because the server's history has changed
        self._next = Next.LIST
        self._initial: DecodedList | None = None  # objects of a streamed list that is not complete yet
        self._streaming = False  # whether a watch is open
        self._silent_watches = 0
        self._refused: float | None = None  # since when we may not read what we could read before
        self._lines: BodyLines | None = None  # of the watch that is open
        self._again = False  # whether the list that is being read must be read once more

    @property
    def age(self) -> float | None:
        """Seconds since the server last said anything; None when it never has."""
        last = self.health.last_contact
        return None if last is None else max(0.0, self._clock.now() - last)

    @property
    def is_optional(self) -> bool:
        """Whether every entry can be without the collection."""
        return len(self.entries.optional) == len(self.entries)

    def follows(self, resource: Resource) -> bool:
        """Whether this is the collection that a resource chooses."""
        return self.resource.collection == resource.collection

    def add(self, entry: TableEntry[Any], *, optional: bool) -> None:
        """Keep one more entry. It takes no event before its first list, which is read for it alone where others have theirs already."""
        self.entries.add(entry, optional=optional)
        if self.health.absent:
            self.entries.take_nothing()
            self._have("")
        elif self._next is Next.WATCH:
            self._join(entry)

    async def synced(self, *entries: TableEntry[Any]) -> None:
        """Wait until these entries hold a complete list; without any, until all do."""
        await self.entries.synced(*entries)

    def relist(self, *entries: TableEntry[Any]) -> None:
        """Read the whole list again, since its objects are to be read in another way; what was read stays until then.

        With `entries` it is read for these alone, if others do not need it.
        """
        if self._next is not Next.WATCH:  # a list is under way, and some of it may have been read
            self._again = True
            return
        if entries and not self.entries.listed.issubset(entries):
            for entry in entries:
                self._join(entry)
            return
        self._next = Next.LIST
        if self._lines is not None:
            self._lines.abort()

    async def run(self) -> None:
        """Follow the collection until cancelled."""
        async with asyncio.TaskGroup() as self._tasks:
            await self._run()

    async def _run(self) -> NoReturn:
        while True:
            try:
                self._streaming = False
                if self._next is not Next.WATCH and (self._paged or not self._watch_list):
                    await self._list()
                    if self._lists_again:
                        continue
                began = self._clock.now()
                await self._watch()
                wait = 0.0 if self._clock.now() - began >= _SHORT_LIFE else self._backoff.next()
            except KubeError as error:
                wait = self._after(error)
            if wait:
                await self._clock.sleep(wait)

    def _after(self, error: KubeError) -> float:
        """Record a failure and decide what comes next; how long to wait before it."""
        if (
            isinstance(error, ApiError)
            and error.is_absent
            and self.entries.optional
            and not self._passes(error)
        ):
            self._lose(error)
            if self.is_optional:
                return _RECHECK
        self.health.errors[error.kind] += 1
        self.health.last_error = str(error)
        listing = self._next is not Next.WATCH
        if listing and self._watch_list:
            if not self._paged and refuses_streamed_list(error):
                self._watch_list = False
                _log.info("%s: no streamed list (%s); reading pages instead", self.resource.name, error)
                return 0.0
            self._paged = not self._paged  # in turns: whichever of the two works, it is tried
        after = remedy(error, as_event=self._streaming)
        if after is Next.LIST_NEWEST:
            self._newest = True
            self._restored = self._restored or not (isinstance(error, ApiError) and error.is_expired)
        if not listing:
            self._next = after
        wait = self._backoff.next()
        if isinstance(error, ApiError) and error.retry_after is not None:
            wait = max(wait, error.retry_after)
        _log.warning("%s: %s; in %.1f s: %s", self.resource.name, error, wait, self._next.value)
        return wait

    def _passes(self, error: ApiError) -> bool:
        """Whether a refusal may pass by itself: what we could read before stays for a while."""
        if not error.is_forbidden or self.health.absent or not self.health.synced:
            return False
        now = self._clock.now()
        self._refused = now if self._refused is None else self._refused
        return now < self._refused + _ROLES_UNKNOWN

    async def _list(self) -> None:
        # any state the first time, which is cheap; then none older than ours
        wanted = "" if self._newest else self.health.version or "0"
        self._replace(*await self._read(wanted))

    async def _read(self, wanted: str, *only: TableEntry[Any]) -> tuple[DecodedList, str]:
        """The objects, no older than the `wanted` version, and their version; for these entries, or all."""
        objects = DecodedList({})

        def begin() -> Callable[[bytes], None]:
            nonlocal objects
            objects = self.entries.begin_list(*only)
            return partial(self.entries.collect, objects)

        query: dict[str, str | int] = {**self.resource.query, "resourceVersion": wanted}
        if wanted in ("", "0"):
            query["limit"] = PAGE
        else:  # from the server's cache, where pages would send it to etcd
            query["resourceVersionMatch"] = "NotOlderThan"
        version = await read_list(self._client, self.resource.path, query, begin)
        if is_before(version, wanted):
            raise WatchFailed("backwards", f"asked for version {wanted} or later, got a list of {version}")
        return objects, version

    def _join(self, entry: TableEntry[Any]) -> None:
        """Read a whole list for an entry alone, while the watch goes on for the others."""
        self.entries.join(entry, self._tasks.create_task(self._read_for(entry)))

    async def _read_for(self, entry: TableEntry[Any]) -> None:
        try:
            objects, version = await self._read(self.health.version, entry)
        except KubeError as error:
            _log.info("%s: a list for one more failed, it is read for all: %s", self.resource.name, error)
            self.relist()
            return
        if not version.isdigit():  # nobody can tell which events come after it
            self.relist()
            return
        self.health.lists += 1
        self.entries.take_own(entry, objects, version, self.health.version)

    async def _watch(self) -> None:
        """One watch, from its first line to its end."""
        initial = self._next is not Next.WATCH
        self._initial = self.entries.begin_list() if initial else None
        query: dict[str, str | int] = {
            **self.resource.query,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": round(self._uniform(*_SERVER_TIMEOUT)),
        }
        if initial:
            query |= {
                "resourceVersion": "" if self._newest else self.health.version,
                "sendInitialEvents": "true",
                "resourceVersionMatch": "NotOlderThan",
            }
        else:
            query["resourceVersion"] = self.health.version
        self.health.watches += 1
        async with self._client.watch(self.resource.path, query) as lines:
            if self._lists_again and not initial:
                return  # the list was asked for while the watch was being opened
            self._streaming, self._lines = True, lines
            guard = SilenceGuard(lines, self._clock, self._silence_limit)
            guarding = asyncio.create_task(guard.run())
            received = False
            try:
                while batch := await lines.batch():
                    received = True
                    for line in batch:
                        self._handle(read_event(line))
                    self._contacted()
                    guard.reset(self._silence_limit)
            except KubeError as error:
                if self._initial is None and self._lists_again:
                    return  # cut off
                if guard.silent:
                    raise self._silence(guard.limit) from error
                raise
            finally:
                self._lines = None
                guarding.cancel()
        if self._initial is not None:
            raise WatchFailed("incomplete", "the streamed list ended before it was complete")
        if not received:
            self._silent_watches += 1
            if self._silent_watches >= _SILENT_WATCHES:
                self._next = Next.LIST

    @property
    def _lists_again(self) -> bool:
        return self._next is not Next.WATCH

    @property
    def _silence_limit(self) -> float:
        return _SILENCE if self._initial is None else _INITIAL_SILENCE

    def _contacted(self) -> None:
        self.health.last_contact = self._clock.now()
        self._refused = None
        self._silent_watches = 0
        if self._initial is None:
            self._backoff.reset()

    def _silence(self, seconds: float) -> WatchFailed:
        if self._initial is not None:
            return WatchFailed("ignored", f"no end of the streamed list, and nothing more for {seconds:g} s")
        self._silent_watches += 1
        kind = "silent" if self._silent_watches < _SILENT_WATCHES else "mute"
        return WatchFailed(kind, f"the watch sent nothing for {seconds:g} s, not even a bookmark")

    def _handle(self, event: WatchEvent) -> None:
        self.health.events[event.type] += 1
        if self._initial is not None:
            self._handle_initial(self._initial, event)
            return
        version = event.metadata.version
        if is_before(version, self.health.version):
            raise WatchFailed(
                "backwards",
                f"version {version} after {self.health.version}: the server's history has changed",
            )
        self.entries.give(event)
        self.health.version = version or self.health.version

    def _handle_initial(self, objects: DecodedList, event: WatchEvent) -> None:
        if event.type == "ADDED":
            self.entries.collect(objects, event.raw)
        elif event.type != "BOOKMARK":
            raise WatchFailed("ignored", f"a {event.type} event inside the streamed list")
        elif event.ends_list:
            self._initial = None
            self._replace(objects, event.metadata.version)
        else:
            raise WatchFailed("ignored", "a bookmark that is not the end of the streamed list")

    def _leave_out(self, error: Exception) -> None:
        self.health.errors["object"] += 1
        self.health.last_error = str(error)
        _log.warning("%s: left out an object: %s", self.resource.name, error)

    def _replace(self, objects: DecodedList, version: str) -> None:
        for entry in self.entries:
            entry.forget("" if self._restored else version)
        self._restored = self._newest = self._paged = self.health.absent = self.health.forbidden = False
        self._next = Next.WATCH
        self._silent_watches = 0
        self.health.lists += 1
        self.entries.replace(objects)
        self._have(version)
        _log.info("%s: %d objects at version %s", self.resource.name, objects.number, version)
        if self._again:
            self._again = False
            self.relist()
        else:
            for entry in [entry for entry in self.entries if entry.decode not in objects.objects]:
                self._join(entry)  # it was added while the list was read

    def _have(self, version: str) -> None:
        self._refused = None
        self.health.version = version
        self.health.last_contact = self._clock.now()
        self.health.synced = True

    def _lose(self, error: ApiError) -> None:
        """The server does not have the collection, or not for us: for who can be without it, it counts as empty until it does."""
        if self.is_optional:
            self.health.last_contact = self._clock.now()
        self.health.last_error = str(error)
        self.health.forbidden = error.is_forbidden
        self._newest, self._next = True, Next.LIST
        if not self.health.absent:
            self.health.absent = True
            self.entries.lose()
            self._have("")
            _log.info("%s: assumed to be empty: %s", self.resource.name, error)


class SilenceGuard:
    """Cuts a watch off when no line of it has come for too long."""

    def __init__(self, lines: "BodyLines", clock: Clock, limit: float) -> None:
        self._lines = lines
        self._clock = clock
        self.limit = limit
        self._last = clock.now()
        self.silent = False

    def reset(self, limit: float) -> None:
        """A line came: from now on wait for `limit` seconds."""
        self._last, self.limit = self._clock.now(), limit

    async def run(self) -> None:
        """Sleep until the limit is over; with every line there is more of it."""
        while (left := self._last + self.limit - self._clock.now()) > 0:
            await self._clock.sleep(left)
        self.silent = True
        self._lines.abort()
