"""The controller as a whole, against a stand-in API server."""

import asyncio
import time
from collections import Counter
from datetime import UTC, datetime

import pytest

from tessera.controller.leader import LeaseTimes
from tessera.controller.process import Controller
from tessera.core.errors import InvalidInput
from tessera.kube.rest.client import Client
from tessera.kube.view.ticket_keys import TicketSecret
from tessera.serving.metrics import exposition
from tessera.simulation.control_plane.kinds import (
    DEVICE_CLASSES,
    LEASES,
    MIG_LAYOUTS,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    SECRETS,
    ResourceType,
)
from tessera.simulation.control_plane.store import StatusError, Store
from tests.controller.claims import objects
from tests.controller.layouts.cluster import layout
from tests.kube.apiserver import MisbehavingApiServer, status
from tests.kube.clock import FakeClock
from tests.protocol.dra.samples import class_

RESOURCE_QUOTAS = ResourceType("v1", "resourcequotas", "ResourceQuota")
CLAIMS = {"pods", "resourceclaims", "resourceclaimtemplates"}
PATIENCE = {"nodes", "namespaces", "resourcequotas", "deviceclasses", "resourceslices", "endpointslices"}
ALL = CLAIMS | PATIENCE | {"miglayouts"}


def test_one_of_two_works():
    """Both are ready and one leads; it makes what a pod waits for. When it ends, the other goes on."""

    async def until(condition):
        while not condition():
            await asyncio.sleep(0.01)

    async def main():
        store = Store(lambda: datetime.fromtimestamp(objects.CREATED, UTC))
        async with MisbehavingApiServer(store=store) as server, asyncio.timeout(30):
            await server.start()
            keys = objects.KEYS
            secret = TicketSecret("", None, keys.current, keys.following, rotated=time.time())
            server.store.create(SECRETS, secret.document(), "gpu-webhook")
            async with Client(server.cluster) as client:
                both = [
                    Controller(client, "gpu-webhook", name, lease=LeaseTimes(retry=0.02))
                    for name in ("one", "two")
                ]
                assert [one.ready for one in both] == [False, False]
                tasks = [asyncio.ensure_future(one.run()) for one in both]

                def leads(one):
                    return "\ntessera_controller_leader 1\n" in exposition(one.metrics.families()).decode()

                await until(lambda: all(one.ready and one.alive for one in both))
                await until(lambda: sum(map(leads, both)) == 1)
                first = 0 if leads(both[0]) else 1
                server.store.create(PODS, objects.pod(), "a")
                await until(lambda: server.store.list(RESOURCE_CLAIM_TEMPLATES))
                tasks[first].cancel()
                await asyncio.gather(tasks[first], return_exceptions=True)
                # the other may have taken it by now
                assert [one for one in server.requests if b'"holderIdentity":""' in one.body]
                server.store.create(PODS, objects.pod("q", namespace="b"), "b")
                await until(lambda: len(server.store.list(RESOURCE_CLAIM_TEMPLATES)) == 2)
                assert leads(both[1 - first])
                tasks[1 - first].cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "error", "words"),
    [
        ("/apis/resource.k8s.io/", StatusError(404, "NotFound", "no such resource"), "404 NotFound: no such resource"),
        ("/apis/resource.k8s.io/v1/resourceclaimtemplates", StatusError(403, "Forbidden", "no right"), "403 Forbidden"),
        ("/api/v1/pods", StatusError(403, "Forbidden", "no right"), "403 Forbidden"),
    ],
)  # fmt: skip
def test_who_cannot_work_does_not_lead(path, error, words, caplog):
    """A cluster without resource.k8s.io/v1, or without the right to it: one sentence, no Lease, alive and not ready."""

    async def main():
        async with MisbehavingApiServer() as server, asyncio.timeout(20):
            await server.start()
            server.intercept = lambda request: status(error) if request.path.startswith(path) else None
            async with Client(server.cluster) as client:
                clock = FakeClock()
                client.clock = clock
                one = Controller(client, "gpu-webhook", "one")
                task = asyncio.ensure_future(one.run())
                while words not in caplog.text:
                    await asyncio.sleep(0.01)
                for _ in range(40):
                    await clock.advance(5.0)
                    await asyncio.sleep(0.01)
                assert (server.store.list(LEASES), one.alive, one.ready) == ([], True, False)
                server.intercept = lambda request: None  # the cluster was upgraded, or the right given
                while not one.ready:
                    await clock.advance(5.0)
                    await asyncio.sleep(0.01)
                lease = server.store.list(LEASES)[0].document
                assert lease["spec"]["holderIdentity"] == "one"
                assert lease["metadata"]["annotations"] == {"tessera.dev/reconcilers": "claims"}
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    assert len([each for each in caplog.records if "makes no claims" in each.message]) <= 3


