"""What a cluster's pods wait for, and which of its cards may be cut for them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from tessera.cli.common.cluster import ClusterChoice
from tessera.cli.mig.plan_output import Place
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.resources import is_any_gpu
from tessera.core.mig.layout import CardLayout, NodeLayout
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.demand import Demand, demand_of
from tessera.core.planning.planner import Card, Plan
from tessera.inventory.inventory import Inventory
from tessera.protocol.kubernetes.selector import LabelSelector
from tessera.protocol.mig.nodes import GpuNode, present_layout


@dataclass(frozen=True, slots=True)
class PendingCards:
    """Cards that a plan may use, as they are cut now, and what was passed over."""

    places: Sequence[Place]
    cards: Sequence[Card]
    present: Sequence[CardLayout]
    passed_over: Sequence[str]

    def undisturbed(self, plan: Plan) -> Plan:
        """The plan, but cards that it does not use stay as they are."""
        used = set(plan.used)
        return replace(
            plan,
            cards=tuple(
                card if number in used else self.present[number] for number, card in enumerate(plan.cards)
            ),
            kept=tuple(
                kept if number in used else self.present[number].instances
                for number, kept in enumerate(plan.kept)
            ),
        )


@dataclass(frozen=True, slots=True)
class Pending:
    """What is wanted, and the cluster that wants it."""

    demand: Demand
    inventory: Inventory

    @classmethod
    def read(cls, cluster: ClusterChoice, sources: Sequence[str], selector: str, since: float) -> "Pending":
        """Ask a cluster, or files."""
        inventory = Inventory(
            is_any_gpu,
            LabelSelector.parse(selector),
            holds=lambda claim: not claim.node or bool(claim.record),
        )
        if sources:
            inventory.read_files(sources)
        else:
            cluster.run(inventory.read_cluster)
        earliest = datetime.now(UTC) - timedelta(seconds=since)
        return cls(demand_of(inventory.pods, earliest.strftime("%Y-%m-%dT%H:%M:%SZ")), inventory)

    def words(self) -> Iterator[str]:
        """The demand, for people."""
        demand = self.demand
        yield f"pods without a node ask for {_counted(demand.waiting)}"
        if demand.fell_back:
            yield f"pods that fell back had asked for {_counted(demand.fell_back)}"
        if demand.whole_gpus:
            yield f"whole GPUs that pods wait for ({demand.whole_gpus}) are no part of the plan"

    def cards(self) -> PendingCards:
        """The cards that may be cut; where devices are in use all of them stay."""
        places: list[Place] = []
        cards: list[Card] = []
        present: list[CardLayout] = []
        passed_over = []
        for name in sorted(self.inventory.gpus):
            node, used = self.inventory.gpus[name], self.inventory.used(name)
            try:
                layout = _layout(node)
            except InvalidInput as error:
                passed_over.append(passed(name, str(error)))
                continue
            held = {r for r, number in used.items() if number}
            if any(slot.instance is None for r in held for slot in layout.slots(node.strategy).get(r, ())):
                passed_over.append(passed(name, "whole GPUs are in use, and only the node knows which"))
                continue
            places.append(Place(name, range(len(cards), len(cards) + len(layout.cards))))
            cards += [Card(card.product, card.instances if held else ()) for card in layout.cards]
            present += layout.cards
        return PendingCards(places, cards, present, passed_over)


def passed(name: str, reason: str) -> str:
    """A node whose cards are no part of a plan, and why."""
    return f"node {name}: passed over: {reason}"


def uncut(node: GpuNode) -> NodeLayout:
    """A node's cards as whole GPUs; `InvalidInput` where it does not say what they are."""
    if node.product is None:
        raise InvalidInput(f'unknown product "{node.label}"')
    if node.cards is None:
        raise InvalidInput(f'no number of cards for "{node.label}"')
    return NodeLayout((CardLayout(node.product),) * node.cards)


def _layout(node: GpuNode) -> NodeLayout:
    """How the cards are cut; a node that says nothing of it has whole GPUs."""
    return present_layout(node) or uncut(node)


def _counted(counts: Mapping[MigProfile, int]) -> str:
    return ", ".join(f"{counts[profile]} × {profile}" for profile in sorted(counts)) or "no MIG devices"
