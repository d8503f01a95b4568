"""List and watch against an API server that misbehaves."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import msgspec
import pytest

from tessera.core.errors import InvalidInput
from tessera.kube.rest.client import Client
from tessera.kube.watch.reflector import Reflector
from tessera.kube.watch.table import NODES as FOLLOWED
from tessera.kube.watch.table import Key, TableEntry
from tessera.serving.http_messages import Request, Response
from tessera.simulation.control_plane.apiserver import event
from tessera.simulation.control_plane.kinds import NODES
from tessera.simulation.control_plane.store import StatusError, expired
from tests.kube.apiserver import MisbehavingApiServer, status
from tests.kube.clock import FakeClock


def decode(raw: bytes) -> tuple[str, str]:
    document = msgspec.json.decode(raw)
    value = document.get("spec", {}).get("value", "")
    if value == "unreadable":
        raise InvalidInput("spec.value: unreadable")
    return document["metadata"]["name"], value


class Recorder:
    """A sink that remembers, and can be waited on."""

    def __init__(self) -> None:
        self.objects: dict[str, str] = {}
        self.replaced: list[dict[str, str]] = []
        self.forgotten: list[str] = []  # the versions up to which nothing counts
        self._changed = asyncio.Event()

    def replace(self, objects):
        self.objects = dict(objects)
        self.replaced.append(dict(self.objects))
        self._changed.set()

    def forget(self, version):
        self.forgotten.append(version)

    def upsert(self, one):
        self.objects[one[0]] = one[1]
        self._changed.set()

    def delete(self, key: Key):
        self.objects.pop(key.name, None)
        self._changed.set()

    async def until(self, **objects: str) -> None:
        while self.objects != objects:
            self._changed.clear()
            await self._changed.wait()


class Setup:
    """A server, a reflector that follows its nodes, a sink and a clock."""

    def __init__(
        self, server: MisbehavingApiServer, client: Client, watch_list: bool, optional: bool = False
    ) -> None:
        self.server, self.sink, self.clock = server, Recorder(), FakeClock()
        client.clock = self.clock
        self.reflector = Reflector(
            client,
            replace(FOLLOWED, optional=optional),
            TableEntry(
                decode, self.sink.upsert, self.sink.delete, replace=self.sink.replace, forget=self.sink.forget
            ),
            uniform=lambda low, high: (low + high) / 2,  # no jitter
            watch_list=watch_list,
        )
        self.health = self.reflector.health

    def put(self, name: str, value: str = "") -> None:
        store, document = self.server.store, {"metadata": {"name": name}, "spec": {"value": value}}
        if any(stored.key[1] == name for stored in store.list(NODES)):
            store.update(NODES, name, document)
        else:
            store.create(NODES, document)

    def remove(self, name: str) -> None:
        self.server.store.delete(NODES, name)

    async def watching(self) -> None:
        """Wait until a plain watch, the only one, is open."""
        await self.server.until(lambda: self.server.watches == 1)

    def lists(self) -> list[str]:
        """The versions that lists asked for."""
        return [
            request.query["resourceVersion"]
            for request in self.server.asked("/api/v1/nodes")
            if "watch" not in request.query or "sendInitialEvents" in request.query
        ]


@asynccontextmanager
async def following(*names: str, watch_list: bool = False, optional: bool = False):
    """A reflector at work: synced with these nodes, and watching."""
    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:
        setup = Setup(server, client, watch_list, optional)
        for name in names:
            setup.put(name)
        task = asyncio.create_task(setup.reflector.run())
        try:
            await setup.reflector.synced()
            await setup.watching()
            await setup.clock.until_asleep()  # the guard against silence
            yield setup
        finally:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


both = pytest.mark.parametrize("watch_list", [False, True], ids=["list", "watch-list"])


@both
async def test_follows(watch_list):
    """What the server has is in the sink: listed first, then changed event by event."""
    async with following("a", "b", watch_list=watch_list) as setup:
        assert setup.sink.objects == {"a": "", "b": ""}
        setup.put("c", "1")
        setup.put("a", "2")
        setup.remove("b")
        await setup.sink.until(a="2", c="1")
        assert setup.health.synced
        assert setup.health.lists == 1
        assert setup.health.version == str(setup.server.store.version)
        assert setup.lists() == ["" if watch_list else "0"]


@both
async def test_fault_18_gone_at_connect(watch_list):
    """410 as the answer to a watch: listed again without a version, and what vanished is gone."""
    async with following("a", "b", watch_list=watch_list) as setup:
        setup.server.gone_at_connect = 1
        setup.server.cut_watches()
        await setup.clock.pass_sleep(0.8)
        setup.remove("b")
        setup.put("c")
        await setup.clock.pass_sleep(1.6)
        await setup.sink.until(a="", c="")
        assert setup.lists()[1:] == [""]
        assert setup.health.errors["http_410"] == 1
        assert "" not in setup.sink.forgotten, "the history is the same"


@both
async def test_fault_18_gone_mid_stream(watch_list):
    """410 in the middle of a watch: listed again, and what vanished meanwhile is gone."""
    async with following("a", "b", watch_list=watch_list) as setup:
        setup.server.black_hole = True  # the deletion is not heard of
        setup.remove("b")
        setup.server.black_hole = False
        setup.server.gone_mid_stream()
        await setup.clock.pass_sleep(0.8)
        await setup.sink.until(a="")
        assert setup.lists()[1:] == [""]
        assert setup.sink.replaced[-1] == {"a": ""}


async def test_fault_18_gone_between_pages():
    """Pages that expire half-way: the list starts again, without pages, and nothing is there twice."""
    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:
        setup = Setup(server, client, watch_list=False)
        for number in range(1200):
            setup.put(f"n{number}")

        def first_page_then_gone(request):
            if (
                request.query.get("resourceVersion") == "0"
            ):  # as a server without a watch cache, which makes pages
                query = {**request.query, "resourceVersion": ""}
                return Response(server._lists.read(server.store, NODES, "", query))
            return status(expired("continue")) if "continue" in request.query else None

        server.intercept = first_page_then_gone
        task = asyncio.create_task(setup.reflector.run())
        await setup.reflector.synced()
        assert len(setup.sink.objects) == 1200
        assert [(r.query.get("limit"), "continue" in r.query) for r in server.requests[:3]] == [
            ("500", False),
            ("500", True),
            (None, False),
        ]
        task.cancel()


@both
async def test_fault_19_black_hole(watch_list):
    """A watch that goes silent is noticed within 70 s; meanwhile its age shows, and then it is begun again."""
    async with following("a", watch_list=watch_list) as setup:
        setup.server.black_hole = True
        setup.put("b")
        await setup.clock.advance(64)
        assert setup.reflector.age == 64
        assert not setup.health.errors
        await setup.clock.advance(1)
        await setup.clock.pass_sleep(0.8)
        assert setup.health.errors == {"silent": 1}
        assert setup.reflector.age == pytest.approx(65.8)
        setup.server.black_hole = False
        await setup.sink.until(a="", b="")
        assert setup.health.lists == 1
        assert setup.reflector.age == 0


async def test_fault_19_silence_that_does_not_end():
    """A second silent watch in a row: the list is read again, for a watch may wait for a version that never comes."""
    async with following("a") as setup:
        setup.server.black_hole = True
        setup.put("b")
        await setup.clock.pass_sleep(65)
        await setup.clock.pass_sleep(0.8)
        await setup.clock.pass_sleep(65)
        await setup.clock.pass_sleep(1.6)
        await setup.sink.until(a="", b="")
        assert setup.health.errors == {"silent": 1, "mute": 1}


async def test_bookmarks_are_life():
    """A quiet watch with bookmarks is not dead, and goes on from the last bookmark."""
    async with following("a") as setup:
        for version in (100, 200, 300):
            await setup.clock.advance(60)
            setup.server.say(setup_bookmark(version))
            while setup.health.version != str(version):
                await asyncio.sleep(0)
        assert not setup.health.errors
        setup.server.cut_watches()
        await setup.clock.pass_sleep(0.8)
        await setup.watching()
        assert setup.server.requests[-1].query["resourceVersion"] == "300"


def setup_bookmark(version: int) -> bytes:
    return event("BOOKMARK", b'{"kind":"Node","metadata":{"resourceVersion":"%d"}}' % version)


@both
async def test_fault_20_restart(watch_list):
    """While the server is down the last known view stays; tries come at growing distances, and never as lists."""
    async with following("a", watch_list=watch_list) as setup:
        port = setup.server._http.port
        await setup.server.stop()
        for wait in (0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0):
            await setup.clock.pass_sleep(wait)
            assert setup.sink.objects == {"a": ""}
            assert setup.health.synced
        setup.put("b")
        await setup.server.start(port=port)
        await setup.clock.pass_sleep(30.0)
        await setup.sink.until(a="", b="")
        assert setup.health.lists == 1
        assert setup.health.errors["refused"] == 8
        await setup.watching()
        setup.server.cut_watches()
        await setup.clock.pass_sleep(0.8)  # after a success, from the beginning


@both
async def test_fault_20_storm(watch_list):
    """In a storm of 429 the server's Retry-After is kept, and only the watch is tried again."""
    async with following("a", watch_list=watch_list) as setup:
        setup.server.storm, setup.server.retry_after = 3, 7
        setup.server.cut_watches()
        await setup.clock.pass_sleep(0.8)
        await setup.clock.pass_sleep(7)
        await setup.clock.pass_sleep(7)
        await setup.clock.pass_sleep(7)
        setup.put("b")
        await setup.sink.until(a="", b="")
        assert setup.health.errors["http_429"] == 3
        assert setup.health.lists == 1


