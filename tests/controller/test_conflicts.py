"""Conflicts that never end: whatever the controller writes, it asks for one object less and less often."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from tessera.controller.claims.reconciler import ClaimReconciler
from tessera.controller.layouts.reconciler import LayoutReconciler
from tessera.controller.metrics import ControllerMetrics
from tessera.controller.reconciler import ReconcilerParts
from tessera.controller.ticket_keeper import TicketKeeper
from tessera.kube.errors import ApiError
from tessera.kube.event_recorder import Recorder
from tessera.kube.rest.client import Client
from tessera.kube.view.ticket_keys import TicketSecret
from tessera.kube.watch.follow import Follower
from tessera.simulation.control_plane.kinds import MIG_LAYOUTS, NODES, PODS, RESOURCE_CLAIMS, SECRETS
from tessera.simulation.control_plane.store import Store
from tests.controller.claims import objects
from tests.controller.layouts.cluster import layout
from tests.controller.patience.test_reconciler import waiting
from tests.controller.patience.test_reconciler import world as patience
from tests.inventory.objects import LAYOUT, node
from tests.kube.apiserver import MisbehavingApiServer
from tests.kube.clock import FakeClock
from tests.kube.conflicts import EndlessConflicts, check_writes
from tests.rollout.machine.world import BIG, record_in


@asynccontextmanager
async def stage() -> AsyncIterator[tuple[MisbehavingApiServer, Client, FakeClock]]:
    store = Store(lambda: datetime.fromtimestamp(objects.CREATED, UTC))
    async with MisbehavingApiServer(store=store) as server, asyncio.timeout(60):
        await server.start()
        clock = FakeClock(wall=objects.CREATED + 10)
        async with Client(server.cluster, clock=clock) as client:
            yield server, client, clock


def no_fence() -> None:
    """This process leads all the time."""


def parts_with(client: Client) -> ReconcilerParts:
    return ReconcilerParts(
        client=client,
        follower=Follower(client),
        recorder=Recorder(client, "test"),
        metrics=ControllerMetrics(),
        fence=no_fence,
    )


@pytest.mark.parametrize("exists", [False, True])
def test_keys_of_tickets(exists: bool) -> None:
    """The Secret with the keys, made or changed."""

    async def main() -> list[float]:
        async with stage() as (server, client, clock):
            if exists:
                server.store.create(SECRETS, {"metadata": {"name": "tessera-ticket-key"}}, "own")
            conflicts = EndlessConflicts(server, clock, "/secrets")
            keeper = TicketKeeper(client, "own")
            await conflicts.last(lambda: keeper.poll(no_fence))
            return conflicts.writes

    check_writes(asyncio.run(main()))


def a_pod_without_template(server: MisbehavingApiServer) -> None:
    server.store.create(PODS, objects.pod(), "a")


def a_claim_without_record(server: MisbehavingApiServer) -> None:
    server.store.create(PODS, objects.pod(node="n"), "a")
    uid = server.store.get(PODS, "p", "a").document["metadata"]["uid"]
    server.store.create(RESOURCE_CLAIMS, objects.claim(uid, "gpu-0/1g-10gb"), "a")


@pytest.mark.parametrize(
    ("put", "part"),
    [(a_pod_without_template, "/resourceclaimtemplates"), (a_claim_without_record, "/pods/p")],
)
def test_claims(put: Callable[[MisbehavingApiServer], None], part: str) -> None:
    """A template, and the record of what a pod's claim got."""

    async def main() -> list[float]:
        async with stage() as (server, client, clock):
            put(server)
            keys = objects.KEYS
            secret = TicketSecret("", keys.previous, keys.current, keys.following, rotated=objects.CREATED)
            server.store.create(SECRETS, secret.document(), "own")
            conflicts = EndlessConflicts(server, clock, part)
            reconciler = ClaimReconciler(parts_with(client), TicketKeeper(client, "own"))
            following = asyncio.ensure_future(reconciler.follower.run())
            await reconciler.synced()
            await conflicts.last(reconciler.reconcile)
            following.cancel()
            return conflicts.writes

    check_writes(asyncio.run(main()))


@pytest.mark.parametrize("part", ["/configmaps", "/eviction"])
def test_patience(part: str) -> None:
    """The history of evictions, and the eviction of one pod."""

    async def main() -> list[float]:
        async with patience(waiting("p")) as it:
            conflicts = EndlessConflicts(it.server, it.clock, part)

            async def turn() -> None:
                with suppress(ApiError):  # the loop waits for a moment after these
                    await it.look()

            await conflicts.last(turn)
            return conflicts.writes

    check_writes(asyncio.run(main()))


def is_cordoned(server: MisbehavingApiServer) -> bool:
    return record_in(server.store.get(NODES, "n").document) is not None


@pytest.mark.parametrize(
    ("part", "begin"),
    [
        ("/miglayouts/", lambda server: True),  # it is taken over
        ("/miglayouts/", lambda server: status_of(server).get("controller")),  # a node gets its slot
        ("/nodes/", lambda server: True),  # a node is cordoned
        ("/nodes/", is_cordoned),  # its layout is written
    ],
)
def test_layouts(part: str, begin: Callable[[MisbehavingApiServer], Any]) -> None:
    """The status of a MigLayout, and a node whose layout is changed; whenever it begins."""

    async def main() -> list[float]:
        async with stage() as (server, client, clock):
            server.store.create(NODES, node("n", BIG, "NVIDIA-H200", layout=LAYOUT, pool="a"))
            server.store.create(MIG_LAYOUTS, layout())
            reconciler = LayoutReconciler(parts_with(client), "c")
            following = asyncio.ensure_future(reconciler.follower.run())
            await reconciler.synced()
            while not begin(server):
                await reconciler.reconcile()
                clock.time += 0.5
            conflicts = EndlessConflicts(server, clock, part)
            await conflicts.last(reconciler.reconcile)
            following.cancel()
            return conflicts.writes

    check_writes(asyncio.run(main()))


def status_of(server: MisbehavingApiServer) -> dict[str, Any]:
    return server.store.get(MIG_LAYOUTS, "inference").document.get("status") or {}


def test_layouts_that_are_given_up() -> None:
    """A slot whose node must not be cordoned any more: the node is written to before the slot is given back."""

    async def main() -> list[float]:
        async with stage() as (server, client, clock):
            server.store.create(NODES, node("n", BIG, "NVIDIA-H200", layout=LAYOUT, pool="a"))
            document = layout(paused=True)
            document["status"] = {"controller": "c", "updating": ["n"]}
            server.store.create(MIG_LAYOUTS, document)
            reconciler = LayoutReconciler(parts_with(client), "c")
            following = asyncio.ensure_future(reconciler.follower.run())
            await reconciler.synced()
            conflicts = EndlessConflicts(server, clock, "/nodes/")
            await conflicts.last(reconciler.reconcile)
            following.cancel()
            return conflicts.writes

    check_writes(asyncio.run(main()))
