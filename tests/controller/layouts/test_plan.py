"""What is planned for a MigLayout: pure, from objects to slots and states."""

import msgspec
import pytest

from tessera.controller.layouts import judging
from tessera.controller.layouts.judging import Verdict, Verdicts
from tessera.controller.layouts.plan import RETRY, SeenNode, State, plan
from tessera.controller.layouts.status import MOST_NODES, status_of
from tessera.protocol.kubernetes.nodes import decode_node
from tessera.protocol.kubernetes.objects import Condition
from tessera.protocol.mig.miglayout import MigLayout, Slot
from tessera.protocol.mig.rollouts import (
    RESULT,
    ROLLOUT,
    Owner,
    Phase,
    Result,
    RolloutEnd,
    RolloutRecord,
    written,
)
from tessera.rollout.change import Change
from tessera.rollout.changes import Surroundings
from tessera.rollout.in_use import Going
from tests.build import MIG
from tests.controller.layouts.cluster import layout
from tests.inventory.objects import LAYOUT, node
from tests.rollout.machine.world import BIG

NOW = 10_000.0
CHANGE = Verdict(change=Change("", "old", "new", "success", {}, {}))
OURS = Owner("inference", "uid-inference")
# a command that was killed does not go on by itself, and is refused here when it is called again
BY_HAND = "tessera mig apply (ann@host) is changing it; if that was killed, remove the node's annotation tessera.dev/rollout"


def read(name="inference", *, updating=(), created="2026-01-01T00:00:00Z", **spec):
    document = layout(name, **spec)
    document["metadata"] |= {"uid": f"uid-{name}", "creationTimestamp": created, "resourceVersion": "1"}
    slots = None if updating is None else list(updating)  # None: it never had a status
    document["status"] = {"updating": slots, "controller": "me"}
    return MigLayout.read(msgspec.json.encode(document))


def seen(name, annotations=None, ready="True", pool="a", **labels):
    document = node(name, BIG, "NVIDIA-H200", layout=LAYOUT, pool=pool, **labels)
    document["metadata"]["annotations"] |= annotations or {}
    document["metadata"] |= {"resourceVersion": "1", "uid": name}
    document["status"]["conditions"] = [{"type": "Ready", "status": ready}]
    return SeenNode.of(decode_node(msgspec.json.encode(document)))


def record(owner=OURS, phase=Phase.CORDONED, **fields):
    return {ROLLOUT: written(RolloutRecord(owner, phase, 1.0, 2.0, 3.0, "new", **fields))}


def end(result, at=NOW, target=CHANGE.target, owner=OURS):
    return {RESULT: written(RolloutEnd(owner, target, result, at, "why"))}


def planned(*nodes, verdict=CHANGE, busy=(), remembered=(), **options):
    found = {one.name: one for one in nodes}
    (one,) = plan(
        [read(**options)],
        found,
        lambda *_: verdict,
        lambda name, _: "pods" if name in busy else "",
        NOW,
        remembered={name: found[name].record for name in remembered},
    )
    return one


@pytest.mark.parametrize(
    ("most", "of", "begin"), [(1, 5, 1), (3, 5, 3), ("40%", 5, 2), ("1%", 5, 1), (9, 2, 2)]
)
def test_max_unavailable(most, of, begin):
    """So many nodes begin as may be without their devices, in the order of their names."""
    found = planned(*(seen(f"gpu-{number}") for number in range(of)), rollout={"maxUnavailable": most})
    assert found.begin == [f"gpu-{number}" for number in range(begin)]
    assert found.slots == [Slot(name) for name in found.begin]


def test_rollouts_of_others_count():
    """A node that a MigLayout which is gone still changes counts: for one that is new, and where its slot is
    remembered. One that a command changes does not: nobody may go on with it."""
    nodes = seen("gpu-0", record(Owner("inference", "before"))), seen("gpu-1"), seen("gpu-2")
    for how in ({"updating": None}, {"remembered": ["gpu-0"]}):
        found = planned(*nodes, rollout={"maxUnavailable": 1}, **how)
        assert (found.begin, found.slots) == ([], [Slot("gpu-0", cordoned_before=False)])
        assert planned(*nodes, rollout={"maxUnavailable": 2}, **how).begin == ["gpu-1"]
    adopted = planned(*nodes, rollout={"maxUnavailable": 1}, updating=["gpu-0"])
    assert (adopted.begin, adopted.unused) == ([], []), "its slot is written: the next leader counts it, too"
    assert planned(*nodes, rollout={"maxUnavailable": 1}).begin == ["gpu-1"], "nobody ever had a slot"
    other = seen("gpu-0", record(Owner("another", "before"))), *nodes[1:]
    assert planned(*other, rollout={"maxUnavailable": 1}, updating=None).begin == ["gpu-1"]
    by_hand = seen("gpu-0", record(Owner("somebody")))
    assert planned(by_hand, *nodes[1:], rollout={"maxUnavailable": 1}).begin == ["gpu-1"]


