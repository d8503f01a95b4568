"""Following several collections together."""

import asyncio
from dataclasses import replace
from random import Random

import msgspec
import pytest

from tessera.core.errors import InvalidInput
from tessera.kube.clock import Clock
from tessera.kube.errors import ApiError
from tessera.kube.rest.client import Client
from tessera.kube.watch.follow import Follower
from tessera.kube.watch.table import (
    NAMESPACES,
    NODES,
    UNFINISHED_PODS,
    Key,
    Resource,
    Table,
    TableEntry,
    replace_all,
)
from tessera.serving.http_messages import Request, Response, Stream
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
        self.sink = TableEntry(self.decode, self.put, lambda key: self.remove(key.name), replace=self.replace)

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

        sink = TableEntry(Names().decode, fail, fail, replace=lambda _: None)

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


async def test_what_is_nothing_to_a_consumer():
    """An object of which a consumer keeps nothing is not among its list, and one that becomes so is removed."""
    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:
        nodes = Names()

        def decode(raw: bytes) -> str | None:
            metadata = msgspec.json.decode(raw)["metadata"]
            return None if "labels" in metadata else str(metadata["name"])

        for name in ("a", "b"):
            put(server, kinds.NODES, name)
        server.store.create(kinds.NODES, {"metadata": {"name": "c", "labels": {"x": "y"}}})
        async with Follower(client, {NODES: replace(nodes.sink, decode=decode)}).following():
            assert nodes.names == {"a", "b"}
            server.store.update(kinds.NODES, "a", {"metadata": {"labels": {"x": "y"}}})
            server.store.update(kinds.NODES, "c", {"metadata": {}})
            await nodes.until("b", "c")


# several tables


async def test_tables_share_one_watch_for_each_collection():
    """Two tables with entries for the same collection open one watch, and decode each object once where they read it alike."""
    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:
        first, second = Names(), Names()
        decoded: list[bytes] = []

        def decode(raw: bytes) -> str:
            decoded.append(raw)
            return first.decode(raw)

        put(server, kinds.NODES, "a")
        tables = [{NODES: replace(one.sink, decode=decode)} for one in (first, second)]
        other = Names()
        async with Follower(client, *tables, {NODES: other.sink}).following() as follower:
            assert first.names == second.names == other.names == {"a"}
            put(server, kinds.NODES, "b")
            for one in (first, second, other):
                await one.until("a", "b")
            server.store.delete(kinds.NODES, "a")
            for one in (first, second, other):
                await one.until("b")
            assert (server.watches, len(follower.reflectors), len(decoded)) == (1, 1, 2)


async def test_what_one_table_cannot_read_another_can():
    """An object that one consumer cannot read is left out for this consumer alone."""
    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:
        strict, lenient = Names(), Names()

        def decode(raw: bytes) -> str:
            if (name := strict.decode(raw)).startswith("odd"):
                raise InvalidInput("odd")
            return name

        put(server, kinds.NODES, "odd")
        tables = {NODES: replace(strict.sink, decode=decode)}, {NODES: lenient.sink}
        async with Follower(client, *tables).following() as follower:
            put(server, kinds.NODES, "odd-too")
            put(server, kinds.NODES, "b")
            await lenient.until("odd", "odd-too", "b")
            assert strict.names == {"b"}
            assert follower.reflectors[0].health.errors["object"] == 2


async def test_a_table_comes_and_goes_while_others_are_followed():
    """A table that is added takes a whole list first; one that is dropped gets nothing more, and its own watches end."""
    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:
        nodes, late, spaces = Names(), Names(), Names()
        put(server, kinds.NODES, "a")
        put(server, kinds.NAMESPACES, "x")
        table: Table = {NODES: late.sink, NAMESPACES: spaces.sink}
        async with Follower(client, {NODES: nodes.sink}).following() as follower:
            await server.until(lambda: server.watches == 1)
            follower.add(table)
            assert follower.missing({NODES: nodes.sink}) is None, "the other table has its list"
            assert follower.missing(table) == "nodes not listed yet; namespaces not listed yet"
            await follower.synced(table)
            assert (late.names, spaces.names, follower.missing()) == ({"a"}, {"x"}, None)
            await server.until(lambda: server.watches == 2)
            follower.drop(table)
            put(server, kinds.NODES, "b")
            await nodes.until("a", "b")
            await server.until(lambda: server.watches == 1)
            assert (late.names, len(follower.reflectors)) == ({"a"}, 1)


