"""A stand-in for what turns layouts into devices on a node: obedient, stubborn, or absent."""

from collections.abc import Callable
from typing import Any

from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.resources import is_whole_or_mig
from tessera.core.mig.product import product_named
from tessera.protocol.mig import documents as mig
from tessera.simulation.control_plane.kinds import NODES
from tests.kube.served import ServedCluster

CARDS = [product_named("H200-70GB")] * 2
Refusal = Callable[[str, str], str]
Hearing = Callable[[str, str | None], None]


class FakePlugin:
    """Answers to every new layout annotation of every node, in the server's thread."""

    def __init__(self, cluster: ServedCluster) -> None:
        self.refuses: Refusal = lambda node, text: ""  # why it will not have this one
        self.absent: set[str] = set()  # nodes where no plugin answers
        self.on_layout: Hearing = lambda node, text: None  # told of each new one
        self.seen: list[tuple[str, str | None]] = []
        self._cluster = cluster
        self._asked: dict[str, str | None] = {}
        cluster.call(self._start)

    def _start(self) -> None:
        store = self._cluster.server.store
        for stored in store.list(NODES):
            self._asked[stored.key[1]] = _asked(stored.document)
        store.follow(NODES, store.version, lambda change: self._changed(change.after.document))

    def _changed(self, document: dict[str, Any]) -> None:
        name, asked = document["metadata"]["name"], _asked(document)
        if self._asked.get(name) == asked:
            return
        self._asked[name] = asked
        self.seen.append((name, asked))
        self.on_layout(name, asked)
        if name not in self.absent:
            self._cluster.loop.call_soon(self.answer, name, asked)

    def answer(self, name: str, asked: str | None) -> None:
        """Do what the layout says, or say why not."""
        store = self._cluster.server.store
        document = store.get(NODES, name).document
        labels, annotations = (
            document["metadata"]["labels"],
            document["metadata"].setdefault("annotations", {}),
        )
        annotations.pop("nvidia.com/mig.config.reason", None)
        reason = self.refuses(name, asked or "")
        if reason:
            labels[mig.CONFIG_STATE] = "failed"
            annotations["nvidia.com/mig.config.reason"] = reason
        else:
            try:
                resources = (
                    mig.read_layout(asked, CARDS).resources() if asked else {"nvidia.com/gpu": len(CARDS)}
                )
            except InvalidInput as error:
                raise AssertionError(f"a bad layout was written: {error}") from error
            allocatable = document["status"]["allocatable"]
            kept = {r: "0" if is_whole_or_mig(r) else amount for r, amount in allocatable.items()}
            document["status"]["allocatable"] = kept | {r: str(number) for r, number in resources.items()}
            labels[mig.CONFIG_STATE] = "success"
        store.update(NODES, name, document, status=None)


def _asked(document: dict[str, Any]) -> str | None:
    asked: str | None = (document["metadata"].get("annotations") or {}).get(mig.RUNAI_CONFIG)
    return asked
