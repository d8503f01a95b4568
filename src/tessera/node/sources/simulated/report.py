"""What a simulated node says about itself: labels and annotations, computed from what the devices did."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tessera.core.mig.layout import CardLayout, DoesNotFit, NodeLayout, Slot, Strategy
from tessera.core.mig.placement import every_place
from tessera.node.sources.simulated.layout import Outcome
from tessera.protocol.mig.documents import CONFIG_REASON, CONFIG_STATE
from tessera.protocol.mig.labels import gpu_labels, stale_labels
from tessera.protocol.mig.mapping import MAPPING, encode_mapping, mapping_of


@dataclass(frozen=True, slots=True)
class Report:
    """Labels and annotations as they ought to be, None: not there; and the desired text that they answer."""

    desired: str | None = ""
    labels: Mapping[str, str | None] = field(default_factory=dict)
    annotations: Mapping[str, str | None] = field(default_factory=dict)

    def patch(self, labels: Mapping[str, str], annotations: Mapping[str, str]) -> dict[str, Any]:
        """The merge patch that makes a node say this; empty when it does."""
        gone: dict[str, str | None] = dict.fromkeys(stale_labels(labels, self.labels))
        metadata = {
            "labels": _changes({**gone, **self.labels}, labels),
            "annotations": _changes(self.annotations, annotations),
        }
        changed = {name: changes for name, changes in metadata.items() if changes}
        return {"metadata": changed} if changed else {}


def report_of(
    node: str,
    there: NodeLayout,
    leaving: Collection[str],
    strategy: Strategy,
    desired: str | None,
    outcome: Outcome,
) -> Report:
    """The report of a node whose cards are cut like this now; where no layout is desired there is no state either.

    `leaving` are the ids of devices of an earlier layout that stay for their pods: they are there, and are told.
    """
    mapping = mapping_of(there, node, leaving)
    return Report(
        desired,
        labels={**gpu_labels(there, strategy), CONFIG_STATE: str(outcome.state) if desired else None},
        annotations={
            MAPPING: encode_mapping(mapping) if mapping else None,
            CONFIG_REASON: (outcome.reason if desired else "") or None,
        },
    )


def without(layout: NodeLayout, node: str, waiting: Collection[str]) -> NodeLayout:
    """A layout less the devices of these ids, which wait for others to leave."""
    if not waiting:
        return layout
    return NodeLayout(
        tuple(
            replace(
                card, instances=tuple(i for i in card.instances if Slot(number, i).uuid(node) not in waiting)
            )
            for number, card in enumerate(layout.cards)
        ),
        changing=True,
    )


def beside(layout: NodeLayout, node: str, leaving: Collection[str]) -> NodeLayout:
    """A layout and, where they lie, the devices of these ids, which stay for their pods."""
    if not leaving:
        return layout
    return NodeLayout(
        tuple(_with(card, node, number, leaving) for number, card in enumerate(layout.cards)), changing=True
    )


def _with(card: CardLayout, node: str, number: int, leaving: Collection[str]) -> CardLayout:
    if Slot(number).uuid(node) in leaving:
        return CardLayout(card.product)
    stay = tuple(one for one in every_place(card.product) if Slot(number, one).uuid(node) in leaving)
    if not stay:
        return card
    try:
        return CardLayout(card.product, mig_enabled=True, instances=(*stay, *card.instances))
    except DoesNotFit:  # two layouts may have more of an engine than a card has; what stays is what counts
        return CardLayout(card.product, mig_enabled=True, instances=stay)


def _changes(wanted: Mapping[str, str | None], present: Mapping[str, str]) -> dict[str, str | None]:
    return {name: value for name, value in wanted.items() if present.get(name) != value}
