"""Pods that hold devices which would go."""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from tessera.core.devices.capacity import POD, PodUse
from tessera.core.devices.held import held_by_resource, resource_at
from tessera.core.dra.device_names import name_at, pool_of
from tessera.core.dra.slices import DRIVER, PoolId
from tessera.core.mig.layout import WHOLE, Strategy
from tessera.core.planning.changes import NodeChange
from tessera.core.resources import SHARED, WHOLE_GPU, is_any_gpu, short
from tessera.core.text import first_of
from tessera.kube.errors import ApiError
from tessera.kube.rest.client import Client
from tessera.kube.watch.listing import list_all
from tessera.kube.watch.table import RESOURCE_CLAIMS, UNFINISHED_PODS
from tessera.protocol.dra.objects import read_claim
from tessera.protocol.kubernetes.pod import decode_pod_use
from tessera.protocol.mig.nodes import GpuNode, decode_in_use

_MOST_NAMED: Final = 8  # pods; more are counted
# Seconds in which a node says which devices a pod holds that came before the cordon: until then it is not evicted in vain
SAID_WITHIN: Final = 30.0
NVIDIAS_DRIVER: Final = "gpu.nvidia.com"


@dataclass(frozen=True, slots=True)
class Holder:
    """A pod, or a claim that no pod uses now, and how many devices of a resource it holds."""

    pod: str
    resource: str
    number: int
    sure: bool = True  # False: the node has yet to say which devices it holds

    @property
    def is_pod(self) -> bool:
        return " " not in self.pod

    def __str__(self) -> str:
        return f"{self.pod} ({self.number} × {short(self.resource)})"


@dataclass(frozen=True, slots=True)
class Going:
    """The devices that go."""

    resources: frozenset[str] | None = None  # of which some go; None: of any they may
    places: Mapping[int, Collection[str]] | None = None  # which ones: card → places; None: it is not known


def holders(uses: Iterable[PodUse], going: Going, gpus: GpuNode | None = None) -> list[Holder]:
    """The pods of a node that may hold devices which go: of a pod whose devices the node says, it is known."""
    known = gpus is not None and going.places is not None and not gpus.by_mig_manager
    published = decode_in_use(gpus.in_use) if gpus is not None and known else None
    said = held_by_resource(published, gpus.strategy) if gpus is not None and published is not None else {}
    places, found = going.places or {}, []
    for use in uses:
        for resource, amount in use.amounts.items():
            if going.resources is not None and resource.removesuffix(SHARED) not in going.resources:
                continue
            number, pod = int(amount.value), use.uid[:POD]
            own = [at for at, by in said.get(resource, {}).items() if by == pod and pod]
            sure = published is None or len(own) == number
            if sure and published is not None:
                number = sum(place in places.get(card, ()) for card, place in own)
            if number:
                found.append(Holder(f"{use.namespace}/{use.name}", resource, number, sure))
    return found


def claim_holders(claimed: Mapping[str, str], going: Going) -> list[Holder]:
    """The holders of claims, by the names of their devices, that may hold devices which go."""
    places = {name_at(card, one): one for card, some in (going.places or {}).items() for one in some}
    held = Counter(
        (by, resource_at(places.get(name, WHOLE), Strategy.MIXED) or WHOLE_GPU)
        for name, by in claimed.items()
        if going.places is None or name in places
    )
    return [Holder(by, resource, number) for (by, resource), number in held.items()]


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


class ClaimedDevices:
    """The devices of nodes that claims hold. Claims cannot be listed by node: one list of all serves the nodes that are looked at together."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._reading = asyncio.Lock()
        self._began = -inf
        self._found: dict[PoolId, dict[str, str]] = {}

    async def on(self, node: str, since: float) -> Mapping[str, str]:
        """Device → who has it, read no earlier than `since`, by the client's clock; none where claims may not be read."""
        async with self._reading:
            if self._began < since:
                began = self._client.clock.now()
                self._found = await self._read()
                self._began = began
        # NVIDIA's driver calls its pools as their nodes
        ours, nvidias = PoolId(DRIVER, pool_of(node)), PoolId(NVIDIAS_DRIVER, node)
        return {**self._found.get(nvidias, {}), **self._found.get(ours, {})}

    async def _read(self) -> dict[PoolId, dict[str, str]]:
        try:
            claims = await list_all(self._client, RESOURCE_CLAIMS, read_claim, odd={})
        except ApiError as error:
            if not error.is_absent:
                raise
            return {}
        found: dict[PoolId, dict[str, str]] = {}
        for claim in claims:
            for pool, device in claim.holds:
                found.setdefault(pool, {})[device] = claim.holder
        return found


async def uses_of(client: Client, node: str) -> list[PodUse]:
    """What the pods of a node hold of GPUs."""
    pods = replace(UNFINISHED_PODS, fields=f"spec.nodeName={node},{UNFINISHED_PODS.fields}")
    uses = await list_all(client, pods, lambda raw: decode_pod_use(raw, is_any_gpu))
    return [use for use in uses if use.amounts]
