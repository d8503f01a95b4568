"""The stand-in for the device plugin on the nodes of a stand-in API server in the same process."""

import asyncio
from collections.abc import Sequence

from e2e.stand_in_plugin import Document, StandInPlugin
from tessera.core.mig.geometry import Product
from tessera.simulation.control_plane.kinds import NODES
from tessera.simulation.control_plane.patches import apply_patch
from tessera.simulation.control_plane.store import StatusError, Store, StoredChange

MERGE = "application/merge-patch+json"


class StorePlugin(StandInPlugin):
    """Answers on all nodes of a store, in the loop in which they change, after this many seconds."""

    def __init__(self, store: Store, cards: Sequence[Product], seconds: float = 0.0) -> None:
        super().__init__(cards)
        self._store, self._seconds = store, seconds
        for stored in store.list(NODES):
            self.remember(stored.document)
        store.follow(NODES, store.version, self._changed)

    def _changed(self, change: StoredChange) -> None:
        if change.type != "DELETED":
            self.see(change.after.document)

    def answer_soon(self, name: str) -> None:
        asyncio.get_running_loop().call_later(self._seconds, self.answer, name)

    def read(self, name: str) -> Document | None:
        try:
            return self._store.get(NODES, name).document
        except StatusError:
            return None

    def write(self, name: str, patch: Document) -> None:
        document = apply_patch(MERGE, self._store.get(NODES, name).document, patch)
        self._store.update(NODES, name, document, status=None)
