"""One node, followed: whether it shows the layout that was written to it, and if not, what it waits for."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from tessera.core.dra.slices import DRIVER
from tessera.core.mig.profile import MigProfile
from tessera.core.resources import is_any_gpu, is_whole_or_mig, short
from tessera.kube.clock import either
from tessera.kube.errors import ApiError
from tessera.kube.rest.client import Client
from tessera.kube.watch.follow import Follower
from tessera.kube.watch.listing import list_all
from tessera.kube.watch.table import NODES, RESOURCE_SLICES, single_entry
from tessera.protocol.kubernetes.dra import SliceIn, count_resources, decode_slice
from tessera.protocol.kubernetes.nodes import NodeIn, decode_node, node_of
from tessera.protocol.mig.nodes import GpuNode, counted_once, gpu_node

_NO_REASON: Final = "the node reports failed, without a reason"


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
        who = "mig-manager reports failed; its log says why" if gpus.by_mig_manager else _NO_REASON
        return Progress(shown=False, refused=gpus.reason or who)
    expected = offered if expected is None else expected
    missing = [
        f"{short(name)} current {offered.get(name, 0)}, desired {expected.get(name, 0)}"
        for name in sorted({*offered, *expected})
        if offered.get(name, 0) != expected.get(name, 0)
    ]
    if gpus.state == "success" and (not missing or offered == _plain(expected)):
        return Progress(shown=True)
    state = f"state {gpus.state}" if gpus.state else "waiting for the node's state"
    return Progress(shown=False, waits="; ".join([state, *missing]), reason=gpus.reason)


def _plain(resources: Mapping[str, int]) -> dict[str, int]:
    """Devices with media engines counted with plain ones, as NVIDIA's device plugin (0.19) has it."""
    counts: Counter[str] = Counter()
    for resource, number in resources.items():
        profile = MigProfile.of_resource(resource)
        counts[profile.plain.resource if profile else resource] += number
    return counts


def offered_by(node: NodeIn) -> dict[str, int]:
    """The GPUs and MIG devices that a node has; what several pods share is counted once, where a label says how many share one."""
    amounts, labels = node_of(node, is_any_gpu).allocatable, node.metadata.labels or {}
    found: Counter[str] = Counter()
    for resource, amount in amounts.items():
        device, number = counted_once(resource, int(amount.value), labels)
        found[device] += number
    return {device: number for device, number in found.items() if number and is_whole_or_mig(device)}


def sliced(slices: Iterable[SliceIn]) -> dict[str, int]:
    """The same of a node whose devices Tessera's DRA driver offers."""
    counts = count_resources(slices)
    return {resource: number for resource, number in counts.items() if is_whole_or_mig(resource)}


async def offered_on(client: Client, node: NodeIn) -> dict[str, int]:
    """The GPUs and MIG devices that a node has, by the device plugin, or else by Tessera's DRA driver."""
    if found := offered_by(node):
        return found
    fields = f"spec.nodeName={node.metadata.name},spec.driver={DRIVER}"
    try:
        return sliced(await list_all(client, replace(RESOURCE_SLICES, fields=fields), decode_slice))
    except ApiError as error:
        if not error.is_absent:
            raise
        return {}


@dataclass(slots=True)
class WatchedNode:
    """One node, kept up to date."""

    node: NodeIn | None = None
    # mig-manager's configurations that it named, each with a state that it was in then
    states: set[tuple[str, str]] = field(default_factory=set)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, node: NodeIn | None) -> None:
        """The node as it is now; None: it is gone."""
        self.node = node
        if node is not None:
            gpus = gpu_node(node)
            self.states.add((gpus.config, gpus.state))
        self.changed.set()

    async def change(self, seconds: float | None) -> None:
        """Wait until it changes, no longer than so many seconds."""
        await either(self.changed, seconds)


@asynccontextmanager
async def watched(client: Client, name: str) -> AsyncIterator[WatchedNode]:
    node = WatchedNode()

    async with Follower(client, {NODES.named(name): single_entry(decode_node, node.put)}).following(
        complete=False
    ):
        yield node