def test_fault_76_mode_auto_gives_no_slot_to_a_forged_record():
    """Where the autopilot decides, too, a record without a slot takes none, and holds up its own node only."""
    nodes = {name: seen(name, record() if name == "gpu-0" else None) for name in ("gpu-0", "gpu-1")}

    def autopilot(one, kept):
        one.states.update({node.name: (State.UPDATING, "Cordoned") for node in kept})
        return ["gpu-1"]

    layouts = [read(mode="Auto", rollout={"maxUnavailable": 1})]
    (one,) = plan(layouts, nodes, lambda *_: CHANGE, lambda *_: "", NOW, autopilot=autopilot)
    assert one.begin == ["gpu-1"]
    assert one.states["gpu-0"] == (State.PENDING, "MigLayout inference is changing it; it has no slot")


def test_a_node_that_is_selected_no_more():
    """A node is relabelled while it is cut, or an older MigLayout takes it over: it is not desired any more, but what is under way is counted, told, and makes Progressing true."""
    elsewhere = seen("gpu-0", record(), pool="b")
    one = planned(elsewhere, seen("gpu-1"), verdict=Verdict(current=True), updating=["gpu-0"])
    status = status_of(one, "me", NOW)
    assert (status["desired"], status["current"], status["updatingCount"]) == (1, 1, 1)
    assert status["nodes"] == [{"name": "gpu-0", "state": "Updating", "reason": "Cordoned"}]
    assert told(status, "Ready") == ("True", "Complete", "1 of 1 node have the layout")
    assert told(status, "Progressing") == ("True", "RollingOut", "gpu-0: Cordoned")

    older = read("older", created="2025-01-01T00:00:00Z")
    some = {"gpu-0": seen("gpu-0", record())}
    _, newer = plan([older, read(updating=["gpu-0"])], some, lambda *_: CHANGE, lambda *_: "", NOW)
    status = status_of(newer, "me", NOW)
    assert (status["desired"], status["updatingCount"]) == (0, 1)
    assert [one["state"] for one in status["nodes"]] == ["Updating"]
    assert told(status, "Degraded")[1:] == ("Conflict", "gpu-0: MigLayout older keeps it, which is older")
    assert told(status, "Progressing") == ("True", "RollingOut", "gpu-0: Cordoned")


def test_a_slot_that_is_given_back_is_not_counted():
    """The numbers of a status agree with its conditions, also in the write that gives slots back."""
    one = planned(seen("gpu-0"), verdict=Verdict(current=True), updating=["gpu-0"])
    assert one.unused == ["gpu-0"]
    status = status_of(one, "me", NOW, released={"gpu-0"})
    assert (status["updating"], status["updatingCount"]) == ([], 0)
    assert told(status, "Progressing")[0] == "False"


def told(status, type_):
    (one,) = (one for one in status["conditions"] if one["type"] == type_)
    return one["status"], one["reason"], one["message"]


def test_slots_that_there_are_count():
    """Slots and rollouts count, also where they do not agree. A node that has its slot begins by it; a slot whose node is not wanted is unused."""
    one, two, three = seen("gpu-0"), seen("gpu-1", record()), seen("gpu-2")
    found = planned(one, two, three, rollout={"maxUnavailable": 1})
    assert found.begin == ["gpu-0"], "gpu-1 has no slot, and counts for nobody"
    found = planned(one, two, three, rollout={"maxUnavailable": 1}, remembered=["gpu-1"])
    assert found.begin == [], "it had one, which somebody removed from the status"
    found = planned(one, two, three, updating=["gpu-1", "gpu-2"], rollout={"maxUnavailable": 2})
    assert (found.begin, found.unused) == (["gpu-2"], [])
    found = planned(one, two, updating=["gpu-1", "gone"], rollout={"maxUnavailable": 2})
    assert (found.begin, found.unused, found.slots) == (
        [],
        ["gone"],
        [Slot("gone"), Slot("gpu-1", cordoned_before=False)],
    )
    found = planned(seen("gpu-0"), verdict=Verdict(current=True), updating=["gpu-0"])
    assert (found.begin, found.unused) == ([], ["gpu-0"])


def test_a_limit_that_was_lowered():
    """Slots that are written already begin only as far as the limit of now allows; the others are given back."""
    nodes = [seen(f"gpu-{number}") for number in range(4)]
    names = [one.name for one in nodes]
    found = planned(*nodes, updating=names, rollout={"maxUnavailable": 1})
    assert (found.begin, found.unused) == (names[:1], names[1:])
    found = planned(seen("gpu-0", record()), *nodes[1:], updating=names, rollout={"maxUnavailable": 1})
    assert (found.begin, found.unused) == ([], names[1:])


