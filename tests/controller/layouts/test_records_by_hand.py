"""Records of rollouts that somebody else wrote, and records that somebody removed."""

import asyncio
import random
from contextlib import suppress

import pytest

from tessera.protocol.mig.documents import CONFIG_STATE
from tessera.protocol.mig.rollouts import RESULT, ROLLOUT, Owner, Phase, RolloutRecord, written
from tessera.simulation.control_plane.kinds import MIG_LAYOUTS, NODES, PODS
from tessera.simulation.control_plane.store import StatusError
from tests.build import MIG
from tests.controller.layouts.cluster import FastClock, MortalLeaders, cluster, layout
from tests.inventory.objects import LAYOUT, pod
from tests.rollout.machine.world import asked, record_in

THREE = ["gpu-0", "gpu-1", "gpu-2"]
YEAR = 365 * 86_400.0
ONE_BY_ONE = {"maxUnavailable": 1, "whenInUse": "Wait", "drainTimeout": "2m", "timeout": "1m"}


def edit(one, name, record=None, *, cordoned=None, text=None, **annotations):
    """Change a node as a person does, or its kubelet; without a record, remove it."""
    document = one.node(name)
    there = document["metadata"]["annotations"]
    text = written(record) if record is not None else text
    there.pop(ROLLOUT, None)
    there.update({ROLLOUT: text} if text is not None else {}, **annotations)
    if cordoned is not None:
        document["spec"]["unschedulable"] = cordoned
    one.store.update(NODES, name, document)


def cordoned(one):
    """The nodes that take no pods."""
    return [name for name in one.names() if one.node(name)["spec"].get("unschedulable")]


def flagged(one):
    """The nodes whose slot says whether they were cordoned before."""
    return [slot["name"] for slot in one.status().get("updating", ()) if "cordonedBefore" in slot]


def uid(one):
    return one.store.get(MIG_LAYOUTS, "inference").document["metadata"]["uid"]


def forged(owner, phase=Phase.WRITTEN, **fields):
    """A record that says that a node is being changed, for a year."""
    now = FastClock().wall()
    fields = {"expected": {"nvidia.com/gpu": 99}, **fields}
    return RolloutRecord(owner, phase, now, now + YEAR, YEAR, LAYOUT, LAYOUT, **fields)


def foreign(one, identity="one"):
    """How many nodes have a record without a slot, as the metric says it."""
    (line,) = (
        line
        for line in one.exposed(identity).splitlines()
        if line.startswith("tessera_controller_foreign_records ")
    )
    return int(line.rpartition(" ")[2])


@pytest.mark.parametrize("what", ["same", "other", "command", "unreadable", "large"])
def test_fault_76_a_record_without_a_slot(what):
    """A record that the controller did not write takes no slot: its own node is left alone, which is said,
    and all others get their layout."""

    async def main():
        rollout = {**ONE_BY_ONE, "drainTimeout": "10h"}
        async with cluster(*THREE, most=3, document=layout(rollout=rollout, paused=True)) as one:
            one.lead("one")
            await one.until(lambda: one.condition("Progressing")[1] == "Paused")
            ours = Owner("inference", uid(one))
            record = {
                "same": forged(ours),
                "other": forged(Owner("other", "unknown")),
                "command": forged(Owner("ann@host")),
                "unreadable": None,
                "large": forged(ours, reason="x" * 200_000),
            }[what]
            edit(one, "gpu-0", record, text="{" * 1000)
            one.change(paused=False)
            await one.until(lambda: one.has_layout("gpu-1") and one.has_layout("gpu-2"))
            assert foreign(one) == 1
            state = "Failed" if what == "unreadable" else "Pending"
            said = [("gpu-0", state)]
            await one.until(lambda: [(x["name"], x["state"]) for x in one.status()["nodes"]] == said)
            if what not in ("unreadable", "command"):  # the first is for a person, the second has a day
                one.change(rollout={**ONE_BY_ONE, "drainTimeout": "1s"})
                await one.until(lambda: one.has_layout("gpu-0"))
            await one.until(lambda: one.status()["updating"] == [])

    asyncio.run(main())


@pytest.mark.parametrize("phase", [Phase.WRITTEN, Phase.PUTTING_BACK, Phase.RETRYING])
def test_fault_76_a_record_with_a_slot(phase):
    """A node's kubelet forges the record of its node's own rollout, for a year: no phase takes longer than
    the MigLayout says, and the others have their turn."""

    async def main():
        async with cluster(*THREE, most=3, document=layout(rollout=ONE_BY_ONE)) as one:
            one.dead.add("gpu-0")
            one.lead("one")
            await one.until(lambda: record_in(one.node("gpu-0")) is not None)
            began = FastClock().wall()
            fields = {"label": phase is Phase.RETRYING}
            edit(one, "gpu-0", forged(Owner("inference", uid(one)), phase, **fields))
            longest = 120.0  # its drainTimeout

            def bounded():
                record = record_in(one.node("gpu-0"))
                return record is None or record.until <= record.since + longest

            await one.until(bounded)
            await one.until(lambda: "gpu-0" not in one.cordoned)
            assert FastClock().wall() < began + 3 * longest
            one.answer("gpu-0")

    asyncio.run(main())


