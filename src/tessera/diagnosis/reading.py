"""What can be asked about in a cluster, as kubectl names it, and how objects are read for the answer.

What may not be read is remembered as unseen, what cannot be understood as odd. Also whether parts of Tessera are at work.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

import msgspec

from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.node import Node
from tessera.core.text import quoted
from tessera.inventory.presence import DRIVERS, Presence, controller_of, drivers_of, webhook_of
from tessera.kube.clock import Clock
from tessera.kube.errors import KubeError
from tessera.kube.rest.client import CALLED, POD_KINDS, Client, collection, path_of
from tessera.kube.view.lease import CLAIMS, read_lease
from tessera.kube.watch.listing import list_all, list_once, note_odd, note_unseen
from tessera.kube.watch.table import RESOURCE_SLICES, Resource, Table
from tessera.protocol.kubernetes import objects
from tessera.protocol.kubernetes.controllers import Workload
from tessera.protocol.kubernetes.dra import ClaimIn, SliceIn
from tessera.protocol.kubernetes.pod import PodIn
from tessera.protocol.mig.miglayout import API_VERSION, KIND, PLURAL

POD: Final = "pod"
MIG_LAYOUT: Final = KIND.lower()
MIG_LAYOUT_SHORT: Final = "mig"  # in the chart, for `kubectl get mig`
NODE: Final = "node"
_CALLED: Final = {
    **CALLED,
    **dict.fromkeys(("node", "nodes", "no"), NODE),
    **dict.fromkeys((MIG_LAYOUT, PLURAL, MIG_LAYOUT_SHORT), MIG_LAYOUT),
}
KINDS: Final = tuple(sorted(_CALLED))  # for completion


class NoSuchObject(InvalidInput):
    """There is nothing of that name."""


def parse_target(text: str) -> tuple[str, str]:
    """The kind and the name of `train`, `pod/train`, `deploy/web`, `miglayouts.tessera.dev/inference`, as kubectl names them."""
    kind, slash, name = text.rpartition("/")
    known = _known(kind) if slash else POD
    if known is None:
        kinds = ", ".join(
            one.short[0] if one.short and kind != POD else kind for kind, one in POD_KINDS.items()
        )
        raise InvalidInput(f"unknown kind {quoted(kind)}; use {kinds}, {NODE} or {MIG_LAYOUT}")
    if not name:
        raise InvalidInput(f"{quoted(text)}: the name is empty; write {kind}/NAME")
    return known, name


def _known(kind: str) -> str | None:
    return _CALLED.get(kind.lower().partition(".")[0])


def objects_of(kind: str, namespace: str) -> str:
    """Where the objects are that a kind of target names, by any of its names; empty for a kind that is not known."""
    known = _known(kind) or ""
    if known == MIG_LAYOUT:
        return path_of(API_VERSION, PLURAL)
    if known == NODE:
        return path_of("v1", "nodes")
    return collection(known, namespace)


T = TypeVar("T")

LEASE: Final = "the controller's Lease"  # as what could not be read is named


class Reader:
    """Reads objects for the fields of the evidence. An object, a collection or a kind that is not there is no error."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.unseen: dict[str, str] = {}  # field → why it could not be read
        self.odd: dict[str, list[str]] = {}  # field → objects that cannot be read, and why

    async def get(self, field: str, path: str, read: Callable[[bytes], T]) -> T | None:
        """An object; None where there is none."""
        try:
            return read(await self.client.get(path))
        except (KubeError, InvalidInput) as error:
            self.missed(field, error)
            return None

    async def one(self, field: str, kind: type[T], path: str) -> T | None:
        """The same, as this kind."""
        return await self.get(field, path, objects.decoder(kind))

    async def all(self, field: str, kind: type[T], path: str, labels: str = "") -> tuple[T, ...]:
        """Every object of a collection, or those with these labels."""
        return await self.each(Resource(field, path, labels=labels), objects.decoder(kind))

    async def each(self, resource: Resource, read: Callable[[bytes], T]) -> tuple[T, ...]:
        """A list without the objects that cannot be read; its field is the resource's name."""
        return tuple(await list_all(self.client, resource, read, unseen=self.unseen, odd=self.odd))

    async def fill(self, table: Table) -> None:
        """List collections into a table; the field of each is its resource's name."""
        await list_once(self.client, table, unseen=self.unseen, odd=self.odd)

    def readable(self, field: str, raw: bytes | msgspec.Raw, read: Callable[[bytes], T]) -> T | None:
        """An object, or None for one that is odd: it is remembered, and the others are read."""
        try:
            return read(bytes(raw))
        except InvalidInput as error:
            note_odd(self.odd, field, raw, error)
            return None

    def left_out(self) -> dict[str, str]:
        """What was left out of lists, since it cannot be read: how many, and one of them."""
        return {
            f"some {field}": f"{len(odd)} cannot be read, such as {odd[0]}" for field, odd in self.odd.items()
        }

    @contextlib.contextmanager
    def reading(self, field: str) -> Iterator[None]:
        """What the API server will not show, or not in a way that can be read, is unseen."""
        try:
            yield
        except (KubeError, InvalidInput) as error:
            self.missed(field, error)

    def missed(self, field: str, error: Exception) -> None:
        """Remember why something could not be read."""
        note_unseen(self.unseen, field, error)


# Which parts of Tessera are at work


async def read_webhook(reader: Reader, namespace: str, name: str) -> Presence | None:
    """The webhook; None where it has no Deployment, or none that may be read."""
    path = path_of("apps/v1", "deployments", namespace=namespace, name=name)
    found = await Reader(reader.client).one("deployment", Workload, path)
    return webhook_of(found) if found else None


async def read_controller(
    reader: Reader, namespace: str, clock: Clock, reconciler: str = CLAIMS
) -> Presence | None:
    """The controller, and whether it runs a reconciler, by its Lease; None where that may not be read."""
    try:
        return controller_of(await read_lease(reader.client, namespace, clock), namespace, reconciler)
    except (KubeError, InvalidInput) as error:
        reader.missed(LEASE, error)
        return None


async def read_drivers(
    reader: Reader, nodes: Iterable[Node], slices: Sequence[SliceIn], claims: Sequence[ClaimIn], now: float
) -> dict[str, Presence]:
    """The DRA driver of each node; its pods may be hidden, and so may the slices."""
    alone = Reader(reader.client)
    pods = await alone.all("drivers", PodIn, path_of("v1", "pods"), DRIVERS)
    known, seen = None if RESOURCE_SLICES.name in reader.unseen else slices, None if alone.unseen else pods
    return drivers_of(nodes, known, claims, seen, installed=bool(pods), now=now)
