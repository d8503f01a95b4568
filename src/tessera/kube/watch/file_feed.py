"""Objects from files, on their way into a table."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Generic

import msgspec

from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.scheduling import LabelSelector
from tessera.kube.errors import NOT_JSON
from tessera.kube.object_files import FileObject, naming
from tessera.kube.watch.table import T, Table, TableEntry
from tessera.protocol.kubernetes.objects import UndecodedObject, decode_any
from tessera.protocol.kubernetes.workloads import title_of


def take_files(file_objects: Iterable[FileObject], table: Table, *, titles: bool = False) -> set[str]:
    """Give objects to a table, and pass over other kinds. Returns the kinds of the table that there were.

    An entry without `replace` takes its objects as they come, of several with the same key the first. The other entries follow in
    the table's order, because the classes determine what is read of a slice.
    """
    lists = {
        resource.kind: _FileList(resource.labels, entry, titles=titles)
        for resource, entry in table.items()
        if resource.kind
    }
    for file_object in file_objects:
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
        self._keys: set[object] = set()  # of objects that the entry took
        self._waiting: list[FileObject] = []
        self._take, self._finish = entry.start()

    def take(self, file_object: FileObject) -> None:
        """Take the next object."""
        self.is_there = True
        if self._entry.replace is None:
            self._read(file_object)
        else:
            self._waiting.append(file_object)

    def finish(self) -> None:
        """There are no more objects."""
        for file_object in self._waiting:
            self._read(file_object)
        self._finish()

    def _read(self, file_object: FileObject) -> None:
        with naming(file_object.where):
            decoded = self._decode(file_object)
            if decoded is not None and self._is_selected(file_object) and self._is_new(decoded):
                self._take(decoded)

    def _decode(self, file_object: FileObject) -> T | None:
        try:
            return self._entry.decode(file_object.raw)
        except UndecodedObject as error:
            if not self._titles:
                raise
            title = file_object.kind
            with suppress(*NOT_JSON):  # else not even its name can be read
                title = title_of(msgspec.json.decode(file_object.raw), file_object.kind)
            raise InvalidInput(f"{title}: {error}") from error

    def _is_selected(self, file_object: FileObject) -> bool:
        if not self._selector.requirements:
            return True
        return self._selector.matches(decode_any(file_object.raw).metadata.labels or {})

    def _is_new(self, decoded: T) -> bool:
        if self._entry.key is None or self._entry.replace is not None:
            return True
        number = len(self._keys)
        self._keys.add(self._entry.key(decoded))
        return len(self._keys) > number
