"""The leader keeps the keys of tickets, against a stand-in API server."""

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from tessera.controller.leader import LeadershipLost
from tessera.controller.ticket_keeper import TicketKeeper
from tessera.kube.rest.client import Client
from tessera.kube.view.ticket_keys import PERIOD, SECRET
from tessera.simulation.control_plane.kinds import SECRETS
from tessera.simulation.control_plane.store import StatusError
from tests.kube.apiserver import MisbehavingApiServer, status
from tests.kube.clock import FakeClock


@asynccontextmanager
async def world():
    async with MisbehavingApiServer() as server, asyncio.timeout(20):
        await server.start()
        async with Client(server.cluster) as client:
            clock = client.clock = FakeClock()
            keeper = TicketKeeper(client, "own")

            async def look(fence=lambda: None):
                clock.time += keeper.wait
                await keeper.poll(fence)
                return keeper.keys

            def another():
                return TicketKeeper(client, "own")

            yield SimpleNamespace(server=server, clock=clock, keeper=keeper, look=look, another=another)


def gone():
    raise LeadershipLost("gone")


def test_made_kept_and_rotated():
    """Made where it is missing; the same for the next leader; the next one in use after a period; back when it was removed."""

    async def main():
        async with world() as one:
            first = await one.look()
            assert first is not None
            assert first.previous is None
            other = one.another()
            await other.poll(gone)  # nothing is to be written
            assert other.keys == first
            one.clock.time += PERIOD
            second = await one.look()
            assert (second.previous, second.current) == (first.current, first.following)
            one.server.store.delete(SECRETS, SECRET, "own")
            assert await one.look() == second
            assert len(one.server.store.list(SECRETS)) == 1

    asyncio.run(main())


def test_as_the_chart_gives_it():
    """The chart makes the Secret empty, and gives the controller no right to create one: it is patched."""

    async def main():
        async with world() as one:
            one.server.store.create(SECRETS, {"metadata": {"name": SECRET}, "type": "Opaque"}, "own")
            one.server.intercept = lambda request: (
                status(StatusError(403, "Forbidden", "no right")) if request.method == "POST" else None
            )
            assert await one.look() is not None
            data = one.server.store.get(SECRETS, SECRET, "own").document["data"]
            assert sorted(data) == ["current", "next", "rotated"]

    asyncio.run(main())


def test_what_fails(caplog):
    """No right: one sentence, no key, tried again every two seconds. Once there is a key, trouble does not take it away."""

    async def main():
        async with world() as one:
            one.server.intercept = lambda _: status(StatusError(403, "Forbidden", "no right"))
            assert await one.look() is None
            assert await one.look() is None
            assert one.keeper.wait == 2.0
            one.server.intercept = lambda _: None
            keys = await one.look()
            one.server.intercept = lambda _: status(StatusError(403, "Forbidden", "no right"))
            assert await one.look() == keys is not None

    asyncio.run(main())
    told = [each.getMessage() for each in caplog.records if "cannot be kept" in each.message]
    assert len(told) == 2
    assert "Secret own/tessera-ticket-key" in told[0]
    assert "no right" in told[0]


def test_the_fence():
    """Who does not lead any more writes nothing."""

    async def main():
        async with world() as one:
            with pytest.raises(LeadershipLost):
                await one.look(gone)
            assert one.server.store.list(SECRETS) == []
            assert one.keeper.keys is None

    asyncio.run(main())
