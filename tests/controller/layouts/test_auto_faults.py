"""Mode Auto when things go wrong at the worst moment, against a stand-in API server."""

import asyncio
import re
from collections import Counter
from typing import Any

import pytest

from tessera.controller.layouts.auto.memory import MOST_CUTS
from tessera.core.autopilot.values import Cut, Past
from tessera.protocol.kubernetes.objects import moment
from tessera.protocol.mig import documents as mig
from tessera.protocol.mig.miglayout import read_past, write_past
from tessera.protocol.mig.rollouts import Phase
from tessera.simulation.control_plane.kinds import MIG_LAYOUTS, NODES, PODS, RESOURCE_CLAIMS
from tessera.simulation.control_plane.store import StatusError
from tests.build import MIG
from tests.controller.layouts.cluster import FastClock, MortalLeaders, claimed, cluster, layout
from tests.controller.layouts.test_auto import SIX, SMALL, auto, results, said, wait_for
from tests.inventory.objects import LAYOUT, pod
from tests.kube.apiserver import status
from tests.rollout.machine.world import asked, record_in
from tests.rollout.plugin import CARDS

BIGGEST = MIG + "7g.70gb"
ONE_AT_A_TIME = {"rollout": {"maxUnavailable": 1, "timeout": "2m", "drainTimeout": "2m"}}


def devices(one):
    """What the nodes have together, by their annotations."""
    found = Counter[str]()
    for name in one.names():
        found.update(mig.read_layout(asked(one.node(name)), CARDS).resources())
    return found


def calm(one):
    return one.status().get("updating") == [] and "UnderWay" not in results(one) and not one.cordoned


@pytest.mark.parametrize(
    ("limits", "holds"),
    [
        ({"minimum": {"3g.30gb": 11}}, lambda found: found[MIG + "3g.30gb"] >= 11),
        ({"maximum": {"7g.70gb": 1}}, lambda found: found[BIGGEST] <= 1),
    ],
)
def test_limits_hold_while_re_cuts_are_under_way(limits, holds):
    """It decides anew, for the MigLayout was changed, while a node is cordoned and has its old devices still: what goes there counts as gone."""

    async def main():
        async with cluster(*SIX, document=auto(recutsPerHour=100, coolDown="2h", **limits)) as one:
            wait_for(one, 12, BIGGEST)
            changes = iter(range(3, 6))

            def change(agent):
                if one.cordoned and (hours := next(changes, None)):
                    limited = {"dryRun": False, "recutsPerHour": 100, "coolDown": f"{hours}h", **limits}
                    one.change(autopilot=limited)

            one.server.after = change
            one.lead("one")
            await one.until(lambda: "Done" in results(one))
            await asyncio.sleep(0.3)  # several looks
            await one.until(lambda: calm(one))
            assert holds(devices(one))

    asyncio.run(main())


@pytest.mark.parametrize("moment", ["decided", "cordoned", "written"])
def test_fault_63_a_leader_dies_between_decision_and_cut(moment):
    """After it has written down what it will do, after the cordon, or after the layout: the next one gives the slot back, or goes on. One card is cut, and
    a decision that was not begun costs nothing of the budget."""

    async def main():
        async with cluster("gpu-0", "gpu-1", document=auto(recutsPerHour=1)) as one:
            wait_for(one)

            def reached():
                if moment == "decided":
                    return bool(one.status().get("updating"))
                phase = Phase.CORDONED if moment == "cordoned" else Phase.WRITTEN
                return any((of := record_in(one.node(name))) and of.phase is phase for name in one.names())

            def kill(agent):
                if agent == "one" and reached():
                    one.kill("one")

            one.server.after = kill
            one.lead("one")
            await one.until(lambda: "one" in one.server.dropped)
            assert results(one) == ["UnderWay"]
            assert sum(one.cuts.values()) == (moment == "written")
            one.lead("two")
            expected = ["Done", "NotBegun"] if moment == "decided" else ["Done"]
            await one.until(lambda: results(one) == expected)
            await one.until(lambda: calm(one))
            assert sum(one.cuts.values()) == 1
            assert not any(one.node(name)["spec"].get("unschedulable") for name in one.names())

    asyncio.run(main())


