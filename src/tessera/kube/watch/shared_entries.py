"""The entries of several tables that share a reflector: what each of them holds, and how objects and events reach it.

An object is decoded once for all entries that decode it with the same function. An entry may take a list of its own,
while the watch goes on for the others.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from tessera.core.errors import InvalidInput
from tessera.kube.watch.table import TableEntry, WatchEvent, is_before

_Decode = Callable[[bytes], Any]
_Takers = list[tuple[_Decode, list[TableEntry[Any]]]]

UNREADABLE: Final = (InvalidInput, UnicodeDecodeError)  # of one object: the others are still good


@dataclass(slots=True)
class DecodedList:
    """One list."""

    objects: dict[_Decode, list[Any]]  # as each function decodes them: those of which something is kept
    number: int = 0  # of all


@dataclass(slots=True)
class _Joining:
    """The list that an entry takes by itself."""

    reading: asyncio.Task[None] | None  # None: it has taken the list
    version: str = ""  # of the list that it has taken
    events: list[WatchEvent] = field(default_factory=list)  # that came while the list was read


class SharedEntries:
    """The entries that take one collection."""

    def __init__(self, leave_out: Callable[[Exception], None]) -> None:
        self.listed: set[TableEntry[Any]] = set()  # entries that hold a complete list
        self._leave_out = leave_out  # is called for each object that cannot be read
        self._optional: dict[TableEntry[Any], bool] = {}  # whether each can be without the collection
        self._takers: _Takers = []  # what takes the events of a watch
        self._joining: dict[TableEntry[Any], _Joining] = {}  # entries that take a list of their own
        self._taken = asyncio.Event()  # is set for a moment whenever an entry may have taken a list

    def __iter__(self) -> Iterator[TableEntry[Any]]:
        return iter(self._optional)

    def __len__(self) -> int:
        return len(self._optional)

    @property
    def optional(self) -> list[TableEntry[Any]]:
        """Those that can be without the collection."""
        return [entry for entry, optional in self._optional.items() if optional]

    def add(self, entry: TableEntry[Any], *, optional: bool) -> None:
        """Keep one more entry. It takes nothing before its first list."""
        self._optional[entry] = optional

    def drop(self, entry: TableEntry[Any]) -> None:
        """Keep an entry no longer."""
        del self._optional[entry]
        self.listed.discard(entry)
        self._leave(entry)
        self._set_takers()

    async def synced(self, *entries: TableEntry[Any]) -> None:
        """Wait until these entries hold a complete list; without any, until all do. One that is dropped is not waited for."""
        while (self._optional.keys() & (entries or self._optional)) - self.listed:
            await self._taken.wait()

    def begin_list(self, *only: TableEntry[Any]) -> DecodedList:
        """A list that begins, for these entries or all: a place for what each function decodes."""
        return DecodedList({entry.decode: [] for entry in only or self._optional})

    def collect(self, into: DecodedList, raw: bytes) -> None:
        """Add an object to a list."""
        into.number += 1
        for decode, objects in into.objects.items():
            try:
                decoded = decode(raw)
            except UNREADABLE as error:
                self._leave_out(error)
                continue
            if decoded is not None:
                objects.append(decoded)

    def replace(self, taken: DecodedList) -> None:
        """Have all entries that the list was read for take it."""
        objects = taken.objects
        self._leave(*self._joining)
        self._take({entry: objects[entry.decode] for entry in self if entry.decode in objects})

    def lose(self) -> None:
        """The collection is gone: those that can be without it take it as empty."""
        self._leave(*self._joining)
        self.listed.difference_update(self.optional)
        self.take_nothing()

    def take_nothing(self) -> None:
        """Have those entries that can be without the collection take it as empty, unless they did."""
        self._take({entry: [] for entry in self.optional if entry not in self.listed})

    def _take(self, lists: dict[TableEntry[Any], list[Any]]) -> None:
        for entry, objects in lists.items():
            entry.take_all(objects)
            self.listed.add(entry)
        self._set_takers()

    def _set_takers(self) -> None:
        """Group the entries that hold a list by how they decode objects, and wake those who wait for a list."""
        takers: dict[_Decode, list[TableEntry[Any]]] = {}
        for entry in self:
            if entry in self.listed and entry not in self._joining:
                takers.setdefault(entry.decode, []).append(entry)
        self._takers = list(takers.items())
        self._taken.set()
        self._taken.clear()

    def join(self, entry: TableEntry[Any], reading: asyncio.Task[None]) -> None:
        """Have an entry take the list that is being read for it, and what the watch brings after it."""
        self._leave(entry)
        self._joining[entry] = _Joining(reading)
        self._set_takers()

    def _leave(self, *entries: TableEntry[Any]) -> None:
        """These entries do not need a list of their own any more."""
        for entry in entries:
            joining = self._joining.pop(entry, None)
            if joining is not None and joining.reading is not None:
                joining.reading.cancel()

    def take_own(self, entry: TableEntry[Any], taken: DecodedList, version: str, watched: str) -> None:
        """Have an entry take the list of its own; `watched` is the version that the watch has reached."""
        joining = self._joining[entry]
        joining.reading, joining.version = None, version
        if not is_before(watched, version):
            del self._joining[entry]
        self._take({entry: taken.objects[entry.decode]})
        for event in joining.events:
            if is_before(version, event.metadata.version):
                self.give(event, [(entry.decode, [entry])])
        joining.events.clear()

    def _let_join(self, event: WatchEvent) -> None:
        """Before an event is given: which of those that join get it with the others, later, or with their list."""
        for entry, joining in [*self._joining.items()]:
            if not joining.version:
                joining.events.append(event)
            elif is_before(joining.version, event.metadata.version):
                del self._joining[entry]
                self._set_takers()

    def give(self, event: WatchEvent, takers: _Takers | None = None) -> None:
        """Give an event to entries, by default to all. Where its object cannot be read, the last good state stays."""
        if takers is None:
            if self._joining:
                self._let_join(event)
            takers = self._takers
        if event.type == "BOOKMARK":
            return
        for decode, entries in takers:
            try:
                decoded = None if event.type == "DELETED" else decode(event.raw)
            except UNREADABLE as error:
                self._leave_out(error)
                continue
            for entry in entries:
                if decoded is None:
                    entry.remove(event.key)
                else:
                    entry.put(decoded)
