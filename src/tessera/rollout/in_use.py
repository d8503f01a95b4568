"""Pods that hold devices which would go."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tessera.core.devices.capacity import PodUse
from tessera.core.kubernetes.resources import is_any_gpu, short
from tessera.core.mig.layout import Strategy
from tessera.core.planning.changes import NodeChange
from tessera.core.text import first_of
from tessera.kube.rest.client import Client
from tessera.kube.watch.listing import list_all
from tessera.kube.watch.resource import UNFINISHED_PODS
from tessera.protocol.kubernetes.pod import decode_pod_use

_MOST_NAMED: Final = 8  # pods; more are counted


@dataclass(frozen=True, slots=True)
class Holder:
    """A pod and how many devices of a resource it holds."""

    pod: str
    resource: str
    number: int

    def __str__(self) -> str:
        return f"{self.pod} ({self.number} × {short(self.resource)})"


def holders(uses: Iterable[PodUse], touched: frozenset[str] | None) -> list[Holder]:
    """The pods that hold some of these resources; None: of any."""
    return [
        Holder(f"{use.namespace}/{use.name}", resource, int(amount.value))
        for use in uses
        for resource, amount in use.amounts.items()
        if touched is None or resource in touched
    ]


def named(found: Sequence[Holder]) -> str:
    return first_of([str(one) for one in found], _MOST_NAMED)


def cleared(change: NodeChange, strategy: Strategy, uses: Iterable[PodUse]) -> dict[str, int] | None:
    """How many devices of each resource lie on cards that mig-manager would clear: it clears a card whole.

    None: any device may, since pods hold something that is not known to be there.
    """
    slots = replace(change.present, changing=True).slots(strategy)
    if any(use.amounts.keys() - slots.keys() for use in uses):
        return None
    cards = set(change.changed)
    counts = {resource: sum(one.card in cards for one in some) for resource, some in slots.items()}
    return {resource: number for resource, number in counts.items() if number}


async def uses_of(client: Client, node: str) -> list[PodUse]:
    """What the pods of a node hold of GPUs."""
    query = {"fieldSelector": f"spec.nodeName={node},{UNFINISHED_PODS.fields}"}
    uses = await list_all(client, UNFINISHED_PODS.path, query, lambda raw: decode_pod_use(raw, is_any_gpu))
    return [use for use in uses if use.amounts]