@pytest.mark.parametrize("slow", ["the cordon", "the list of pods"])
def test_a_pod_that_comes_while_the_api_server_is_slow(slow):
    """The cordon arrives late, or the list of the node's pods does: the time in which pods may still come counts from when the cordon is seen, to when
    pods are asked for. So the pod is seen, and keeps its device."""

    async def main():
        async with cluster("gpu-0", document=auto()) as one:
            came: list[str] = []

            def come():
                one.store.create(PODS, pod("came", "gpu-0", MIG + "2g.20gb"), "default")

            def late(request):
                lists = request.path == "/api/v1/pods" and "spec.nodeName" in request.query.get(
                    "fieldSelector", ""
                )
                if slow == "the list of pods" and lists and one.cordoned and not came:
                    came.append("")
                    asyncio.get_running_loop().call_later(0.005, come)
                    return 0.05
                return 0.0

            def cordoned(agent):
                if slow == "the cordon" and one.cordoned and not came:
                    came.append("")
                    asyncio.get_running_loop().call_later(0.01, come)

            def cordons(agent):
                if slow == "the cordon" and one.server.request.path.endswith("/nodes/gpu-0") and not came:
                    gate = one.server.gates[agent] = asyncio.Event()
                    asyncio.get_running_loop().call_later(0.05, gate.set)

            one.server.late, one.server.after, one.server.before = late, cordoned, cordons
            one.lead("one")
            wait_for(one)
            await one.until(lambda: "InUse" in results(one))
            assert one.cuts == {}
            assert asked(one.node("gpu-0")) == LAYOUT

    asyncio.run(main())


def test_a_claim_that_is_allocated_in_time_keeps_its_device():
    """Tessera's DRA driver offers the devices: a claim that gets one just when the node is cordoned ends the re-cut at once."""

    async def main():
        async with cluster(document=auto()) as one:
            one.add_dra_node("gpu-0")
            given: list[str] = []

            def allocate(agent):
                if not one.cordoned or given:
                    return
                given.append(agent)
                for card in (0, 1):
                    for device in ("2g-20gb-0", "2g-20gb-2", "3g-30gb-4"):
                        claim = claimed(f"gpu-{card}-mig-{device}", "gpu-0", pod="train")
                        one.store.create(RESOURCE_CLAIMS, claim, "default")

            one.server.after = allocate
            wait_for(one)
            one.lead("one")
            await one.until(lambda: "InUse" in results(one))
            assert one.cuts == {}
            assert "default/train" in said(one)["history"][-1]["told"]

    asyncio.run(main())


def test_fault_67_what_claims_hold_may_not_be_read():
    """Then nobody knows what is idle: nothing is decided, and the status says why; layouts that are fixed go on. With the right it goes on."""

    async def main():
        async with cluster("gpu-0", document=auto()) as one:
            fixed = layout("fixed")
            fixed["spec"]["nodeSelector"] = {"nvidia.com/pool": "b"}
            one.add_nodes("gpu-9", pool="b")
            one.store.create(MIG_LAYOUTS, fixed)
            refused = status(StatusError(403, "Forbidden", "no"))
            one.server.intercept = lambda request: refused if "resourceclaims" in request.path else None
            wait_for(one, 1, BIGGEST)
            one.lead("one")
            await one.until(lambda: one.condition("Ready", "fixed")[0] == "True")
            await one.until(lambda: "resourceclaims: " in said(one).get("summary", ""))
            assert (said(one)["recuts"], one.cuts) == ([], {"gpu-9": 1})
            one.server.intercept = lambda request: None
            await one.until(lambda: results(one) == ["Done"])

    asyncio.run(main())