async def test_a_table_that_is_added_before_the_first_list_is_complete():
    """It takes part in that list, or in one that follows at once."""
    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:
        nodes, late = Names(), Names()
        put(server, kinds.NODES, "a")
        follower = Follower(client)

        def decode(raw: bytes) -> str:
            if late.sink not in follower.reflectors[0].entries:
                follower.add({NODES: late.sink})
            return nodes.decode(raw)

        follower.add({NODES: replace(nodes.sink, decode=decode)})
        async with follower.following():
            await late.until("a")
            put(server, kinds.NODES, "b")
            await nodes.until("a", "b")
            await late.until("a", "b")


async def test_who_can_be_without_a_collection_shares_it_with_who_cannot():
    """While it may not be read, it counts as empty for the first, and is missing for the second; then both have it."""
    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:
        needed, extra, clock = Names(), Names(), FakeClock()
        client.clock = clock
        extra.names = {"before"}
        put(server, kinds.NODES, "a")
        server.intercept = lambda request: status(FORBIDDEN)
        tables: tuple[Table, Table] = {NODES: needed.sink}, {replace(NODES, optional=True): extra.sink}
        follower = Follower(client, *tables)
        async with follower.following(complete=False):
            await follower.synced(tables[1])
            assert (extra.names, follower.missing(tables[1])) == (set(), None)
            missing = follower.missing(tables[0])
            assert missing is not None
            assert missing.startswith("nodes not listed yet (")
            server.intercept = lambda request: None
            await clock.until_asleep()
            await clock.advance(10)
            await follower.synced(tables[0])
            assert (needed.names, extra.names, follower.missing()) == ({"a"}, {"a"}, None)


async def test_a_table_that_is_added_while_what_was_absent_is_listed():
    """It takes all that there is by now: it is not left with the empty collection that there was before."""
    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:
        nodes, late, clock = Names(), Names(), FakeClock()
        client.clock = clock
        optional = replace(NODES, optional=True)
        follower = Follower(client)

        def decode(raw: bytes) -> str:
            if late.sink not in follower.reflectors[0].entries:
                follower.add({optional: late.sink})
            return nodes.decode(raw)

        follower.add({optional: replace(nodes.sink, decode=decode)})
        server.intercept = lambda request: status(ABSENT)
        async with follower.following(), asyncio.timeout(5):
            server.intercept = lambda request: None
            put(server, kinds.NODES, "a")
            await clock.until_asleep()
            await clock.advance(60)
            await nodes.until("a")
            await late.until("a")
            put(server, kinds.NODES, "b")
            await late.until("a", "b")


async def test_nobody_waits_for_a_table_that_is_dropped():
    """Who waits until all tables are complete goes on when the last that is not is followed no longer."""
    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:
        nodes, spaces = Names(), Names()
        server.intercept = lambda request: status(FORBIDDEN) if "namespaces" in request.path else None
        table: Table = {NAMESPACES: spaces.sink}
        follower = Follower(client, {NODES: nodes.sink}, table)
        async with follower.following(complete=False), asyncio.timeout(5):
            waiting = asyncio.create_task(follower.synced())
            await follower.synced({NODES: nodes.sink})
            assert not waiting.done()
            follower.drop(table)
            await waiting


def lists(server: MisbehavingApiServer) -> int:
    """How many lists were asked for that are no watches."""
    return len(server.asked(NODES.path, watch=None, limit=None))


async def test_a_table_that_is_added_later_disturbs_nobody():
    """It reads a list for itself. The others take no list again, and what happens meanwhile reaches all, whoever is behind."""
    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:
        nodes, late, replaced = Names(), Names(), list[set[str]]()

        def replace_and_note(names) -> None:
            nodes.replace(names)
            replaced.append(nodes.names)

        def decode(raw: bytes) -> str:
            if (name := late.decode(raw)) == "a" and "c" not in {key for key, _ in stored(server)}:
                put(server, kinds.NODES, "c")
                server.store.delete(kinds.NODES, "b")
            return name

        for name in ("a", "b"):
            put(server, kinds.NODES, name)
        table: Table = {NODES: replace(late.sink, decode=decode)}
        async with Follower(
            client, {NODES: replace(nodes.sink, replace=replace_and_note)}
        ).following() as follower:
            await server.until(lambda: server.watches == 1)
            follower.add(table)
            put(server, kinds.NODES, "d")
            await follower.synced(table)
            await late.until("a", "c", "d")
            await nodes.until("a", "c", "d")
            put(server, kinds.NODES, "e")
            await late.until("a", "c", "d", "e")
            assert (len(replaced), lists(server), server.watches) == (1, 1, 1)


