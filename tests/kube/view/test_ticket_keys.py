"""The Secret with the keys of tickets, and how the webhook follows it."""

import asyncio
import itertools
import json

import msgspec
import pytest

from tessera.core.admission.view.offers import Offers
from tessera.core.requests.tickets import TicketKey, TicketMaker, hour_of
from tessera.kube.rest.client import Client
from tessera.kube.view.ticket_keys import PERIOD, SECRET, TicketFollower, TicketSecret
from tessera.simulation.control_plane.kinds import SECRETS
from tessera.simulation.control_plane.store import StatusError
from tests.kube.apiserver import MisbehavingApiServer, status
from tests.kube.clock import FakeClock

NOW = 1_800_000_000.0


def maker():
    count = itertools.count(1)
    return lambda: next(count).to_bytes(32, "big")


def key(number):
    return TicketKey(number.to_bytes(32, "big"))


def numbers(secret):
    return [one and int.from_bytes(one.secret, "big") for one in (secret.previous, secret.current, secret.following)]  # fmt: skip


def test_rotation():
    """An empty Secret gets two keys; a key is published for a whole period before its use, and accepted for one after it."""
    make = maker()
    first = TicketSecret("7").desired(NOW, make)
    assert (numbers(first), first.rotated, first.version) == ([None, 1, 2], NOW, "7")
    assert first.desired(NOW + PERIOD - 1, make) is first
    second = first.desired(NOW + PERIOD, make)
    assert numbers(second) == [1, 2, 3]
    third = second.desired(NOW + 3 * PERIOD, make)  # once, however long no controller was at work
    assert numbers(third) == [2, 3, 4]
    ticket = TicketMaker(key(1), hour_of(NOW)).ticket("a", "text")
    wrong = [one.keys and one.keys.why_wrong(ticket, "a", "text", NOW) for one in (first, second, third)]
    assert wrong == [None, None, "its ticket was made with a key that is no longer accepted"]


@pytest.mark.parametrize(
    ("data", "desired"),
    [
        ({"current": key(8).secret, "next": b"short", "rotated": b"1800000000"}, [None, 8, 1]),
        ({"current": b"", "next": key(9).secret, "rotated": b"1800000000"}, [None, 9, 1]),
        ({"current": key(8).secret, "next": key(9).secret, "rotated": b"soon"}, [8, 9, 1]),
        ({"current": key(8).secret, "next": key(9).secret, "rotated": b"99999999999"}, [8, 9, 1]),
        ({"current": key(8).secret, "next": key(9).secret, "rotated": b"1800009999"}, [None, 8, 9]),
        (None, [None, 1, 2]),
    ],
    ids=["a broken next", "no current", "no time", "a clock that was ahead", "a little ahead", "as the chart makes it"],
)  # fmt: skip
def test_what_others_wrote(data, desired):
    """What is no key counts as absent; the rest stays."""
    raw = msgspec.json.encode({"metadata": {"name": SECRET, "resourceVersion": "3"}, "data": data})
    found = TicketSecret.read(raw).desired(NOW, maker())
    assert numbers(found) == desired
    assert found.keys is not None
    written = msgspec.json.decode(msgspec.json.encode(found.document()))
    assert TicketSecret.read(json.dumps(written).encode()) == found


def test_following():
    """The webhook reads the Secret while a controller is at work; key, hour and absence reach the view within seconds."""

    async def main():
        async with MisbehavingApiServer() as server, asyncio.timeout(20):
            await server.start()
            clock, offers = FakeClock(), Offers()
            offers.put_controller(at_work=False)
            async with Client(server.cluster, clock=clock) as client:
                follower = TicketFollower(client, "own", offers, uniform=lambda low, _: low)
                running = asyncio.ensure_future(follower.run())

                async def seconds(number):
                    for _ in range(number):
                        await clock.until_asleep(1.0)
                        await clock.advance(1.0)
                    await clock.until_asleep(1.0)

                def put(secret):
                    document = msgspec.json.decode(msgspec.json.encode(secret.document()))
                    if server.store.list(SECRETS):
                        server.store.update(SECRETS, SECRET, document, "own")
                    else:
                        server.store.create(SECRETS, document, "own")

                put(TicketSecret().desired(clock.wall(), maker()))
                await seconds(3)
                assert (offers.ticket_maker, server.requests) == (None, []), "nobody would use it"
                offers.put_controller(at_work=True)
                await seconds(2)
                hour = hour_of(clock.wall())
                assert offers.ticket_maker == TicketMaker(key(1), hour)
                version, asked = offers.version, len(server.requests)
                await seconds(12)
                assert (offers.version, len(server.requests)) == (version, asked), "no call, no decision anew"
                put(TicketSecret("", key(1), key(2), key(3), clock.wall()))
                await seconds(5)
                assert offers.ticket_maker == TicketMaker(key(2), hour)
                assert offers.version == version + 1
                clock.offset += 3600
                await seconds(1)
                assert offers.ticket_maker == TicketMaker(key(2), hour + 1)
                assert offers.version == version + 2
                server.intercept = lambda _: status(StatusError(500, "InternalError", "broken"))
                await seconds(40)
                assert offers.ticket_maker is not None, "the API server's trouble is not the key's"
                server.intercept = lambda _: status(StatusError(403, "Forbidden", "no right"))
                await seconds(40)
                gone = offers.ticket_maker
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                assert gone is None

    asyncio.run(main())