def test_workloads_that_cannot_be_read_stop_nothing_else():
    """The API server fails to list Events: mode Auto waits, with the reason, and is tried again every ten seconds; layouts that are fixed go on."""

    async def main():
        async with cluster("gpu-0", document=auto()) as one:
            fixed = layout("fixed")
            fixed["spec"]["nodeSelector"] = {"nvidia.com/pool": "b"}
            one.add_nodes("gpu-9", pool="b")
            one.store.create(MIG_LAYOUTS, fixed)
            broken = status(StatusError(500, "InternalError", "etcd is ill"))
            one.server.intercept = lambda request: (
                broken if request.method == "GET" and request.path.endswith("/events") else None
            )
            wait_for(one, 1, BIGGEST)
            one.lead("one")
            await one.until(lambda: one.condition("Ready", "fixed")[0] == "True")
            await one.until(lambda: "etcd is ill" in said(one).get("summary", ""))
            before = len(one.server.asked("/api/v1/events"))
            await asyncio.sleep(1.0)  # 100 s of the cluster's
            assert 5 <= len(one.server.asked("/api/v1/events")) - before <= 11
            one.server.intercept = lambda request: None
            await one.until(lambda: results(one) == ["Done"])

    asyncio.run(main())


def test_what_was_decided_before_is_not_said_when_nothing_can_be_decided():
    """The right to read claims is taken away: the status has no room that is lacking, nor limits to change, and the condition says why nothing goes on."""

    async def main():
        async with cluster("gpu-0", document=auto(maximum={"1g.10gb": 0})) as one:
            wait_for(one)
            one.lead("one")
            await one.until(lambda: said(one).get("refusals"))
            refused = status(StatusError(403, "Forbidden", "no"))
            one.server.intercept = lambda request: refused if "resourceclaims" in request.path else None
            one.server.gone_mid_stream()
            await one.until(lambda: "not known" in said(one)["summary"])
            why = "hat pods wait for is not known: resourceclaims: the API server answered 403 Forbidden: no"
            assert said(one)["summary"] == f"W{why}. Nothing is re-cut."
            assert (said(one)["recuts"], said(one)["refusals"]) == ([], [])
            assert one.condition("Progressing") == ("False", "Stopped", f"w{why}")
            one.server.intercept = lambda request: None
            await one.until(lambda: said(one)["refusals"] and one.condition("Progressing")[1] == "Idle")

    asyncio.run(main())


def test_a_leader_that_begins_leaves_summary_and_condition_alike(monkeypatch):
    """The one before it could decide nothing. Until the first lists are there the next one knows no better: both say so still."""
    monkeypatch.setattr("tessera.controller.layouts.auto.looking._BEGINS", 1000.0)

    async def main():
        async with cluster("gpu-0", document=auto()) as one:
            refused = status(StatusError(403, "Forbidden", "no"))
            one.server.intercept = lambda request: refused if "resourceclaims" in request.path else None
            one.lead("one")
            await one.until(lambda: one.condition("Progressing")[1] == "Stopped")
            before = said(one)["summary"], one.condition("Progressing")
            one.kill("one")
            one.server.intercept = lambda request: None
            one.server.late = lambda request: 0.5 if "resourceclaims" in request.path else 0.0
            one.lead("two")
            await one.until(lambda: one.status()["controller"] == "two")
            await asyncio.sleep(0.3)
            assert (said(one)["summary"], one.condition("Progressing")) == before
            await one.until(lambda: one.condition("Progressing")[1] == "Idle")
            assert said(one)["summary"] == "Nothing is wanted that is not there."

    asyncio.run(main())