@both
async def test_fault_20_a_server_that_does_not_know_all_roles_yet(watch_list):
    """What could be read before stays while a server that has just started refuses it; after half a minute it counts as empty."""
    async with following("a", watch_list=watch_list, optional=True) as setup:
        waits = [0.8, 1.6, 3.2, 6.4, 12.8]
        for last in (3, 5):
            setup.server.intercept = lambda request: status(StatusError(403, "Forbidden", "no role yet"))
            setup.server.cut_watches()
            for seconds in waits[:last]:
                await setup.clock.pass_sleep(seconds)
            await setup.clock.until_asleep(2 * waits[last - 1])
            assert (setup.sink.objects, setup.health.absent, setup.health.forbidden) == (
                {"a": ""},
                False,
                False,
            )
            if last == 3:
                setup.server.intercept = lambda request: None
                await setup.clock.pass_sleep(6.4)
                await setup.watching()
                setup.put("b")
                await setup.sink.until(a="", b="")
                setup.remove("b")
                await setup.sink.until(a="")
        await setup.clock.pass_sleep(25.6)
        await setup.sink.until()
        assert (setup.health.absent, setup.health.forbidden) == (True, True)
        assert setup.health.lists == 1


@both
async def test_fault_21_restored_etcd_seen_in_a_bookmark(watch_list):
    """A version before the last one means another past: everything is listed again."""
    async with following("a", "b", watch_list=watch_list) as setup:
        backup = setup.server.store.snapshot()
        for value in range(5):
            setup.put("c", str(value))
        await setup.sink.until(a="", b="", c="4")
        setup.server.store = backup
        setup.put("d")
        setup.server.say(setup_bookmark(backup.version))
        await setup.clock.pass_sleep(0.8)
        await setup.sink.until(a="", b="", d="")
        assert setup.lists()[1:] == [""]
        assert setup.health.errors == {"backwards": 1}
        assert setup.sink.forgotten[1:] == [""]
        setup.put("e")
        await setup.sink.until(a="", b="", d="", e="")


