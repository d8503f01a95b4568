"""Following several collections together."""

import asyncio
from dataclasses import replace

import msgspec
import pytest

from tessera.kube.errors import ApiError
from tessera.kube.rest.client import Client
from tessera.kube.watch.follow import Follower
from tessera.kube.watch.resource import NAMESPACES, NODES, UNFINISHED_PODS, Key, Resource, Sink, replace_all
from tessera.simulation.control_plane import kinds
from tessera.simulation.control_plane.store import StatusError
from tests.kube.apiserver import MisbehavingApiServer, status
from tests.kube.clock import FakeClock

FORBIDDEN = StatusError(403, "Forbidden", "nodes is forbidden")
ABSENT = StatusError(404, "NotFound", "the server could not find the requested resource")


class Names:
    """A sink that keeps names, and can be waited on."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.changed = asyncio.Event()
        self.sink = Sink(self.decode, self.replace, self.put, lambda key: self.remove(key.name))

    def decode(self, raw: bytes) -> str:
        return str(msgspec.json.decode(raw)["metadata"]["name"])

    def replace(self, names) -> None:
        self.names = set(names)
        self.changed.set()

    def put(self, name: str) -> None:
        self.names.add(name)
        self.changed.set()

    def remove(self, name: str) -> None:
        self.names.discard(name)
        self.changed.set()

    async def until(self, *names: str) -> None:
        while self.names != set(names):
            self.changed.clear()
            await self.changed.wait()


def put(server: MisbehavingApiServer, kind, name: str) -> None:
    server.store.create(kind, {"metadata": {"name": name}})


async def test_complete_when_it_begins_and_right_until_it_ends():
    """Each sink holds its collection at once, follows it, and nothing is left running behind."""
    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:
        nodes, namespaces = Names(), Names()
        put(server, kinds.NODES, "a")
        put(server, kinds.NAMESPACES, "x")
        async with Follower(client, {NODES: nodes.sink, NAMESPACES: namespaces.sink}).following() as follower:
            assert (nodes.names, namespaces.names) == ({"a"}, {"x"})
            assert (follower.missing(), follower.stale()) == (None, "")
            put(server, kinds.NODES, "b")
            server.store.delete(kinds.NAMESPACES, "x")
            await nodes.until("a", "b")
            await namespaces.until()
        await server.until(lambda: server.watches == 0)
    assert len(asyncio.all_tasks()) == 1


async def test_who_may_not_read_hears_it_at_once():
    """A refusal is the caller's error; it is not tried for ever."""
    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:
        server.intercept = lambda request: status(FORBIDDEN)
        with pytest.raises(ApiError, match="nodes is forbidden"):
            async with Follower(client, {NODES: Names().sink}).following():
                pass


@pytest.mark.parametrize("refusal", [FORBIDDEN, ABSENT], ids=["forbidden", "absent"])
async def test_an_optional_collection_counts_as_empty_until_it_comes(refusal):
    """An API that is switched off or not ours holds nothing up; when the server has it, it is there."""
    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:
        nodes, extra, clock = Names(), Names(), FakeClock()
        client.clock = clock
        put(server, kinds.NODES, "a")
        put(server, kinds.NAMESPACES, "x")
        server.intercept = lambda request: status(refusal) if "namespaces" in request.path else None
        sinks = {NODES: nodes.sink, replace(NAMESPACES, optional=True): extra.sink}
        async with Follower(client, sinks).following() as follower:
            health = follower.reflectors[1].health
            assert (nodes.names, extra.names, health.absent, dict(health.errors)) == ({"a"}, set(), True, {})
            for _ in range(3):
                await clock.pass_sleep(60)
                await clock.until_asleep(60)
            assert "namespaces" not in follower.stale()
            assert bool(follower.forbidden()) == (refusal is FORBIDDEN), "it need not be empty"
            server.intercept = lambda request: None
            await clock.pass_sleep(60)
            await extra.until("x")
            assert (health.absent, health.lists, follower.forbidden()) == (False, 1, "")


async def test_silence_is_told_with_its_reason():
    """After 90 s without an event `stale` names the collection and the last error; then it is over."""
    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:
        nodes, clock = Names(), FakeClock()
        client.clock = clock
        put(server, kinds.NODES, "a")
        async with Follower(client, {NODES: nodes.sink}).following() as follower:
            await clock.until_asleep()  # the guard against silence
            server.black_hole = True
            await clock.advance(65)
            await clock.until_asleep()
            assert follower.stale() == ""
            clock.time += 26
            assert follower.stale() == (
                "nodes: nothing received for more than 90 s: "
                "the watch sent nothing for 65 s, not even a bookmark"
            )
            server.black_hole = False
            put(server, kinds.NODES, "b")
            await clock.advance(10)
            await nodes.until("a", "b")
            while follower.stale():
                await asyncio.sleep(0)


async def test_what_is_not_listed_yet_is_named():
    """Before anything was heard, each collection is missing."""
    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:
        follower = Follower(client, {NODES: Names().sink, UNFINISHED_PODS: Names().sink})
        assert follower.missing() == "nodes not listed yet; pods not listed yet"
        assert follower.stale() == ""


async def test_the_callers_error_stays_what_it_is():
    """What the body raises arrives as it was raised, not in a group."""
    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:
        with pytest.raises(KeyError, match="mine"):
            async with Follower(client, {NODES: Names().sink}).following():
                raise KeyError("mine")


async def test_a_sink_that_fails_ends_the_work():
    """A view that is no longer kept right is not read on as if it were."""
    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:

        def fail(_: object) -> None:
            raise ZeroDivisionError

        sink = Sink(Names().decode, lambda _: None, fail, fail)

        async def work() -> None:
            async with Follower(client, {NODES: sink}).following():
                put(server, kinds.NODES, "a")
                await asyncio.Event().wait()

        with pytest.raises(ZeroDivisionError):
            await work()


async def test_at_once():
    """Who waits with a limit of its own is not kept waiting, not even by a server that refuses."""
    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:
        nodes, clock = Names(), FakeClock()
        client.clock = clock
        server.intercept = lambda request: status(FORBIDDEN)
        async with Follower(client, {NODES: nodes.sink}).following(complete=False) as follower:
            assert follower.missing() == "nodes not listed yet"
            await clock.until_asleep()
            server.intercept = lambda request: None
            put(server, kinds.NODES, "a")
            await clock.advance(60)
            await nodes.until("a")


@pytest.mark.parametrize(
    ("resource", "query"),
    [
        (NODES, {}),
        (NODES.named("a"), {"fieldSelector": "metadata.name=a"}),
        (replace(NODES, labels="gpu"), {"labelSelector": "gpu"}),
        (UNFINISHED_PODS, {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}),
    ],
)
def test_selectors_are_parameters(resource: Resource, query):
    """Only what selects is sent."""
    assert resource.query == query


def test_replaced_one_by_one():
    """What is not in the fresh list goes first, then everything fresh is put."""
    calls: list[object] = []
    known = {Key("", "a"): 1, Key("", "b"): 2}
    replace_all(known, {Key("", "b"): 3, Key("", "c"): 4}, calls.append, calls.append)
    assert calls == [Key("", "a"), 3, 4]
