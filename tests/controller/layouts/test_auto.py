"""Mode Auto of MigLayouts, against a stand-in API server: idle devices are re-cut for pods that wait."""

import asyncio
from itertools import pairwise

import pytest

from tessera.protocol.mig import documents as mig
from tessera.protocol.mig.rollouts import RESULT
from tessera.simulation.control_plane.kinds import MIG_LAYOUTS, NODES, PODS
from tests.build import MIG
from tests.controller.layouts.cluster import InThisLoop, MortalLeaders, cluster, layout
from tests.inventory.objects import LAYOUT, pod
from tests.rollout import mig_manager
from tests.rollout.machine.world import asked
from tests.rollout.mig_manager import FakeMigManager
from tests.rollout.plugin import CARDS

SMALL = MIG + "1g.10gb"
SIX = tuple(f"gpu-{number}" for number in range(6))


def auto(name="inference", spec=None, **autopilot):
    document = layout(name, mode="Auto", autopilot={"dryRun": False, **autopilot}, **(spec or {}))
    del document["spec"]["layouts"]
    return document


def wait_for(one, number=1, resource=SMALL, prefix="waits", *, apart=False, **metadata):
    """Pods wait; `apart`: each in a namespace of its own, so that no share limits them."""
    for at in range(number):
        if apart:
            metadata["namespace"] = f"{prefix}-{at}"
        one.store.create(
            PODS,
            pod(f"{prefix}-{at}", "", resource, phase="Pending", **metadata),
            metadata.get("namespace", "default"),
        )


def said(one, name="inference"):
    return one.status(name).get("autopilot") or {}


def results(one, name="inference"):
    return [row["result"] for row in said(one, name).get("history", ())]


def cards_of(text):
    return mig.read_layout(text, CARDS).cards


def test_a_leader_that_begins_does_not_say_that_it_knows_nothing(monkeypatch):
    """Its first lists take a moment: what the last one said stands until then."""
    monkeypatch.setattr("tessera.controller.layouts.auto.looking._BEGINS", 1000.0)

    async def main():
        async with cluster("gpu-0", document=auto()) as one:
            one.lead("one")
            await one.until(lambda: said(one).get("summary"))
            one.kill("one")
            one.lead("two")
            await one.until(lambda: one.status()["controller"] == "two")
            await asyncio.sleep(0.3)  # half a minute of the cluster's
            assert not any(b"not listed yet" in (request.body or b"") for request in one.server.requests)
            assert said(one)["summary"] == "Nothing is wanted that is not there."

    asyncio.run(main())


def test_a_limit_for_what_no_card_can_have():
    """A slip in a profile's name protects nothing: the summary names it."""

    async def main():
        async with cluster("gpu-0", document=auto(minimum={"2g.20gb": 1, "9g.999gb": 1})) as one:
            one.lead("one")
            await one.until(lambda: said(one).get("summary"))
            assert said(one)["summary"] == (
                "Nothing is wanted that is not there; no card can have 9g.999gb, of minimum or maximum."
            )

    asyncio.run(main())


def test_a_dry_run_says_what_it_would_do_and_changes_nothing():
    """The status has the demand, the cards, what they would serve and take, and why; an Event says it once. Without the dry run it is done."""

    async def main():
        async with cluster("gpu-0", "gpu-1", document=auto(dryRun=True)) as one:
            wait_for(one)
            one.lead("one")
            await one.until(lambda: said(one).get("recuts"))
            (recut,) = said(one)["recuts"]
            assert recut["before"] == "2g.20gb ×2 + 3g.30gb ×1"
            assert recut["after"] == "1g.10gb ×2 + 2g.20gb ×1 + 3g.30gb ×1" or "1g.10gb" in recut["after"]
            assert recut["serves"] == {"1g.10gb": 1}
            assert recut["waits"] == "dry run"
            assert said(one)["summary"] == "Dry run: 1 card would be re-cut for 1 × 1g.10gb."
            demand = {row["profile"]: row for row in said(one)["demand"]}
            assert (demand["1g.10gb"]["waiting"], demand["2g.20gb"]["idle"]) == (1, 8)
            assert results(one) == ["DryRun"]
            await one.until(lambda: ("inference", "MIGRecutPlanned") in one.events())
            assert one.condition("Progressing")[:2] == ("False", "DryRun")
            assert 'tessera_controller_autopilot_wanted{kind="waiting",profile="1g.10gb"} 1' in one.exposed(
                "one"
            )
            assert "tessera_controller_autopilot_proposed 1" in one.exposed("one")
            await asyncio.sleep(0.5)  # several looks
            assert results(one) == ["DryRun"]
            assert (one.cuts, one.cordoned) == ({}, set())
            one.change(autopilot={"dryRun": False})
            await one.until(lambda: results(one) == ["Done", "DryRun"])
            assert sum(one.cuts.values()) == 1
            assert not any(one.node(name)["spec"].get("unschedulable") for name in one.names())
            await one.until(lambda: ("inference", "MIGRecutDone") in one.events())
            assert ("inference", "MIGRecutBegun") in one.events()
            await one.until(lambda: said(one)["summary"] == "Nothing is wanted that is not there.")
            assert 'tessera_controller_recuts_total{result="done"} 1' in one.exposed("one")

    asyncio.run(main())


