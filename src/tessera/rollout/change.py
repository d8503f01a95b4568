"""What is wanted of nodes, and what happens to one node: values, computed before anything is written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tessera.core.devices.capacity import in_order
from tessera.core.errors import InvalidInput
from tessera.core.mig.geometry import Product
from tessera.core.mig.layout import LayoutEntry
from tessera.core.planning.configurations import OURS, configuration_name, is_label_value
from tessera.protocol.kubernetes.nodes import NodeIn
from tessera.protocol.mig import documents as mig
from tessera.protocol.mig.nodes import GpuNode
from tessera.protocol.mig.operator import MigManagerConfig
from tessera.protocol.mig.rollouts import record_of
from tessera.rollout.in_use import Going


class WhenInUse(StrEnum):
    """What to do about pods that hold devices which would go."""

    WAIT = "wait"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a person wants of nodes: a layout, or one of mig-manager's configurations by its name."""

    document: mig.MigDocument | None  # None: only the name is known
    config: str | None
    label: bool  # `config` goes into the label; else each node gets the layout its own way
    product: Product | None = None  # said by the operator, which goes before what a node says
    cards: int | None = None
    text: str = ""  # the document as the operator wrote it

    def __post_init__(self) -> None:
        """Refuse a name that the API server would refuse, or that the document does not have."""
        if self.label and not is_label_value(self.config or ""):
            raise InvalidInput(
                f'"{(self.config or "")[:70]}" cannot be the value of a label; --label takes the name of a configuration'
            )
        if self.document is not None:
            self.document.select(self.config)

    def cards_of(self, gpus: GpuNode) -> tuple[Product | None, int | None]:
        """The product of a node's cards and their number: as the operator says, else as the node does."""
        return self.product or gpus.product, self.cards or gpus.cards


@dataclass(frozen=True, slots=True)
class Change:
    """What happens to one node."""

    node: str
    before: str | None
    after: str
    state: str  # what the node says of the layout it has
    offered: Mapping[str, int]  # GPUs and MIG devices that it has now
    expected: Mapping[str, int] | None  # those that it will have; None: unknown
    label: bool = False  # the node is cut by mig-manager, which reads a label; else an annotation is written
    risks: tuple[str, ...] = ()
    removed: Mapping[str, int] | None = None  # devices that go, by resource; None: which is not known
    entries: tuple[LayoutEntry, ...] = ()  # the configuration `after`, where mig-manager does not have it yet
    refused: str = ""  # why nothing is written to this node
    again: bool = False  # mig-manager has made it, and the node does not show it
    places: Mapping[int, tuple[str, ...]] | None = (
        None  # the devices that go, by card; None: which is not known
    )
    begun: str = ""  # who has begun a rollout on the node that has not ended

    @property
    def key(self) -> str:
        return mig.PARTED_CONFIG if self.label else mig.RUNAI_CONFIG

    @property
    def when_in_use(self) -> WhenInUse:
        """What to do where nobody says it: who reads an annotation waits by itself, and mig-manager does not look."""
        return WhenInUse.REFUSE if self.label else WhenInUse.WAIT

    @property
    def written(self) -> bool:
        """Whether the node asks for it already, and there is nothing to do but to wait: mig-manager tries a name only once."""
        return self.before == self.after and not (self.label and (self.again or self.state == "failed"))

    @property
    def going(self) -> Going:
        return Going(None if self.removed is None else frozenset(self.removed), self.places)

    @property
    def counts(self) -> list[tuple[str, int, int]]:
        """The resources whose number changes: how many the node has now, and how many it will have."""
        if self.expected is None:
            return []
        now, then = self.offered, self.expected
        found = [
            (resource, now.get(resource, 0), then.get(resource, 0)) for resource in in_order({**now, **then})
        ]
        return [(resource, before, after) for resource, before, after in found if before != after]

    def value_of(self, node: NodeIn) -> str | None:
        """The node's present value."""
        return value_of(node, label=self.label)

    def patch(self, value: str, version: str | None = None) -> dict[str, Any]:
        """The merge patch that writes a value, and removes the state of the old one."""
        metadata: dict[str, Any] = {"labels": {mig.CONFIG_STATE: None}}
        metadata.setdefault("labels" if self.label else "annotations", {})[self.key] = value
        return {"metadata": {**metadata, **({"resourceVersion": version} if version else {})}}

    def by_hand(self) -> str:
        """The command that puts the old value back, quoted for a shell."""
        verb = "label" if self.label else "annotate"
        if self.before is None:
            return f"kubectl {verb} node {self.node} {self.key}-"
        quoted = "'" + self.before.replace("'", "'\\''") + "'"
        return f"kubectl {verb} node {self.node} --overwrite {self.key}={quoted}"


def value_of(node: NodeIn, *, label: bool) -> str | None:
    """What stands in the node's label for mig-manager, or in the annotation."""
    section = node.metadata.labels if label else node.metadata.annotations
    return (section or {}).get(mig.PARTED_CONFIG if label else mig.RUNAI_CONFIG)


def begun_on(node: NodeIn) -> str:
    """Who has begun a rollout on a node that has not ended; empty: nobody."""
    try:
        record = record_of(node.metadata.annotations)
    except InvalidInput as error:
        return str(error)
    return str(record.owner) if record is not None else ""


@dataclass(frozen=True, slots=True)
class Changes:
    """What happens to all of them, and the ConfigMap of mig-manager."""

    changes: Sequence[Change]
    manager: MigManagerConfig | None = None
    warnings: Sequence[str] = ()

    @property
    def new(self) -> dict[str, tuple[LayoutEntry, ...]]:
        """The configurations that the ConfigMap does not have yet."""
        return {one.after: one.entries for one in self.changes if one.entries and not one.refused}

    @property
    def ours(self) -> dict[str, tuple[LayoutEntry, ...]]:
        """Configurations of ours that nodes get: new ones, and those that a rollout which was killed has left."""
        there = self.manager.document.configs if self.manager and self.manager.document else {}
        names = [one.after for one in self.changes if one.label and not (one.written or one.refused)]
        left = {name: there[name] for name in names if name in there}
        return {name: one for name, one in left.items() if name == configuration_name(one)} | self.new

    @property
    def replaced(self) -> list[str]:
        """Configurations of ours that nodes leave: they are removed when no other node names them."""
        left = {one.before for one in self.changes if one.label and not (one.written or one.refused)}
        return sorted(name for name in left if name and name.startswith(OURS) and name not in self.new)
