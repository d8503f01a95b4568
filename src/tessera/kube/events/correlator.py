"""Which events are written, and how: the rules of client-go (`tools/record/events_cache.go`), without its caches of objects.

The same event again is counted in the one that was written. Events that differ in their message alone are written one by one
up to ten in ten minutes, then in one that says so. And an object gets 25 writes at once, then one every five minutes: what is
beyond that is not written, and what was not written is in the count of the next. Memory is bounded: what did not happen for the
longest time is forgotten, and begins again.
"""

import secrets
from collections.abc import Callable, Hashable
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

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
