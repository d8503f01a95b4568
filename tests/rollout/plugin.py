"""Stand-ins for what turns layouts into devices on a node: obedient, stubborn, or absent."""

import asyncio

from e2e.stand_in_plugin import Document, StandInPlugin

from tessera.core.mig.geometry import product_named
from tessera.simulation.control_plane.kinds import NODES
from tessera.simulation.control_plane.patches import apply_patch
from tessera.simulation.control_plane.store import StatusError, Store, StoredChange
from tests.kube.served import ServedCluster

CARDS = [product_named("H200-70GB")] * 2
MERGE = "application/merge-patch+json"


class StorePlugin(StandInPlugin):
    """Answers on all nodes of a store, in the loop in which they change, after this many seconds."""

    def __init__(self, store: Store, seconds: float = 0.0) -> None:
        super().__init__(CARDS)
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


class FakePlugin(StorePlugin):
    """Answers in the server's thread."""

    def __init__(self, cluster: ServedCluster) -> None:
        cluster.call(lambda: super(FakePlugin, self).__init__(cluster.server.store))