def test_fault_77_a_record_that_is_written_again_and_again():
    """A node's kubelet writes a new record many times a second: the others go on, and the controller's writes
    do not grow with it."""

    async def main():
        rollout = {**ONE_BY_ONE, "maxUnavailable": 2}
        async with cluster(*THREE, most=3, document=layout(rollout=rollout)) as one:
            one.dead.add("gpu-0")
            one.lead("one")
            await one.until(lambda: record_in(one.node("gpu-0")) is not None)
            ours, rewritten = Owner("inference", uid(one)), 0
            one.server.requests.clear()
            began = FastClock().now()
            while not (one.has_layout("gpu-1") and one.has_layout("gpu-2")) or rewritten < 100:
                rewritten += 1
                edit(one, "gpu-0", forged(ours, reason=str(rewritten)))
                await asyncio.sleep(0.005)  # half a second of the cluster's
            writes = [r for r in one.server.requests if r.method == "PATCH" and r.path.endswith("/gpu-0")]
            assert len(writes) < 10 * (FastClock().now() - began), "so many a second"

    asyncio.run(main())


@pytest.mark.parametrize("leader", ["lives", "killed"])
@pytest.mark.parametrize("phase", [Phase.CORDONED, Phase.WRITTEN, Phase.PUTTING_BACK])
@pytest.mark.parametrize("text", [None, "{"])
def test_fault_78_a_record_that_is_removed(leader, phase, text, monkeypatch):
    """A person removes, or spoils, the record of a node that the controller has cordoned: it is written
    again, never more nodes are cordoned than may be, and the node is uncordoned at the end."""

    monkeypatch.setattr("tessera.rollout.step.TO_COME_BACK", 600.0)
    rollout = {"maxUnavailable": 2, "drainTimeout": "10m", "timeout": "10m"}

    async def main():
        async with cluster(*THREE, document=layout(rollout=rollout)) as one:
            if phase is Phase.CORDONED:
                one.store.create(PODS, pod("train", "gpu-0", MIG + "2g.20gb"), "default")
            else:
                one.dead.add("gpu-0")
            one.lead("one")

            def is_in(phase):
                record = record_in(one.node("gpu-0"))
                return record is not None and record.phase is phase

            if phase is Phase.PUTTING_BACK:
                await one.until(lambda: is_in(Phase.WRITTEN))
                document = one.node("gpu-0")
                document["status"]["allocatable"] = {}  # its old devices come back when it answers
                document["metadata"]["labels"][CONFIG_STATE] = "failed"
                one.store.update(NODES, "gpu-0", document)
            await one.until(lambda: is_in(phase))
            await one.until(lambda: "gpu-0" in flagged(one))
            if leader == "killed":
                one.kill("one")
            edit(one, "gpu-0", text=text)
            assert "gpu-0" in cordoned(one)
            if leader == "killed":
                one.lead("two")
            await one.until(lambda: record_in(one.node("gpu-0")) is not None)
            restored = record_in(one.node("gpu-0"))
            assert restored is not None
            assert not restored.cordoned
            if leader == "lives":
                assert is_in(phase), "as it was"
                await one.until(lambda: ("gpu-0", "MIGRolloutRestored") in one.events())
            one.dead.clear()
            one.answer("gpu-0")
            with suppress(StatusError):
                one.store.delete(PODS, "train", "default")
            await one.until(lambda: not cordoned(one) and one.status()["updating"] == [])
            if phase is Phase.PUTTING_BACK and leader == "lives":
                assert asked(one.node("gpu-0")) == LAYOUT
            else:
                await one.until(lambda: all(map(one.has_layout, THREE)))

    asyncio.run(main())


