"""Whether a Lease's holder is at work."""

import asyncio
import json

import pytest

from tessera.core.admission.view.offers import Offers
from tessera.kube.rest.client import Client
from tessera.kube.view.lease import CONTROLLER, LeaseFollower, WatchedLease
from tessera.protocol.kubernetes.lease import Lease
from tessera.simulation.control_plane.kinds import LEASES
from tests.kube.apiserver import MisbehavingApiServer
from tests.kube.clock import FakeClock

START = "2027-01-15T08:00:00.000000Z"  # when the clock of the tests begins


def lease(renewed=START, holder="one", seconds=15, transitions=0):
    return Lease("l", "1", holder, seconds, START, renewed, transitions)


def test_held_while_it_changes():
    """By the clock of who looks: the same Lease again is no sign of life."""
    clock = FakeClock()
    watched = WatchedLease(clock)

    def held_after(seconds, *seen):
        for one in seen:
            watched.observe(one)
        clock.time += seconds
        return watched.is_held

    assert not held_after(0)
    assert held_after(14.9, lease())
    assert not held_after(0.1, lease())
    assert held_after(0, lease("2000-01-01T00:00:00.000000Z")), "its own time means nothing"
    assert not held_after(0, lease(holder="", seconds=1)), "given up"
    assert held_after(0, lease(holder="two"))
    assert not held_after(0, None)


@pytest.mark.parametrize("renewed", ["", "junk", START, "2000-01-01T00:00:00Z", "2099-01-01T00:00:00+23:59"])
@pytest.mark.parametrize("seconds", [0, 15, 10**12])
def test_left_behind(renewed, seconds):
    """Who watches from afar believes a Lease once it has changed, and for a minute at most: no clock of another machine counts."""
    clock = FakeClock()
    watched = WatchedLease(clock, at_first=False)
    spec = {"holderIdentity": "one", "leaseDurationSeconds": seconds, "renewTime": renewed}
    watched.observe(Lease.read(json.dumps({"metadata": {"name": "l"}, "spec": spec}).encode()))
    assert not watched.is_held
    watched.observe(Lease.read(json.dumps({"spec": {**spec, "renewTime": "later"}}).encode()))
    assert watched.is_held is bool(seconds)
    clock.time += 60
    assert not watched.is_held


def test_documents():
    """What is written can be read; renewing keeps the time of taking it, taking it over counts."""
    one = lease().held("one", 15, FakeClock().wall() + 5)
    assert (one.acquired, one.renewed, one.transitions) == (START, "2027-01-15T08:00:05.000000Z", 0)
    two = one.held("two", 15, FakeClock().wall() + 60)
    assert (two.acquired, two.renewed, two.transitions) == (two.renewed, "2027-01-15T08:01:00.000000Z", 1)
    assert Lease.read(json.dumps(two.document("ns")).encode()) == two
    assert Lease.read(b'{"metadata": {"name": "l"}}') == Lease("l")


@pytest.mark.parametrize(
    ("said", "claims"),
    [(None, True), (("claims",), True), (("claims", "patience"), True), (("patience",), False), ((), False)],
)
def test_what_the_holder_runs(said, claims):
    """The Lease says it, and keeps saying it when it is renewed; a Lease of an older controller, which says nothing, is of one that makes claims."""
    one = Lease("l", "1", "one", 15, START, START, 0, said)
    again = Lease.read(json.dumps(one.held("one", 15, FakeClock().wall()).document("ns")).encode())
    assert (again.reconcilers, again.lists("claims")) == (said, claims)
    watched = WatchedLease(FakeClock())
    watched.observe(again)
    assert watched.runs("claims") is claims


def test_following():
    """The webhook knows within a second when the controller has stopped, and at once when it is there again, or makes no claims."""

    async def main():
        async with MisbehavingApiServer() as server, asyncio.timeout(20):
            await server.start()
            clock, offers = FakeClock(), Offers()
            offers.put_controller(at_work=False)
            async with Client(server.cluster, clock=clock) as client:
                follower = LeaseFollower(client, "gpu-webhook", CONTROLLER, offers.put_controller)
                running = asyncio.ensure_future(follower.run())
                await follower.synced()
                assert not offers.controller

                def write(renewed, reconcilers="claims,patience"):
                    document = lease(renewed).document("gpu-webhook")
                    said = {"tessera.dev/reconcilers": reconcilers}
                    document["metadata"] = {"name": CONTROLLER, "annotations": said}
                    if server.store.list(LEASES):
                        server.store.update(LEASES, CONTROLLER, document, "gpu-webhook")
                    else:
                        server.store.create(LEASES, document, "gpu-webhook")

                async def until(condition):
                    while not condition():
                        await asyncio.sleep(0.005)

                version = offers.version
                write("2099-01-01T00:00:00.000000Z")  # left behind by one whose clock was ahead
                await until(lambda: follower._watched.lease)
                assert (offers.controller, offers.version) == (False, version)
                write(START)
                await until(lambda: offers.controller)
                assert offers.version > version, "what was decided before is decided anew"
                for _ in range(15):
                    await clock.pass_sleep(1.0)
                await until(lambda: not offers.controller)
                write("2027-01-15T08:00:16.000000Z")
                await until(lambda: offers.controller)
                write("2027-01-15T08:00:17.000000Z", "patience")
                await until(lambda: not offers.controller)
                write("2027-01-15T08:00:18.000000Z")
                await until(lambda: offers.controller)
                server.store.delete(LEASES, CONTROLLER, "gpu-webhook")
                await until(lambda: not offers.controller)
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    asyncio.run(main())