@pytest.mark.parametrize(
    ("annotations", "state", "begins"),
    [
        ({}, (State.PENDING, ""), True),
        (end(Result.FAILED), (State.FAILED, "why"), False),
        (end(Result.FAILED, target="another"), (State.PENDING, ""), True),
        (end(Result.FAILED, owner=Owner("inference", "an older one")), (State.PENDING, ""), True),
        (end(Result.IN_USE), (State.PENDING, "InUse: why; tried again after 10 minutes"), False),
        (end(Result.IN_USE, at=NOW - RETRY), (State.PENDING, ""), True),
        (end(Result.NOT_BEGUN), (State.PENDING, ""), True),
        ({RESULT: "nonsense"}, (State.PENDING, ""), True),
        (record(), (State.UPDATING, "Cordoned"), False),
        (
            record(reason="no slot"),
            (State.PENDING, "MigLayout inference is changing it; it has no slot"),
            False,
        ),
        (record(Owner("ann@host")), (State.PENDING, f"{BY_HAND} and uncordon it"), False),
        (
            record(Owner("ann@host"), Phase.WAITING, cordons=False),
            (State.PENDING, BY_HAND),
            False,
        ),
    ],
)
def test_states(annotations, state, begins):
    """What a node says about rollouts decides whether it begins: of this MigLayout, and of this very layout."""
    found = planned(seen("gpu-0", annotations), updating=["gpu-0"] if annotations == record() else [])
    assert (found.states["gpu-0"], found.begin) == (state, ["gpu-0"] if begins else [])


def test_what_stops_and_what_does_not():
    """A failure, a pause and a wrong spec stop the rest; a dead node does not, and a record that cannot be read is a failure."""
    failed = planned(seen("gpu-0", end(Result.FAILED)), seen("gpu-1"))
    assert (failed.begin, failed.stopped) == ([], "the rollout failed on gpu-0")
    assert planned(seen("gpu-0"), paused=True).stopped == "paused"
    assert planned(seen("gpu-0"), rollout={"timeout": "soon"}).error.startswith("spec.rollout: ")
    dead = planned(seen("gpu-0", ready="Unknown"), seen("gpu-1"))
    assert (dead.begin, dead.states["gpu-0"][1]) == (["gpu-1"], "the node is not ready")
    assert planned(seen("gpu-0", {ROLLOUT: "{"})).states["gpu-0"][0] is State.FAILED


def test_idle_nodes_go_first():
    """Pods of a node in use hold up only that node; with Skip it does not begin."""
    nodes = [seen("gpu-0"), seen("gpu-1")]
    assert planned(*nodes, busy=["gpu-0"], rollout={"maxUnavailable": 1}).begin == ["gpu-1"]
    skipped = planned(*nodes, busy=["gpu-0"], rollout={"maxUnavailable": 2, "whenInUse": "Skip"})
    assert skipped.begin == ["gpu-1"]
    asked = []

    def busy(name, going):
        asked.append((name, going))
        return ""

    some = Verdict(change=Change("", "old", "new", "success", {}, {}, removed={MIG + "2g.20gb": 1}))
    one = {"gpu-0": seen("gpu-0")}
    plan([read()], one, lambda *_: some, busy, NOW)
    assert asked == [("gpu-0", Going(frozenset({MIG + "2g.20gb"})))], "pods that hold others do not count"


def test_the_older_keeps_a_node():
    """The time of creation decides, then the name; a MigLayout without a selector selects nothing."""
    layouts = [read("a", created="2026-02-01T00:00:00Z"), read("b"), read("c"), read("d", nodeSelector={})]
    found = plan(layouts, {"gpu-0": seen("gpu-0")}, lambda *_: CHANGE, lambda *_: "", NOW)
    assert [one.begin for one in found] == [[], ["gpu-0"], [], []]
    assert found[0].states == {"gpu-0": (State.CONFLICT, "MigLayout b keeps it, which is older")}


def test_the_status_is_bounded():
    """It names 20 nodes at most, the failed ones first, and its conditions keep their times while they hold."""
    many = planned(*(seen(f"gpu-{number:03}") for number in range(200)), seen("zzz", end(Result.FAILED)))
    status = status_of(many, "me", NOW)
    assert len(status["nodes"]) == MOST_NODES
    assert status["nodes"][0] == {"name": "zzz", "state": "Failed", "reason": "why"}
    assert (status["desired"], status["failed"], status["current"]) == (201, 1, 0)
    again = MigLayout(many.layout.metadata, many.layout.spec, many.layout.status, status)
    again.status.conditions = msgspec.convert(status["conditions"], list[Condition])
    later = status_of(plan([again], {}, lambda *_: CHANGE, lambda *_: "", NOW)[0], "me", NOW + 60)
    times = {one["type"]: one["lastTransitionTime"] for one in later["conditions"]}
    assert times["Invalid"] == status["conditions"][3]["lastTransitionTime"]
    assert times["Ready"] != status["conditions"][0]["lastTransitionTime"], "nothing is selected any more"


def test_nodes_that_are_alike_are_judged_once(monkeypatch):
    """Of thousands of equal nodes one is worked out, and none again while it does not change."""
    count: list[int] = []

    def judge(*_):
        count.append(1)
        return CHANGE

    monkeypatch.setattr(judging, "judge", judge)
    verdicts, one = Verdicts(), read()
    for _ in range(2):
        for number in range(50):
            verdicts.of(seen(f"gpu-{number}").node, one, Surroundings())
    assert len(count) == 1
    verdicts.of(seen("other", {"run.ai/mig.config": "1g.10gb=7"}).node, one, Surroundings())
    verdicts.of(seen("gpu-0").node, read("other"), Surroundings())
    assert len(count) == 3
