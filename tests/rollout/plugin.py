"""Stand-ins for what turns layouts into devices on a node: obedient, stubborn, or absent."""

from e2e.store_plugin import MERGE, StorePlugin

from tessera.core.mig.geometry import product_named
from tests.kube.served import ServedCluster

__all__ = ["CARDS", "MERGE", "FakePlugin", "StorePlugin"]
CARDS = [product_named("H200-70GB")] * 2


class FakePlugin(StorePlugin):
    """Answers in the server's thread."""

    def __init__(self, cluster: ServedCluster) -> None:
        cluster.call(lambda: super(FakePlugin, self).__init__(cluster.server.store, CARDS))
