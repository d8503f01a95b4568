"""What a simulated node says about itself: labels and annotations, computed from what the devices did."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from tessera.core.mig.layout import NodeLayout, Strategy
from tessera.node.sources.simulated.layout import Outcome
from tessera.protocol.mig.documents import CONFIG_REASON, CONFIG_STATE
from tessera.protocol.mig.labels import gpu_labels, stale_labels
from tessera.protocol.mig.mapping import MAPPING, encode_mapping, mapping_of


@dataclass(frozen=True, slots=True)
class Report:
    """Labels and annotations as they ought to be; None: not there."""

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
    layout: NodeLayout,
    strategy: Strategy,
    outcome: Outcome | None,
    leaving: Collection[str] = (),
) -> Report:
    """The report of a node with this layout; without an outcome, no layout was asked for.

    `leaving` are the ids of devices of an earlier layout that stay for their pods: they are there, and are told.
    """
    mapping = mapping_of(layout, node, leaving)
    return Report(
        labels={**gpu_labels(layout, strategy), CONFIG_STATE: str(outcome.state) if outcome else None},
        annotations={
            MAPPING: encode_mapping(mapping) if mapping else None,
            CONFIG_REASON: (outcome.reason if outcome else "") or None,
        },
    )


def _changes(wanted: Mapping[str, str | None], present: Mapping[str, str]) -> dict[str, str | None]:
    return {name: value for name, value in wanted.items() if present.get(name) != value}
