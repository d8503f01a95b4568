"""Whether the controller is at work, by one read of its Lease."""

import asyncio
import json

import pytest

from tessera.kube.rest.client import Client
from tessera.kube.view.lease import CONTROLLER, controller_at_work, controller_in
from tessera.protocol.kubernetes.lease import Lease
from tessera.simulation.control_plane.kinds import LEASES
from tessera.simulation.control_plane.store import StatusError
from tests.kube.apiserver import MisbehavingApiServer
from tests.kube.clock import FakeClock

START = "2027-01-15T08:00:00.000000Z"  # when the clock of the tests begins
LATER = "2027-01-15T08:00:02.000000Z"


class _Server(MisbehavingApiServer):
    """Forbids the Lease, if `forbidden`, and counts the reads of it; at one of them it has been renewed."""

    forbidden = False
    reads = 0
    renews_at = 0

    def target(self, path):
        if "leases" in path:
            self.reads += 1
            if self.forbidden:
                raise StatusError(403, "Forbidden", "leases is forbidden")
            if self.reads == self.renews_at:
                self.write(LATER, update=True)
        return super().target(path)

    def write(self, renewed, holder="one", reconcilers=None, *, update=False):
        document = Lease(CONTROLLER, "", holder, 15, START, renewed, 0, reconcilers).document("gpu-webhook")
        if update:
            self.store.update(LEASES, CONTROLLER, document, "gpu-webhook")
        else:
            self.store.create(LEASES, document, "gpu-webhook")


@pytest.mark.parametrize(
    ("lease", "passed", "more", "at_work", "reads"),
    [
        (None, 0, {}, False, 1),
        ((START, "one"), 14, {}, True, 1),
        ((START, ""), 0, {}, False, 1),  # given up
        ((START, "one"), 15, {}, False, 5),  # left behind
        (("junk", "one"), 0, {}, False, 5),
        ((START, "one"), 600, {"renews_at": 3}, True, 3),  # at work, and this machine's clock is wrong
        ((START, "one"), 0, {"forbidden": True}, None, 1),
        ((START, "one", ("claims", "patience")), 14, {}, True, 1),
        ((START, "one", ("patience",)), 14, {}, False, 1),
    ],
    ids=[
        "none",
        "fresh",
        "given-up",
        "left-behind",
        "no-time",
        "clocks-differ",
        "forbidden",
        "claims",
        "no-claims",
    ],
)
def test_a_read_of_the_lease(lease, passed, more, at_work, reads):
    """A Lease that was renewed lately is held; one that was not is held if it changes while one reads. It counts if its holder makes claims."""

    async def main():
        async with _Server() as server, asyncio.timeout(20):
            await server.start()
            if lease:
                server.write(*lease)
            for name, value in more.items():
                setattr(server, name, value)
            clock = FakeClock(auto=True)
            clock.time += passed
            async with Client(server.cluster, clock=clock) as client:
                assert await controller_at_work(client, "gpu-webhook") is at_work
            assert server.reads == reads

    asyncio.run(main())


@pytest.mark.parametrize(
    ("leases", "at_work"),
    [
        ([], None),
        ([("node-1", "kubelet")], None),
        ([("node-1", "kubelet"), (CONTROLLER, "one")], True),
        ([(CONTROLLER, "")], False),
    ],
)
def test_leases_of_files(leases, at_work):
    """A file has no clock: a Lease that names a holder is held. Other Leases say nothing."""
    raw = [
        json.dumps({"metadata": {"name": name}, "spec": {"holderIdentity": holder}}).encode()
        for name, holder in leases
    ]
    assert controller_in(raw) is at_work
