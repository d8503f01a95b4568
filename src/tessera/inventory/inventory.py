"""The nodes and pods of a cluster, or of files, read in one pass into a `Capacity`."""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import click
import msgspec

from tessera.core.devices.capacity import Capacity, Claim, is_gpu
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.node import Node
from tessera.kube.object_files import FileObject, called, naming, objects_in
from tessera.protocol.kubernetes import objects
from tessera.protocol.kubernetes.pods import decode_claim
from tessera.protocol.kubernetes.selector import EVERYTHING, LabelSelector
from tessera.protocol.mig.nodes import GpuNode, gpu_node

if TYPE_CHECKING:
    from tessera.kube.rest.client import Client

# as `kubectl describe node` does: what has ended holds nothing, and clusters keep thousands of such pods
UNFINISHED: Final = "status.phase!=Succeeded,status.phase!=Failed"


@dataclass(frozen=True, slots=True)
class InventoryNode:
    """A node: what it has, and what is known of its GPUs."""

    node: Node
    gpus: GpuNode


@dataclass(slots=True)
class Inventory:
    """What is asked about, and what was found."""

    keep: Callable[[str], bool]
    selector: LabelSelector = EVERYTHING  # of nodes
    holds: Callable[[Claim], bool] = lambda _: False  # which claims to keep, beside adding them up
    capacity: Capacity = field(default_factory=Capacity)
    gpus: dict[str, GpuNode] = field(default_factory=dict)  # of nodes that say something about them
    claims: list[Claim] = field(default_factory=list)

    # reading one object

    def decode_node(self, raw: bytes) -> InventoryNode:
        """A node, with the resources that are asked about."""
        decoded = objects.decode_node(raw)
        return InventoryNode(objects.node_of(decoded, self.keep), gpu_node(decoded))

    def decode_pod(self, raw: bytes) -> Claim:
        """A pod's claim, to the resources that are asked about."""
        return decode_claim(raw, self.keep)

    def put(self, one: InventoryNode) -> None:
        """Take a node in."""
        self.capacity.put_node(one.node)
        if one.gpus.label or one.gpus.layout is not None or one.gpus.mapping is not None:
            self.gpus[one.node.name] = one.gpus
        else:
            self.gpus.pop(one.node.name, None)

    def used(self, name: str) -> dict[str, int]:
        """How many GPUs and MIG devices of a node pods hold."""
        usage = self.capacity.usage(name).items()
        return {resource: int(one.allocated.value) for resource, one in usage if is_gpu(resource)}

    def add(self, claim: Claim) -> None:
        """Take a pod in."""
        if claim.amounts:
            self.capacity.add(claim)
            if self.holds(claim):
                self.claims.append(claim)

    # reading everything

    def begin_nodes(self) -> Callable[[bytes], None]:
        """Begin a list of nodes, from nothing."""
        self.capacity.forget_nodes()
        self.gpus.clear()
        return lambda raw: self.put(self.decode_node(raw))

    def begin_pods(self) -> Callable[[bytes], None]:
        """Begin a list of pods, from nothing."""
        self.capacity.forget_claims()
        self.claims.clear()
        return lambda raw: self.add(self.decode_pod(raw))

    async def read_cluster(self, client: "Client", *, pods: bool = True) -> None:
        """Ask an API server; nothing that it sends is kept longer than one object takes to be read."""
        from tessera.kube.rest.paths import path_of
        from tessera.kube.watch.listing import PAGE, read_list

        for plural, query, begin in (
            ("nodes", {"labelSelector": self.selector.text or None}, self.begin_nodes),
            ("pods", {"fieldSelector": UNFINISHED}, self.begin_pods),
        )[: 2 if pods else 1]:
            path = path_of("v1", plural)
            bar = _Bar(f"Reading {plural}", await _how_many(client, path) if sys.stderr.isatty() else 0)
            with bar:
                await read_list(client, path, {**query, "limit": PAGE}, bar.counting(begin))

    def read_files(self, paths: Sequence[str]) -> None:
        """Read files with objects, as kubectl writes them."""
        if not self.take(objects_in(paths)):
            raise InvalidInput(f"{called(*paths)}: no nodes and no pods")

    def take(self, found: Iterable[FileObject]) -> set[str]:
        """Take nodes and pods, each once, and pass over other kinds of objects; which of both there were."""
        seen: set[tuple[str, str, str]] = set()
        for where, kind, raw in found:
            if kind not in ("Node", "Pod"):
                continue
            with naming(where):
                name = _name(raw).metadata
                key = (kind, name.namespace or "", name.name or "")
                if key in seen:
                    continue
                seen.add(key)
                if kind == "Pod":
                    self.add(self.decode_pod(raw))
                elif self.selector.matches((one := self.decode_node(raw)).node.labels):
                    self.put(one)
        return {kind for kind, _, _ in seen}


class _Named(msgspec.Struct):
    metadata: objects.PodMetaIn


_name: Final = objects.decoder(_Named)


class _Count(msgspec.Struct):
    remainingItemCount: int = 0  # noqa: N815 # as in the API


class _Counted(msgspec.Struct):
    metadata: _Count


async def _how_many(client: "Client", path: str) -> int:
    """How many objects a collection has; few when the server does not say."""
    page = await client.get(path, {"limit": 1})
    try:
        return 1 + msgspec.json.decode(page, type=_Counted).metadata.remainingItemCount
    except msgspec.MsgspecError:
        return 0


class _Bar:
    """Progress on standard error, where somebody sees it and it takes long enough to be seen."""

    _WORTH_SHOWING: Final = 2000  # objects; fewer are there in an instant
    _STEP: Final = 100

    def __init__(self, title: str, number: int) -> None:
        self._bar = (
            click.progressbar(length=number, label=title, file=sys.stderr, show_pos=True)
            if number >= self._WORTH_SHOWING
            else None
        )
        self._count = 0

    def __enter__(self) -> None:
        if self._bar is not None:
            self._bar.__enter__()

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.__exit__(None, None, None)

    def counting(self, begin: Callable[[], Callable[[bytes], None]]) -> Callable[[], Callable[[bytes], None]]:
        """The same reading, counted."""
        if self._bar is None:
            return begin
        bar = self._bar

        def begin_counted() -> Callable[[bytes], None]:
            take = begin()
            bar.update(-bar.pos)

            def counted(raw: bytes) -> None:
                take(raw)
                self._count += 1
                if self._count % self._STEP == 0:
                    bar.update(self._STEP)

            return counted

        return begin_counted