def test_a_pod_that_wants_several_devices():
    """It gets room for all of them on one node, with what is idle there; one that no node has room for gets none."""

    async def main():
        async with cluster("gpu-0", "gpu-1", document=auto(dryRun=True)) as one:
            for space in ("default", "ml", "web"):
                wants = pod("four", "", MIG + "3g.30gb", 4, phase="Pending", namespace=space)
                one.store.create(PODS, wants, space)
            one.lead("one")
            await one.until(lambda: said(one).get("recuts"))
            rows = [(row["node"], row["serves"]["3g.30gb"]) for row in said(one)["recuts"]]
            assert sorted(rows) == [("gpu-0", 1), ("gpu-0", 3), ("gpu-1", 1), ("gpu-1", 3)]
            assert said(one)["summary"] == (
                "Dry run: 4 cards would be re-cut for 8 × 3g.30gb; no room for 4 × 3g.30gb."
            )
            assert [row["why"] for row in said(one)["refusals"]] == ["no-node"]

    asyncio.run(main())


def test_only_what_auto_needs_is_followed():
    """Without a MigLayout in mode Auto nothing of demand is read; with one it is, until it goes."""

    async def main():
        async with cluster("gpu-0", document=layout()) as one:
            one.lead("one")
            await one.until(lambda: one.condition("Ready")[0] == "True")
            claims = "/apis/resource.k8s.io/v1/resourceclaims"
            assert not one.server.asked(claims, watch="true")
            before = one.server.watches
            one.change(mode="Auto")
            await one.until(lambda: one.server.asked(claims, watch="true") and said(one))
            one.change(mode="Fixed")
            await one.until(lambda: one.server.watches == before)
            await one.until(lambda: "autopilot" not in one.status())

    asyncio.run(main())


def test_a_pod_that_comes_in_time_keeps_its_device():
    """Pods bound just when the node is cordoned: the re-cut is given up at once, the node uncordoned as it was, and it is said."""

    async def main():
        async with cluster("gpu-0", document=auto()) as one:
            wait_for(one)

            def bind(agent):
                if one.cordoned and not [1 for stored in one.store.list(PODS) if stored.key[1] == "came"]:
                    document = pod("came", "gpu-0", MIG + "2g.20gb")
                    one.store.create(PODS, document, "default")

            one.server.after = bind
            one.lead("one")
            await one.until(lambda: "InUse" in results(one))
            assert one.cuts == {}
            assert asked(one.node("gpu-0")) == LAYOUT
            assert not one.node("gpu-0")["spec"].get("unschedulable")
            row = said(one)["history"][-1]
            assert row["told"] == "pods still hold devices that would go: default/came (1 × 2g.20gb)"
            await one.until(lambda: ("inference", "MIGRecutGivenUp") in one.events())

    asyncio.run(main())


def test_a_re_cut_that_fails_rests_its_node_alone():
    """The old layout is back, the status and an Event say why; the next card that serves is on another node."""

    async def main():
        async with cluster("gpu-0", "gpu-1", document=auto()) as one:
            one.refuses = lambda name: "no room" if name == "gpu-0" else ""
            wait_for(one)
            one.lead("one")
            await one.until(lambda: "Failed" in results(one))
            assert asked(one.node("gpu-0")) == LAYOUT
            await one.until(lambda: "Done" in results(one))
            assert asked(one.node("gpu-1")) != LAYOUT
            assert one.cuts == {"gpu-0": 1, "gpu-1": 1}
            assert one.condition("Degraded") == (
                "True",
                "RolloutFailed",
                "gpu-0: no room; the old layout is back; left alone for 60 minutes",
            )
            await one.until(lambda: ("inference", "MIGRecutFailed") in one.events())
            assert RESULT in one.node("gpu-0")["metadata"]["annotations"]

    asyncio.run(main())


