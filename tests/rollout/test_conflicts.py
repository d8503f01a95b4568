"""A node that changes whenever a rollout writes to it: HTTP 409, again and again."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tessera.core.kubernetes.scheduling import LabelSelector
from tessera.kube.clock import Clock
from tessera.kube.rest.client import Client
from tessera.protocol.mig import documents as mig
from tessera.protocol.mig.rollouts import ROLLOUT
from tessera.rollout.carrying import Carrier
from tessera.rollout.change import Wanted
from tessera.rollout.changes import changes_of
from tessera.rollout.conflicts import Conflicts
from tessera.rollout.progress import WatchedNode
from tessera.rollout.rollout import Cordon, Rollout
from tessera.rollout.step import Attempt
from tessera.simulation.control_plane.store import StatusError
from tests.inventory.objects import LAYOUT, node
from tests.kube.apiserver import status
from tests.kube.clock import FakeClock
from tests.kube.served import served  # noqa: F401 # a fixture
from tests.rollout.conftest import BIG, ME
from tests.rollout.plugin import FakePlugin

ONES = "1g.10gb=2"
PATH = "/api/v1/nodes/gpu-0"
CONFLICT = status(StatusError(409, "Conflict", "the object has been modified"))
HOUR = 3600.0
TOLD = "gpu-0: the node changed 5 times in a row while it was written to; tried again in some minutes, later from time to time"


class PolledTime(Clock):
    """Time that passes between two looks at a node, and takes none: hours pass while nobody waits."""

    time = 0.0

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return 1_800_000_000.0 + self.time


@pytest.fixture
def roll_out(served, monkeypatch):  # noqa: F811 # the fixture
    """Gives a layout to a node that answers, while `refuses` says which of the writes to it, from 1 on, meet a conflict."""
    served.add(node("gpu-0", BIG, "NVIDIA-H200", layout=LAYOUT))
    monkeypatch.setattr(Attempt, "settles", 0.0)
    monkeypatch.setattr(Carrier, "settles", 0.0)

    def call(*, cordons, refuses, timeout=HOUR, interrupted=None):
        clock, told, asked, writes = PolledTime(), list[str](), list[tuple[float, bool]](), list[float]()
        runner.clock = clock

        async def change(_, seconds):
            clock.time += seconds
            await asyncio.sleep(0)

        monkeypatch.setattr(WatchedNode, "change", change)

        def intercept(request):
            if request.path != PATH:
                return None
            if request.method == "PATCH":
                writes.append(clock.time)
            refused = request.method == "PATCH" and refuses(len(writes))
            asked.append((clock.time, refused))
            return CONFLICT if refused else None

        async def work():
            async with Client(served.server.cluster, clock=clock) as client:
                wanted = Wanted(mig.read(ONES), None, label=False, text=ONES)
                found = await changes_of(client, wanted, ["gpu-0"], LabelSelector.parse(""))
                served.server.intercept = intercept
                rollout = Rollout(
                    client,
                    owner=ME,
                    at_once=1,
                    timeout=timeout,
                    report=told.append,
                    cordon=Cordon(seconds=timeout) if cordons else None,
                )
                running = asyncio.ensure_future(rollout.run(found))
                while interrupted and interrupted not in told:
                    await asyncio.sleep(0)
                if interrupted:
                    running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                return rollout.outcomes["gpu-0"]

        outcome = asyncio.run(work())
        served.server.intercept = lambda request: None
        ended = str(outcome.result), outcome.reason
        return SimpleNamespace(ended=ended, told=told, asked=asked, time=clock.time)

    runner: Any = call
    runner.cluster, runner.plugin = served, FakePlugin(served)
    return runner


def since_the_first_conflict(asked):
    """When the node was read for the first write that met a conflict, and asked for from then on."""
    first = next(number for number, (_, refused) in enumerate(asked) if refused)
    times = [time for time, _ in asked[first - 1 :]]
    return [time - times[0] for time in times]


def within_bounds(times, end):
    """Whether there are at most ten requests in the first minute, and then one a minute."""
    return all(
        sum(time < 60.0 * minute for time in times) <= 9 + minute for minute in range(1, int(end / 60))
    )


@pytest.mark.parametrize("cordons", [False, True])
@pytest.mark.parametrize("well", [0, 1, 2])
def test_conflicts_that_never_end(roll_out, well, cordons):
    """From the beginning, at the write of the layout, or at the end: an hour of conflicts costs few requests. It is told once, and given up at last."""
    found = roll_out(cordons=cordons, refuses=lambda number: number > well)
    times = since_the_first_conflict(found.asked)
    assert within_bounds(times, HOUR)
    assert found.told.count(TOLD) == 1
    result, reason = found.ended
    assert result == "failed"
    assert reason.startswith("the node changed whenever it was written to; ")
    assert reason.endswith("the node is as it was") is (well == 0)
    assert times[-1] > HOUR / 3, "it is tried again"
    assert found.time >= HOUR
    if well:
        assert roll_out(cordons=cordons, refuses=lambda number: False).ended == ("done", "")
    assert ROLLOUT not in roll_out.cluster.node("gpu-0")["metadata"]["annotations"]
    assert not roll_out.cluster.node("gpu-0")["spec"].get("unschedulable")


@pytest.mark.parametrize("cordons", [False, True])
@pytest.mark.parametrize("well", [0, 1, 2])
@pytest.mark.parametrize("conflicts", [4, 5, 7])
def test_conflicts_that_end(roll_out, conflicts, well, cordons):
    """The rollout goes on from where it stood, and the node gets its layout; a few conflicts are not waited for, nor told."""
    found = roll_out(cordons=cordons, refuses=lambda number: well < number <= well + conflicts)
    assert found.ended == ("done", "")
    assert (TOLD in found.told) is (conflicts >= 5)
    assert found.told[-1] == "gpu-0: done"
    times = since_the_first_conflict(found.asked)
    assert (times[-1] < 60.0) is (conflicts < 5)
    assert ROLLOUT not in roll_out.cluster.node("gpu-0")["metadata"]["annotations"]


@pytest.mark.parametrize("cordons", [False, True])
@pytest.mark.parametrize("well", [0, 1])
def test_interrupted_during_conflicts(roll_out, well, cordons):
    """Who interrupts does not wait for minutes: the node is tried again at once, a few times, and how it is left is said."""
    found = roll_out(cordons=cordons, refuses=lambda number: number > well, interrupted=TOLD)
    assert found.time < 600.0
    assert len(since_the_first_conflict(found.asked)) <= 20
    if well:
        assert found.ended[1].startswith(
            "the node changed whenever it was written to; the rollout has not ended"
        )
    else:
        assert found.ended == ("failed", "interrupted")
    found = roll_out(cordons=cordons, refuses=lambda number: number <= 5, interrupted=TOLD)
    assert found.ended[0] == "failed"
    assert found.ended[1].startswith("interrupted")
    assert ROLLOUT not in roll_out.cluster.node("gpu-0")["metadata"]["annotations"]


@pytest.mark.parametrize("cordons", [False, True])
def test_one_burst_of_changes(roll_out, cordons):
    """A node that changes many times within five seconds costs seconds: it does not stay cordoned for minutes."""
    began = list[float]()

    def refuses(number):
        began.append(roll_out.clock.time)
        return number > 1 and roll_out.clock.time < began[1] + 5.0

    found = roll_out(cordons=cordons, refuses=refuses)
    assert found.ended == ("done", "")
    assert TOLD not in found.told
    assert found.time < 30.0


def test_longer_each_time():
    """The waits double up to the longest; a write that goes through ends the row."""
    clock = FakeClock()
    conflicts = Conflicts(clock.now)
    for _ in range(4):
        conflicts.note("a")
        assert not conflicts.is_resting("a")
    for wait in (120.0, 240.0, 480.0, 480.0):
        conflicts.note("a")
        clock.time += wait - 1.0
        assert conflicts.is_resting("a")
        assert not conflicts.is_resting("b")
        clock.time += 1.0
        assert not conflicts.is_resting("a")
    conflicts.forget("a")
    conflicts.note("a")
    assert not conflicts.is_resting("a")