@both
async def test_fault_21_restored_etcd_whose_revision_was_raised(watch_list):
    """As etcd's own tool restores: our version is compacted, and the list is newer than it. What it has of old versions counts."""
    async with following("a", watch_list=watch_list) as setup:
        first = setup.health.version
        setup.put("c")
        await setup.sink.until(a="", c="")
        setup.server.gone_mid_stream()
        setup.remove("c")
        await setup.clock.pass_sleep(0.8)
        await setup.sink.until(a="")
        assert setup.lists()[1:] == [""]
        assert setup.sink.forgotten == [first, setup.health.version]


@both
async def test_fault_21_restored_etcd_without_a_word(watch_list):
    """A server restored behind our back: our version lies in its future, so it is silent and refuses; listed again."""
    async with following("a", watch_list=watch_list) as setup:
        backup = setup.server.store.snapshot()
        for value in range(5):
            setup.put("c", str(value))
        await setup.sink.until(a="", c="4")
        setup.server.store = backup
        setup.server.intercept = lambda request: too_large(request, backup.version)
        await setup.clock.advance(65)
        await setup.clock.pass_sleep(0.8)
        await setup.clock.pass_sleep(65)
        await setup.clock.pass_sleep(1.6)
        await setup.clock.pass_sleep(3.2)
        await setup.sink.until(a="")
        assert setup.health.errors["http_504"] == 1
        assert setup.sink.forgotten[1:] == [""]
        assert setup.lists()[-1] == ""


