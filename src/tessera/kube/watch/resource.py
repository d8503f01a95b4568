"""What a reflector is told, and what it tells: the collection to follow, where objects go, how it is doing."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class Key(NamedTuple):
    """An object's name; the namespace is empty for what has none."""

    namespace: str
    name: str


class Sink(Protocol[T_contra]):
    """Where the objects go."""

    def replace(self, objects: Iterable[T_contra]) -> None:
        """These are all there are."""
        ...

    def upsert(self, one: T_contra) -> None:
        """This one is new or changed."""
        ...

    def delete(self, key: Key) -> None:
        """This one is gone."""
        ...


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """What to follow: a collection's path, a selection, and how an object is read (InvalidInput: left out)."""

    name: str
    path: str
    decode: Callable[[bytes], T]
    query: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds that decide when a watch is given up."""

    # bookmarks come about every minute; a little more than that without a line is a dead watch
    silence: float = 65.0
    # a server that knows nothing of sendInitialEvents never says that they are over
    initial_silence: float = 5.0


@dataclass(slots=True)
class Status:
    """What there is to know about a reflector; read by metrics and readiness."""

    synced: bool = False
    version: str = ""
    last_contact: float | None = None  # by the reflector's clock
    lists: int = 0
    watches: int = 0
    events: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    last_error: str = ""

    def age(self, now: float) -> float | None:
        """Seconds since the server last said anything; None when it never has."""
        return None if self.last_contact is None else max(0.0, now - self.last_contact)
