"""Records of rollouts on nodes: those that have a slot of a MigLayout, and those of somebody else, such as a
command.

Whoever may write to a node can write a record there. So the MigLayout bounds its times. A record without a
slot blocks its own node only.
"""

from collections.abc import Collection, Mapping
from typing import Final

from tessera.controller.layouts.plan import SeenNode, find_slot_holders, owner_on
from tessera.core.errors import InvalidInput
from tessera.protocol.mig.miglayout import MigLayout, find_keepers
from tessera.protocol.mig.rollouts import RolloutRecord

# Seconds. A command that lives moves on when the time of a phase is over.
_GRACE: Final = 600.0
_LONGEST_FOREIGN: Final = 86_400.0  # seconds; a phase of a command's rollout counts as long at most
# Seconds: what the CustomResourceDefinition sets by itself. It bounds rollouts of MigLayouts that are gone.
_LONGEST: Final = 1800.0


def longest_phase(layouts: Collection[MigLayout], node: SeenNode) -> float:
    """How many seconds a phase of a node's rollout may take, by the MigLayout whose rollout it is, or which
    keeps the node."""
    owner = owner_on(node)
    keepers = find_keepers(layouts, node.node.metadata.labels)
    for layout in (*(layout for layout in layouts if layout.uid == owner), *keepers):
        try:
            return layout.spec.rollout.longest_phase
        except InvalidInput:
            continue
    return _LONGEST


class RolloutRecords:
    """The records on nodes: those with a slot, as they were last seen, and since when each of the others is
    there."""

    def __init__(self) -> None:
        self.with_slot: dict[str, RolloutRecord] = {}  # by node: one that is removed by hand is written again
        self.foreign = 0  # how many nodes have one without a slot
        # by node, a record without a slot, and when it was first seen as it is: clocks of commands may be
        # wrong
        self._foreign: dict[str, tuple[RolloutRecord, float]] = {}

    def clear(self) -> None:
        """Forget everything: another process may have led since."""
        self.with_slot.clear()
        self._foreign.clear()

    def look(self, layouts: Collection[MigLayout], nodes: Mapping[str, SeenNode], now: float) -> list[str]:
        """Take what is there now; the nodes of MigLayouts with a record of a command that was killed long
        ago."""
        holders = find_slot_holders(layouts, nodes, self.with_slot)
        for name in (name for names in holders.values() for name in names):
            if (record := nodes[name].record) is not None:
                self.with_slot[name] = record
        slots = {name for layout in layouts for name in layout.updating}
        for name, record in list(self.with_slot.items()):
            if name not in nodes or (name not in slots and owner_on(nodes[name]) != record.owner.uid):
                del self.with_slot[name]
        with_slot = frozenset(name for names in holders.values() for name in names)
        self._look_at_foreign(nodes, with_slot, now)
        unreadable = sum(bool(node.unreadable) for name, node in nodes.items() if name not in slots)
        self.foreign = len(self._foreign) + unreadable
        return [
            name
            for name, (record, _) in self._foreign.items()
            if self.is_abandoned(name, record, now)
            and find_keepers(layouts, nodes[name].node.metadata.labels)
        ]

    def written(self, node: SeenNode, *, has_slot: bool = False) -> None:
        """A record was written, or removed, by the controller."""
        if node.record is not None and (has_slot or node.name in self.with_slot):
            self.with_slot[node.name] = node.record

    def _look_at_foreign(self, nodes: Mapping[str, SeenNode], with_slot: Collection[str], now: float) -> None:
        foreign = {}
        for name, node in nodes.items():
            if node.record is not None and name not in with_slot:
                record, since = self._foreign.get(name, (None, now))
                foreign[name] = node.record, since if record == node.record else now
        self._foreign = foreign

    def is_abandoned(self, name: str, record: RolloutRecord, now: float) -> bool:
        """Whether the command that wrote a record was killed: its time has long been over, or it began a day
        ago."""
        if record.owner.uid or name not in self._foreign:
            return False
        known, since = self._foreign[name]
        return known == record and now >= record.by_clock(since).within(_LONGEST_FOREIGN).until + _GRACE