@pytest.mark.parametrize("change", ["paused", "current", "elsewhere", "auto"])
def test_fault_78_a_record_that_is_removed_where_nothing_begins(change):
    """The next leader uncordons a node whose record was removed, also where nothing more is to be done for
    it."""

    async def main():
        async with cluster("gpu-0", "gpu-1", document=layout(rollout=ONE_BY_ONE)) as one:
            one.store.create(PODS, pod("train", "gpu-0", MIG + "2g.20gb"), "default")
            one.store.create(PODS, pod("train-1", "gpu-1", MIG + "2g.20gb"), "default")
            one.lead("one")
            await one.until(lambda: "gpu-0" in flagged(one))
            one.kill("one")
            edit(one, "gpu-0")
            match change:
                case "paused":
                    one.change(paused=True)
                case "current":
                    one.change(layouts=[{"document": LAYOUT}])
                case "elsewhere":
                    one.change(nodeSelector={"nvidia.com/pool": "b"})
                case "auto":
                    one.change(mode="Auto")
            one.lead("two")
            await one.until(lambda: not cordoned(one) and one.status()["updating"] == [])
            assert asked(one.node("gpu-0")) == LAYOUT

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(4))
def test_fault_78_leaders_die_and_records_go(seed):
    """Leaders are killed before or after any write, and a person removes records at any time: never are more
    nodes cordoned than may be, none is left so, and one that a person had cordoned before stays so."""

    async def main():
        async with cluster(*THREE, "gpu-3", "gpu-4", "gpu-cordoned", document=layout()) as one:
            was = one.node("gpu-cordoned")
            one.store.update(NODES, "gpu-cordoned", {**was, "spec": {"unschedulable": True}})
            draw, removed, too_many = random.Random(seed), list[str](), list[list[str]]()
            leaders = MortalLeaders(one, seed)

            def changed(change):
                ours = [name for name in cordoned(one) if name != "gpu-cordoned"]
                too_many.extend([ours] if len(ours) > 2 else [])

            one.store.follow(NODES, one.store.version, changed)
            for _ in range(100_000):
                if all(map(one.has_layout, one.names())):
                    break
                some = [name for name in flagged(one) if record_in(one.node(name)) is not None]
                if some and len(removed) < 20 and draw.random() < 0.3:
                    removed.append(draw.choice(some))
                    order = draw.choice([{}, {}, {"cordoned": removed[-1] == "gpu-cordoned"}])
                    edit(one, removed[-1], **order)
                await asyncio.sleep(0.002)
            leaders.spare()
            await one.until(lambda: all(map(one.has_layout, one.names())))
            await one.until(lambda: one.status()["updating"] == [] and cordoned(one) == ["gpu-cordoned"])
            assert too_many == []
            assert len(removed) > 3

    asyncio.run(main())


@pytest.mark.parametrize("first", ["record", "cordon"])
def test_fault_78_out_of_a_rollout_by_hand(first):
    """A person takes a node out of a rollout, in either order: nothing is left behind, and the others go
    on."""

    async def main():
        async with cluster(*THREE, document=layout(rollout=ONE_BY_ONE)) as one:
            one.store.create(PODS, pod("train", "gpu-0", MIG + "2g.20gb"), "default")
            one.store.create(PODS, pod("train-1", "gpu-1", MIG + "1g.10gb"), "default")
            one.change(nodeSelector={"kubernetes.io/hostname": "gpu-0"})
            document = one.node("gpu-0")
            document["metadata"]["labels"]["kubernetes.io/hostname"] = "gpu-0"
            one.store.update(NODES, "gpu-0", document)
            one.lead("one")
            await one.until(lambda: "gpu-0" in one.cordoned)
            if first == "record":
                edit(one, "gpu-0")
                await one.until(lambda: record_in(one.node("gpu-0")) is not None)
                edit(one, "gpu-0", record_in(one.node("gpu-0")), cordoned=False)
            else:
                edit(one, "gpu-0", record_in(one.node("gpu-0")), cordoned=False)
                with suppress(StatusError):
                    edit(one, "gpu-0")
            await one.until(lambda: not one.cordoned and one.status()["updating"] == [])
            assert cordoned(one) == []

    asyncio.run(main())


def test_fault_79_a_command_that_was_killed():
    """The rollout of a command on a node that a MigLayout keeps is left alone as long as its time; ten
    minutes later the controller ends it, and the node gets its layout."""

    async def main():
        async with cluster("gpu-0", "gpu-1", most=2, document=layout(rollout=ONE_BY_ONE)) as one:
            now = FastClock().wall()
            record = RolloutRecord(Owner("ann@host"), Phase.WRITTEN, now, now + 60.0, 60.0, LAYOUT, LAYOUT)
            edit(one, "gpu-0", record, cordoned=True)
            one.lead("one")
            await one.until(lambda: one.has_layout("gpu-1"))
            assert (record_in(one.node("gpu-0")), foreign(one)) == (record, 1)
            await one.until(lambda: record_in(one.node("gpu-0")) != record)
            assert FastClock().wall() >= record.until + 600.0
            await one.until(lambda: one.has_layout("gpu-0"))
            assert (cordoned(one), foreign(one)) == ([], 0)
            assert RESULT not in one.node("gpu-0")["metadata"]["annotations"]

    asyncio.run(main())


def test_fault_79_a_command_that_lives():
    """Whatever a command's rollout does counts as life, and one on a node that no MigLayout keeps is nobody's
    business."""

    async def main():
        async with cluster("gpu-0", "gpu-1", most=3, document=layout(rollout=ONE_BY_ONE)) as one:
            one.add_nodes("gpu-b", pool="b")
            old = RolloutRecord(Owner("ann@host"), Phase.WAITING, 1.0, 2.0, 3.0, LAYOUT, LAYOUT)
            ahead = FastClock().wall() + YEAR
            late = RolloutRecord(Owner("ann@host"), Phase.WRITTEN, ahead, ahead, 3.0, LAYOUT, LAYOUT)
            edit(one, "gpu-b", old)
            edit(one, "gpu-0", late, cordoned=True)
            one.lead("one")
            await one.until(lambda: one.has_layout("gpu-1"))
            assert record_in(one.node("gpu-0")) == late, "its clock is wrong: it counts from now"
            await one.until(lambda: one.has_layout("gpu-0"))
            assert record_in(one.node("gpu-b")) == old

    asyncio.run(main())
