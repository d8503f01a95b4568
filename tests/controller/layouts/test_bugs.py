"""Bugs, long decisions and wrong clocks: what else the controller does goes on."""

import asyncio
import time

import pytest

from tessera.controller.layouts import nodes, reconciler, status
from tessera.controller.layouts import plan as planning
from tessera.controller.layouts.auto import deciding, looking
from tessera.controller.layouts.judging import Verdicts
from tessera.controller.leader import LeadershipLost
from tessera.core.autopilot import propose
from tessera.core.devices.capacity import Capacity
from tessera.inventory import inventory
from tessera.protocol.mig.miglayout import read_past
from tessera.protocol.mig.rollouts import Phase
from tessera.rollout import step
from tessera.simulation.control_plane.kinds import MIG_LAYOUTS
from tests.build import MIG
from tests.controller.layouts.cluster import FastClock, cluster, layout
from tests.controller.layouts.test_auto import SIX, auto, results, said, wait_for
from tests.rollout.machine.world import record_in

BIGGEST = MIG + "7g.70gb"
HOURS = 3600.0


def add_fixed(one, name="fixed", pool="b"):
    """A MigLayout in mode Fixed, with a node of its own."""
    document = layout(name)
    document["spec"]["nodeSelector"] = {"nvidia.com/pool": pool}
    one.add_nodes(f"node-of-{name}", pool=pool)
    one.store.create(MIG_LAYOUTS, document)


def broken(*_, **__):
    raise ZeroDivisionError("a bug")


@pytest.mark.parametrize(
    ("where", "what"),
    [
        (deciding, "propose"),
        (deciding, "careful"),
        (looking, "situation"),
    ],
)
def test_fault_68_a_bug_in_a_decision(where, what, monkeypatch, caplog):
    """It is counted, logged once with its traceback, and said in the status. Nothing is re-cut, a rollout under way and layouts that are fixed go on;
    when the bug is mended, the autopilot is, too."""

    async def main():
        slow = {"rollout": {"maxUnavailable": 2, "timeout": "60m"}}
        async with cluster("gpu-0", "gpu-1", document=auto(spec=slow)) as one:
            wait_for(one)
            one.dead.add("gpu-0")
            one.dead.add("gpu-1")
            one.lead("one")
            await one.until(lambda: one.cuts)  # one re-cut is under way
            (cut,) = one.cuts
            with monkeypatch.context() as then:
                then.setattr(where, what, broken)
                add_fixed(one)
                wait_for(one, 2, BIGGEST, "more")
                text = "The autopilot cannot decide: an unexpected error (ZeroDivisionError); the controller's log has it. Nothing is re-cut."
                await one.until(lambda: said(one).get("summary") == text)
                assert said(one)["recuts"] == []
                await one.until(lambda: one.condition("Ready", "fixed")[0] == "True")
                one.dead.clear()
                one.answer(cut)
                await one.until(lambda: results(one) == ["Done"])
                await asyncio.sleep(0.5)  # several looks
                assert results(one) == ["Done"]
            await one.until(lambda: results(one).count("Done") > 1)
            assert 'tessera_controller_failures_total{what="policy"}' in one.exposed("one")

    asyncio.run(main())
    told = [each for each in caplog.records if "an unexpected error" in each.getMessage()]
    assert len(told) == 1
    assert "a bug" in caplog.text


@pytest.mark.parametrize(("where", "what"), [(inventory, "pod_use_of"), (Capacity, "add")])
def test_fault_68_a_bug_in_what_mode_auto_follows(where, what, monkeypatch):
    """Others follow the same cluster: layouts that are fixed go on. The status says it, and when the bug is mended, the autopilot is, too."""

    async def main():
        async with cluster("gpu-0", "gpu-1", document=auto()) as one:
            one.lead("one")
            await one.until(lambda: said(one).get("summary") == "Nothing is wanted that is not there.")
            with monkeypatch.context() as then:
                then.setattr(where, what, broken)
                wait_for(one, 2, BIGGEST, "more")
                text = "The autopilot cannot decide: an unexpected error (ZeroDivisionError); the controller's log has it. Nothing is re-cut."
                await one.until(lambda: said(one).get("summary") == text)
                add_fixed(one)
                await one.until(lambda: one.condition("Ready", "fixed")[0] == "True")
                assert results(one) == []
            await one.until(lambda: "Done" in results(one))
            assert 'tessera_controller_failures_total{what="policy"}' in one.exposed("one")

    asyncio.run(main())


