"""Whatever a server does, a reflector ends up with what the server has."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.kube.rest.client import Client
from tessera.simulation.control_plane.kinds import NODES
from tests.examples import examples
from tests.kube.apiserver import MisbehavingApiServer
from tests.kube.watch.test_reflector import Setup, too_large

SOON = 1.0  # seconds by the real clock

names = st.sampled_from("abcd")
steps = st.lists(
    st.tuples(st.just("put"), names)
    | st.tuples(st.just("remove"), names)
    | st.tuples(
        st.sampled_from(
            [
                "settle", "cut", "end", "gone", "gone at connect", "compact", "storm", "restart", "away",
                "silence", "nonsense", "backup", "restore", "refuse", "half a list", "half a line", "tiny pieces",
            ]
        ),
        st.none(),
    ),
    max_size=25,
)  # fmt: skip


class Life:
    """A server's life, step by step, with a reflector that follows it."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.server = setup, setup.server
        self.saved = self.server.store.snapshot()
        self.count = 0

    async def step(self, what: str, name: str | None) -> None:
        done = getattr(self, what.replace(" ", "_"))(*(() if name is None else (name,)))
        if done is not None:
            await done

    def put(self, name: str) -> None:
        self.count += 1
        self.setup.put(name, str(self.count))

    def remove(self, name: str) -> None:
        if any(stored.key[1] == name for stored in self.server.store.list(NODES)):
            self.setup.remove(name)

    async def settle(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0.001)  # what is on its way arrives
            await self.setup.clock.advance(20)

    def cut(self) -> None:
        self.server.cut_watches()

    def end(self) -> None:
        self.server.end_watches()

    def gone(self) -> None:
        self.server.gone_mid_stream()

    def gone_at_connect(self) -> None:
        self.server.gone_at_connect += 1

    def compact(self) -> None:
        self.server.store.forget_history()

    def storm(self) -> None:
        self.server.storm += 2

    async def restart(self) -> None:
        await self.server.restart()

    async def away(self) -> None:
        port = self.server._http.port
        await self.server.stop()
        await self.settle()
        await self.server.start(port=port)

    async def silence(self) -> None:
        self.server.black_hole = True
        await self.settle()
        self.server.black_hole = False
        self.server.cut_watches()  # what was swallowed is never said again on that watch

    def nonsense(self) -> None:
        self.server.say(b"\x00\n")

    def half_a_line(self) -> None:
        self.server.say(b'{"type":"ADDED"')
        self.server.end_watches()

    def tiny_pieces(self) -> None:
        self.server.piece_bytes = 5

    def refuse(self) -> None:
        self.server.watch_list = "refuse"

    def half_a_list(self) -> None:
        self.server.watch_list = "end"

    def backup(self) -> None:
        self.saved = self.server.store.snapshot()

    async def restore(self) -> None:
        self.server.store = self.saved.snapshot()
        self.server.intercept = lambda request: too_large(request, self.server.store.version)
        await self.server.restart()

    async def agree(self) -> None:
        """Wait, for a long time of the reflector's clock, until it shows what the server has."""
        for _ in range(70):
            there = {
                stored.key[1]: stored.document["spec"]["value"] for stored in self.server.store.list(NODES)
            }
            if self.setup.health.synced and self.setup.sink.objects == there:
                return
            await self.settle()
        raise AssertionError(self.setup.health)


@pytest.mark.parametrize("watch_list", [False, True], ids=["list", "watch-list"])
@settings(max_examples=examples(30))
@given(steps=steps)
def test_ends_up_with_what_the_server_has(watch_list, steps):
    """After any life of the server, once it behaves, what it has and what the reflector shows are the same."""

    async def live() -> None:
        async with (
            await MisbehavingApiServer().start() as server,
            Client(server.cluster, connect_timeout=SOON, answer_timeout=SOON) as client,
        ):
            life = Life(Setup(server, client, watch_list))
            task = asyncio.create_task(life.setup.reflector.run())
            for what, name in steps:
                await life.step(what, name)
            server.storm = server.gone_at_connect = 0
            await life.agree()
            life.put("after")
            await life.agree()
            task.cancel()

    asyncio.run(asyncio.wait_for(live(), 60))