def test_fault_65_the_memory_in_the_status_is_broken():
    """Someone has overwritten what is remembered: no card is cut for an hour, log and metric say so, and then the autopilot goes on."""

    async def main():
        async with cluster(*SIX, document=auto(recutsPerHour=2)) as one:
            wait_for(one, 1)
            one.lead("one")
            await one.until(lambda: results(one) == ["Done"])
            document = one.store.get(MIG_LAYOUTS, "inference").document
            document["status"]["autopilot"]["past"] = "{"
            one.store.update(MIG_LAYOUTS, "inference", document, status=True)
            wait_for(one, 3, BIGGEST, "more")
            await one.until(lambda: [row["why"] for row in said(one)["refusals"]] == ["budget"])
            await one.until(lambda: said(one)["past"] != "{")
            assert 'tessera_controller_failures_total{what="memory"}' in one.exposed("one")
            await asyncio.sleep(0.3)  # several looks
            assert sum(one.cuts.values()) == 1
            assert said(one)["past"].count('"node":""') == 2

    asyncio.run(main())


def test_fault_65_the_history_in_the_status_is_broken():
    """Someone has written re-cuts into the history of cards that there are not: they end, nothing fails, and the autopilot goes on."""

    async def main():
        async with cluster("gpu-0", document=auto()) as one:
            document = one.store.get(MIG_LAYOUTS, "inference").document
            row = {"at": "2027-01-15T07:00:00Z", "node": "gpu-0", "before": "a", "after": "b", "serves": {}}
            cards = (-5, -1, 10**15)
            rows = [{**row, "card": card, "reason": "", "result": "UnderWay"} for card in cards]
            document["status"] = {"autopilot": {"history": rows}}
            one.store.update(MIG_LAYOUTS, "inference", document, status=True)
            one.lead("one")
            await one.until(lambda: results(one) == ["Done"] * 3)
            wait_for(one, 1)
            await one.until(lambda: results(one) == ["Done"] * 4)
            assert 'failures_total{what="layout"}' not in one.exposed("one")

    asyncio.run(main())


def test_what_was_cut_long_ago_stops_nothing():
    """As many re-cuts as are remembered are in the status, all of them days old: the next one begins, and they are forgotten."""

    async def main():
        document = auto()
        async with cluster("gpu-0", document=document) as one:
            old = Past(cuts=tuple(Cut(1_700_000_000.0 + at, "gpu-0", 0) for at in range(MOST_CUTS)))
            stored = one.store.get(MIG_LAYOUTS, "inference").document
            stored["status"] = {"autopilot": {"past": write_past(old)}}
            one.store.update(MIG_LAYOUTS, "inference", stored, status=True)
            wait_for(one)
            one.lead("one")
            await one.until(lambda: results(one) == ["Done"])
            past = read_past(said(one)["past"])
            assert past is not None
            assert len(past.cuts) == 1

    asyncio.run(main())


def test_fault_37_a_cordon_that_arrives_when_its_slot_is_given_back():
    """The leader has ended an earlier rollout of the node, of a MigLayout that is gone. The answer to the next cordon is lost, so its slot is given back: the
    cordon, which arrives later, fails. No node is cordoned without a slot."""

    async def main():
        document = layout(rollout={"maxUnavailable": 1, "timeout": "60m"})
        async with cluster("gpu-0", most=1, document=document) as one:
            one.dead.add("gpu-0")
            one.lead("one")
            await one.until(lambda: one.cuts)
            one.store.delete(MIG_LAYOUTS, "inference")
            one.dead.clear()
            one.answer("gpu-0")
            await one.until(lambda: not one.cordoned)
            late = list[Any]()

            def lose(request):
                if request.method != "PATCH" or "/nodes/" not in request.path or late:
                    return None
                late.append(request)
                return status(StatusError(504, "Timeout", "lost"))

            one.server.intercept = lose
            one.store.create(MIG_LAYOUTS, auto("newer"))
            wait_for(one, 1, MIG + "3g.30gb")
            await one.until(lambda: {*results(one, "newer")} == {"NotBegun"})
            assert one.status("newer")["updating"] == []
            await one.server.answer(late[0])
            assert one.cordoned == set()
            await one.until(lambda: {*results(one, "newer")} == {"Done", "NotBegun"})

    asyncio.run(main())


