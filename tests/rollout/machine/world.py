"""Nodes and pods in a store with optimistic locks, without a server: reads and writes as rollouts make them, and cutters that answer."""

from contextlib import suppress
from typing import Any

from e2e.stand_in_plugin import answer_to, layout_of

from tessera.core.errors import InvalidInput
from tessera.core.resources import is_any_gpu
from tessera.protocol.kubernetes.nodes import decode_node
from tessera.protocol.kubernetes.pod import decode_pod_use
from tessera.protocol.mig import documents as mig
from tessera.protocol.mig.rollouts import RolloutRecord, record_of
from tessera.rollout.change import Change, Wanted
from tessera.rollout.changes import change_of
from tessera.rollout.values import Evict, NodeSnapshot, Patch
from tessera.simulation.control_plane.kinds import NODES, PODS
from tessera.simulation.control_plane.patches import apply_patch
from tessera.simulation.control_plane.store import StatusError, Store, StoredChange, has_ended
from tests.build import MIG
from tests.inventory.objects import LAYOUT, node, pod
from tests.rollout.plugin import CARDS, MERGE

asked = layout_of
BIG = {MIG + "2g.20gb": "4", MIG + "3g.30gb": "2"}
ONES = "1g.10gb=2"


class World:
    """A cluster that stands still until it is told otherwise."""

    def __init__(self, *names: str) -> None:
        self.store = Store()
        self.now = 1_000_000.0
        self.settled = True  # whether pods are there that the scheduler had placed before the cordon
        self.budget = True  # whether PodDisruptionBudgets allow evictions
        self.cuts: list[str] = []  # nodes, whenever one got another layout with its rollout's hand
        self.begins: list[str] = []
        for name in names:
            self.store.create(NODES, node(name, BIG, "NVIDIA-H200", layout=LAYOUT, pool="a"))
        self.store.follow(NODES, self.store.version, self._changed)

    def _changed(self, change: StoredChange) -> None:
        before, after = change.before, change.after
        if before is None or change.type == "DELETED":
            return
        was, now = record_in(before.document), record_in(after.document)
        if was is None and now is not None:
            self.begins.append(after.key[1])
        moved = asked(before.document) != asked(after.document)
        if was is not None and moved and asked(after.document) == was.after and was.phase != "PuttingBack":
            self.cuts.append(after.key[1])

    # as rollouts see it

    def look(self, name: str) -> Any:
        """A `NodeSnapshot`, or None."""
        try:
            found = self.store.get(NODES, name)
        except StatusError:
            return None
        uses = [
            use
            for stored in self.store.list(PODS)
            if stored.document["spec"].get("nodeName") == name and not has_ended(stored.document)
            if (use := decode_pod_use(stored.encoded, is_any_gpu)).amounts
        ]
        return NodeSnapshot(decode_node(found.encoded), uses, settled=self.settled)

    def write(self, seen: NodeSnapshot, patch: Patch) -> bool:
        """False where the node has changed since it was seen, or is gone."""
        try:
            current = self.store.get(NODES, seen.name).document
            self.store.update(NODES, seen.name, apply_patch(MERGE, current, patch.body))
        except StatusError as error:
            if error.code not in (404, 409):
                raise
            return False
        return True

    def evict(self, evict: Evict) -> None:
        for one in evict.pods if self.budget else ():
            namespace, _, name = one.partition("/")
            self.end_pod(name, namespace)

    def change(self, name: str, layout: str = ONES) -> Change:
        """What that layout would change on a node."""
        seen = self.look(name)
        assert seen is not None
        wanted = Wanted(mig.read(layout), None, label=False, text=layout)
        return change_of(seen.node, seen.offered, seen.uses, wanted)

    # what happens to it

    def edit(self, name: str, edit: dict[str, Any]) -> None:
        try:
            current = self.store.get(NODES, name).document
        except StatusError:
            return
        self.store.update(NODES, name, apply_patch(MERGE, current, edit), status=None)

    def answer(self, name: str, refusal: str = "") -> None:
        """The node's device plugin does what its annotation says, or says why not."""
        seen = self.look(name)
        if seen is None or not seen.ready:
            return
        self.edit(name, answer_to(self.store.get(NODES, name).document, CARDS, refusal))

    def add_pod(self, name: str, where: str, resource: str = MIG + "2g.20gb") -> str:
        """Bind a pod; its UID."""
        made = self.store.create(PODS, pod(name, where, resource), "default")
        uid: str = made.document["metadata"]["uid"]
        return uid

    def end_pod(self, name: str, namespace: str = "default") -> None:
        with suppress(StatusError):
            self.store.delete(PODS, name, namespace)

    def ready(self, name: str, status: str) -> None:
        self.edit(name, {"status": {"conditions": [{"type": "Ready", "status": status}]}})

    def cordon(self, name: str, cordoned: bool | None = True) -> None:
        self.edit(name, {"spec": {"unschedulable": cordoned}})

    def cordoned(self, name: str) -> bool:
        return bool(self.store.get(NODES, name).document["spec"].get("unschedulable"))

    def record(self, name: str) -> RolloutRecord | None:
        return record_in(self.store.get(NODES, name).document)


def record_in(document: dict[str, Any]) -> RolloutRecord | None:
    with suppress(InvalidInput):
        return record_of(document["metadata"].get("annotations"))
    return None
