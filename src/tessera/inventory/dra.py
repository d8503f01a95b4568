"""What DRA serves on nodes, and what claims hold of it: beside what is allocatable, and what pods hold of that."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from tessera.core.dra.device_names import node_of
from tessera.core.dra.slices import Kind, PoolId
from tessera.core.kubernetes.node import Node
from tessera.kube.errors import ApiError
from tessera.kube.view.dra import DraObjects
from tessera.kube.watch.table import (
    DEVICE_CLASSES,
    RESOURCE_CLAIMS,
    Key,
    Table,
    TableEntry,
)
from tessera.protocol.dra.objects import Claim, claim_of, class_of, read_claim
from tessera.protocol.kubernetes.dra import ClaimIn, DeviceClassIn, SliceIn

if TYPE_CHECKING:
    from tessera.kube.rest.client import Client


class ClaimedDevice(NamedTuple):
    """A device that a claim holds."""

    by: str  # namespace/name of the pod; `claim namespace/name` where no pod uses it now
    resources: tuple[str, ...]  # as which classes serve it
    driver: str = ""


class DraInventory:
    """Classes, slices and claims."""

    def __init__(self) -> None:
        self._changed: Callable[[], object] = lambda: None
        self._reread: Callable[[], object] = lambda: None
        self._objects = DraObjects(lambda _: self._note(slices=True), self._slices_wanted, with_devices=True)
        self.pools = self._objects.pools
        self._claims: dict[Key, Claim] = {}
        self.edition = 0  # changes with classes and slices
        self._holders: dict[str, dict[str, ClaimedDevice]] | None = None  # worked out when they are asked for
        self.unseen = ""  # why it is not known what DRA has

    def follow(self, changed: Callable[[], object], reread: Callable[[], object]) -> None:
        """Call `changed` at every change from now on, and `reread` when slices must be read again."""
        self._changed, self._reread = changed, reread

    def _note(self, *, slices: bool = False) -> None:
        self.edition += slices
        self._holders = None
        self._changed()

    def _slices_wanted(self) -> None:
        self._reread()

    @property
    def class_errors(self) -> Mapping[str, str]:
        """The classes whose expressions could not be evaluated, and why."""
        return self._objects.class_errors

    def _claimed(self) -> Iterator[tuple[Claim, PoolId, str, tuple[str, ...]]]:
        """Every device that a claim holds: the claim, its pool, its name, and as which extended resources classes serve it."""
        resources_by_kind: dict[Kind, tuple[str, ...]] = {}
        for claim in self._claims.values():
            for pool, device in claim.holds:
                kind = self.pools.kind_of(pool, device)
                if kind is not None and kind not in resources_by_kind:
                    resources_by_kind[kind] = tuple(self.pools.resources_of(kind))
                yield claim, pool, device, resources_by_kind[kind] if kind is not None else ()

    def held(self) -> dict[str, Counter[str]]:
        """Node → extended resource → devices that claims hold. A device counts for every class that selects it."""
        found: dict[str, Counter[str]] = {}
        for _, pool, _, resources in self._claimed():
            if resources and (node := self.pools.node_of(pool)):
                found.setdefault(node, Counter()).update(resources)
        return found

    def holders(self) -> dict[str, dict[str, ClaimedDevice]]:
        """Node → device → who holds it, of the devices that claims hold; also while their driver is unavailable, and its slices with it."""
        if self._holders is None:
            found: dict[str, dict[str, ClaimedDevice]] = {}
            for claim, pool, device, resources in self._claimed():
                one = ClaimedDevice(claim.holder, resources, pool.driver)
                found.setdefault(self.pools.node_of(pool) or node_of(pool.name), {})[device] = one
            self._holders = found
        return self._holders

    def held_by_pods(self) -> dict[Key, Counter[str]]:
        """Pod → extended resource → devices that its claims hold, by what these devices are."""
        found: dict[Key, Counter[str]] = {}
        for claim, _, _, resources in self._claimed():
            for pod in claim.pods if resources else ():
                found.setdefault(Key(claim.namespace, pod), Counter()).update(resources)
        return found

    def drivers_of(self, pod: Key) -> set[str]:
        """The drivers whose devices a pod has by claims."""
        own = (
            one for one in self._claims.values() if one.namespace == pod.namespace and pod.name in one.pods
        )
        return {pool.driver for one in own for pool, _ in one.holds}

    def free(self, nodes: Iterable[Node]) -> dict[str, dict[str, int]]:
        """Node → extended resource → devices that no claim holds.

        Nothing of a node with counters: there, what is free depends on what else is cut.
        """
        held = self.held()
        found: dict[str, dict[str, int]] = {}
        for node in nodes:
            if not self.pools.is_cut_on_demand(node, driver=""):
                found[node.name] = dict(Counter(self.pools.served(node)) - held.get(node.name, Counter()))
        return found

    # what fills it

    def table(self) -> Table:
        """How its objects are taken, in this order."""
        claims = TableEntry(read_claim, self._put_claim, self._remove_claim, replace=self._replace_claims)
        return {**self._objects.table(), RESOURCE_CLAIMS: claims}

    async def read(self, client: "Client") -> None:
        """Ask an API server. Slices and claims are read only if there are classes; what we may not read counts as absent."""
        from tessera.kube.watch.listing import list_once

        table = self.table()
        classes = {DEVICE_CLASSES: table[DEVICE_CLASSES]}
        others = {resource: entry for resource, entry in table.items() if resource not in classes}
        try:
            await list_once(client, classes, odd={})
            if self._objects.has_classes:
                await list_once(client, others, odd={})
        except ApiError as error:
            if not error.is_absent:
                raise
            self.unseen = str(error) if error.is_forbidden else ""

    def take(
        self, classes: Iterable[DeviceClassIn], slices: Iterable[SliceIn], claims: Iterable[ClaimIn]
    ) -> None:
        self._objects.replace_classes(map(class_of, classes))
        self._objects.replace_slices([self._objects.reader.slice_of(one) for one in slices])
        self._replace_claims(map(claim_of, claims))

    def _replace_claims(self, claims: Iterable[Claim]) -> None:
        self._claims = {Key(one.namespace, one.name): one for one in claims if one.holds}
        self._note()

    def _put_claim(self, one: Claim) -> None:
        if not one.holds:
            self._remove_claim(Key(one.namespace, one.name))
            return
        self._claims[Key(one.namespace, one.name)] = one
        self._note()

    def _remove_claim(self, key: Key) -> None:
        if self._claims.pop(key, None) is not None:
            self._note()
