"""What would make a pod run: in words for people, and as changes of the cluster or of the pod for programs."""

from collections.abc import Mapping
from dataclasses import dataclass

from tessera.core.kubernetes.quantity import Quantity
from tessera.inventory.presence import Presence


@dataclass(frozen=True, slots=True)
class PodsEnd:
    """These pods end."""

    pods: tuple[str, ...]  # namespace/name


@dataclass(frozen=True, slots=True)
class NodeFreed:
    """Other pods of a node end, until so much is free there."""

    node: str
    amounts: Mapping[str, Quantity]


@dataclass(frozen=True, slots=True)
class NodeOpened:
    """A node takes the pod: it is uncordoned, its taints are removed or tolerated, or the pod selects it."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeOffers:
    """A node offers so many GPUs: its device plugin is back, its devices recovered, or its cards are cut so."""

    node: str
    counts: Mapping[str, int]  # of these resources; of all others as before


@dataclass(frozen=True, slots=True)
class PodAsks:
    """The pod asks for no more than this."""

    amounts: Mapping[str, Quantity]


@dataclass(frozen=True, slots=True)
class CreatedAgain:
    """The pod is created again, and admission gives it other resources."""

    replaced: Mapping[str, str]


Change = PodsEnd | NodeFreed | NodeOpened | NodeOffers | PodAsks | CreatedAgain


@dataclass(frozen=True, slots=True)
class Remedy:
    """Something that would make the pod run, or a MigLayout go on, and what to type for it."""

    kind: str  # mend, policy, quota, layout, pod-ends, change, limit, wait
    text: str
    commands: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()  # all together make it run; none: it helps, and more may be needed


def repaired(part: Presence) -> Remedy:
    """A part of Tessera that is unavailable is at work again."""
    return Remedy("mend", part.remedy, (part.command,))