@pytest.mark.parametrize("patience", [True, False])
def test_without_dra_it_leads_for_patience(patience, tmp_path):
    """The Lease says so, and the webhook converts nothing; a configuration without a patience is enough, for annotations may say one."""
    config = tmp_path / "config.yaml"
    config.write_text("fallback: {patience: 5m}" if patience else "fallback: {}")

    async def main():
        async with MisbehavingApiServer() as server, asyncio.timeout(20):
            await server.start()
            absent = StatusError(404, "NotFound", "no such resource")
            server.intercept = lambda request: (
                status(absent) if request.path.startswith("/apis/resource.k8s.io/") else None
            )
            async with Client(server.cluster) as client:
                one = Controller(client, "gpu-webhook", "one", lease=LeaseTimes(retry=0.02), config=config)
                task = asyncio.ensure_future(one.run())
                while not one.ready:
                    await asyncio.sleep(0.01)
                (lease,) = server.store.list(LEASES)
                assert lease.document["metadata"]["annotations"] == {"tessera.dev/reconcilers": "patience"}
                shown = exposition(one.metrics.families()).decode()
                assert 'tessera_controller_reconciler{name="claims"} 0' in shown
                assert 'tessera_controller_reconciler{name="patience"} 1' in shown
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())


def test_a_configuration_with_mistakes(tmp_path):
    """The first one must be good: the process does not start with another."""
    config = tmp_path / "config.yaml"
    config.write_text("fallback: {patience: soon}")

    async def main():
        async with MisbehavingApiServer() as server:
            await server.start()
            async with Client(server.cluster) as client:
                with pytest.raises(InvalidInput, match=r"fallback\.patience"):
                    Controller(client, "gpu-webhook", "one", config=config)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("layouts", "mode", "patience", "watches"),
    [
        (True, "Auto", True, ALL),
        (True, "Fixed", True, ALL),
        (True, "Auto", False, ALL - {"namespaces", "resourcequotas", "endpointslices"}),
        (True, "Fixed", False, CLAIMS | {"nodes", "miglayouts", "resourceslices"}),
        (False, "Auto", True, ALL - {"miglayouts"}),
        (False, "Auto", False, CLAIMS),
    ],
)
def test_each_collection_is_watched_once(layouts, mode, patience, watches, tmp_path):
    """Whoever needs its objects; what only mode Auto or patience needs is watched only with them."""
    config = tmp_path / "config.yaml"
    config.write_text("fallback: {patience: 5m}")

    async def main():
        async with MisbehavingApiServer() as server, asyncio.timeout(20):
            await server.start()
            server.kinds[RESOURCE_QUOTAS.prefix, RESOURCE_QUOTAS.plural] = RESOURCE_QUOTAS
            server.store.create(DEVICE_CLASSES, class_("any", "true"))
            server.store.create(MIG_LAYOUTS, layout(mode=mode, layouts=[]))
            async with Client(server.cluster) as client:
                one = Controller(
                    client,
                    "gpu-webhook",
                    "one",
                    layouts=layouts,
                    lease=LeaseTimes(retry=0.02),
                    config=config if patience else None,
                )
                task = asyncio.ensure_future(one.run())

                def watched():
                    return Counter(server.watched)

                try:
                    async with asyncio.timeout(5):
                        while not (one.ready and {*watched()} >= watches):
                            await asyncio.sleep(0.01)
                    await asyncio.sleep(0.3)  # whatever else may come
                    assert watched() == dict.fromkeys(watches, 1)
                finally:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