def test_a_dry_run_of_many_cards_is_written_once():
    """Forty cards would be cut: one status, and no further writes as long as nothing changes."""

    async def main():
        names = [f"gpu-{number:02}" for number in range(20)]
        async with cluster(*names, document=auto(dryRun=True, recutsPerHour=1000)) as one:
            wait_for(one, 40, BIGGEST)
            one.lead("one")
            await one.until(lambda: len(results(one)) == 20)
            await asyncio.sleep(0.1)
            before = one.writes
            await asyncio.sleep(1.0)  # 100 s: ten looks
            assert one.writes - before <= 3

    asyncio.run(main())


def test_nodes_that_flap_cause_few_writes():
    """A node is ready and not ready, again and again: how many are is written every 30 seconds, as other numbers are."""

    async def main():
        async with cluster("gpu-0", "gpu-1", document=auto()) as one:
            one.lead("one")
            await one.until(lambda: said(one).get("summary"))
            before = one.writes
            for turn in range(100):  # 100 s of the cluster's
                document = one.node("gpu-0")
                ready = "False" if turn % 2 else "True"
                document["status"]["conditions"] = [{"type": "Ready", "status": ready}]
                one.store.update(NODES, "gpu-0", document)
                await asyncio.sleep(0.01)
            assert 2 <= one.writes - before <= 6

    asyncio.run(main())


def test_a_mig_layout_that_goes_while_its_status_is_written():
    """The answer arrives after the watch has told that it is gone: it is not taken up again, and nothing more is asked."""

    async def main():
        async with cluster("gpu-0", document=auto(dryRun=True)) as one:
            one.lead("one")
            await one.until(lambda: said(one).get("summary"))
            gone: list[str] = []

            def late(request):
                if request.method == "PATCH" and "miglayouts" in request.path and not gone:
                    gone.append(request.path)
                    one.store.delete(MIG_LAYOUTS, "inference")
                    return 0.05
                return 0.0

            one.server.late = late
            one.change(paused=True)
            await one.until(lambda: gone)
            await asyncio.sleep(0.2)
            before = len(one.server.requests)
            await asyncio.sleep(0.3)
            assert len(one.server.requests) - before < 10

    asyncio.run(main())


def test_fault_38_a_node_that_goes_while_it_is_read():
    """Its pods are listed after the watch has told that it is gone: it does not come back by that, and its slot goes to the next."""

    async def main():
        document = auto(spec=ONE_AT_A_TIME)
        async with cluster("gpu-0", "gpu-1", "gpu-2", most=1, document=document) as one:
            gone: list[str] = []

            def late(request):
                where = request.query.get("fieldSelector", "")
                if request.path == "/api/v1/pods" and "spec.nodeName=" in where and one.cordoned and not gone:
                    (name,) = one.cordoned
                    gone.append(name)
                    one.store.delete(NODES, name)
                    return 0.05
                return 0.0

            one.server.late = late
            wait_for(one)
            one.lead("one")
            await one.until(lambda: gone)
            await one.until(lambda: results(one) == ["Done", "Gone"])
            assert (one.status()["desired"], one.status()["updating"]) == (2, [])

    asyncio.run(main())


def spent(one):
    """What the status says of namespaces: used, unused, and undecided re-cuts."""
    rows = said(one).get("namespaces", ())
    return {
        row["namespace"]: tuple(row.get(use, 0) for use in ("used", "unused", "undecided")) for row in rows
    }


def bind(one, name, node, namespace):
    """The scheduler gives a pod its node."""
    document = one.store.get(PODS, name, namespace).document
    document["spec"]["nodeName"] = node
    bound = moment(FastClock().wall())
    document["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": bound}
    ]
    one.store.update(PODS, name, document, namespace)