def test_nodes_that_are_left_alone():
    """A node that is cordoned, dead, or of unknown layout is not touched, nor counted as room; the status says why."""

    async def main():
        async with cluster("cordoned", "dead", "given", "unknown", document=auto()) as one:
            one.dead.add("unknown")
            for name, change in {
                "cordoned": lambda node: node["spec"].update(unschedulable=True),
                "dead": lambda node: node["status"].update(conditions=[{"type": "Ready", "status": "False"}]),
                "given": lambda node: node["metadata"]["labels"].update({mig.CONFIG_STATE: "pending"}),
                "unknown": lambda node: node["metadata"].update(annotations={mig.RUNAI_CONFIG: "?"}),
            }.items():
                document = one.node(name)
                change(document)
                one.store.update(NODES, name, document)
            one.cuts.clear()
            wait_for(one)
            one.lead("one")
            await one.until(lambda: said(one).get("refusals"))
            reasons = {row["name"]: row["reason"] for row in one.status()["nodes"]}
            assert reasons["cordoned"] == "it is cordoned"
            assert reasons["dead"] == "the node is not ready"
            assert reasons["given"] == "the layout that it was given is not there: state pending"
            assert reasons["unknown"].startswith("its layout is not known: ")
            assert one.cuts == {}
            document = one.node("cordoned")
            document["spec"] = {}
            one.store.update(NODES, "cordoned", document)
            await one.until(lambda: one.cuts == {"cordoned": 1})

    asyncio.run(main())


