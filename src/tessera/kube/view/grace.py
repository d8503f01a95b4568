"""Nodes on their way into the offers: what is unavailable for a moment stays.

A device plugin that restarts takes its resources to 0 for a second or two, a kubelet for longer. A pod that is created
just then must not be changed for good. So what a node offered last still counts for a grace period, which runs only
while the node is Ready; and what its capacity still has, though nothing of it is allocatable, likewise. The same holds
for what DRA serves: a kubelet deletes the ResourceSlices of its node whenever it starts. All of it ends at once where
the node was deliberately repartitioned, or is deleted.

Only of nodes with something unavailable is anything kept here.

The devices that a node should have by its labels and annotations.

A replica that has just started knows no past. While a device plugin or a kubelet restarts, a node's status does not list
devices that are back in a moment; its labels and its layout still do.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NoReturn

from tessera.core.admission.policy import GRACE
from tessera.core.admission.view.offers import Offers
from tessera.core.cache import cache_short
from tessera.core.dra.pools import NOTHING_SERVED, Pools, Served
from tessera.core.dra.slices import Spots, may_be_meant
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.node import GPU_COUNT_LABEL, GPU_PRODUCT_LABEL, LAYOUT_STATE_LABEL, Node
from tessera.core.kubernetes.pod import NOTHING, Amounts
from tessera.core.kubernetes.quantity import Quantity
from tessera.core.mig.profile import MigProfile
from tessera.core.resources import MIG_PREFIX, WHOLE_GPU, is_extended
from tessera.kube.clock import Clock
from tessera.kube.watch.table import Key
from tessera.protocol.kubernetes.nodes import NodeIn

if TYPE_CHECKING:
    from tessera.protocol.mig.nodes import GpuNode


# as tessera.protocol.mig has them, which is loaded where a node has such an annotation and needs it
_LAYOUTS: Final = ("run.ai/mig.config", "run.ai/mig-mapping")
_LAYOUT_LABEL: Final = "nvidia.com/mig.config"  # which layout mig-manager makes
_NO_LAYOUT: Final = ("", "all-disabled")
_MOST_CHARACTERS: Final = 16 * 1024  # of an annotation: eight cards of seven devices take a quarter of it
_MOST_CARDS: Final = 64  # of a node whose layout is worked out card by card
_COUNT: Final = ".count"


def mentions_gpus(node: NodeIn) -> bool:
    """Whether labels or annotations mention GPUs at all."""
    labels, annotations = node.metadata.labels or {}, node.metadata.annotations or {}
    return (
        GPU_PRODUCT_LABEL in labels
        or GPU_COUNT_LABEL in labels
        or any(name in annotations for name in _LAYOUTS)
        or any(key.startswith(MIG_PREFIX) for key in labels)
    )


def missing_devices(raw: NodeIn, node: Node) -> Amounts:
    """The devices that a node has by its labels or its layout, and does not offer.

    Its labels count MIG devices; where they do not, and the status names no GPU either, its layout counts, and where it
    has none, the label that counts whole GPUs.
    """
    labels, annotations = raw.metadata.labels or {}, raw.metadata.annotations or {}
    counts: Mapping[str, int] = _counted(labels)
    if not counts and not node.offer.counts:
        if any(name in annotations for name in _LAYOUTS):
            counts = _laid_out(raw)
        elif labels.get(_LAYOUT_LABEL, "") in _NO_LAYOUT and not _is_renamed(WHOLE_GPU, labels):
            counts = {WHOLE_GPU: _number(labels.get(GPU_COUNT_LABEL, ""))}
    lacking = tuple((name, n) for name, n in counts.items() if n and not node.allocatable.get(name))
    return _amounts(lacking) if lacking else NOTHING


def _counted(labels: Mapping[str, str]) -> dict[str, int]:
    """The MIG devices that labels count; none of those that are shared by another name."""
    counts = {}
    for key, value in labels.items():
        if key.startswith(MIG_PREFIX) and key.endswith(_COUNT):
            name = key.removesuffix(_COUNT)
            if MigProfile.of_resource(name) is not None and not _is_renamed(name, labels):
                counts[name] = _number(value)
    return counts


def _is_renamed(name: str, labels: Mapping[str, str]) -> bool:
    """Whether these devices are offered as shares of another name: a product of shares that keep their name says so."""
    shared = _number(labels.get(name + ".replicas", "")) > 1
    return shared and not labels.get(name + ".product", "").endswith("-SHARED")


def _laid_out(raw: NodeIn) -> Mapping[str, int]:
    """What the layout in a node's annotations has; nothing when it cannot be read."""
    from tessera.protocol.mig.nodes import gpu_node

    annotations = raw.metadata.annotations or {}
    if any(len(annotations.get(name, "")) > _MOST_CHARACTERS for name in _LAYOUTS):
        return {}
    return _resources(replace(gpu_node(raw), name="", reason=""))


