"""Slices kept in an API server that does not always do what it is asked."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from tessera.core.dra.slices import DRIVER
from tessera.kube.event_recorder import Recorder
from tessera.kube.rest.client import Client
from tessera.node.dra.slice_documents import Document, Offer, offer, specs
from tessera.node.dra.slice_publisher import Publisher
from tessera.node.events import NodeEvents
from tessera.node.metrics import DraMetrics
from tessera.serving.http_messages import Request, Response
from tessera.simulation.control_plane.kinds import EVENTS, NODES, RESOURCE_SLICES
from tests.kube.apiserver import MisbehavingApiServer
from tests.node.dra.samples import NODE, PRODUCT, mig


def desired(*devices, **more) -> tuple[Document, ...]:
    return specs(Offer(NODE, offer(devices), **{"counted": {}, **more}))


class Kept:
    """A publisher and its API server."""

    def __init__(self, server: MisbehavingApiServer, publisher: Publisher) -> None:
        self.server = server
        self.publisher = publisher
        self.leads = True

    @property
    def slices(self) -> list[dict[str, Any]]:
        return [one.document for one in self.server.store.list(RESOURCE_SLICES)]

    def writes(self) -> int:
        return sum(
            request.method in ("POST", "PUT", "DELETE") and "resourceslices" in request.path
            for request in self.server.requests
        )

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                await asyncio.sleep(0.01)

    async def settled(self) -> None:
        """Until the API server has everything, and nothing more is written after the watch has said so."""
        await self.until(lambda: self.publisher.published)
        for _ in range(20):
            await asyncio.sleep(0.01)


@asynccontextmanager
async def keeping() -> AsyncIterator[Kept]:
    async with MisbehavingApiServer() as server:
        await server.start()
        server.store.create(NODES, {"metadata": {"name": NODE, "uid": "n-1"}})
        async with Client(server.cluster) as client:
            kept: Kept | None = None
            recorder = Recorder(client, DRIVER, instance=NODE)
            publisher = Publisher(
                client,
                NODE,
                lambda: kept is None or kept.leads,
                DraMetrics(),
                NodeEvents(NODE, recorder.record),
                retry=(0.01, 0.1),
            )
            kept = Kept(server, publisher)
            tasks = [asyncio.create_task(publisher.run()), asyncio.create_task(recorder.run())]
            try:
                yield kept
            finally:
                for task in tasks:
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task


def run(story: Callable[[Kept], Any]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60), keeping() as kept:
            await story(kept)

    asyncio.run(bounded())


def test_what_is_written_is_written_once() -> None:
    """The watch brings our own writes back: they are no reason to write again."""

    async def story(kept: Kept) -> None:
        kept.publisher.want(desired(mig("2g.20gb", 0), mig("2g.20gb", 2, problem="ill")))
        await kept.settled()
        assert kept.writes() == 1
        kept.publisher.want(())
        await kept.until(lambda: not kept.slices)
        await kept.settled()
        assert kept.writes() == 2

    run(story)


def test_fields_that_the_api_server_drops_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """A feature gate is off: the taint does not come back. It is said, and not written for ever."""

    async def story(kept: Kept) -> None:
        def dropping(request: Request) -> Response | None:
            if request.method not in ("POST", "PUT") or "resourceslices" not in request.path:
                return None
            document = msgspec.json.decode(request.body)
            for device in document["spec"].get("devices") or ():
                device.pop("taints", None)
            name = document["metadata"]["name"]
            if request.method == "POST":
                stored = kept.server.store.create(RESOURCE_SLICES, document)
            else:
                stored = kept.server.store.update(RESOURCE_SLICES, name, document)
            return Response(msgspec.json.encode(stored.document))

        kept.server.intercept = dropping
        for device in (mig("2g.20gb", 0, problem="ill"), mig("2g.20gb", 2, problem="ill")):
            kept.publisher.want(desired(device))
            await kept.until(lambda: kept.slices)
            await kept.settled()
        assert kept.writes() == 2
        await kept.until(lambda: kept.server.store.list(EVENTS))
        [event] = [one.document for one in kept.server.store.list(EVENTS)]
        assert (event["reason"], event["involvedObject"]["name"]) == ("FieldsDropped", NODE)

    run(story)
    told = [record.getMessage() for record in caplog.records if "dropped" in record.getMessage()]
    assert told == ["the API server dropped taints of the devices: is the feature gate on? (docs/dra.md)"], (
        "once, though it happened twice"
    )


def test_another_process_leads() -> None:
    """A newer process writes; when it has ended, what is desired here is written."""

    async def story(kept: Kept) -> None:
        kept.leads = False
        kept.publisher.want(desired(mig("2g.20gb", 0)))
        await kept.until(lambda: kept.publisher.synced)
        kept.publisher.retry()
        for _ in range(10):
            await asyncio.sleep(0.01)
        assert (kept.slices, kept.publisher.published) == ([], False)
        kept.leads = True
        kept.publisher.retry()
        await kept.until(lambda: kept.slices)

    run(story)


def test_a_change_by_hand_is_undone() -> None:
    """A slice that another client edits is written again as it should be; a slice too many is removed."""

    async def story(kept: Kept) -> None:
        counted = {"GPU-0": PRODUCT}
        kept.publisher.want(desired(mig("2g.20gb", 0, cut=False), counted=counted))
        await kept.settled()
        name = kept.slices[0]["metadata"]["name"]
        document = kept.slices[0]
        document["spec"]["devices"][0]["capacity"]["memory"]["value"] = "1Gi"
        kept.server.store.update(RESOURCE_SLICES, name, document)
        extra = {"metadata": {"name": "zzz"}, "spec": {**document["spec"]}}
        kept.server.store.create(RESOURCE_SLICES, extra)

        def right() -> bool:
            found = {one["metadata"]["name"]: one["spec"] for one in kept.slices}
            memory = found[name]["devices"][0]["capacity"]["memory"]["value"]
            return "zzz" not in found and memory in ("20480Mi", "20Gi") and len(found) == 2

        await kept.until(right)

    run(story)


def test_an_api_server_that_fails_is_asked_again() -> None:
    """Three refusals, and then everything is in place."""

    async def story(kept: Kept) -> None:
        left = [3]

        def failing(request: Request) -> Response | None:
            if request.method != "POST" or not left[0]:
                return None
            left[0] -= 1
            return Response(msgspec.json.encode({"kind": "Status", "code": 500, "message": "etcd"}), 500)

        kept.server.intercept = failing
        kept.publisher.want(desired(mig("2g.20gb", 0)))
        await kept.until(lambda: kept.slices and kept.publisher.published)
        assert left == [0]

    run(story)
