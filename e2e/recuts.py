"""A stand-in cutter that also sees what the autopilot does to its nodes: which cards it re-cuts, when, and what the nodes then have together."""

import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from e2e.cluster import Client, pods_path
from e2e.cluster.api import Object
from e2e.layouts import CARDS, LABELS, NODES, StandInCutter, mig_layout
from e2e.stand_in_plugin import layout_of
from tessera.core.resources import WHOLE_GPU
from tessera.protocol.mig import documents as mig
from tessera.protocol.mig.rollouts import ROLLOUT

WHOLE = """\
version: v1
mig-configs:
  selected:
  - {devices: [0, 1], mig-enabled: false}
"""


def add_whole_node(cluster: Client, name: str, pool: str) -> None:
    """A node with two cards that are not cut."""
    labels = {**LABELS, "pool": pool, mig.CONFIG_STATE: "success"}
    cluster.add_node(name, allocatable={WHOLE_GPU: 2}, labels=labels, annotations={mig.RUNAI_CONFIG: WHOLE})


def auto(name: str, pool: str, rollout: Object | None = None, **autopilot: Any) -> Object:
    """A MigLayout in mode Auto."""
    return mig_layout(name, pool, mode="Auto", layouts=None, rollout=rollout, autopilot=autopilot or None)


def add_waiting_pod(
    cluster: Client, namespace: str, name: str, resource: str, pool: str = "", **spec: Any
) -> None:
    """A pod for the nodes of a pool; by default of the one that has the name of its namespace."""
    container = {"name": "main", "image": "none", "resources": {"limits": {resource: "1"}}}
    pod_spec = {
        "nodeSelector": {"pool": pool or namespace},
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
        **spec,
    }
    cluster.api.create(pods_path(namespace), {"metadata": {"name": name}, "spec": pod_spec})


@dataclass(frozen=True)
class Recut:
    """A card that was re-cut."""

    at: float
    node: str
    card: int
    held: frozenset[str]  # resources of which devices went, although pods held some


class Recuts(StandInCutter):
    """Cuts nodes as their annotation says, and writes down what became of each card."""

    def __init__(self, cluster: Client, pool: str) -> None:
        self.cards: list[Recut] = []
        self.least, self.most = Counter[str](), Counter[str]()  # devices at any time, on all nodes together
        super().__init__(cluster, pool)
        self._has = {name: mig.read_layout(text, CARDS) for name, text in self._layouts.items()}
        self._note()

    def _see(self, node: Object, *, gone: bool) -> None:
        name = node["metadata"]["name"]
        text = layout_of(node)
        if gone:
            self._has.pop(name, None)
        elif self._layouts.get(name) != text:
            before, after = self._has.get(name), mig.read_layout(text, CARDS)
            if before is not None and ROLLOUT in node["metadata"]["annotations"]:
                held = self._held(name)
                for card, (old, new) in enumerate(zip(before.cards, after.cards, strict=True)):
                    if old != new:
                        went = {one.profile.resource for one in {*old.instances} - {*new.instances}}
                        went |= set() if old.mig_enabled else {WHOLE_GPU}
                        self.cards.append(Recut(time.time(), name, card, frozenset(went & held)))
            self._has[name] = after
            self._note()
        super()._see(node, gone=gone)

    def _held(self, node: str) -> set[str]:
        """The resources of a node that pods hold."""
        pods = self._cluster.api.get("/api/v1/pods", fieldSelector=f"spec.nodeName={node}")["items"]
        limits = (one["resources"].get("limits", {}) for pod in pods for one in pod["spec"]["containers"])
        return {resource for some in limits for resource in some}

    def _note(self) -> None:
        total = Counter[str]()
        for one in self._has.values():
            total.update(one.resources())
        for resource in {*total, *self.least, *self.most}:
            self.least[resource] = min(self.least.get(resource, total[resource]), total[resource])
            self.most[resource] = max(self.most[resource], total[resource])

    def left_cordoned(self) -> list[str]:
        """Nodes that are cordoned, or have a rollout, now."""
        nodes = self._cluster.api.get(NODES, **self._query)["items"]
        return [
            one["metadata"]["name"]
            for one in nodes
            if one["spec"].get("unschedulable") or ROLLOUT in one["metadata"].get("annotations", {})
        ]
