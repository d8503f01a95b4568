"""A stand-in for NVIDIA's mig-manager and its neighbours: the kubelet that brings the ConfigMap late, and the device plugin.

It behaves as mig-manager 0.13.1 does: it acts on changes of the label only; it knows the configurations of its file; what is
applied already is a success at once; while it works the DaemonSets leave, and after a failure it brings them back only if it has
not succeeded before.
"""

from typing import Any

from tessera.core.mig.geometry import product_named
from tessera.core.mig.layout import NodeLayout, resolve
from tessera.core.resources import is_whole_or_mig
from tessera.protocol.mig import documents as mig
from tessera.simulation.control_plane.kinds import CONFIG_MAPS, NODES
from tests.build import encode_amounts
from tests.inventory.objects import CLUSTER_POLICIES, config_map, operator_node, policy
from tests.kube.served import ServedCluster

PLUGIN = "nvidia.com/gpu.deploy.device-plugin"
PRODUCT = product_named("A100-80GB")
CONFIG = """\
version: v1
mig-configs:
  # nothing is cut
  all-disabled:
    - devices: all
      mig-enabled: false

  all-1g.10gb:  # seven on each
    - devices: all
      mig-enabled: true
      mig-devices: {"1g.10gb": 7}
  all-balanced:
    - devices: all
      mig-enabled: true
      mig-devices:
        1g.10gb: 2
        2g.20gb: 1
        3g.40gb: 1
# the end
"""


def node(name: str, config: str = "all-1g.10gb", cards: int = 2, **labels: str) -> dict[str, Any]:
    """A node as the operator leaves it."""
    offers = resolve(mig.read(CONFIG).select(config), [PRODUCT] * cards).resources()
    document = operator_node(name, {}, config, cards=cards, **{"gpu.memory": "81920"})
    document["metadata"]["labels"] |= {PLUGIN: "true", **labels}
    document["status"] = {"allocatable": encode_amounts(offers), "capacity": encode_amounts(offers)}
    return document


class FakeMigManager:
    """Answers to every new label of every node, in the server's thread."""

    def __init__(self, cluster: ServedCluster, *, name: str = "own-config", text: str = CONFIG) -> None:
        self.arrives = lambda: True  # whether the ConfigMap has reached the file
        self.fails = lambda node, config: False  # mig-parted does
        self.absent: set[str] = set()  # nodes where it does not answer
        self.reboots = False
        self.may_end = lambda: True  # while it works: whether it may end
        self.succeeded = False  # before, since its start
        self.on_label = lambda node, config: None
        self.seen: list[tuple[str, str | None]] = []
        self.unknown: list[str] = []  # configurations that its file did not have when it was asked
        self.file = mig.read(text).configs
        self.name, self._cluster = name, cluster
        self._labels: dict[str, str | None] = {}
        self._cards: dict[str, NodeLayout] = {}
        kind = CLUSTER_POLICIES
        cluster.server.kinds[kind.prefix, kind.plural] = kind
        cluster.call(lambda: cluster.server.store.create(kind, policy(name, "gpu-operator"), ""))
        file = config_map(text, name)
        file["data"]["other"] = "kept"
        cluster.add(file)
        cluster.call(self._start)

    @property
    def text(self) -> str:
        """What the ConfigMap has now."""
        store = self._cluster.server.store
        found = self._cluster.call(lambda: store.get(CONFIG_MAPS, self.name, "gpu-operator").document)
        assert found["data"]["other"] == "kept"
        return str(found["data"]["config.yaml"])

    def write(self, text: str) -> None:
        """Somebody else writes the ConfigMap; called in the server's thread."""
        store = self._cluster.server.store
        document = store.get(CONFIG_MAPS, self.name, "gpu-operator").document
        document["data"]["config.yaml"] = text
        store.update(CONFIG_MAPS, self.name, document, "gpu-operator")

    def cut(self, name: str, layout: NodeLayout) -> None:
        """Somebody else cuts a node's cards; called in the server's thread."""
        self._cards[name] = layout
        self._offer(name, layout.resources())

    def _start(self) -> None:
        store = self._cluster.server.store
        for stored in store.list(NODES):
            labels = stored.document["metadata"].get("labels") or {}
            name, config = stored.key[1], labels.get(mig.PARTED_CONFIG)
            self._labels[name] = config
            if config is not None and config in self.file:
                self._cards[name] = self._layout(name, config)
        store.follow(NODES, store.version, lambda change: self._changed(change.after.document))
        store.follow(CONFIG_MAPS, store.version, lambda change: self._config(change.after.document))

    def _config(self, document: dict[str, Any]) -> None:
        self._bring(mig.read(document["data"]["config.yaml"]).configs)

    def _bring(self, configs: mig.Configs) -> None:
        if self.arrives():
            self.file = configs
        else:
            self._cluster.loop.call_later(0.01, self._bring, configs)

    def _changed(self, document: dict[str, Any]) -> None:
        name, config = document["metadata"]["name"], document["metadata"]["labels"].get(mig.PARTED_CONFIG)
        if self._labels.get(name) == config:
            return
        self._labels[name] = config
        self.seen.append((name, config))
        self.on_label(name, config)
        if name not in self.absent and config:
            self._cluster.loop.call_soon(self._reconfigure, name, config)

    def _reconfigure(self, name: str, config: str) -> None:
        if config not in self.file:
            self.unknown.append(config)
            self._end(name, "failed")
        elif self._cards.get(name) == self._layout(name, config):
            self._end(name, "success", resume=not self.succeeded)
        else:
            self._label(name, {mig.CONFIG_STATE: "pending"})
            self._label(name, {PLUGIN: "paused-for-mig-change"})
            self._offer(name, {})
            if self.reboots:
                self._label(name, {mig.CONFIG_STATE: "rebooting"})
            self._cluster.loop.call_later(0.02, self._cut, name, config)

    def _cut(self, name: str, config: str) -> None:
        if not self.may_end():
            self._cluster.loop.call_later(0.01, self._cut, name, config)
            return
        if self.fails(name, config):
            self._end(name, "failed", resume=not self.succeeded)
            return
        self._cards[name] = self._layout(name, config)
        self._end(name, "success", resume=True)
        self.succeeded = True

    def _end(self, name: str, state: str, *, resume: bool = False) -> None:
        if resume:
            self._label(name, {PLUGIN: "true"})
        self._label(name, {mig.CONFIG_STATE: state})
        self._cluster.loop.call_later(0.02, self.plugin, name)

    def plugin(self, name: str) -> None:
        """The device plugin, where it may run, says what there is."""
        document = self._cluster.server.store.get(NODES, name).document
        if document["metadata"]["labels"].get(PLUGIN) == "true":
            self._offer(name, self._cards[name].resources())
        else:
            self._cluster.loop.call_later(0.02, self.plugin, name)

    def _label(self, name: str, labels: dict[str, str]) -> None:
        self._cluster.changing_node(name, lambda one: one["metadata"]["labels"].update(labels))

    def _offer(self, name: str, resources: dict[str, int]) -> None:
        def change(document: dict[str, Any]) -> None:
            for amounts in (document["status"]["allocatable"], document["status"]["capacity"]):
                amounts.update({resource: "0" for resource in amounts if is_whole_or_mig(resource)})
                amounts.update({resource: str(number) for resource, number in resources.items()})

        self._cluster.changing_node(name, change)

    def _layout(self, name: str, config: str) -> NodeLayout:
        document = self._cluster.server.store.get(NODES, name).document
        cards = int(document["metadata"]["labels"]["nvidia.com/gpu.count"])
        return resolve(self.file[config], [PRODUCT] * cards)
