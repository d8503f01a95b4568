"""One of several leads."""

import asyncio
import gc
from contextlib import asynccontextmanager

import pytest

from tessera.controller.leader import Leader, LeadershipLost
from tessera.kube.rest.client import Client
from tessera.simulation.control_plane.kinds import LEASES
from tessera.simulation.control_plane.store import StatusError
from tests.kube.apiserver import MisbehavingApiServer, status
from tests.kube.clock import FakeClock


@asynccontextmanager
async def cluster():
    async with MisbehavingApiServer() as server, asyncio.timeout(20):
        await server.start()
        async with Client(server.cluster) as client:
            yield server, client


class Candidate:
    """A process that wants to lead, with a clock that the test moves."""

    def __init__(self, client, name, clock):
        client.clock = clock
        self.leader = Leader(client, "gpu-webhook", "tessera-controller", name)
        self.begun = 0
        self.ended = 0
        self._news = asyncio.Event()
        self.task = asyncio.ensure_future(self.leader.lead(self._work))

    async def _work(self):
        self.begun += 1
        self._news.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended += 1
            self._news.set()

    async def until(self, condition):
        while not condition():
            await asyncio.sleep(0.005)

    async def stop(self):
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def spec(server):
    return server.store.get(LEASES, "tessera-controller", "gpu-webhook").document["spec"]


def test_the_first_leads():
    """The Lease is made as Kubernetes' own are, and renewed every two seconds."""

    async def main():
        async with cluster() as (server, client):
            clock = FakeClock()
            one = Candidate(client, "one", clock)
            await one.until(lambda: one.begun)
            assert spec(server) == {
                "holderIdentity": "one",
                "leaseDurationSeconds": 15,
                "acquireTime": "2027-01-15T08:00:00.000000Z",
                "renewTime": "2027-01-15T08:00:00.000000Z",
                "leaseTransitions": 0,
            }
            await clock.pass_sleep(2.0)
            await one.until(lambda: spec(server)["renewTime"] == "2027-01-15T08:00:02.000000Z")
            one.leader.fence()
            await one.stop()

    asyncio.run(main())


def test_the_second_waits_until_the_first_has_gone():
    """A leader that ends gives the Lease up: the next begins at its next look."""

    async def main():
        async with cluster() as (server, client):
            clocks = FakeClock(), FakeClock()
            one = Candidate(client, "one", clocks[0])
            await one.until(lambda: one.begun)
            two = Candidate(client, "two", clocks[1])
            for _ in range(3):
                await clocks[1].pass_sleep(2.0)
                await clocks[0].pass_sleep(2.0)
            await clocks[1].until_asleep(2.0)
            assert (two.begun, two.leader.leads, two.leader.holder) == (0, False, "one")
            with pytest.raises(LeadershipLost):
                two.leader.fence()
            await one.stop()
            assert (one.ended, spec(server)["holderIdentity"]) == (1, "")
            await clocks[1].pass_sleep(2.0)
            await two.until(lambda: two.begun)
            assert (spec(server)["holderIdentity"], spec(server)["leaseTransitions"]) == ("two", 1)
            await two.stop()

    asyncio.run(main())


def test_a_leader_that_died():
    """Its Lease runs out after fifteen seconds by the clock of who waits, whatever the times in it say."""

    async def main():
        async with cluster() as (server, client):
            dead = {
                "holderIdentity": "dead",
                "leaseDurationSeconds": 15,
                "renewTime": "2001-01-01T00:00:00.000000Z",
            }
            server.store.create(
                LEASES, {"metadata": {"name": "tessera-controller"}, "spec": dead}, "gpu-webhook"
            )
            clock = FakeClock()
            one = Candidate(client, "one", clock)
            for _ in range(7):
                await clock.pass_sleep(2.0)
                await clock.until_asleep(2.0)
                assert one.begun == 0
            await clock.pass_sleep(2.0)
            await one.until(lambda: one.begun)
            await one.stop()

    asyncio.run(main())


def test_a_leader_that_cannot_renew():
    """It stops after ten seconds, which is before another may begin, and leads again when it can."""

    async def main():
        async with cluster() as (server, client):
            clock = FakeClock()
            one = Candidate(client, "one", clock)
            await one.until(lambda: one.begun)
            server.intercept = lambda request: (
                status(StatusError(500, "InternalError", "away")) if request.method == "PUT" else None
            )
            for passed in (2, 4, 6, 8):
                await clock.pass_sleep(2.0)
                await clock.until_asleep(2.0)
                assert (one.ended, passed < 10) == (0, True)
            await clock.pass_sleep(2.0)
            await one.until(lambda: one.ended)
            with pytest.raises(LeadershipLost):
                one.leader.fence()
            server.intercept = lambda request: None
            await clock.pass_sleep(2.0)
            await one.until(lambda: one.begun == 2)
            await one.stop()

    asyncio.run(main())


def test_a_lease_that_was_taken():
    """A leader that finds another's name stops at once."""

    async def main():
        async with cluster() as (server, client):
            clock = FakeClock()
            one = Candidate(client, "one", clock)
            await one.until(lambda: one.begun)
            stored = server.store.get(LEASES, "tessera-controller", "gpu-webhook").document
            taken = {**stored, "spec": {**stored["spec"], "holderIdentity": "thief"}}
            server.store.update(LEASES, "tessera-controller", taken, "gpu-webhook")
            await clock.pass_sleep(2.0)
            await one.until(lambda: one.ended)
            await one.stop()
            assert spec(server)["holderIdentity"] == "thief", "what is another's is not given up"

    asyncio.run(main())


def test_a_leader_that_slept():
    """A process that was not run for a while writes nothing before it has renewed."""

    async def main():
        async with cluster() as (_, client):
            clock = FakeClock()
            one = Candidate(client, "one", clock)
            await one.until(lambda: one.begun)
            one.leader.fence()
            clock.time += 10.0
            with pytest.raises(LeadershipLost):
                one.leader.fence()
            await one.stop()

    asyncio.run(main())


def test_two_at_once():
    """Of two that find no Lease, one makes it and the other waits."""

    async def main():
        async with cluster() as (server, client):
            clock = FakeClock()
            both = [Candidate(client, name, clock) for name in ("one", "two")]
            await both[0].until(lambda: sum(one.begun for one in both) == 1)
            await clock.until_asleep(2.0)
            assert [one.leader.leads for one in both].count(True) == 1
            for one in both:
                await one.stop()
            assert server.store.list(LEASES)

    asyncio.run(main())


def test_work_that_fails():
    """What the work raises ends the process: the kubelet starts it anew."""

    async def main():
        async with cluster() as (_, client):
            leader = Leader(client, "gpu-webhook", "tessera-controller", "one")

            async def work():
                raise ValueError("broken")

            with pytest.raises(ValueError, match="broken"):
                await leader.lead(work)

    asyncio.run(main())


def test_what_ends_together_with_the_lease_is_not_overlooked():
    """Several of the leader's tasks end at the same moment: a bug among them is raised, and asyncio complains about none."""
    complaints = []

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        async with cluster() as (_, client):
            client.clock = FakeClock()
            leader = Leader(client, "gpu-webhook", "tessera-controller", "one")

            async def lose():
                raise LeadershipLost("gone")

            async def fail():
                raise ValueError("a bug")

            with pytest.raises(ValueError, match="a bug"):
                await leader.lead(lose, lose, fail)

    asyncio.run(main())
    gc.collect()
    assert complaints == []
