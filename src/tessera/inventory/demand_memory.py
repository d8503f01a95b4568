"""What was worked out of single nodes, kept as long as it holds: a cluster is looked at again and again, and few of its nodes change meanwhile."""

from dataclasses import dataclass, field

from tessera.core.devices.capacity import NodeUse
from tessera.core.devices.held import Held
from tessera.core.kubernetes.quantity import Number
from tessera.core.kubernetes.resources import is_any_gpu
from tessera.core.mig.known import KnownLayout, UnknownLayout
from tessera.core.planning.kinds import CardToCut
from tessera.inventory.inventory import Inventory
from tessera.inventory.layouts import HeldDevices


@dataclass(slots=True)
class NodeFacts:
    """A node: what it has, what is free of it, how its cards are cut, and what of them is held."""

    basis: tuple[object, ...]  # what this was worked out from
    use: NodeUse
    free: dict[str, Number]
    has_gpus: bool
    known: KnownLayout | UnknownLayout | None = None
    held: Held | None = None
    cards: dict[tuple[object, ...], tuple[CardToCut, ...]] = field(
        default_factory=dict
    )  # by what was given out


class NodeMemory:
    """Facts of nodes; what has changed since is worked out again."""

    def __init__(self) -> None:
        self._facts: dict[str, NodeFacts] = {}

    def of(self, inventory: Inventory) -> dict[str, NodeFacts]:
        """The facts of all nodes that have anything, in the order of their names."""
        capacity, gpus, manager = inventory.capacity, inventory.gpus, inventory.mig_manager
        slices, claims = inventory.dra.edition, inventory.dra.holders()
        found = {}
        for name in sorted(capacity):
            basis = (
                capacity[name],
                gpus.get(name),
                manager,
                slices,
                capacity.edition(name),
                capacity.claimed.get(name),
                claims.get(name),
            )
            facts = self._facts.get(name)
            if facts is None or not _same(facts.basis, basis):
                use = NodeUse(capacity[name], capacity.usage(name))
                free = {resource: one.available.number for resource, one in use.resources.items()}
                facts = NodeFacts(basis, use, free, name in gpus or any(map(is_any_gpu, free)))
            if facts.use.resources or facts.has_gpus:
                found[name] = facts
        self._facts = found
        return found

    @staticmethod
    def known(inventory: Inventory, name: str, facts: NodeFacts) -> KnownLayout | UnknownLayout:
        """How a node's cards are cut."""
        if facts.known is None:
            facts.known = inventory.known(name)
        return facts.known

    @staticmethod
    def held(devices: HeldDevices, name: str, facts: NodeFacts, known: KnownLayout) -> Held:
        """What of a node's cards is held."""
        if facts.held is None:
            facts.held = devices.on(name, known)
        return facts.held


def _same(old: tuple[object, ...], new: tuple[object, ...]) -> bool:
    """Whether nothing has changed: objects are replaced when they change, so most are the very same."""
    return all(one is other or one == other for one, other in zip(old, new, strict=True))
