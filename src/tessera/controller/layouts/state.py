"""What the controller has seen of MigLayouts, nodes, and pods that hold GPUs."""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple

from tessera.controller.layouts.plan import SeenNode
from tessera.core.autopilot.shares import Taker
from tessera.core.devices.capacity import PodUse
from tessera.core.dra.slices import DRIVER
from tessera.core.kubernetes.pod import Amounts
from tessera.core.mig.profile import MigProfile
from tessera.core.resources import is_any_gpu
from tessera.kube.rest.client import path_of
from tessera.kube.watch.table import (
    NODES,
    RESOURCE_SLICES,
    UNFINISHED_PODS,
    Key,
    Resource,
    Table,
    entry_by_key,
    entry_by_name,
    is_before,
    read_key,
)
from tessera.protocol.kubernetes.dra import SliceIn, decode_slice
from tessera.protocol.kubernetes.nodes import NodeIn, decode_node, kept_small
from tessera.protocol.kubernetes.pod import decode_pod, pod_use_of
from tessera.protocol.mig.miglayout import API_VERSION, PLURAL, MigLayout
from tessera.protocol.mig.operator import MigManagerConfig
from tessera.rollout.changes import Surroundings
from tessera.rollout.in_use import Going, holders, named
from tessera.rollout.progress import sliced

NOT_YET: Final = "mig-manager's configurations have not been read yet"
# A pod without them asks for no GPUs: by the names of resources, or by annotations that say more of its claim.
_DOMAINS: Final = (b"nvidia.com/", b"gpu-webhook.k8s.io/")
# Pods that have ended and may have taken what was cut for them: their looks are 10 seconds apart. More are forgotten, the oldest first.
_MOST_ENDED: Final = 1000
MIG_LAYOUTS: Final = Resource(PLURAL, path_of(API_VERSION, PLURAL), optional=True)


class _HoldingPod(NamedTuple):
    """The GPUs that a pod holds."""

    key: Key
    node: str
    amounts: Amounts
    bound: float | None = None  # when it was bound to the node

    @classmethod
    def read(cls, raw: bytes) -> "_HoldingPod | None":
        """A pod from its JSON; None where it holds no GPUs."""
        if not any(domain in raw for domain in _DOMAINS):  # nearly all pods of most clusters
            return None
        pod = decode_pod(raw)
        use, bound = pod_use_of(pod, is_any_gpu), pod.status.condition("PodScheduled")
        if not (use.node and use.amounts):
            return None
        return cls(read_key(raw), use.node, use.amounts, bound.since if bound.status == "True" else None)

    def as_taker(self, bound: float) -> Taker:
        devices = {
            str(profile): int(amount.value)
            for resource, amount in self.amounts.items()
            if (profile := MigProfile.of_resource(resource)) is not None
        }
        return Taker(self.key.namespace, bound, devices)