def too_large(request: Request, version: int) -> Response | None:
    """Lists of a version that does not exist yet are refused, streamed or not."""
    wanted = request.query.get("resourceVersion", "")
    plain_watch = "watch" in request.query and "sendInitialEvents" not in request.query
    if plain_watch or not wanted.isdigit() or int(wanted) <= version:
        return None
    message = f"Timeout: Too large resource version: {wanted}, current: {version}"
    return status(StatusError(504, "Timeout", message, "ResourceVersionTooLarge"))


@both
@pytest.mark.parametrize("piece_bytes", [1000, 65536, None])
async def test_fault_22_huge_and_split(watch_list, piece_bytes):
    """An object of 1.5 MB is read, in a list and as an event, also when it comes in small pieces."""
    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:
        server.piece_bytes = piece_bytes
        setup = Setup(server, client, watch_list)
        huge = "x" * 1_500_000
        setup.put("a", huge)
        setup.put("b")
        task = asyncio.create_task(setup.reflector.run())
        await setup.sink.until(a=huge, b="")
        setup.put("b", huge + "y")
        await setup.sink.until(a=huge, b=huge + "y")
        assert not setup.health.errors
        task.cancel()


@pytest.mark.parametrize(("mode", "kind"), [("refuse", "http_422"), ("ignore", "ignored")])
async def test_streamed_list_not_known(mode, kind):
    """A server that refuses a streamed list, or has never heard of it, is asked for pages."""
    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:
        server.watch_list = mode
        setup = Setup(server, client, watch_list=True)
        setup.put("a")
        task = asyncio.create_task(setup.reflector.run())
        if mode == "ignore":
            while not setup.health.events["ADDED"]:
                await asyncio.sleep(0)
            await setup.clock.pass_sleep(5)
        await setup.sink.until(a="")
        assert setup.health.errors == {kind: 1}
        assert setup.lists()[-1] == "0"
        setup.put("b")
        await setup.sink.until(a="", b="")
        task.cancel()


async def test_fault_30_streamed_list_ends_early():
    """Half a streamed list is no list: the sink never sees it, and the ordinary list is read instead, every time."""
    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:
        server.watch_list = "end"
        setup = Setup(server, client, watch_list=True)
        setup.put("a")
        task = asyncio.create_task(setup.reflector.run())
        await setup.clock.pass_sleep(0.8)
        await setup.sink.until(a="")
        await setup.watching()
        setup.put("b")
        await setup.sink.until(a="", b="")
        setup.server.gone_mid_stream()
        await setup.clock.pass_sleep(0.8)
        await setup.clock.pass_sleep(1.6)
        await server.until(lambda: len(setup.lists()) == 4)
        setup.put("c")
        await setup.sink.until(a="", b="", c="")
        assert setup.sink.replaced == [{"a": ""}, {"a": "", "b": ""}]
        assert setup.health.errors == {"incomplete": 2, "http_410": 1}
        assert setup.lists() == ["", "0", "", ""]
        task.cancel()


@pytest.mark.parametrize("answer", [502, 504, 403, 404, 500])
async def test_fault_30_streamed_list_is_answered_with_an_error(answer):
    """Whatever a gateway says to streamed lists alone, the ordinary list is tried next: always some progress."""
    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:
        setup = Setup(server, client, watch_list=True)
        setup.put("a")
        server.intercept = lambda request: (
            Response(b"<html>", answer) if "sendInitialEvents" in request.query else None
        )
        task = asyncio.create_task(setup.reflector.run())
        await setup.clock.pass_sleep(0.8)
        await setup.sink.until(a="")
        assert setup.health.errors == {f"http_{answer}": 1}
        task.cancel()


async def test_fault_30_ordinary_list_fails():
    """When it is the ordinary list that fails, the streamed one has its turn again."""
    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:
        setup = Setup(server, client, watch_list=True)
        setup.put("a")
        tries = []

        def intercept(request: Request) -> Response | None:
            tries.append("streamed" if "sendInitialEvents" in request.query else "ordinary")
            return Response(b"", 500) if len(tries) < 3 else None

        server.intercept = intercept
        task = asyncio.create_task(setup.reflector.run())
        await setup.clock.pass_sleep(0.8)
        await setup.clock.pass_sleep(1.6)
        await setup.sink.until(a="")
        assert tries == ["streamed", "ordinary", "streamed"]
        task.cancel()


