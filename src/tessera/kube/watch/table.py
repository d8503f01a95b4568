"""A table: how a consumer takes the objects of each kind.

The consumer writes its table once. Three feeders fill it: `list_once` lists each collection once, `Follower` follows them, and
`take_files` takes objects that were read from files.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from tessera.kube.watch.resource import Key, Resource

T = TypeVar("T")
K = TypeVar("K")


def do_nothing(*_: object) -> None:
    """Take something and ignore it."""


@dataclass(frozen=True, slots=True, eq=False)
class TableEntry(Generic[T]):
    """How a consumer takes the objects of one kind.

    A whole list is taken in one of two ways. Without `replace` the consumer forgets what it knows, and takes the objects as they
    come. With `replace` it takes the complete list at once.
    """

    decode: Callable[[bytes], T]  # reads one object; of one that cannot be read it raises InvalidInput
    put: Callable[[T], object]  # this object is new or changed
    remove: Callable[[Key], object] = do_nothing  # this object is gone
    begin: Callable[[], object] = do_nothing  # a whole list comes, object by object: forget what is known
    replace: Callable[[list[T]], object] | None = None  # these are all objects
    key: Callable[[T], object] | None = None  # says which objects are the same; without it all are different
    # the server's history has changed (etcd was restored): versions that are known mean nothing; the list comes next
    forget: Callable[[], object] = do_nothing

    def start(self) -> tuple[Callable[[T], object], Callable[[], object]]:
        """Start a whole list: what takes its objects one after the other, and what finishes it."""
        if self.replace is None:
            self.begin()
            return self.put, do_nothing
        objects: list[T] = []
        return objects.append, partial(self.replace, objects)

    def take_all(self, objects: list[T]) -> None:
        """Take a complete list."""
        if self.replace is not None:
            self.replace(objects)
            return
        self.begin()
        for item in objects:
            self.put(item)

    def through(self, wrap: Callable[[Callable[..., object]], Callable[..., object]]) -> "TableEntry[T]":
        """The same entry, each of whose calls into the consumer goes through a wrapper."""
        calls = {name: getattr(self, name) for name in ("put", "remove", "begin", "replace", "forget")}
        wrapped: dict[str, Any] = {name: wrap(call) for name, call in calls.items() if call is not None}
        return replace(self, **wrapped)

    def reporting(self, changed: Callable[[], object]) -> "TableEntry[T]":
        """The same entry, which reports each change. A call into the consumer that returns False changes nothing."""

        def wrap(call: Callable[..., object]) -> Callable[..., object]:
            def call_and_report(*given: Any) -> None:
                if call(*given) is not False:
                    changed()

            return call_and_report

        return self.through(wrap)


Table = Mapping[Resource, TableEntry[Any]]


def entry_by_key(
    decode: Callable[[bytes], T],
    put: Callable[[T], object],
    remove: Callable[[Key], object],
    *,
    key: Callable[[T], Key],
    known: Callable[[], Iterable[Key]],
) -> TableEntry[T]:
    """An entry for objects that the consumer knows by namespace and name; `known` says which it has."""

    def replace_known(objects: list[T]) -> None:
        replace_all(known(), {key(item): item for item in objects}, put, remove)

    return TableEntry(decode, put, remove, replace=replace_known, key=key)


def entry_by_name(
    decode: Callable[[bytes], T],
    put: Callable[[T], object],
    remove: Callable[[str], object],
    *,
    key: Callable[[T], str],
    known: Callable[[], Iterable[str]],
) -> TableEntry[T]:
    """The same for objects without a namespace, which the consumer knows by name."""
    return entry_by_key(
        decode,
        put,
        lambda gone: remove(gone.name),
        key=lambda item: Key("", key(item)),
        known=lambda: [Key("", name) for name in known()],
    )


def single_entry(decode: Callable[[bytes], T], put: Callable[[T | None], object]) -> TableEntry[T]:
    """An entry for one object; None: it does not exist."""

    def remove(_: Key) -> None:
        put(None)

    def replace_single(objects: list[T]) -> None:
        put(objects[0] if objects else None)

    return TableEntry(decode, put, remove, replace=replace_single)


def replace_all(
    known: Iterable[K], fresh: Mapping[K, T], put: Callable[[T], object], remove: Callable[[K], object]
) -> None:
    """Replace what is known by what is fresh, where that goes only one by one."""
    for key in [key for key in known if key not in fresh]:
        remove(key)
    for item in fresh.values():
        put(item)