def test_fault_68_a_bug_that_one_mig_layout_meets(monkeypatch):
    """Of two in mode Auto one cannot be decided for; the other is."""

    async def main():
        async with cluster("gpu-0", document=auto()) as one:
            other = auto("other")
            other["spec"]["nodeSelector"] = {"nvidia.com/pool": "b"}
            one.store.create(MIG_LAYOUTS, other)
            one.add_nodes("gpu-9", pool="b")

            def some(wants, cards, *rest):
                return (
                    broken()
                    if any(card.node == "gpu-0" for card in cards)
                    else propose.propose(wants, cards, *rest)
                )

            monkeypatch.setattr(deciding, "propose", some)
            wait_for(one)
            one.lead("one")
            await one.until(lambda: results(one, "other") == ["Done"])
            assert said(one)["summary"].startswith("The autopilot cannot decide: an unexpected error")
            assert (one.cuts, said(one)["history"]) == ({"gpu-9": 1}, [])

    asyncio.run(main())


@pytest.mark.parametrize("where", ["plan", "status", "judge"])
def test_fault_68_a_bug_in_the_work_for_one_mig_layout(where, monkeypatch, caplog):
    """Of three MigLayouts one meets it: the others get their layouts, the process goes on, and so does the one when the bug is mended."""

    async def main():
        async with cluster("gpu-0", document=layout()) as one:
            add_fixed(one, "second", "b")
            add_fixed(one, "third", "c")
            bugs = [True]

            def of_one(works, name):
                """The same, with a bug for one MigLayout."""
                return lambda *given: broken() if bugs and name(*given) == "second" else works(*given)

            if where == "plan":
                monkeypatch.setattr(
                    planning, "_plan", of_one(planning._plan, lambda one, *_: one.layout.name)
                )
            elif where == "status":
                monkeypatch.setattr(
                    reconciler, "status_of", of_one(status.status_of, lambda one, *_: one.layout.name)
                )
            else:
                judge = of_one(Verdicts.of, lambda _, __, layout, *___: layout.name)
                monkeypatch.setattr(Verdicts, "of", judge)
            one.lead("one")
            await one.until(lambda: one.condition("Ready")[0] == "True")
            await one.until(lambda: one.condition("Ready", "third")[0] == "True")
            await asyncio.sleep(0.3)
            assert one.cuts == {"gpu-0": 1, "node-of-third": 1}
            assert 'tessera_controller_failures_total{what="layout"}' in one.exposed("one")
            bugs.clear()
            await one.until(lambda: one.condition("Ready", "second")[0] == "True")

    asyncio.run(main())
    told = [each.getMessage() for each in caplog.records if "an unexpected error" in each.getMessage()]
    assert told == ["MigLayout second: an unexpected error; will try again: ZeroDivisionError('a bug')"]


def test_fault_68_a_bug_on_one_node(monkeypatch):
    """The next step of one node meets it: the other nodes get their layout, and the status says it of the node."""

    async def main():
        async with cluster(*SIX, document=layout()) as one:
            monkeypatch.setattr(
                nodes,
                "step",
                lambda seen, *rest, **more: (
                    broken() if seen.name == "gpu-0" else step.step(seen, *rest, **more)
                ),
            )
            one.lead("one")
            rest = [name for name in SIX if name != "gpu-0"]
            await one.until(lambda: all(map(one.has_layout, rest)))
            reason = "an unexpected error (ZeroDivisionError); the controller's log has it"
            await one.until(
                lambda: one.status()["nodes"] == [{"name": "gpu-0", "state": "Updating", "reason": reason}]
            )
            monkeypatch.undo()
            await one.until(lambda: one.condition("Ready")[0] == "True")
            assert one.cuts == dict.fromkeys(SIX, 1)

    asyncio.run(main())


@pytest.mark.parametrize("lost", ["by a fence", "cancelled"])
def test_a_lost_lease_ends_the_work(lost):
    """Whatever is survived, a lost Lease is not: `run` ends with it, and nothing more is written."""

    async def main():
        async with cluster(*SIX, document=layout()) as one:
            leads = [True]

            def fence():
                if not leads:
                    raise LeadershipLost("another leads")

            one.lead("one", fence)
            await one.until(lambda: one.cordoned)
            if lost == "cancelled":
                one._leaders["one"][2].cancel()
            leads.clear()
            await one.until(one._leaders["one"][2].done)
            await asyncio.sleep(0.05)  # what was on its way
            before = len(one.server.requests)
            await asyncio.sleep(0.2)
            assert not [request for request in one.server.requests[before:] if request.method != "GET"]

    asyncio.run(main())


