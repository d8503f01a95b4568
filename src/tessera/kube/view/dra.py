"""DeviceClasses and ResourceSlices on their way into the offers.

Everything is worked out when an object changes, so that an admission meets finished numbers: which kinds of devices a
class selects is asked once for each kind, and the nodes that a change concerns are put into the offers again.

Of a device only what some class reads is kept. When a class comes that reads more, the slices are read again; and
where no class is, no slice is read at all.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

from tessera.core.admission.view.offers import Offers
from tessera.core.dra.pools import Pools
from tessera.core.dra.slices import ANYWHERE, DeviceClass, Slice, Spots
from tessera.kube.clock import Once
from tessera.kube.watch.table import DEVICE_CLASSES, RESOURCE_SLICES, Key, Resource, TableEntry
from tessera.protocol.dra.objects import SliceReader, read_class
from tessera.protocol.dra.selectors import Selectors

_log: Final = logging.getLogger("tessera.kube")


class DraObjects:
    """What DRA serves in a cluster, as its objects come and go."""

    def __init__(
        self,
        changed: Callable[[Spots], object] = lambda _: None,
        reread: Callable[[], object] = lambda: None,
        *,
        with_devices: bool = False,
    ) -> None:
        """Call `changed` with the nodes that are concerned, and `reread` when slices must be read again.

        `with_devices`, it is kept what each device is by its name (`Pools.kind_of`).
        """
        self._selectors: Final = Selectors()
        self.reader: Final = SliceReader(with_devices=with_devices)
        self.pools = Pools(self._selectors.selects)
        self._classes: dict[str, DeviceClass] = {}
        self._waiting = (
            False  # for slices to be read as the classes need it; the classes before serve until then
        )
        self._once = Once()
        self._changed = changed
        self._reread = reread

    @property
    def class_errors(self) -> dict[str, str]:
        """The classes whose devices are not known, and why."""
        return {one.name: why for one, why in self._selectors.class_errors.items()}

    @property
    def has_classes(self) -> bool:
        return bool(self._classes)

    def table(self) -> dict[Resource, TableEntry[Any]]:
        """How its objects are taken: the classes first, which determine what is read of slices."""
        return {DEVICE_CLASSES: self.classes(), RESOURCE_SLICES: self.slices()}

    def classes(self) -> TableEntry[DeviceClass]:
        return TableEntry(read_class, self._put_class, self._remove_class, replace=self.replace_classes)

    def slices(self) -> TableEntry[Slice]:
        return TableEntry(self.reader.read, self._put_slice, self._remove_slice, replace=self.replace_slices)

    def replace_classes(self, classes: Iterable[DeviceClass]) -> None:
        self._classes = {one.name: one for one in classes}
        self._use()

    def replace_slices(self, slices: Iterable[Slice]) -> None:
        self._selectors.class_errors.clear()  # those that are still there come again
        slices = list(slices)
        self.pools.replace_slices(slices)
        # classes that came while the list was under way read more than it was read for: another list follows
        self._waiting = any(one.edition != self.reader.edition for one in slices)
        if not self._waiting or not self.pools.classes:  # as they are they are better than none
            self.pools.replace_classes(self._classes.values())
        self._notify(ANYWHERE)

    def _put_class(self, one: DeviceClass) -> None:
        self._classes[one.name] = one
        self._use()

    def _remove_class(self, key: Key) -> None:
        self._classes.pop(key.name, None)
        self._use()

    def _put_slice(self, one: Slice) -> None:
        self._notify(self.pools.put_slice(one))

    def _remove_slice(self, key: Key) -> None:
        self._notify(self.pools.remove_slice(key.name))

    def _use(self) -> None:
        """Follow the classes: at once where the slices were read for them, else as soon as they are."""
        names, known = self._selectors.use(self._classes.values()), self.reader.names
        self._once.keep(self._classes)
        # a class that is gone leaves more to be kept than is needed; that only matters where it makes too many kinds
        too_much = known is not None and self.reader.is_crowded and not names.covers(known)
        if self._classes and (known is None or too_much or not known.covers(names)):
            self.reader.names = names if known is None or too_much else known | names
            self._waiting = True
            self._reread()
        if not self._waiting and self.pools.replace_classes(self._classes.values()):
            self._notify(ANYWHERE)

    def _notify(self, concerned: Spots) -> None:
        """Have the caller update the concerned nodes, and log new errors of classes."""
        self._changed(concerned)
        self.log_class_errors()

    def log_class_errors(self) -> None:
        """Warn of classes that could not be evaluated, once for each."""
        for one, why in self._selectors.class_errors.items():
            if self._once.begin(why, one.name):
                _log.warning(
                    "device class %s: it cannot be said which devices it selects, so these count as selected: %s",
                    one.name,
                    why,
                )


def put_served(offers: Offers, dra: DraObjects) -> None:
    """Put what DRA serves into offers whose nodes are there: for objects from files."""
    offers.put_classes(dra.pools.serving, dra.pools.classes)
    for node in list(offers.nodes.values()):
        served = dra.pools.served(node)
        if served != node.dra:
            offers.put(replace(node, dra=served))
