"""What DRA serves on nodes, and what claims hold of it: beside what is allocatable, and what pods hold of that."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from tessera.core.dra.pools import Served
from tessera.core.dra.slices import PoolId
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.node import Node
from tessera.kube.errors import ApiError
from tessera.kube.view.dra import DraObjects
from tessera.kube.watch.resource import (
    DEVICE_CLASSES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Key,
    Resource,
    Sink,
)
from tessera.protocol.dra.objects import Claim, read_claim, read_class

if TYPE_CHECKING:
    from tessera.kube.rest.client import Client

T = TypeVar("T")
KINDS: Final = ("DeviceClass", "ResourceSlice", "ResourceClaim")


class ClaimedDevice(NamedTuple):
    """A device that a claim holds."""

    by: str  # namespace/name of the pod; `claim namespace/name` where no pod uses it now
    resources: tuple[str, ...]  # as which classes serve it


class DraInventory:
    """Classes, slices and claims."""

    def __init__(self) -> None:
        self._changed: Callable[[], object] = lambda: None
        self._reread: Callable[[], object] = lambda: None
        self._objects = DraObjects(lambda _: self._changed(), self._slices_wanted, with_devices=True)
        self._claims: dict[Key, Claim] = {}
        self.unseen = ""  # why it is not known what DRA has

    def follow(self, changed: Callable[[], object], reread: Callable[[], object]) -> None:
        """Tell `changed` of every change from now on, and `reread` when slices must be read again."""
        self._changed, self._reread = changed, reread

    def _slices_wanted(self) -> None:
        self._reread()

    @property
    def class_errors(self) -> Mapping[str, str]:
        """The classes whose expressions could not be evaluated, and why."""
        return self._objects.class_errors

    def served(self, node: Node) -> Served:
        """How many devices DRA serves on a node, by extended resource."""
        return self._objects.pools.served(node)

    def invalid(self, node: Node) -> dict[PoolId, str]:
        """The pools of a node that nothing is allocated from, since a name is there twice; and that name."""
        return self._objects.pools.invalid(node)

    def held(self) -> dict[str, dict[str, int]]:
        """Node → extended resource → devices that claims hold. A device counts for every class that selects it."""
        found: dict[str, dict[str, int]] = {}
        pools = self._objects.pools
        for claim in self._claims.values():
            for pool, device in claim.holds:
                kind, node = pools.kind_of(pool, device), pools.node_of(pool)
                if kind is not None and node:
                    on = found.setdefault(node, {})
                    for resource in pools.resources_of(kind):
                        on[resource] = on.get(resource, 0) + 1
        return found

    def holders(self) -> dict[str, dict[str, ClaimedDevice]]:
        """Node → device → who holds it, of the devices that claims hold."""
        found: dict[str, dict[str, ClaimedDevice]] = {}
        pools = self._objects.pools
        for claim in self._claims.values():
            for pool, device in claim.holds:
                kind = pools.kind_of(pool, device)
                resources = tuple(pools.resources_of(kind)) if kind is not None else ()
                held = ClaimedDevice(claim.holder, resources)
                found.setdefault(pools.node_of(pool), {})[device] = held
        return found

    def held_by_pods(self) -> dict[Key, dict[str, int]]:
        """Pod → extended resource → devices that its claims hold, by what these devices are."""
        found: dict[Key, dict[str, int]] = {}
        pools = self._objects.pools
        for claim in self._claims.values():
            kinds = [pools.kind_of(pool, device) for pool, device in claim.holds]
            for resource in (name for kind in kinds if kind is not None for name in pools.resources_of(kind)):
                for pod in claim.pods:
                    has = found.setdefault(Key(claim.namespace, pod), {})
                    has[resource] = has.get(resource, 0) + 1
        return found

    def is_cut_on_demand(self, node: Node) -> bool:
        """Whether a node's cards are cut as claims ask for it."""
        return self._objects.pools.is_cut_on_demand(node)

    def free(self, nodes: Iterable[Node]) -> dict[str, dict[str, int]]:
        """Node → extended resource → devices that no claim holds.

        Nothing of a node with counters: there, what is free depends on what else is cut.
        """
        held = self.held()
        found: dict[str, dict[str, int]] = {}
        for node in nodes:
            if not self._objects.pools.is_cut_on_demand(node, driver=""):
                taken, served = held.get(node.name, {}), self.served(node)
                left = {name: number - taken.get(name, 0) for name, number in served.items()}
                found[node.name] = {name: number for name, number in left.items() if number > 0}
        return found

    def devices_held(self) -> dict[str, set[str]]:
        """Node → the names of its devices that claims hold."""
        found: dict[str, set[str]] = {}
        for claim in self._claims.values():
            for pool, device in claim.holds:
                found.setdefault(self._objects.pools.node_of(pool), set()).add(device)
        return found

    # from an API server, at once or followed

    async def read(self, client: "Client") -> None:
        """Ask an API server; without any class nothing more is asked. What may not be read is not there."""
        try:
            classes = await _listed(client, DEVICE_CLASSES, read_class)
            self._objects.replace_classes(classes)
            if classes:
                self._objects.replace_slices(await _listed(client, RESOURCE_SLICES, self._objects.read_slice))
                self._replace_claims(await _listed(client, RESOURCE_CLAIMS, read_claim))
        except ApiError as error:
            if error.code not in (403, 404):
                raise
            self.unseen = str(error) if error.code == 403 else ""

    def take(self, classes: Iterable[bytes], slices: Iterable[bytes], claims: Iterable[bytes]) -> None:
        """These are all there are."""
        self._objects.replace_classes(map(read_class, classes))
        self._objects.replace_slices([self._objects.read_slice(raw) for raw in slices])
        self._replace_claims(map(read_claim, claims))

    def sinks(self) -> dict[Resource, Sink[Any]]:
        """Where the objects of a cluster go that is followed."""
        return {
            DEVICE_CLASSES: self._objects.classes(),
            RESOURCE_SLICES: self._objects.slices(),
            RESOURCE_CLAIMS: Sink(read_claim, self._replace_claims, self._put_claim, self._remove_claim),
        }

    def _replace_claims(self, claims: Iterable[Claim]) -> None:
        self._claims = {Key(one.namespace, one.name): one for one in claims if one.holds}
        self._changed()

    def _put_claim(self, one: Claim) -> None:
        before = self._claims.pop(Key(one.namespace, one.name), None)
        if one.holds:
            self._claims[Key(one.namespace, one.name)] = one
        if before is None and not one.holds:
            return
        self._changed()

    def _remove_claim(self, key: Key) -> None:
        if self._claims.pop(key, None) is not None:
            self._changed()


async def _listed(client: "Client", resource: Resource, read: Callable[[bytes], T]) -> list[T]:
    """All objects of a collection, each read as it comes; one that cannot be read is left out, as by a reflector."""
    from tessera.kube.watch.listing import PAGE, read_list

    found: list[T] = []

    def begin() -> Callable[[bytes], None]:
        found.clear()
        return take

    def take(raw: bytes) -> None:
        with suppress(InvalidInput):
            found.append(read(raw))

    await read_list(client, resource.path, {"limit": PAGE}, begin)
    return found
