"""The pods by which a tenant attacks its neighbours (`stress.neighbours`); they are never placed."""

import asyncio
import itertools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from stress.neighbourhood import SMALL, TENANTS, TWO, WHOLE, ApiServersClient, Document, pod
from stress.victims import MOST_KEPT
from tessera.core.admission.policy import POLICY_ANNOTATION, WHEN_ANNOTATION
from tessera.simulation.control_plane.kinds import PODS
from tessera.simulation.control_plane.store import StatusError, Store, StoredChange


def _on_pools(number: int, **spec: Any) -> Document:
    """A pod of the tenant on each pool in turn; it asks for what the honest namespace needs there."""
    resource, pool = ((TWO, "full"), (TWO, "patience"), (SMALL, "auto"))[number % 3]
    if number >= 170:  # the last ask for re-cuts
        resource, pool = WHOLE, "auto"
    return pod(f"p{number}", resource, pool, f"set-{number % 5}", **spec)


_LIVES: Final = 10.0  # seconds until such a pod is deleted, and others are there
_TERM: Final = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "none"}}}
_TO_NOTHING: Final = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [_TERM]}}


def affinity_to_nothing(number: int) -> Document:
    """The scheduler looks for a pod that does not exist."""
    return _on_pools(number, affinity=_TO_NOTHING)


def of_a_stream(number: int) -> Document:
    """The same, for the free 2g and for re-cuts in turn."""
    resource, pool = ((TWO, "full"), (WHOLE, "auto"))[number % 2]
    return pod(f"p{number}", resource, pool, "set", affinity=_TO_NOTHING)


def missing_claim(number: int) -> Document:
    """The scheduler waits for a ResourceClaim, and sets no condition."""
    return _on_pools(number, resourceClaims=[{"name": "x", "resourceClaimName": "missing"}])


def gated(number: int) -> Document:
    """The scheduler is kept from the pod by a gate."""
    return _on_pools(number, schedulingGates=[{"name": "example.com/never"}])


def with_finalizer(number: int) -> Document:
    """The pod is deleted, and stays."""
    document = _on_pools(number)
    document["metadata"] |= {
        "finalizers": ["example.com/never"],
        "deletionTimestamp": "2026-01-01T00:00:00Z",
    }
    return document


def in_a_crowd(number: int) -> Document:
    """One of many of a Deployment, which waits for a 2g and takes nothing else."""
    document = pod(f"p{number}", TWO, "patience", "crowd")
    document["metadata"]["annotations"] = {POLICY_ANNOTATION: "never"}
    return document


def of_its_own_shape(number: int) -> Document:
    """The same, each with a shape and an owner of its own."""
    document = in_a_crowd(number)
    document["spec"]["tolerations"] = [{"key": f"example.com/{number}", "operator": "Exists"}]
    document["metadata"]["ownerReferences"][0]["uid"] = f"crowd-{number}"
    return document


def with_template(number: int) -> Document:
    """A pod that patience evicts; its ReplicaSet's template says something else by then."""
    return pod(f"p{number}", TWO, "patience", f"edited-{number}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """What a tenant does."""

    name: str
    make: Callable[[int], Document]
    number: int = 180  # pods that stand
    a_second: int = 0  # pods that are asked for again and again, in place of these
    is_refused: bool = False  # after the webhook
    edits_template: bool = False
    most_kept: float = MOST_KEPT


NEIGHBOURS: Final = (
    Neighbour(name="affinity", make=affinity_to_nothing),
    Neighbour(name="claims", make=missing_claim),
    Neighbour(name="gates", make=gated),
    Neighbour(name="finalizers", make=with_finalizer),
    Neighbour(name="refused", make=of_a_stream, number=0, a_second=10, is_refused=True),
    Neighbour(name="made-again", make=of_a_stream, number=0, a_second=10),
    Neighbour(name="template", make=with_template, number=4, edits_template=True),
    Neighbour(name="crowd", make=in_a_crowd, number=800),
    # the memory of the same process in `stress.floods`: so many small pods leave more than 15 %
    Neighbour(name="shapes", make=of_its_own_shape, number=800, most_kept=1.25),
)


class Tenant:
    """Makes the pods of an attack, and makes them again."""

    def __init__(self, store: Store, port: int, attack: Neighbour) -> None:
        self._store, self._attack = store, attack
        self._client = ApiServersClient(port, "127.0.0.3")
        self._is_over = False
        store.follow(PODS, store.version, self._changed)

    async def run(self) -> None:
        """Attack until it is over."""
        attack = self._attack
        for number in range(attack.number):
            self._create(number, attack.make(number))
        for number in itertools.count():
            if self._is_over or not attack.a_second:
                return
            document = await self._client.admit(attack.make(number), self._namespace(number))
            if not attack.is_refused:
                self._create(number, document)
                asyncio.get_running_loop().call_later(_LIVES, self._delete, number)
            await asyncio.sleep(1 / attack.a_second)

    def stop(self) -> None:
        """End the attack: all its pods go."""
        self._is_over = True
        for namespace in TENANTS:
            for stored in self._store.list(PODS, namespace):
                self._store.delete(PODS, stored.key[1], namespace)

    def _namespace(self, number: int) -> str:
        return TENANTS[number % 2 if self._attack.edits_template else 0]

    def _create(self, number: int, document: Document) -> None:
        self._store.create(PODS, document, self._namespace(number))

    def _delete(self, number: int) -> None:
        with suppress(StatusError):
            self._store.delete(PODS, f"p{number}", self._namespace(number))

    def _changed(self, change: StoredChange) -> None:
        """Create an evicted pod again, as its ReplicaSet does: from an edited template, or as it was."""
        namespace, name = change.after.key
        if change.type != "DELETED" or self._is_over or self._attack.a_second or namespace not in TENANTS:
            return
        number = int(name.removeprefix("p").partition("-")[0])
        document = self._attack.make(number)
        document["metadata"]["name"] = f"p{number}-{change.after.version}"
        if self._attack.edits_template:
            document["metadata"]["annotations"] = {WHEN_ANNOTATION: "missing"}
            self._create(number, document)
        else:
            again = asyncio.create_task(self._create_again(number, document))
            _running.add(again)
            again.add_done_callback(_running.discard)

    async def _create_again(self, number: int, document: Document) -> None:
        self._create(number, await self._client.admit(document, self._namespace(number)))


_running: Final[set["asyncio.Task[None]"]] = set()