@pytest.mark.parametrize("why", ["it is cordoned", "the node is not ready", "its layout is not known: "])
def test_what_only_nodes_could_have_that_are_left_alone_is_wanted_still(why):
    """No node takes pods, or none is known: the pod waits, and gets no room. That nothing were wanted would be wrong."""

    async def main():
        async with cluster("gpu-0", document=auto()) as one:
            one.dead.add("gpu-0")
            document = one.node("gpu-0")
            if why == "it is cordoned":
                document["spec"]["unschedulable"] = True
            elif why == "the node is not ready":
                document["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
            else:
                document["metadata"]["annotations"]["run.ai/mig.config"] = "nonsense"
            one.store.update(NODES, "gpu-0", document)
            wait_for(one)
            one.lead("one")
            await one.until(lambda: said(one).get("refusals"))
            assert said(one)["summary"] == "No room for 1 × 1g.10gb."
            (node,) = one.status()["nodes"]
            assert node["reason"].startswith(why)
            assert asked(one.node("gpu-0")) in (LAYOUT, "nonsense")

    asyncio.run(main())


def test_paused():
    """A MigLayout that is paused begins nothing and says what it would do."""

    async def main():
        async with cluster("gpu-0", document=auto(spec={"paused": True})) as one:
            wait_for(one)
            one.lead("one")
            await one.until(lambda: said(one).get("recuts"))
            assert said(one)["recuts"][0]["waits"] == "paused"
            assert one.condition("Progressing")[:2] == ("False", "Paused")
            assert one.cuts == {}
            one.change(paused=False)
            await one.until(lambda: results(one) == ["Done"])

    asyncio.run(main())


def test_the_budget_survives_leaders():
    """What was cut counts for the next leader, too: the status has it."""

    async def main():
        async with cluster(*SIX, document=auto(recutsPerHour=1)) as one:
            wait_for(one, 1)
            one.lead("one")
            await one.until(lambda: results(one) == ["Done"])
            wait_for(one, 2, MIG + "7g.70gb", "more", apart=True)
            await one.until(lambda: "budget" in [row["why"] for row in said(one)["refusals"]])
            one.kill("one")
            one.lead("two")
            await one.until(lambda: one.status()["controller"] == "two")
            await asyncio.sleep(0.5)  # several looks
            assert sum(one.cuts.values()) == 1
            one.change(autopilot={"dryRun": False, "recutsPerHour": 3})
            await one.until(lambda: results(one).count("Done") == 3)

    asyncio.run(main())


def test_two_for_one_pod_and_one_node():
    """A pod that nodes of two MigLayouts could take is served by one of them. Of a node that both select, the older decides."""

    async def main():
        async with cluster("gpu-0", document=auto()) as one:
            newer = auto("newer")
            newer["spec"]["nodeSelector"] = {"nvidia.com/gpu.product": "NVIDIA-H200"}
            one.store.create(MIG_LAYOUTS, newer)
            one.add_nodes("gpu-9", pool="b")
            wait_for(one)
            one.lead("one")
            await one.until(lambda: sum(one.cuts.values()))
            await one.until(lambda: [*results(one), *results(one, "newer")] == ["Done"])
            await asyncio.sleep(0.3)
            assert one.cuts == {"gpu-0": 1}
            reason = "gpu-0: MigLayout inference keeps it, which is older"
            await one.until(lambda: one.condition("Degraded", "newer") == ("True", "Conflict", reason))

    asyncio.run(main())


@pytest.mark.parametrize("how", ["paused", "deleted"])
def test_one_that_begins_nothing_takes_nothing_from_another(how):
    """An older MigLayout that is paused, or deleted and kept by a finalizer, cuts for no pod: the newer one does."""

    async def main():
        older = auto(spec={"paused": how == "paused"})
        if how == "deleted":
            older["metadata"] |= {"deletionTimestamp": "2026-11-18T12:00:00Z", "finalizers": ["x.io/y"]}
        async with cluster("gpu-0", document=older) as one:
            newer = auto("newer")
            newer["spec"]["nodeSelector"] = {"nvidia.com/pool": "b"}
            one.store.create(MIG_LAYOUTS, newer)
            one.add_nodes("gpu-9", pool="b")
            wait_for(one)
            one.lead("one")
            await one.until(lambda: results(one, "newer") == ["Done"])
            assert one.cuts == {"gpu-9": 1}

    asyncio.run(main())


def test_a_mode_that_changes_meanwhile():
    """A re-cut that only waits after its cordon is cancelled when a dry run is wanted, and nothing is left behind."""

    async def main():
        async with cluster("gpu-0", document=auto()) as one:
            wait_for(one)
            changed: list[str] = []

            def change(agent):
                if one.cordoned and not changed:
                    changed.append(agent)
                    one.change(autopilot={"dryRun": True})

            one.server.after = change
            one.lead("one")
            await one.until(lambda: "Cancelled" in results(one))
            assert one.cuts == {}
            assert not one.node("gpu-0")["spec"].get("unschedulable")

    asyncio.run(main())


def cut_cards(texts):
    """How often each card was given something else, by the layouts of its node in order."""
    every = [cards_of(text) for text in texts]
    return [sum(before[n] != after[n] for before, after in pairwise(every)) for n in range(len(CARDS))]


@pytest.mark.parametrize("seed", range(3))
def test_fault_37_the_autopilot_s_leaders_die_and_pause_at_any_write(seed):
    """Leaders are killed before or after any write, or paused with a write on its way: never more than two nodes are cordoned, none is left
    so, no card is cut twice within its cool-down, and the budget holds."""

    async def main():
        async with cluster(*SIX, document=auto(recutsPerHour=8, coolDown="2h")) as one:
            wait_for(one, 12, MIG + "7g.70gb", apart=True)
            given = {name: [LAYOUT] for name in SIX}

            def note(change):
                name, text = change.after.key[1], asked(change.after.document)
                if text not in ("", given[name][-1]):
                    given[name].append(text)

            def cuts():
                return [number for texts in given.values() for number in cut_cards(texts)]

            one.store.follow(NODES, one.store.version, note)
            leaders = MortalLeaders(one, seed, odds=0.4)
            await one.until(lambda: sum(cuts()) >= 8 and not one.cordoned)
            leaders.spare()
            await one.until(lambda: one.status()["updating"] == [] and "UnderWay" not in results(one))
            await asyncio.sleep(0.3)  # several looks
            assert leaders.count > 3
            assert (sum(cuts()), max(cuts())) == (8, 1)
            assert results(one).count("Done") == 8
            assert not any(one.node(name)["spec"].get("unschedulable") for name in SIX)

    asyncio.run(main())


def test_nodes_that_mig_manager_cuts(monkeypatch):
    """Of these only cards are cut on which nothing is held: mig-manager clears a card whole. It gets the configuration, and the label names it."""
    monkeypatch.setattr("tessera.rollout.step.Attempt.settles", 0.5)

    async def main():
        document = auto()
        document["spec"]["nodeSelector"] = {"nvidia.com/gpu.deploy.mig-manager": "true"}
        async with cluster(document=document) as one:
            one.store.create(NODES, mig_manager.node("gpu-0"))
            manager = FakeMigManager(InThisLoop(one.server))  # type: ignore[arg-type] # as much of it as is used
            wait_for(one, 1, MIG + "2g.20gb")
            one.lead("one")
            await one.until(lambda: results(one) == ["Done"])
            label = one.node("gpu-0")["metadata"]["labels"]["nvidia.com/mig.config"]
            assert label.startswith("tessera-")
            assert label in manager.text
            assert not one.node("gpu-0")["spec"].get("unschedulable")

    asyncio.run(main())
