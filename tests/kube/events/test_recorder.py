"""Events on the stand-in API server: written beside everything else, dropped rather than delayed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from tessera.kube.event_recorder import About, Event, Recorder
from tessera.kube.rest.client import Client
from tessera.simulation.control_plane.kinds import EVENTS
from tessera.simulation.control_plane.store import StatusError
from tests.kube.apiserver import MisbehavingApiServer, status
from tests.kube.clock import FakeClock
from tests.kube.conflicts import EndlessConflicts, check_writes

OWNER = About("apps/v1", "ReplicaSet", "web", "team", "u-1")
NODE = About("v1", "Node", "n1", uid="n1")


class Stage:
    """A recorder at work, and the events that the API server has."""

    def __init__(self, server: MisbehavingApiServer, recorder: Recorder, clock: FakeClock) -> None:
        self.server = server
        self.clock = clock
        self.recorder = recorder

    def events(self, namespace: str = "team") -> list[dict[str, Any]]:
        return [one.document for one in self.server.store.list(EVENTS, namespace)]

    async def settled(self, **expected: int) -> None:
        """Wait until so many have this fate."""
        while any(self.recorder.counts[(result,)] < number for result, number in expected.items()):
            await asyncio.sleep(0)


@asynccontextmanager
async def stage(*, working: bool = True, counts_up: bool = True) -> AsyncIterator[Stage]:
    server = MisbehavingApiServer()
    clock = FakeClock(auto=True)
    async with await server.start(), Client(server.cluster, clock=clock) as client:
        recorder = Recorder(client, "gpu-webhook", instance="pod-1", counts_up=counts_up)
        task = asyncio.create_task(recorder.run()) if working else None
        yield Stage(server, recorder, clock)
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def test_written_as_kubectl_describe_shows_it():
    """An event is about its object, names its source, and counts how often it came."""
    async with stage() as one:
        for _ in range(3):
            one.recorder.record(Event(OWNER, "GPUFallback", "a pod gets less"))
        await one.settled(written=3)
        (event,) = one.events()
    assert event["involvedObject"] == {
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "namespace": "team", "uid": "u-1",
    }  # fmt: skip
    assert (event["type"], event["reason"], event["message"]) == ("Normal", "GPUFallback", "a pod gets less")
    assert event["source"] == {"component": "gpu-webhook", "host": "pod-1"}
    assert (event["count"], event["firstTimestamp"]) == (3, "2027-01-15T08:00:00Z")


async def test_nodes_have_no_namespace():
    """Events about what has no namespace are in namespace default."""
    async with stage() as one:
        one.recorder.record(Event(NODE, "GPUUnhealthy", "m", "Warning"))
        await one.settled(written=1)
        (event,) = one.events("default")
    assert event["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "n1"}


async def test_event_that_expired_is_written_anew():
    """The API server forgets events after an hour: the next of them is a new one."""
    async with stage() as one:
        one.recorder.record(Event(OWNER, "R", "m"))
        await one.settled(written=1)
        (first,) = one.events()
        one.server.store.delete(EVENTS, first["metadata"]["name"], "team")
        one.recorder.record(Event(OWNER, "R", "m"))
        await one.settled(written=2)
        (second,) = one.events()
    assert second["count"] == 1
    assert second["metadata"]["name"] != first["metadata"]["name"]


async def test_flood_is_dropped():
    """What is beyond an object's limit is not written, and what does not fit into the queue is dropped at once."""
    async with stage(working=False) as one:
        for _ in range(1500):
            one.recorder.record(Event(OWNER, "R", "m"))
        assert one.recorder.counts[("full",)] == 500
        task = asyncio.create_task(one.recorder.run())
        await one.settled(limited=975)
        assert one.recorder.counts[("written",)] == 25
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_refusal_is_counted_and_no_trouble():
    """An API server that does not take events, for want of a right, is reported in the log once; later events are tried again."""
    async with stage() as one:
        refusal = status(StatusError(403, "Forbidden", "events is forbidden"))
        one.server.intercept = lambda request: refusal if request.method == "POST" else None
        one.recorder.record(Event(OWNER, "R", "m"))
        await one.settled(failed=1)
        one.server.intercept = lambda request: None
        one.recorder.record(Event(OWNER, "R", "m"))
        await one.settled(written=1)
        (event,) = one.events()
    assert event["count"] == 1


async def test_flood_lets_other_work_run():
    """What is limited is looked at some at a time, with a rest in between."""
    async with stage() as one:
        for _ in range(25):
            one.recorder.record(Event(OWNER, "R", "m"))
        await one.settled(written=25)
        for _ in range(900):
            one.recorder.record(Event(OWNER, "R", "m"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert 0 < one.recorder.counts[("limited",)] < 100
        await one.settled(limited=900)


async def test_without_the_right_to_patch():
    """Where events are created only, the same event is written once, and again when the first one has gone."""
    async with stage(counts_up=False) as one:
        for _ in range(3):
            one.recorder.record(Event(OWNER, "GPUFallback", "a pod gets less"))
        await one.settled(written=1, limited=2)
        one.clock.time += 3600.0
        one.recorder.record(Event(OWNER, "GPUFallback", "a pod gets less"))
        await one.settled(written=2)
        assert [event["count"] for event in one.events()] == [1, 1]
        assert not [request for request in one.server.requests if request.method == "PATCH"]


async def test_conflicts_that_never_end():
    """An event that comes again and again is counted; it is written less and less often while that is refused."""
    async with stage(working=False) as one:
        task = asyncio.create_task(one.recorder.run())
        one.recorder.record(Event(NODE, "Refused", "again"))
        await one.settled(written=1)
        conflicts = EndlessConflicts(one.server, one.clock, "/events/")
        seen = 1

        async def again() -> None:
            nonlocal seen
            one.recorder.record(Event(NODE, "Refused", "again"))
            seen += 1
            while sum(one.recorder.counts.values()) < seen:
                await asyncio.sleep(0)

        await conflicts.last(again)
        task.cancel()
    check_writes(conflicts.writes)
