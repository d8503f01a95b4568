"""The cluster as files describe it: `--nodes FILE` in place of an API server, followed for changes.

Reading and parsing happen in a thread; a broken file changes nothing.
"""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

from tessera.core.admission.view.offers import Offers
from tessera.core.errors import InvalidInput
from tessera.kube.clock import SYSTEM_CLOCK, Clock
from tessera.kube.files import WatchedFiles
from tessera.kube.object_files import ClusterObjects, cluster_objects, objects_in_text, read_file
from tessera.kube.view.dra import put_served
from tessera.kube.view.live import Keep, replace_namespaces, replace_quotas

_log: Final = logging.getLogger("tessera.kube")
_INTERVAL: Final = 2.0  # seconds between two looks


class FileView:
    """Nodes, namespaces, quotas and what DRA serves, from files; the last good ones when a file is broken."""

    def __init__(
        self, files: Sequence[Path], *, keep: Keep | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """Read the files for the first time; here a broken one is the caller's (`InvalidInput`)."""
        self.offers = Offers()
        self.reloads = 0
        self.failures = 0
        self.last_error = ""  # empty while what is in use is what is in the files
        self._files = WatchedFiles(*files)
        self._keep = keep
        self._clock = clock
        self._files.changed()
        self._use(self._read())

    async def run(self, interval: float = _INTERVAL) -> NoReturn:
        while True:
            await self._clock.sleep(interval)
            await self.check()

    async def check(self) -> None:
        """Look once, and use what is new and good."""
        if not self._files.changed():
            return
        try:
            described = await asyncio.to_thread(self._read)
        except InvalidInput as error:
            self.failures += 1
            self.last_error = str(error)
            _log.error("%s; what was read before stays in use", error)  # a person's mistake
            return
        self._use(described)
        self.reloads += 1
        self.last_error = ""
        _log.info("%d nodes read again", len(described.nodes))

    def missing(self) -> str | None:
        """Nothing, ever: there is a view from the beginning."""
        return None

    def _read(self) -> ClusterObjects:
        files = map(str, self._files.paths)
        found = (one for file in files for one in objects_in_text(read_file(file), file))
        return cluster_objects(found, self._keep)

    def _use(self, described: ClusterObjects) -> None:
        _put(self.offers, described)


def offers_of(described: ClusterObjects) -> Offers:
    """What decisions read of a cluster, as files describe it."""
    offers = Offers()
    _put(offers, described)
    return offers


def _put(offers: Offers, described: ClusterObjects) -> None:
    offers.replace(described.nodes)
    replace_namespaces(offers, described.namespaces)
    replace_quotas(offers, described.quotas)
    put_served(offers, described.classes, described.slices).log_class_errors()
