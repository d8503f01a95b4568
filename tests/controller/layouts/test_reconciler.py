"""Layouts kept by the controller, against a stand-in API server."""

import asyncio

import pytest

from tessera.protocol.mig.rollouts import RESULT, ROLLOUT, Owner, Phase, RolloutRecord, written
from tessera.simulation.control_plane.kinds import (
    DEVICE_CLASSES,
    MIG_LAYOUTS,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from tests.build import MIG
from tests.controller.layouts.cluster import InThisLoop, MortalLeaders, claimed, cluster, layout
from tests.inventory.objects import LAYOUT, pod
from tests.rollout import mig_manager
from tests.rollout.machine.world import asked
from tests.rollout.mig_manager import FakeMigManager

SIX = tuple(f"gpu-{number}" for number in range(6))


def test_all_nodes_get_their_layout():
    """Two at a time; each is cut once and uncordoned; the status counts, says so, and names nobody as updating at the end."""

    async def main():
        async with cluster(*SIX, document=layout()) as one:
            one.lead("one")
            await one.until(lambda: all(map(one.has_layout, SIX)))
            await one.until(lambda: one.condition("Ready")[0] == "True")
            assert one.cuts == dict.fromkeys(SIX, 1)
            assert not any(one.node(name)["spec"].get("unschedulable") for name in SIX)
            status = one.status()
            assert (status["desired"], status["current"], status["failed"]) == (6, 6, 0)
            await one.until(lambda: one.status()["updating"] == [])
            assert one.condition("Ready") == ("True", "Complete", "6 of 6 nodes have the layout")
            assert one.condition("Progressing")[:2] == ("False", "Idle")
            await one.until(lambda: ("gpu-0", "MIGRolloutDone") in one.events())
            assert 'tessera_controller_layout_nodes{state="current"} 6' in one.exposed("one")
            assert 'tessera_controller_layout_rollouts_total{result="done"} 6' in one.exposed("one")

    asyncio.run(main())


def test_a_node_that_fails_stops_the_rest():
    """Its old layout is back, it is uncordoned, the status says why; another leader does not try it again. Another layout is tried."""

    async def main():
        async with cluster(
            *SIX, most=1, document=layout(rollout={"maxUnavailable": 1, "timeout": "2m"})
        ) as one:
            one.refuses = lambda name: "no room" if name == "gpu-2" else ""
            one.lead("one")
            await one.until(lambda: one.condition("Degraded")[0] == "True")
            assert one.condition("Degraded")[1:] == (
                "RolloutFailed",
                "gpu-2: no room; the old layout is back",
            )
            assert asked(one.node("gpu-2")) == LAYOUT
            await one.until(lambda: not one.cordoned)
            one.kill("one")
            one.lead("two")
            await one.until(lambda: one.status()["controller"] == "two")
            await one.until(lambda: one.condition("Progressing")[1] == "Stopped")
            assert [name for name in SIX if one.has_layout(name)] == ["gpu-0", "gpu-1"]
            assert one.cuts["gpu-2"] == 1
            assert RESULT in one.node("gpu-2")["metadata"]["annotations"]
            one.refuses = lambda name: ""
            one.change(layouts=[{"perCard": {"1g.10gb": 3}}])
            await one.until(lambda: all(map(one.has_layout, SIX)))
            await one.until(lambda: one.condition("Degraded")[0] == "False")

    asyncio.run(main())


def test_fault_37_a_failure_outlives_its_leader():
    """A leader is killed just after it wrote that a node failed, before it gave the slot back: the next one gives it back, and does not try the node again."""

    async def main():
        async with cluster(*SIX, most=1, document=layout(rollout={"maxUnavailable": 1})) as one:
            one.refuses = lambda name: "no room" if name == "gpu-2" else ""

            def strike(agent: str) -> None:
                if agent == "one" and RESULT in one.node("gpu-2")["metadata"]["annotations"]:
                    one.kill("one")

            one.server.after = strike
            one.lead("one")
            await one.until(lambda: RESULT in one.node("gpu-2")["metadata"]["annotations"])
            assert one.slots() == ["gpu-2"]
            one.lead("two")
            await one.until(lambda: one.status()["updating"] == [])
            assert one.condition("Degraded")[1:] == (
                "RolloutFailed",
                "gpu-2: no room; the old layout is back",
            )
            assert (one.cuts["gpu-2"], one.cuts["gpu-3"]) == (1, 0)

    asyncio.run(main())


def test_a_slot_that_is_given_back_leaves_no_trace():
    """A leader is killed just after a node was done: the next one gives the slot back, and nothing of ours stays on the node."""

    async def main():
        async with cluster("gpu-0", most=1, document=layout()) as one:

            def strike(agent: str) -> None:
                if agent == "one" and one.cuts["gpu-0"] and not one.cordoned:
                    one.kill("one")

            one.server.after = strike
            one.lead("one")
            await one.until(lambda: one.cuts["gpu-0"] and not one.cordoned)
            assert one.slots() == ["gpu-0"]
            one.lead("two")
            await one.until(lambda: one.status()["updating"] == [])
            assert RESULT not in one.node("gpu-0")["metadata"]["annotations"]

    asyncio.run(main())


def test_paused_and_changed_and_deleted():
    """A paused MigLayout begins no node. A deleted one leaves layouts as they are, and a node that only waits is uncordoned."""

    async def main():
        async with cluster("gpu-0", "gpu-1", document=layout(paused=True)) as one:
            one.store.create(PODS, pod("train", "gpu-0", MIG + "2g.20gb"), "default")
            one.lead("one")
            await one.until(lambda: one.condition("Progressing")[1] == "Paused")
            assert one.cuts == {}
            one.change(paused=False)
            await one.until(lambda: one.has_layout("gpu-1"))
            waits = "waiting for pods that hold devices which go: default/train (1 × 2g.20gb)"
            await one.until(
                lambda: one.status()["nodes"] == [{"name": "gpu-0", "state": "Updating", "reason": waits}]
            )
            one.store.delete(MIG_LAYOUTS, "inference")
            await one.until(lambda: not one.cordoned)
            assert asked(one.node("gpu-0")) == LAYOUT
            assert not one.node("gpu-0")["spec"].get("unschedulable")
            assert one.has_layout("gpu-1")

    asyncio.run(main())


def test_deleted_with_a_finalizer():
    """A MigLayout that is deleted, and there only for somebody's finalizer, begins no further node; one that only waits for its pods is uncordoned."""

    async def main():
        async with cluster("gpu-0", "gpu-1", most=1, document=layout(rollout={"maxUnavailable": 1})) as one:
            for name in ("gpu-0", "gpu-1"):
                one.store.create(PODS, pod(f"on-{name}", name, MIG + "2g.20gb"), "default")
            one.lead("one")
            await one.until(lambda: one.cordoned == {"gpu-0"})
            document = one.store.get(MIG_LAYOUTS, "inference").document
            document["metadata"] |= {"deletionTimestamp": "2026-11-18T12:00:00Z", "finalizers": ["x.io/y"]}
            one.store.update(MIG_LAYOUTS, "inference", document)
            await one.until(lambda: not one.cordoned)
            await one.until(lambda: one.status()["updating"] == [])
            stopped = ("False", "Stopped", "it is being deleted")
            await one.until(lambda: one.condition("Progressing") == stopped)
            one.store.delete(PODS, "on-gpu-1", "default")
            await asyncio.sleep(0.1)  # ten seconds of the cluster's
            assert one.cuts == {}
            assert not any(one.node(name)["spec"].get("unschedulable") for name in one.names())

    asyncio.run(main())


@pytest.mark.parametrize("when", ["Wait", "Skip"])
def test_pods_are_waited_for_and_idle_nodes_go_first(when, monkeypatch):
    """A node in use is given up after its time and tried later, and does not stop the others; `Skip` does not even cordon it."""
    monkeypatch.setattr("tessera.controller.layouts.plan.RETRY", 60.0)
    monkeypatch.setattr("tessera.controller.layouts.nodes._FIRST", 10.0)
    rollout = {"maxUnavailable": 1, "whenInUse": when, "drainTimeout": "30s", "timeout": "2m"}

    async def main():
        async with cluster("gpu-0", "gpu-1", "gpu-2", most=1, document=layout(rollout=rollout)) as one:
            one.store.create(PODS, pod("train", "gpu-0", MIG + "2g.20gb"), "default")
            one.lead("one")
            await one.until(lambda: one.has_layout("gpu-1") and one.has_layout("gpu-2"))
            if when == "Wait":
                await one.until(lambda: RESULT in one.node("gpu-0")["metadata"]["annotations"])
                assert one.condition("Degraded")[0] == "False"
            else:
                skipped = "skipped while pods hold devices which go: default/train (1 × 2g.20gb)"
                await one.until(lambda: one.status()["nodes"][0]["reason"] == skipped)
                assert "gpu-0" not in one.cordoned
            one.store.delete(PODS, "train", "default")
            await one.until(lambda: one.has_layout("gpu-0"))

    asyncio.run(main())


def test_drained():
    """`Drain` evicts the pods that hold devices which go."""

    async def main():
        rollout = {"maxUnavailable": 1, "whenInUse": "Drain", "drainTimeout": "10m", "timeout": "2m"}
        async with cluster("gpu-0", document=layout(rollout=rollout)) as one:
            one.store.create(PODS, pod("train", "gpu-0", MIG + "2g.20gb"), "default")
            one.store.create(PODS, pod("other", "gpu-0", MIG + "1g.10gb"), "default")
            one.lead("one")
            await one.until(lambda: one.has_layout("gpu-0"))
            assert [stored.key[1] for stored in one.store.list(PODS)] == ["other"]

    asyncio.run(main())


def test_two_for_one_node():
    """The older MigLayout keeps a node that two select, and the newer says so."""

    async def main():
        async with cluster("gpu-0", document=layout()) as one:
            newer = layout("newer", layouts=[{"perCard": {"3g.30gb": 1}}])
            one.store.create(MIG_LAYOUTS, newer)
            one.lead("one")
            await one.until(lambda: one.has_layout("gpu-0"))
            reason = "gpu-0: MigLayout inference keeps it, which is older"
            await one.until(lambda: one.condition("Degraded", "newer") == ("True", "Conflict", reason))
            assert one.cuts == {"gpu-0": 1}
            assert one.status("newer")["desired"] == 0
            assert one.condition("Ready", "newer") == ("False", "Incomplete", "0 of 1 node have the layout")

    asyncio.run(main())


def test_an_older_one_takes_a_node_over():
    """An older MigLayout that selects a node from now on keeps it: the newer one's rollout, which only waits for pods, ends and gives its slot back, and the node is cut once."""

    async def main():
        elder = layout("elder", nodeSelector={"shared": "yes"}, layouts=[{"perCard": {"3g.30gb": 1}}])
        async with cluster("gpu-0", document=elder) as one:
            one.store.create(MIG_LAYOUTS, layout())
            one.store.create(PODS, pod("train", "gpu-0", MIG + "2g.20gb"), "default")
            one.lead("one")
            await one.until(lambda: "gpu-0" in one.cordoned)
            document = one.store.get(MIG_LAYOUTS, "elder").document
            document["spec"]["nodeSelector"] = {"nvidia.com/pool": "a"}
            document["metadata"]["generation"] += 1
            one.store.update(MIG_LAYOUTS, "elder", document)
            await one.until(lambda: ("gpu-0", "MIGRolloutCancelled") in one.events())
            await one.until(lambda: one.slots("elder") == ["gpu-0"])
            await one.until(lambda: one.status()["updating"] == [])
            assert "gpu-0" in one.cordoned, "it waits for the pod, now for the older one's layout"
            one.store.delete(PODS, "train", "default")
            await one.until(lambda: one.condition("Ready", "elder")[0] == "True")
            assert one.cuts == {"gpu-0": 1}

    asyncio.run(main())


@pytest.mark.parametrize(
    ("layouts", "reason"),
    [
        ([{"perCard": {"1g.10gb": 8}}], "gpu-0: NVIDIA-H200"),
        (
            [{"product": "A100-40GB", "perCard": {"1g.5gb": 7}}],
            "gpu-0: no layout is for its product NVIDIA-H200",
        ),
        (
            [{"configuration": "all-balanced"}],
            "gpu-0: configuration all-balanced: mig-manager does not cut its cards",
        ),
        ([{"document": "{"}], "gpu-0: document:"),
    ],
)
def test_what_does_not_fit(layouts, reason):
    """A layout that no card of a node can have is invalid with the reason, and nothing is written to the node."""

    async def main():
        async with cluster("gpu-0", document=layout(layouts=layouts)) as one:
            one.lead("one")
            await one.until(lambda: one.condition("Invalid")[0] == "True")
            assert one.condition("Invalid")[2].startswith(reason) or "8" in one.condition("Invalid")[2]
            assert ROLLOUT not in one.node("gpu-0")["metadata"]["annotations"]
            assert one.cuts == {}

    asyncio.run(main())


def test_a_layout_that_was_changed_by_hand_comes_back():
    """A node that has another layout than its MigLayout says gets it again."""

    async def main():
        async with cluster("gpu-0", document=layout()) as one:
            one.lead("one")
            await one.until(lambda: one.has_layout("gpu-0"))
            document = one.node("gpu-0")
            document["metadata"]["annotations"]["run.ai/mig.config"] = LAYOUT
            one.store.update(NODES, "gpu-0", document)
            await one.until(lambda: one.cuts["gpu-0"] == 2 and one.has_layout("gpu-0"))

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(4))
def test_fault_37_leaders_die_and_pause_at_any_write(seed):
    """Leaders are killed before or after any write, or paused with a write on its way that arrives much later: never more than two nodes
    are cordoned, none is left so, and none is cut twice."""

    async def main():
        async with cluster(*SIX, "gpu-cordoned", document=layout()) as one:
            was = one.node("gpu-cordoned")
            one.store.update(NODES, "gpu-cordoned", {**was, "spec": {"unschedulable": True}})
            leaders = MortalLeaders(one, seed)
            await one.until(lambda: all(map(one.has_layout, one.names())))
            leaders.spare()
            await one.until(lambda: one.status()["updating"] == [])
            assert leaders.count > 3
            assert set(one.cuts.values()) == {1}
            assert [name for name in one.names() if one.node(name)["spec"].get("unschedulable")] == [
                "gpu-cordoned"
            ]

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(2))
def test_fault_38_nodes_die_and_go(seed):
    """A node that dies, and one that is deleted in the middle: told, and the rest goes on."""

    async def main():
        async with cluster(*SIX, document=layout()) as one:
            one.dead.add("gpu-1")

            def strike(agent: str) -> None:
                if "gpu-1" in one.cordoned:
                    document = one.node("gpu-1")
                    document["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
                    one.store.update(NODES, "gpu-1", document)
                if "gpu-3" in one.cordoned and seed:
                    one.store.delete(NODES, "gpu-3")

            one.server.after = strike
            one.lead("one")
            rest = [name for name in SIX if name not in ("gpu-1", *(["gpu-3"] if seed else []))]
            await one.until(lambda: all(map(one.has_layout, rest)))
            await one.until(lambda: not one.cordoned)
            assert not one.node("gpu-1")["spec"].get("unschedulable")
            await one.until(lambda: one.status()["current"] == len(rest))
            await one.until(lambda: one.status()["updating"] == [])

    asyncio.run(main())


def test_fault_38_a_node_that_goes_while_nobody_leads():
    """The next leader, who never saw it, gives its slot back and counts it."""

    async def main():
        async with cluster("gpu-0", "gpu-1", most=1, document=layout(rollout={"maxUnavailable": 1})) as one:
            one.dead.add("gpu-0")
            one.lead("one")
            await one.until(lambda: "gpu-0" in one.cordoned)
            one.kill("one")
            one.store.delete(NODES, "gpu-0")
            one.lead("two")
            await one.until(lambda: one.has_layout("gpu-1") and one.status()["updating"] == [])
            assert 'tessera_controller_layout_rollouts_total{result="gone"} 1' in one.exposed("two")

    asyncio.run(main())


def test_names_that_no_object_can_have():
    """A status, or the record on a node, that somebody has edited names what no object can be called: nobody is asked for it, the slot is given back, and the rollout ends."""

    async def main():
        async with cluster("gpu-0", "gpu-1", document=layout(paused=True)) as one:
            for name, owner in (("gpu-0", ".."), ("gpu-1", "")):
                record = RolloutRecord(Owner(owner, "uid"), Phase.CORDONED, 1.0, 1e300, 3.0, "new", LAYOUT)
                document = one.node(name)
                document["metadata"]["annotations"][ROLLOUT] = written(record)
                document["spec"]["unschedulable"] = True
                one.store.update(NODES, name, document)
            document = one.store.get(MIG_LAYOUTS, "inference").document
            document["status"] = {"updating": ["..", ".", "", "a/b", "x?y"]}
            one.store.update(MIG_LAYOUTS, "inference", document)
            one.lead("one")
            await one.until(lambda: one.status()["updating"] == [] and not one.cordoned)
            assert not any(one.node(name)["spec"].get("unschedulable") for name in ("gpu-0", "gpu-1"))
            assert "failures_total{" not in one.exposed("one")
            asked_for = {request.path.rpartition("/")[2] for request in one.server.requests}
            assert asked_for.isdisjoint({"..", ".", "", "a%2Fb", "b", "x%3Fy"})

    asyncio.run(main())


def held_back(one, agent, path):
    """Hold the next write of a client to a path back, and all that follow it; whether one is on its way."""
    seen = []

    def before(by):
        request = one.server.request
        if (
            by == agent
            and request.path.endswith(path)
            and (path != "/status" or b'"desired"' in request.body)
        ):
            one.server.gates.setdefault(agent, asyncio.Event())
            seen.append(request)

    one.server.before = before
    return seen


def test_fault_37_a_cordon_that_arrives_late():
    """A leader is paused with a cordon on its way. The next one gives the slot of that node back, since the node is not wanted any more, and
    begins another: the late cordon fails."""

    async def main():
        document = layout(rollout={"maxUnavailable": 1, "timeout": "60m"})
        async with cluster("gpu-0", "gpu-1", most=1, document=document) as one:
            one.dead.add("gpu-1")
            other = one.node("gpu-1")
            other["metadata"]["labels"]["only"] = "here"
            one.store.update(NODES, "gpu-1", other)
            on_its_way = held_back(one, "one", "/nodes/gpu-0")
            one.lead("one")
            await one.until(lambda: on_its_way)
            assert one.slots() == ["gpu-0"]
            one.change(nodeSelector={"only": "here"})
            one.lead("two")
            await one.until(lambda: one.cordoned == {"gpu-1"})
            one.server.gates["one"].set()
            await one.until(lambda: one.slots() == ["gpu-1"])
            for _ in range(20):
                await asyncio.sleep(0.005)
            assert one.cordoned == {"gpu-1"}
            assert not one.node("gpu-0")["spec"].get("unschedulable")

    asyncio.run(main())


def test_fault_37_a_slot_that_arrives_late():
    """Two believe to lead, one of them paused with a slot on its way: it comes too late, since the other has taken the MigLayout over."""

    async def main():
        document = layout(rollout={"maxUnavailable": 1, "timeout": "60m"})
        async with cluster("gpu-0", "gpu-1", most=1, document=document) as one:
            one.dead.add("gpu-1")
            on_its_way = held_back(one, "one", "/status")
            one.lead("one")
            await one.until(lambda: on_its_way)
            assert b'"updating":[{"name":"gpu-0"' in on_its_way[0].body
            one.store.create(PODS, pod("train", "gpu-0", MIG + "2g.20gb"), "default")  # gpu-1 goes first now
            one.lead("two")
            await one.until(lambda: one.cordoned == {"gpu-1"})
            one.server.gates["one"].set()
            await one.until(lambda: one.status()["controller"] == "one")
            for _ in range(20):
                await asyncio.sleep(0.005)
            assert one.cordoned == {"gpu-1"}

    asyncio.run(main())


def test_nodes_that_mig_manager_cuts(monkeypatch):
    """A configuration that gives the layout is added to mig-manager's ConfigMap before a label names it, the nodes are cordoned meanwhile, and
    it is removed when no node uses it any more. A name that the ConfigMap has is used as it is."""
    monkeypatch.setattr("tessera.rollout.step.Attempt.settles", 0.5)

    async def main():
        layouts = [{"perCard": {"3g.40gb": 2}}]
        document = layout(layouts=layouts)
        document["spec"]["nodeSelector"] = {"nvidia.com/gpu.deploy.mig-manager": "true"}
        async with cluster(document=document) as one:
            for name in ("gpu-0", "gpu-1"):
                one.store.create(NODES, mig_manager.node(name))
            manager = FakeMigManager(InThisLoop(one.server))  # type: ignore[arg-type] # as much of it as is used
            one.lead("one")
            await one.until(lambda: one.condition("Ready")[:2] == ("True", "Complete"))
            labels = [
                one.node(name)["metadata"]["labels"]["nvidia.com/mig.config"] for name in ("gpu-0", "gpu-1")
            ]
            assert labels[0] == labels[1]
            assert labels[0].startswith("tessera-")
            assert labels[0] in manager.text
            assert not any(one.node(name)["spec"].get("unschedulable") for name in ("gpu-0", "gpu-1"))
            one.change(layouts=[{"configuration": "all-balanced"}])
            await one.until(
                lambda: one.status()["observedGeneration"] == 2 and one.condition("Ready")[0] == "True"
            )
            await one.until(lambda: manager.text == mig_manager.CONFIG)
            one.change(layouts=[{"configuration": "nothing-like-it"}])
            await one.until(lambda: one.condition("Invalid")[0] == "True")
            assert "nothing-like-it" in one.condition("Invalid")[2]

    asyncio.run(main())


def test_fault_37_killed_before_the_label(monkeypatch):
    """A leader that is killed between the cordon and the label leaves a configuration that the next one can use."""
    monkeypatch.setattr("tessera.rollout.step.Attempt.settles", 0.5)

    async def main():
        document = layout(layouts=[{"perCard": {"3g.40gb": 2}}])
        document["spec"]["nodeSelector"] = {"nvidia.com/gpu.deploy.mig-manager": "true"}
        async with cluster(document=document) as one:
            one.store.create(NODES, mig_manager.node("gpu-0"))
            manager = FakeMigManager(InThisLoop(one.server))  # type: ignore[arg-type] # as much of it as is used

            def kill(agent):
                if agent == "one" and one.cordoned:
                    one.kill("one")

            one.server.before = kill
            one.lead("one")
            await one.until(lambda: "one" in one.server.dropped)
            assert [name for _, name in manager.seen] == []
            one.lead("two")
            await one.until(lambda: one.condition("Ready")[:2] == ("True", "Complete"))
            assert len(manager.seen) == 1, "its label was written once"

    asyncio.run(main())


def test_a_node_whose_devices_dra_offers():
    """Its layout is verified by what its ResourceSlices have, and its state; nothing is allocatable there."""

    async def main():
        async with cluster(document=layout()) as one:
            one.add_dra_node("gpu-0")
            one.lead("one")
            await one.until(lambda: one.condition("Ready")[:2] == ("True", "Complete"))
            assert one.cuts == {"gpu-0": 1}
            assert RESULT not in one.node("gpu-0")["metadata"]["annotations"]
            (kept,) = one.store.list(RESOURCE_SLICES)
            assert len(kept.document["spec"]["devices"]) == 4

    asyncio.run(main())


def test_claims_count_though_the_dra_driver_is_away():
    """Its ResourceSlices are gone for a moment: what claims hold is theirs still, and the node is not cut."""

    async def main():
        async with cluster(document=layout()) as one:
            one.add_dra_node("gpu-0")
            for device in ("gpu-0-mig-2g-20gb-0", "gpu-1-mig-2g-20gb-0"):
                one.store.create(RESOURCE_CLAIMS, claimed(device, "gpu-0", pod="train"), "default")

            def leave(agent):
                if one.cordoned:
                    for stored in one.store.list(RESOURCE_SLICES):
                        one.store.delete(RESOURCE_SLICES, stored.key[1])

            one.server.after = leave
            one.lead("one")
            await one.until(lambda: RESULT in one.node("gpu-0")["metadata"]["annotations"])
            assert one.cuts == {}
            assert "default/train" in one.node("gpu-0")["metadata"]["annotations"][RESULT]

    asyncio.run(main())


def of_mig_manager(**spec):
    document = layout(**spec)
    document["spec"]["nodeSelector"] = {"nvidia.com/gpu.deploy.mig-manager": "true"}
    return document


def test_a_configuration_that_may_come_back_stays(monkeypatch):
    """One node has left a configuration of ours, and another is on its way from it, and fails: it finds it in the ConfigMap still."""
    monkeypatch.setattr("tessera.rollout.step.Attempt.settles", 0.5)

    async def main():
        async with cluster(document=of_mig_manager(layouts=[{"perCard": {"3g.40gb": 2}}])) as one:
            for name in ("gpu-0", "gpu-1"):
                one.store.create(NODES, mig_manager.node(name))
            manager = FakeMigManager(InThisLoop(one.server))  # type: ignore[arg-type] # as much of it as is used
            one.lead("one")
            await one.until(lambda: one.condition("Ready")[:2] == ("True", "Complete"))
            before = one.node("gpu-1")["metadata"]["labels"]["nvidia.com/mig.config"]
            ended: list[str] = []
            manager.may_end = lambda: not one.cordoned - {"gpu-1"} or not ended
            manager.fails = lambda name, config: name == "gpu-1" and config == "all-balanced"
            manager.absent = {"gpu-1"}
            one.change(layouts=[{"configuration": "all-balanced"}])
            await one.until(lambda: one.cordoned == {"gpu-1"} and manager.seen[-1][1] == "all-balanced")
            for _ in range(40):
                await asyncio.sleep(0.005)
            assert before in manager.text, "gpu-1 may get it again"
            manager.absent.clear()
            manager._reconfigure("gpu-1", "all-balanced")
            await one.until(lambda: one.condition("Degraded")[0] == "True" and not one.cordoned)
            labels = one.node("gpu-1")["metadata"]["labels"]
            assert labels["nvidia.com/mig.config"] == before
            assert labels["nvidia.com/mig.config.state"] == "success"
            assert before in manager.text

    asyncio.run(main())


def test_paused_between_two_cordons():
    """A pause, or a lower limit, holds from then on: a node whose slot is written already does not begin any more."""

    async def main():
        async with cluster("gpu-0", "gpu-1", document=layout()) as one:
            changed: list[str] = []

            def late(request):
                if request.method != "PATCH" or not request.path.endswith("/nodes/gpu-0") or changed:
                    return 0.0
                changed.append("paused")
                one.change(paused=True)
                return 0.1  # its answer is slower than the watch

            one.server.late = late
            one.lead("one")
            await one.until(lambda: one.has_layout("gpu-0") and one.status()["updating"] == [])
            assert one.cuts == {"gpu-0": 1}
            assert RESULT not in one.node("gpu-1")["metadata"]["annotations"]

    asyncio.run(main())


def test_nodes_that_refuse_are_asked_before_they_have_a_slot():
    """Claims hold devices which mig-manager would clear: such nodes are asked again and again, which costs no writes, and the others go on."""

    async def main():
        document = of_mig_manager(rollout={"maxUnavailable": 1}, layouts=[{"configuration": "all-balanced"}])
        async with cluster(most=1, document=document) as one:
            for number in range(4):
                one.store.create(NODES, mig_manager.node(f"gpu-{number}"))
            one.store.create(DEVICE_CLASSES, {"metadata": {"name": "gpu"}, "spec": {}})
            for number in range(3):
                held = claimed("gpu-0-mig-1g-10gb-0", f"gpu-{number}", pod="train")
                held["metadata"]["name"] += f"-{number}"
                one.store.create(RESOURCE_CLAIMS, held, "default")
            FakeMigManager(InThisLoop(one.server))  # type: ignore[arg-type] # as much of it as is used
            one.lead("one")
            await one.until(lambda: one.status().get("current") == 1 and one.status()["updating"] == [])
            refusal = "claims hold devices of it, which mig-manager may clear: default/train"
            await one.until(lambda: [row["reason"] for row in one.status()["nodes"]] == [refusal] * 3)

            def requests(method, path):
                return sum(one.method == method and one.path.startswith(path) for one in one.server.requests)

            begun = requests("PATCH", "/api/v1/nodes"), one.writes
            looks = requests("GET", "/api/v1/nodes/gpu-2")
            await one.until(lambda: requests("GET", "/api/v1/nodes/gpu-2") >= looks + 2)
            assert (requests("PATCH", "/api/v1/nodes"), one.writes) == begun

    asyncio.run(main())