async def test_a_list_for_one_table_that_fails_is_read_for_all():
    """The API server answers the list of a table with an error: the collection is read again, as after any failure."""
    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:
        nodes, late, clock = Names(), Names(), FakeClock()
        client.clock = clock
        put(server, kinds.NODES, "a")
        table: Table = {NODES: late.sink}
        async with Follower(client, {NODES: nodes.sink}).following() as follower:
            await server.until(lambda: server.watches == 1)
            broken = StatusError(500, "InternalError", "broken")
            failures = [broken]
            server.intercept = lambda request: (
                status(failures.pop()) if failures and "watch" not in request.query else None
            )
            follower.add(table)
            while follower.missing(table):  # the watch was young, so the next one waits
                await clock.advance(1.5)
                await asyncio.sleep(0.001)
            assert not failures
            put(server, kinds.NODES, "b")
            await late.until("a", "b")
            await nodes.until("a", "b")


class HastyClock(Clock):
    """Real time, fifty times as fast."""

    def now(self) -> float:
        return 50 * super().now()

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds / 50)


class LateApiServer(MisbehavingApiServer):
    """Its lists arrive when what they say is no longer new."""

    late = 0.0  # seconds

    async def answer(self, request: Request) -> Response | Stream:
        answer = await super().answer(request)
        if "watch" not in request.query:
            await asyncio.sleep(self.late)
        return answer


class Versions(dict[str, int]):
    """A consumer that keeps the version of each object; none may go back, nor come again after a newer one."""

    def __init__(self) -> None:
        super().__init__()
        self.entry = TableEntry(
            self.decode, self.put, lambda key: self.pop(key.name, None), replace=self.take
        )

    def decode(self, raw: bytes) -> tuple[str, int]:
        metadata = msgspec.json.decode(raw)["metadata"]
        return metadata["name"], int(metadata["resourceVersion"])

    def put(self, one: tuple[str, int]) -> None:
        name, version = one
        assert version > self.get(name, 0), "older than what is known, or the same again"
        self[name] = version

    def take(self, objects: list[tuple[str, int]]) -> None:
        self.clear()
        self.update(objects)


def stored(server: MisbehavingApiServer) -> set[tuple[str, int]]:
    documents = [one.document["metadata"] for one in server.store.list(kinds.NODES)]
    return {(one["name"], int(one["resourceVersion"])) for one in documents}


@pytest.mark.parametrize("seed", range(8))
async def test_tables_come_and_go_while_everything_changes(seed):
    """However objects, tables and watches come and go: each table has what the API server has soon after, and none ever went back."""
    random = Random(seed)
    async with await LateApiServer().start() as server, Client(server.cluster) as client:
        client.clock, server.bookmark_seconds = (
            HastyClock(),
            0.2,
        )  # no watch is too silent, so none lists again
        consumers = [Versions() for _ in range(4)]
        tables: list[Table] = [{NODES: one.entry} for one in consumers]
        followed = {0}

        def change() -> None:
            name = f"node-{random.randrange(8)}"
            known = {one.key[1] for one in server.store.list(kinds.NODES)}
            if name not in known:
                put(server, kinds.NODES, name)
            elif random.random() < 0.4:
                server.store.delete(kinds.NODES, name)
            else:
                spec = {"at": random.random()}
                server.store.update(kinds.NODES, name, {"metadata": {"name": name}, "spec": spec})

        def switch() -> None:
            number = random.randrange(1, 4)
            if number in followed:
                follower.drop(tables[number])
                consumers[number].clear()
            else:
                follower.add(tables[number])
            followed.symmetric_difference_update({number})

        def relist() -> None:
            follower.relist(NODES, tables[random.choice([*followed])])

        does = [(change, 20), (switch, 4), (relist, 1), (server.end_watches, 1), (server.gone_mid_stream, 1)]
        async with Follower(client, tables[0]).following() as follower:
            for _ in range(20):
                for _ in range(8):
                    random.choices([one for one, _ in does], [weight for _, weight in does])[0]()
                    server.late = random.choice([0.0, 0.006])
                    await asyncio.sleep(random.choice([0.0, 0.0, 0.001, 0.004]))
                async with asyncio.timeout(5):
                    while any({*consumers[number].items()} != stored(server) for number in followed):
                        await asyncio.sleep(0.002)
