"""Objects from files, on their way into a table."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Final, Generic

import msgspec

from tessera.core.errors import InvalidInput
from tessera.kube.errors import NOT_JSON
from tessera.kube.object_files import FileObject, naming
from tessera.kube.watch.table import T, Table, TableEntry
from tessera.protocol.kubernetes.objects import UndecodedObject, decoder
from tessera.protocol.kubernetes.selector import LabelSelector
from tessera.protocol.kubernetes.workloads import title_of


class _LabelledMetadata(msgspec.Struct):
    labels: dict[str, str] | None = None


class _Labelled(msgspec.Struct):
    metadata: _LabelledMetadata = msgspec.field(default_factory=_LabelledMetadata)


_read_labels: Final = decoder(_Labelled)


def take_files(found: Iterable[FileObject], table: Table, *, titles: bool = False) -> set[str]:
    """Give objects to a table, and pass over other kinds. Returns the kinds of the table that there were.

    An entry without `replace` takes its objects as they come, of several with the same key the first. The other entries follow in
    the table's order, because the classes determine what is read of a slice.
    """
    lists = {
        resource.kind: _FileList(resource.labels, entry, titles=titles)
        for resource, entry in table.items()
        if resource.kind
    }
    for file_object in found:
        if file_object.kind in lists:
            lists[file_object.kind].take(file_object)
    for objects in lists.values():
        objects.finish()
    return {kind for kind, objects in lists.items() if objects.is_there}


class _FileList(Generic[T]):
    """The objects of one kind in files."""

    def __init__(self, labels: str, entry: TableEntry[T], *, titles: bool) -> None:
        self.is_there = False  # whether there is any such object
        self._selector = LabelSelector.parse(labels)
        self._entry = entry
        self._titles = titles
        self._seen: set[object] = set()
        self._waiting: list[FileObject] = []
        if entry.replace is None:
            entry.begin()

    def take(self, found: FileObject) -> None:
        """Take the next object."""
        self.is_there = True
        if self._entry.replace is not None:
            self._waiting.append(found)
            return
        with naming(found.where):
            decoded = self._decode(found)
            if self._is_first(decoded) and self._is_selected(found):
                self._entry.put(decoded)

    def finish(self) -> None:
        """There are no more objects."""
        if self._entry.replace is None:
            return
        decoded = []
        for found in self._waiting:
            with naming(found.where):
                if self._is_selected(found):
                    decoded.append(self._decode(found))
        self._entry.replace(decoded)

    def _decode(self, found: FileObject) -> T:
        try:
            return self._entry.decode(found.raw)
        except UndecodedObject as error:
            if not self._titles:
                raise
            title = found.kind
            with suppress(*NOT_JSON):  # else not even its name can be read
                title = title_of(msgspec.json.decode(found.raw), found.kind)
            raise InvalidInput(f"{title}: {error}") from error

    def _is_first(self, decoded: T) -> bool:
        if self._entry.key is None:
            return True
        before = len(self._seen)
        self._seen.add(self._entry.key(decoded))
        return len(self._seen) > before

    def _is_selected(self, found: FileObject) -> bool:
        if self._selector.requirements:
            return self._selector.matches(_read_labels(found.raw).metadata.labels or {})
        return True