class LayoutState:
    """Copies of objects; what is older than what is known is not taken."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self.layouts: dict[str, MigLayout] = {}
        self.nodes: dict[str, SeenNode] = {}
        self.around = Surroundings(unread=NOT_YET)  # of these only what mig-manager has
        self._held: dict[str, dict[Key, _HoldingPod]] = {}  # by node
        self._ended: deque[_HoldingPod] = deque(maxlen=_MOST_ENDED)  # those that held GPUs until lately
        self._where: dict[Key, str] = {}
        self._slices: dict[str, tuple[str, dict[str, int]]] = {}  # by name: the node, and its devices
        self._sliced: dict[str, set[str]] = {}  # by node: the names of its slices
        self._changed = changed

    def table(self) -> Table:
        """How the objects are taken. After a restore of etcd older versions of MigLayouts and nodes count."""
        name, changed = attrgetter("metadata.name"), self._changed
        forget_layouts = partial(_forget, self.layouts, attrgetter("version"))
        forget_nodes = partial(_forget, self.nodes, attrgetter("node.metadata.resource_version"))
        layouts = entry_by_name(
            MigLayout.read,
            self.put_layout,
            self.remove_layout,
            key=attrgetter("name"),
            known=self.layouts.keys,
        )
        nodes = entry_by_name(decode_node, self.put_node, self.remove_node, key=name, known=self.nodes.keys)
        return {
            RESOURCE_SLICES: entry_by_name(
                decode_slice, self._put_slice, self._remove_slice, key=name, known=self._slices.keys
            ),
            MIG_LAYOUTS: replace(layouts.reporting(changed), forget=forget_layouts),
            NODES: replace(nodes.reporting(changed), forget=forget_nodes),
            UNFINISHED_PODS: entry_by_key(
                _HoldingPod.read,
                self._put_pod,
                self._remove_pod,
                key=attrgetter("key"),
                known=self._where.keys,
            ),
        }

    def busy(self, node: str, going: Going) -> str:
        """The pods that hold devices of a node which go."""
        uses = (
            PodUse(key.namespace, key.name, node, pod.amounts)
            for key, pod in self._held.get(node, {}).items()
        )
        return named(holders(uses, going))

    def takers(self, node: str) -> list[Taker]:
        """The pods that hold devices of a node, and some that did until lately."""
        ended = (pod for pod in self._ended if pod.node == node)
        pods = (*self._held.get(node, {}).values(), *ended)
        return [pod.as_taker(pod.bound) for pod in pods if pod.bound is not None]

    def sliced(self, node: str) -> dict[str, int]:
        """The devices that Tessera's DRA driver offers on a node."""
        found = Counter[str]()
        for name in self._sliced.get(node, ()):
            found.update(self._slices[name][1])
        return found

    def put_manager(self, found: MigManagerConfig | None) -> None:
        """Take what mig-manager has, as it was just read; where the API server could not say it, what is known stays."""
        if found is None or not found.passes:
            self.around = Surroundings(found)
        elif self.around.unread:
            self.around = Surroundings(unread=found.error)

    def _put_slice(self, one: SliceIn) -> None:
        name, node = one.metadata.name, one.spec.node_name
        self._remove_slice(name)
        if node and one.spec.driver == DRIVER:
            self._slices[name] = node, sliced([one])
            self._sliced.setdefault(node, set()).add(name)
            self._changed()

    def _remove_slice(self, name: str) -> None:
        if (known := self._slices.pop(name, None)) is not None:
            self._sliced[known[0]].discard(name)
            self._changed()

    def put_layout(self, one: MigLayout) -> None:
        known = self.layouts.get(one.name)
        if known is None or not is_before(one.version, known.version):
            self.layouts[one.name] = one
            self._changed()

    def put_node(self, node: NodeIn) -> None:
        known = self.nodes.get(node.metadata.name)
        if known is None or not is_before(
            node.metadata.resource_version, known.node.metadata.resource_version
        ):
            self.nodes[node.metadata.name] = SeenNode.of(kept_small(node))
            self._changed()

    def refresh_layout(self, one: MigLayout) -> None:
        """Take what was read or written; a MigLayout that the watch has seen go does not come back by it."""
        if one.name in self.layouts:
            self.put_layout(one)

    def refresh_node(self, node: NodeIn) -> SeenNode:
        """The same of a node; the newest that is known of it."""
        if node.metadata.name in self.nodes:
            self.put_node(node)
        return self.nodes.get(node.metadata.name) or SeenNode.of(node)

    def remove_layout(self, name: str) -> None:
        self.layouts.pop(name, None)
        self._changed()

    def remove_node(self, name: str) -> None:
        self.nodes.pop(name, None)
        self._changed()

    def _put_pod(self, pod: _HoldingPod) -> None:
        if self._where.get(pod.key, pod.node) != pod.node:  # another pod of that name
            self._remove_pod(pod.key)
        self._held.setdefault(pod.node, {})[pod.key] = pod
        self._where[pod.key] = pod.node

    def _remove_pod(self, key: Key) -> None:
        node = self._where.pop(key, None)
        if node is not None:
            self._ended.append(self._held[node].pop(key))
            if not self._held[node]:
                del self._held[node]


def _forget(known: dict[str, Any], version_of: Callable[[Any], str], version: str) -> None:
    """Forget what is not newer than a version; all of it without one."""
    for name in [
        name for name, item in known.items() if not version or not is_before(version, version_of(item))
    ]:
        del known[name]