@both
async def test_unreadable_object(watch_list):
    """An object that cannot be read is counted and left out; what was known of it stays."""
    async with following("a", "b", watch_list=watch_list) as setup:
        setup.put("a", "unreadable")
        setup.put("new", "unreadable")
        setup.put("b", "1")
        await setup.sink.until(a="", b="1")
        assert setup.health.errors == {"object": 2}


@pytest.mark.parametrize(
    "line",
    [
        b"not json\n",
        b"{}\n",
        b'{"type":"\xff","object":{}}\n',
        b'{"type":"ADDED","object":[]}\n',
        b"[" * 100_000 + b"\n",
    ],
)
async def test_nonsense_in_a_watch(line):
    """A line that is no event ends the watch, not the reflector."""
    async with following("a") as setup:
        setup.server.say(line)
        await setup.clock.pass_sleep(0.8)
        setup.put("b")
        await setup.sink.until(a="", b="")
        assert setup.health.errors == {"protocol": 1}
        assert setup.health.lists == 1


async def test_error_event_other_than_gone():
    """A server that cannot go on with a watch is asked for a list, not older than what is known."""
    async with following("a") as setup:
        version = setup.health.version
        setup.server.say(
            event("ERROR", b'{"kind":"Status","code":500,"reason":"InternalError","message":"no"}')
        )
        await setup.clock.pass_sleep(0.8)
        setup.put("b")
        await setup.sink.until(a="", b="")
        assert setup.lists()[1:] == [version]
        relist = setup.server.asked("/api/v1/nodes", resourceVersionMatch="NotOlderThan")[0]
        assert "limit" not in relist.query


async def test_watches_that_end_at_once():
    """A server that ends every watch at once is not asked in a circle without a pause."""
    async with following("a") as setup:
        for wait in (0.8, 1.6, 3.2):
            await setup.watching()
            setup.server.end_watches()
            await setup.clock.pass_sleep(wait)
        await setup.watching()


async def test_watch_parameters():
    """A watch asks for bookmarks and for an end after five to ten minutes."""
    async with following("a") as setup:
        query = setup.server.requests[-1].query
        assert query["allowWatchBookmarks"] == "true"
        assert query["timeoutSeconds"] == "450"
        assert query["resourceVersion"] == str(setup.server.store.version)


async def test_cancelled():
    """A cancelled reflector leaves no task and no connection."""
    async with following("a") as setup:
        server = setup.server
    assert len(asyncio.all_tasks()) == 1
    assert server.watches == 0


@both
async def test_relist(watch_list):
    """The list is read again when asked to, in another way, and followed from there; nothing is called a failure."""
    async with following("a", watch_list=watch_list) as one:
        one.reflector.relist()
        await one.clock.pass_sleep(0.8)  # the watch was young
        while len(one.sink.replaced) < 2:
            await asyncio.sleep(0.001)
        one.put("b", "2")
        await one.sink.until(a="", b="2")
        assert (one.health.lists, one.health.synced, one.health.errors) == (2, True, {})


async def test_relist_while_listing():
    """What was read before it was asked for is read again: the list that is under way is not the last."""
    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:
        one = Setup(server, client, watch_list=True)
        one.put("a")
        one.reflector.relist()
        task = asyncio.create_task(one.reflector.run())
        await one.clock.pass_sleep(0.8)
        while len(one.sink.replaced) < 2:
            await asyncio.sleep(0.001)
        task.cancel()
        assert one.sink.replaced == [{"a": ""}, {"a": ""}]


async def test_relist_while_a_watch_is_being_opened():
    """The list is read again at once, not when that watch ends, which takes minutes."""
    async with await MisbehavingApiServer().start() as server, Client(server.cluster) as client:
        one = Setup(server, client, watch_list=False)
        one.put("a")
        opened: list[Request] = []

        def relist(request: Request) -> None:
            if "watch" in request.query and not opened:
                opened.append(request)
                one.reflector.relist()

        server.intercept = relist
        task = asyncio.create_task(one.reflector.run())
        await one.clock.pass_sleep(0.8)  # the watch was young
        async with asyncio.timeout(5):
            while len(one.sink.replaced) < 2:
                await asyncio.sleep(0.001)
            one.put("b")
            await one.sink.until(a="", b="")
        task.cancel()
        assert one.health.errors == {}