def test_the_loop_goes_on_while_the_autopilot_decides(monkeypatch):
    """A decision takes a second: meanwhile the loop ticks. A MigLayout that changes meanwhile is decided for again: nothing is cut by the old decision."""

    async def main():
        async with cluster("gpu-0", document=auto()) as one:
            thinking = list[float]()

            def slow(*given):
                thinking.append(time.monotonic())
                time.sleep(1.0)  # in a thread
                return propose.propose(*given)

            monkeypatch.setattr(deciding, "propose", slow)
            wait_for(one, 1, BIGGEST)
            one.lead("one")
            await one.until(lambda: thinking)
            one.change(autopilot={"dryRun": False, "maximum": {"7g.70gb": 0}})
            ticks = 0
            while time.monotonic() < thinking[0] + 0.9:
                await asyncio.sleep(0.005)
                ticks += 1
            assert ticks > 20
            await one.until(lambda: [row["why"] for row in said(one).get("refusals", ())] == ["maximum"])
            assert len(thinking) == 2
            assert (one.cuts, results(one)) == ({}, [])

    asyncio.run(main())


def test_a_lease_that_is_lost_while_the_autopilot_decides(monkeypatch):
    """What it decides is dropped: another leader decides, and cuts as much as may be."""

    async def main():
        async with cluster(*SIX, document=auto(recutsPerHour=1)) as one:
            thinking, leads = list[float](), [True]

            def slow(*given):
                thinking.append(time.monotonic())
                time.sleep(0.3 if len(thinking) == 1 else 0.0)
                return propose.propose(*given)

            def fence():
                if not leads:
                    raise LeadershipLost("another leads")

            monkeypatch.setattr(deciding, "propose", slow)
            wait_for(one, 4, BIGGEST)
            one.lead("one", fence)
            await one.until(lambda: thinking)
            leads.clear()
            one.lead("two")
            await one.until(lambda: results(one) == ["Done"])
            await asyncio.sleep(0.5)
            assert results(one) == ["Done"]
            assert sum(one.cuts.values()) == 1
            assert one.status()["controller"] == "two"

    asyncio.run(main())


def cuts_of(one):
    """The re-cuts that the status remembers."""
    past = read_past(said(one)["past"])
    return past.cuts if past is not None else None


@pytest.mark.parametrize("ahead", [3 * HOURS, -3 * HOURS, 400 * 24 * HOURS])
def test_fault_69_the_clock_of_a_leader_jumps(ahead, caplog):
    """Budget and cool-down hold: the autopilot re-cuts nothing, says so in the status, and once in the log. What is remembered stays as it was, so they hold, too,
    when the clock is right again."""

    async def main():
        async with cluster(*SIX, document=auto(recutsPerHour=2, coolDown="2h")) as one:
            clock, one.server.clock = FastClock(), FastClock()
            wait_for(one, 2, BIGGEST, apart=True)
            one.lead("one", clock=clock)
            await one.until(lambda: results(one) == ["Done", "Done"])
            remembered = cuts_of(one)
            clock.ahead = ahead
            wait_for(one, 3, BIGGEST, "more", apart=True)
            side = "ahead of" if ahead > 0 else "behind"
            words = f" {side} the API server's. Nothing is re-cut."
            await one.until(lambda: said(one)["summary"].startswith("This machine's clock is "))
            assert said(one)["summary"].endswith(words)
            await asyncio.sleep(0.5)  # several looks
            assert cuts_of(one) == remembered
            clock.ahead = 5.0  # as clocks are
            await one.until(lambda: "budget" in [row["why"] for row in said(one)["refusals"]])
            assert results(one) == ["Done", "Done"]
            assert cuts_of(one) == remembered
            assert 'tessera_controller_failures_total{what="clock"} 1' in one.exposed("one")

    asyncio.run(main())
    told = [each for each in caplog.records if "the autopilot re-cuts nothing" in each.getMessage()]
    assert len(told) == 1


@pytest.mark.parametrize("ahead", [3 * HOURS, -3 * HOURS])
def test_fault_69_a_rollout_goes_on_by_the_api_server_s_clock(ahead):
    """A clock that jumps ends no rollout too early, nor too late: nodes get their layout, and one that does not take it is given up after its time."""

    async def main():
        document = layout(rollout={"maxUnavailable": 2, "whenInUse": "Wait", "timeout": "30s"})
        async with cluster("gpu-0", "gpu-1", document=document) as one:
            clock, one.server.clock = FastClock(), FastClock()
            one.dead |= {"gpu-0", "gpu-1"}
            one.lead("one", clock=clock)
            phase = lambda name: (of := record_in(one.node(name))) and of.phase  # noqa: E731
            await one.until(lambda: phase("gpu-0") is phase("gpu-1") is Phase.WRITTEN)
            clock.ahead = ahead
            await asyncio.sleep(0.05)  # 5 s
            assert phase("gpu-1") is Phase.WRITTEN
            one.dead.remove("gpu-0")
            one.answer("gpu-0")
            await one.until(lambda: one.has_layout("gpu-0"))
            await one.until(lambda: one.condition("Degraded")[0] == "True")
            assert "the layout is not applied after 30 s" in one.condition("Degraded")[2]

    asyncio.run(main())