@cache_short(
    64, 2 * _MOST_CHARACTERS, lambda node: node.length
)  # many nodes are cut alike, and some milliseconds go into each
def _resources(node: "GpuNode") -> Mapping[str, int]:
    from tessera.core.mig.layout import Strategy, count_devices
    from tessera.protocol.mig import documents
    from tessera.protocol.mig.nodes import present_layout

    if node.strategy is not Strategy.MIXED:
        return {}  # no slice is called by its profile there
    try:
        if 0 < (node.cards or 0) <= _MOST_CARDS and (layout := present_layout(node)) is not None:
            return layout.resources(node.strategy)
        entries = documents.read(node.layout or "").select()
    except InvalidInput:
        return {}
    # product or number of cards are not known: what the layout names is counted, on one card where it says "all"
    return count_devices(entries, node.cards or 1)


def _number(text: str) -> int:
    """A label's number; 0 for what can be none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0


@cache_short(256, 64, len)  # nodes of one kind have the same
def _amounts(counts: tuple[tuple[str, int], ...]) -> Amounts:
    return {name: Quantity.parse(str(count)) for name, count in counts}


_TICK: Final = 1.0  # seconds between two checks of what is unavailable: a grace period is counted in minutes


@dataclass(slots=True)
class _Unavailable:
    """What is unavailable of a node: the seconds for which it still counts."""

    node: Node  # as the API server has it
    left: dict[str, float]
    since: float  # when `left` was right
    settled: Node | None = None  # as the offers have it, where only time can change that

    def has_expired(self, now: float) -> bool:
        """Whether something stops counting by the time that has gone by."""
        return self.node.ready and any(0 < left <= now - self.since for left in self.left.values())

    def pass_time(self, now: float) -> None:
        """Let the time go by that the node was Ready."""
        if self.node.ready:
            for resource in self.left:
                self.left[resource] -= now - self.since
        self.since = now


class NodesWithGrace:
    """Takes nodes, and hands them on to the offers."""

    def __init__(self, offers: Offers, clock: Clock, pools: Pools | None = None) -> None:
        """Fill the offers; `pools` are what DRA serves on the nodes."""
        self._offers = offers
        self._clock = clock
        self._pools = pools
        self.grace = GRACE  # seconds for which what is gone from a node still counts
        self._unavailable: dict[str, _Unavailable] = {}
        # the MIG devices that a node's labels counted and count no longer, and since when
        self._uncounted: dict[str, dict[str, float]] = {}
        self._something = asyncio.Event()  # set while anything is unavailable

    async def run(self) -> NoReturn:
        """Let what is unavailable for too long go, until cancelled."""
        while True:
            await self._something.wait()
            await self._clock.sleep(_TICK)
            self.expire()

    def replace(self, objects: Iterable[Node]) -> None:
        taken = []
        for one in objects:
            self._note(one)
            taken.append(self._with_unavailable(one))
        self._offers.replace(taken)
        self._forget({name for name in self._unavailable if name not in self._offers.nodes})
        for name in [name for name in self._uncounted if name not in self._offers.nodes]:
            del self._uncounted[name]

    def put(self, one: Node) -> None:
        self._note(one)
        self._offers.put(self._with_unavailable(one))

    def delete(self, key: Key) -> None:
        """This one is gone, and all that was unavailable of it."""
        self._forget({key.name})
        self._uncounted.pop(key.name, None)
        self._offers.remove(key.name)

    def expire(self) -> None:
        """Let go what has been unavailable for longer than the grace period."""
        now, nodes = self._clock.now(), self._offers.nodes
        for name, unavailable in list(self._unavailable.items()):
            known = nodes.get(name)
            is_settled = known is not None and known is unavailable.settled and name not in self._uncounted
            if is_settled and not unavailable.has_expired(now):
                continue
            self._offers.put(self._with_unavailable(unavailable.node))
            if name in self._unavailable and nodes.get(name) is known:
                self._unavailable[name].settled = known

    def refresh(self, concerned: Spots) -> None:
        """What DRA serves has changed, on nodes that have one of these spots."""
        nodes = self._offers.nodes
        names = [spot for spot in concerned if isinstance(spot, str)]
        by_name = len(names) == len(concerned)
        for name in [name for name in names if name in nodes] if by_name else list(nodes):
            node = self._unavailable[name].node if name in self._unavailable else nodes[name]
            if by_name or may_be_meant(node, concerned):
                self._offers.put(self._with_unavailable(node))

    def _note(self, node: Node) -> None:
        known = self._offers.nodes.get(node.name)
        if known is not None and known.labels != node.labels:
            self._compare_labels(known, node)

    def _compare_labels(self, known: Node, node: Node) -> None:
        """Remember what the labels stop counting: they may do so before the devices go, and before the layout is done."""
        before, now = self._uncounted.pop(node.name, {}), self._clock.now()
        was_done = _is_done(known) and _is_done(node)
        uncounted = {
            resource: before[resource] if resource in before and was_done else now
            for resource in {*known.allocatable, *known.unavailable, *known.dra, *before}
            if resource.startswith(MIG_PREFIX)
            and (resource in before or _is_counted(resource, known.labels))
            and not _is_counted(resource, node.labels)
        }
        if uncounted:
            self._uncounted[node.name] = uncounted

    def _cut(self, node: Node, known: Node | None) -> Collection[str]:
        """What was taken from a node on purpose."""
        uncounted = self._uncounted.get(node.name)
        if not uncounted or known is None or not _is_done(node):
            return ()
        latest = self._clock.now() - self.grace
        for resource in [r for r, since in uncounted.items() if since < latest]:
            if known.allocatable.get(resource) or resource in known.dra:
                del uncounted[resource]  # what stays for so long without a label is not what it counted
        return uncounted

    def _with_unavailable(self, node: Node) -> Node:
        """The node as decisions see it."""
        known = self._offers.nodes.get(node.name)
        served = NOTHING_SERVED if self._pools is None else self._pools.served(node)
        if not node.unavailable and (
            known is None
            or (known.allocatable is node.allocatable and not known.unavailable and known.dra is served)
        ):  # nearly always: amounts are kept once
            return _serving(node, served)
        cut = self._cut(node, known)
        missing, still = self._missing(node, known, served, cut), self._still(node, known, served, cut)
        if not missing and not still:
            if node.name in self._unavailable:
                self._forget({node.name})
            return _serving(replace(node, unavailable=NOTHING) if node.unavailable else node, served)
        now = self._clock.now()
        before = self._unavailable.get(node.name)
        if before is not None:
            before.pass_time(now)
        left = {
            resource: before.left[resource] if before and resource in before.left else self.grace
            for resource in (*missing, *still)
        }
        self._unavailable[node.name] = _Unavailable(node, left, now)
        self._something.set()
        if known is not None and not node.labels and not node.allocatable:
            # of a node without GPUs the name alone was read
            node = replace(known, allocatable=node.allocatable, ready=node.ready)
        kept = {r: number for r, number in still.items() if left[r] > 0}
        return replace(
            node,
            unavailable={r: amount for r, amount in missing.items() if left[r] > 0},
            dra={**served, **kept} if kept else served,
        )

    def _still(self, node: Node, known: Node | None, served: Served, cut: Collection[str]) -> Served:
        """What DRA served last and does not now, though its class is there: its slices may be back in a moment."""
        if known is None or known.dra is served or self._pools is None:
            return NOTHING_SERVED
        return {
            resource: number
            for resource, number in known.dra.items()
            if resource not in served
            and resource in self._pools.serving
            and not node.allocatable.get(resource)
            and resource not in cut
        }

    def _missing(self, node: Node, known: Node | None, served: Served, cut: Collection[str]) -> Amounts:
        """What counts for as long as the grace lasts: what was offered last, and what the capacity still has."""
        candidates = dict(node.unavailable)
        if known is not None:
            for amounts in (known.allocatable, known.unavailable):
                candidates.update(
                    (resource, amount)
                    for resource, amount in amounts.items()
                    if amount and is_extended(resource)
                )
        return {
            resource: amount
            for resource, amount in candidates.items()
            if not node.allocatable.get(resource) and resource not in served and resource not in cut
        }

    def _forget(self, names: set[str]) -> None:
        for name in names:
            self._unavailable.pop(name, None)
        if not self._unavailable:
            self._something.clear()


def _serving(node: Node, served: Served) -> Node:
    return node if node.dra is served or (not node.dra and not served) else replace(node, dra=served)


def _is_done(node: Node) -> bool:
    """Whether the node's layout is what it should be."""
    return node.labels.get(LAYOUT_STATE_LABEL) == "success"


def _is_counted(resource: str, labels: Mapping[str, str]) -> bool:
    """Whether labels count such MIG devices."""
    return labels.get(resource.removesuffix(".shared") + ".count", "0") != "0"