def test_fault_73_pods_that_never_run_spend_a_share_of_the_budget():
    """One namespace's pods want cards and never take them: one card of three an hour is cut for them. Another namespace's pods take theirs, and get the other two."""

    async def main():
        async with cluster(*SIX, document=auto(recutsPerHour=3)) as one:
            wait_for(one, 4, BIGGEST, "phantom", namespace="greedy")
            one.lead("one")
            await one.until(lambda: said(one).get("namespaces") and said(one).get("refusals"))
            (refusal,) = said(one)[
                "refusals"
            ]  # until the device is in reach of these pods: then they want nothing
            assert (refusal["number"], refusal["why"]) == (3, "share")
            (row,) = said(one)["namespaces"]
            assert re.search(r"; free again at \S+Z at the latest$", refusal["reason"])
            assert row["freeAt"]
            await one.until(lambda: spent(one) == {"greedy": (0, 1, 0)})
            assert results(one) == ["Done"]
            metric = 'tessera_controller_autopilot_unused_recuts{namespace="greedy"} 1'
            await one.until(lambda: metric in one.exposed("one"))
            for cards, pods in ((1, 1), (2, 9)):  # a card has seven of them at most
                wait_for(one, pods, SMALL, f"works-{cards}", namespace="team")
                await one.until(lambda: results(one).count("Done") == 1 + cards)  # noqa: B023 # it is waited for
                bind(one, f"works-{cards}-0", said(one)["history"][0]["node"], "team")
                await one.until(lambda: spent(one).get("team") == (cards, 0, 0))  # noqa: B023
            await asyncio.sleep(0.5)  # several looks
            assert spent(one) == {"greedy": (0, 1, 0), "team": (2, 0, 0)}
            assert sum(one.cuts.values()) == 3
            rows = dict(re.findall(r'recuts{namespace="(\w+)"} (\d)', one.exposed("one")))
            assert rows == {"greedy": "1"}

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(2))
def test_fault_74_shares_hold_over_leaders(seed):
    """Leaders are killed before or after any write: a namespace whose pods never take anything has its share of cards cut, and no more."""

    async def main():
        async with cluster(*SIX, document=auto(recutsPerHour=8, coolDown="2h")) as one:
            wait_for(one, 8, BIGGEST, "phantom", namespace="greedy")
            leaders = MortalLeaders(one, seed, odds=0.3)
            await one.until(lambda: results(one).count("Done") == 2 and leaders.count > 3)
            leaders.spare()
            await one.until(lambda: spent(one) == {"greedy": (0, 2, 0)})
            await one.until(lambda: calm(one))
            assert {row["why"] for row in said(one)["refusals"]} <= {"share"}
            assert results(one).count("Done") == 2

    asyncio.run(main())


def test_fault_75_a_node_that_undoes_its_re_cuts():
    """It changes its own layout as soon as one is written: that costs nothing of the budget, it is left alone for longer each time, and another node is re-cut."""

    async def main():
        async with cluster("gpu-0", document=auto(recutsPerHour=1)) as one:

            def undo(agent):
                document = one.node("gpu-0")
                if (record := record_in(document)) is not None and record.phase is Phase.WRITTEN:
                    document["metadata"]["annotations"][mig.RUNAI_CONFIG] = LAYOUT + "\n"
                    one.store.update(NODES, "gpu-0", document)

            one.server.after = undo
            wait_for(one)
            one.lead("one")
            await one.until(lambda: results(one).count("Overtaken") == 2)
            await asyncio.sleep(0.7)  # 70 s: after the first time it was left alone for 60, now it is for 120
            assert results(one) == ["Overtaken"] * 2
            past = read_past(said(one)["past"])
            assert past is not None
            assert (past.cuts, past.charges) == ((), ())
            (row,) = one.status()["nodes"]
            assert row["name"] == "gpu-0"
            assert row["reason"].startswith("Overtaken: ")
            one.add_nodes("gpu-1")
            await one.until(lambda: "Done" in results(one))

    asyncio.run(main())
