"""How far a node is: whether it shows the layout that was written to it, and if not, what it waits for."""

from collections.abc import Mapping
from dataclasses import dataclass

from tessera.core.kubernetes.resources import is_whole_or_mig, short
from tessera.protocol.kubernetes.nodes import NodeIn, node_of
from tessera.protocol.mig.nodes import GpuNode


@dataclass(frozen=True, slots=True)
class Progress:
    """A node at one moment."""

    shown: bool  # the layout holds
    refused: str = ""  # why the node does not take it
    waits: str = ""  # what is missing until it holds
    reason: str = ""  # the node's own words about why it waits


def progress_of(gpus: GpuNode, offered: Mapping[str, int], expected: Mapping[str, int] | None) -> Progress:
    """A layout holds when the node's state says so, and the node offers what the layout makes."""
    if gpus.state == "failed":
        return Progress(shown=False, refused=gpus.reason or "the node reports failed, without a reason")
    missing = (
        [
            f"{short(name)} current {offered.get(name, 0)}, desired {expected.get(name, 0)}"
            for name in sorted({*offered, *expected})
            if offered.get(name, 0) != expected.get(name, 0)
        ]
        if expected is not None
        else []
    )
    if gpus.state == "success" and not missing:
        return Progress(shown=True)
    state = f"state {gpus.state}" if gpus.state else "waiting for the node's state"
    return Progress(shown=False, waits="; ".join([state, *missing]), reason=gpus.reason)


def offered_by(node: NodeIn) -> dict[str, int]:
    """The GPUs and MIG devices that a node has; of those that it has none of, none."""
    amounts = node_of(node, is_whole_or_mig).allocatable
    return {resource: int(amount.value) for resource, amount in amounts.items() if amount.value >= 1}
