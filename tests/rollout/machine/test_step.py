"""One node's rollout, step by step, in a world that stands still in between."""

import json
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from tessera.protocol.mig.rollouts import RESULT, ROLLOUT, Owner, Result, read_end, record_of, written
from tessera.rollout.step import begin, step
from tessera.rollout.values import Evict, How, NotUnderWay, Outcome, Patch, Wait
from tessera.simulation.control_plane.kinds import NODES
from tests.inventory.objects import LAYOUT
from tests.rollout.machine.world import World, asked

OWNER = Owner("inference", "uid-1")
ONLY_FIRST = LAYOUT.replace("[0, 1]", "[0]")  # card 1 is whole then
HOW = How(drain=False, drain_timeout=1800.0, timeout=600.0)


class Rollout:
    """A rollout of one node, each step carried out at once."""

    def __init__(self, how=HOW, *, cordoned=False, owner=OWNER):
        self.world = World("gpu-0")
        if cordoned:
            self.world.cordon("gpu-0")
        seen = self.world.look("gpu-0")
        assert self.world.write(seen, begin(seen, self.world.change("gpu-0"), owner, how, self.world.now))

    def step(self, seconds: float = 0.0, **options: Any) -> Any:
        """The next step, some seconds later."""
        self.world.now += seconds
        seen = self.world.look("gpu-0")
        found = step(seen, self.world.now, **options)
        if isinstance(found, Patch):
            assert self.world.write(seen, found)
        if isinstance(found, Evict):
            self.world.evict(found)
        return found

    @property
    def node(self):
        return self.world.store.get(NODES, "gpu-0").document

    @property
    def phase(self) -> Any:
        record = self.world.record("gpu-0")
        return record and record.phase

    @property
    def end(self):
        text = self.node["metadata"]["annotations"].get(RESULT)
        return text and read_end(text)


def test_from_the_cordon_to_the_end():
    """A node is cordoned, written to, seen to show its layout, and uncordoned; nothing of ours is left on it."""
    one = Rollout()
    assert one.world.cordoned("gpu-0")
    assert one.phase == "Cordoned"
    assert one.step().told == "run.ai/mig.config written"
    assert one.phase == "Written"
    assert "nvidia.com/mig.config.state" not in one.node["metadata"]["labels"]
    assert isinstance(one.step(), Wait)
    one.world.answer("gpu-0")
    assert one.step().outcome.result is Result.DONE
    assert not one.world.cordoned("gpu-0")
    assert {ROLLOUT, RESULT}.isdisjoint(one.node["metadata"]["annotations"])
    assert one.step() == NotUnderWay()


def test_a_node_that_was_cordoned_before_stays_so():
    """Who cordoned it will uncordon it."""
    one = Rollout(cordoned=True)
    one.step()
    one.world.answer("gpu-0")
    assert one.step().outcome.result is Result.DONE
    assert one.world.cordoned("gpu-0")


def test_a_layout_that_is_refused():
    """The old layout is written again, and the node is uncordoned when it shows it; why stays on the node."""
    one = Rollout()
    one.step()
    one.world.answer("gpu-0", "no room")
    assert one.step() == Wait("no room"), "it may be of the old layout still"
    assert one.step(6.0).told == "no room; the old layout is written again"
    assert asked(one.node) == LAYOUT
    assert one.world.cordoned("gpu-0")
    one.world.answer("gpu-0")
    reason = "no room; the old layout is back"
    assert one.step().outcome.reason == reason
    assert not one.world.cordoned("gpu-0")
    assert (one.end.result, one.end.reason, one.end.owner) == (Result.FAILED, reason, OWNER)


def test_a_node_that_never_answers():
    """After its time the old layout is written again; the node is uncordoned even if it does not show that either."""
    one = Rollout()
    one.step()
    one.world.edit("gpu-0", {"status": {"allocatable": {"nvidia.com/mig-2g.20gb": "0"}}})
    assert isinstance(one.step(599.0), Wait)
    assert one.step(1.0).told.startswith(
        "the layout is not applied after 600 s: waiting for the node's state"
    )
    assert isinstance(one.step(59.0), Wait)
    assert one.step(1.0).outcome.result is Result.FAILED
    assert one.end.reason.endswith("the old layout is written again, and not applied after 60 s")
    assert not one.world.cordoned("gpu-0")


def test_fault_39_pods_that_hold_devices():
    """They are waited for and named; after its time the node is uncordoned as it was."""
    one = Rollout()
    one.world.add_pod("train", "gpu-0")
    waiting = "waiting for pods that hold devices which go: default/train (1 × 2g.20gb)"
    assert one.step(1799.0) == Wait(waiting)
    assert one.step(1.0).outcome.result is Result.IN_USE
    assert (asked(one.node), one.world.cordoned("gpu-0")) == (LAYOUT, False)
    one = Rollout()
    one.world.add_pod("train", "gpu-0")
    one.step()
    one.world.end_pod("train")
    assert one.step().cuts


def test_fault_39_pods_whose_devices_stay_are_not_waited_for():
    """Where the node says which devices pods hold, only those are waited for whose devices go, and only they are evicted."""
    world = World("gpu-0")
    stays, goes = world.add_pod("stays", "gpu-0"), world.add_pod("goes", "gpu-0")
    said = {"0": {"2g.20gb@0": stays[:8]}, "1": {"2g.20gb@0": goes[:8]}}
    annotations = {"tessera.dev/devices-in-use": json.dumps(said)}
    world.edit("gpu-0", {"metadata": {"annotations": annotations}})
    began = begin(world.look("gpu-0"), world.change("gpu-0", ONLY_FIRST), OWNER, How(drain=True), world.now)
    assert world.write(world.look("gpu-0"), began)
    world.add_pod("comes", "gpu-0")  # bound before the cordon: which device it has is not said yet
    waits = (
        "waiting for pods that hold devices which go: default/comes (1 × 2g.20gb), default/goes (1 × 2g.20gb)"
    )
    assert step(world.look("gpu-0"), world.now) == Evict(("default/goes",), waits)
    assert step(world.look("gpu-0"), world.now + 30.0) == Evict(("default/comes", "default/goes"), waits)
    world.end_pod("comes")
    world.end_pod("goes")
    found = step(world.look("gpu-0"), world.now)
    assert isinstance(found, Patch)
    assert found.cuts


def test_drain():
    """Only pods that hold devices which go are evicted; what the API server refuses is tried again."""
    one = Rollout(How(drain=True, drain_timeout=60.0))
    one.world.add_pod("train", "gpu-0")
    one.world.add_pod("other", "gpu-0", "nvidia.com/mig-1g.10gb")
    one.world.budget = False
    assert one.step().pods == ("default/train",)
    assert one.step(59.0).pods == ("default/train",)
    one.world.budget = True
    one.step()
    assert one.step().cuts


def test_fault_38_changed_by_hand():
    """What another client writes meanwhile is left as it is; an uncordoned node is not cut."""
    one = Rollout()
    one.world.cordon("gpu-0", None)
    found = one.step().outcome
    assert found.result is Result.OVERTAKEN
    assert found.reason == "it was uncordoned meanwhile, before anything was written"
    assert asked(one.node) == LAYOUT
    one = Rollout()
    one.step()
    one.world.edit("gpu-0", {"metadata": {"annotations": {"run.ai/mig.config": "3g.30gb=2"}}})
    assert one.step().outcome.reason == "another client changed run.ai/mig.config meanwhile; left as it is"
    assert (asked(one.node), one.world.cordoned("gpu-0")) == ("3g.30gb=2", False)
    one = Rollout()
    one.step()
    one.world.cordon("gpu-0", None)
    one.world.answer("gpu-0")
    assert one.step().outcome.result is Result.DONE, "once it is written, it is seen through"


def test_fault_38_a_node_that_dies():
    """It is waited for; then the old layout is written and the node uncordoned, and the failure is the node's."""
    one = Rollout()
    one.world.ready("gpu-0", "Unknown")
    assert one.step(1799.0) == Wait("the node is not ready")
    assert one.step(1.0).outcome.result is Result.NOT_READY
    one = Rollout()
    one.step()
    one.world.edit("gpu-0", {"status": {"allocatable": {"nvidia.com/mig-2g.20gb": "0"}}})
    one.world.ready("gpu-0", "Unknown")
    assert "the node is not ready" in one.step(600.0).told
    assert one.step(60.0).outcome.result is Result.NOT_READY
    assert (asked(one.node), one.world.cordoned("gpu-0")) == (LAYOUT, False)


def test_no_longer_wanted():
    """Before anything is written the rollout ends, without a trace; after that it is seen through."""
    one = Rollout()
    assert one.step(cancelled="deleted").outcome.result is Result.CANCELLED
    assert (one.end, one.world.cordoned("gpu-0"), asked(one.node)) == (None, False, LAYOUT)
    one = Rollout()
    one.step()
    assert isinstance(one.step(cancelled="deleted"), Wait)


def test_an_annotation_that_is_not_ours():
    """Nothing is done to a node whose annotation cannot be read."""
    one = Rollout()
    one.world.edit("gpu-0", {"metadata": {"annotations": {ROLLOUT: "{"}}})
    found = step(one.world.look("gpu-0"), one.world.now)
    assert isinstance(found, Wait)
    assert found.reason.endswith("remove the annotation, and uncordon the node yourself")


@pytest.mark.parametrize(
    ("since", "until", "timeout", "bounded"),
    [
        (0.0, 60.0, 60.0, None),
        (0.0, 61.0, 60.0, (0.0, 60.0, 60.0)),
        (0.0, 1e300, 1e300, (0.0, 60.0, 60.0)),
        (30.0, 91.0, 10.0, (30.0, 90.0, 10.0)),
        (1e9, 2e9, 10.0, (0.0, 1e9, 10.0)),  # its clock was ahead: then it is bounded
        (-1e300, 1e300, 10.0, (-1e300, -1e300, 10.0)),
    ],
)
def test_fault_76_times_are_bounded(since, until, timeout, bounded):
    """No phase takes longer than it may, whoever wrote the record; times that are as they should be stay."""
    one = Rollout()
    began = one.world.now
    record = one.world.record("gpu-0")
    assert record is not None
    record = structs.replace(record, since=began + since, until=began + until, timeout=timeout)
    one.world.edit("gpu-0", {"metadata": {"annotations": {ROLLOUT: written(record)}}})
    found = step(one.world.look("gpu-0"), began, longest=60.0)
    if bounded is None:
        assert "its times" not in getattr(found, "told", "")
        return
    assert isinstance(found, Patch)
    text = found.body["metadata"]["annotations"][ROLLOUT]
    now = record_of({ROLLOUT: text})
    assert now is not None
    assert (now.since - began, now.until - began, now.timeout) == pytest.approx(bounded)


def test_mig_apply_leaves_no_result():
    """Its caller sees how it ended."""
    one = Rollout(owner=Owner("ann@host"))
    one.world.cordon("gpu-0", None)
    assert one.step().outcome.result is Result.OVERTAKEN
    assert one.end is None


@pytest.mark.parametrize("phase", ["cordon", "write", "end"])
def test_a_stale_step_does_nothing(phase):
    """Whoever acts on a node as it was before gets a conflict: no node is cordoned, cut or uncordoned twice."""
    world = World("gpu-0")
    seen = world.look("gpu-0")
    first: Any = begin(seen, world.change("gpu-0"), OWNER, HOW, world.now)
    assert world.write(seen, first)
    if phase != "cordon":
        seen = world.look("gpu-0")
        first = step(seen, world.now)
        assert world.write(seen, first)
    if phase == "end":
        world.answer("gpu-0")
        seen = world.look("gpu-0")
        first = step(seen, world.now)
        assert world.write(seen, first)
    assert not world.write(seen, first)
    assert len(world.cuts) == (phase != "cordon")


def test_fault_66_the_clock_of_whoever_began_was_ahead():
    """By a year, in any phase: the next one sets the times back, and each phase takes as long as it may."""
    year = 365 * 86400.0
    one = Rollout()
    one.world.add_pod("train", "gpu-0")
    one.world.now -= year
    ahead = "the clock of whoever began it was ahead: its times are set back"
    assert one.step().told == ahead
    assert isinstance(one.step(1799.0), Wait)
    one.world.end_pod("train")
    one.step()
    assert one.phase == "Written"
    one.world.now -= year
    assert one.step().told == ahead
    assert isinstance(one.step(599.0), Wait)
    assert one.step(1.0).told.startswith("the layout is not applied after 600 s")
    one.world.edit("gpu-0", {"status": {"allocatable": {"nvidia.com/mig-2g.20gb": "0"}}})
    one.world.now -= year
    assert one.step().told == ahead
    assert isinstance(one.step(59.0), Wait)
    assert one.step(1.0).outcome.result is Result.FAILED
    assert not one.world.cordoned("gpu-0")
    assert one.end.is_within(60.0, one.world.now + 59.0)
    assert not one.end.is_within(60.0, one.world.now - year), "a year later it would be forgotten"


@pytest.mark.parametrize("auto", [False, True])
def test_a_pod_that_was_placed_just_before_the_cordon(auto):
    """Nothing is written until it would be there: mig-manager takes the devices of a pod that comes later."""
    one = Rollout(How(auto=auto))
    one.world.settled = False
    waits = Wait("waiting for pods that the scheduler has chosen it for before the cordon")
    assert one.step() == waits
    assert one.step(3600.0) == waits
    one.world.settled = True
    assert one.step().cuts


def test_a_record_that_nobody_has_written():
    """Numbers that a rollout never has are not taken: they would be counted with."""
    one = Rollout()
    text = one.node["metadata"]["annotations"][ROLLOUT].replace('"since"', '"tries":100000000000,"since"')
    one.world.edit("gpu-0", {"metadata": {"annotations": {ROLLOUT: text}}})
    assert "tries" in one.step().reason
    assert "remove the annotation" in one.step().reason


@pytest.mark.parametrize(
    "edited",
    [
        {"since": 1.7e308, "until": -1.7e308},
        {"phase": "Written", "label": True, "after": "tessera-1", "tries": 64, "late": 1e300, "until": 0},
    ],
)
def test_what_is_made_of_an_edited_record_can_be_read(edited):
    """Whatever numbers a person wrote that are taken: the rollout goes on with them, and its next record is one."""
    one = Rollout()
    record = json.loads(one.node["metadata"]["annotations"][ROLLOUT]) | edited
    state = {"nvidia.com/mig.config": "tessera-1", "nvidia.com/mig.config.state": "failed"}
    annotations = {ROLLOUT: json.dumps(record)}
    one.world.edit("gpu-0", {"metadata": {"annotations": annotations, "labels": state}})
    assert isinstance(one.step(60.0), Patch)
    assert one.world.record("gpu-0") is not None


def test_a_long_reason_fits_the_annotations():
    """What the node says is cut short before it is written down with the rollout: else no write would be accepted, and it stayed cordoned."""
    one = Rollout()
    one.step()
    one.world.answer("gpu-0", "no such card " * 20_000)
    assert "no such card" in one.step(10.0).told
    assert one.phase == "PuttingBack"
    one.world.answer("gpu-0")
    assert one.step(1.0).outcome.result is Result.FAILED
    assert len(one.end.reason) < 1_100


def test_the_autopilot_waits_for_no_pod():
    """It writes at once; a pod that holds a device which goes ends it at once."""
    one = Rollout(How(auto=True))
    seen = one.world.look("gpu-0")
    found = step(seen, one.world.now)
    assert isinstance(found, Patch)
    assert found.cuts
    claimed = replace(seen, claimed={"gpu-0-mig-2g-20gb-0": "ml/train", "gpu-1-mig-1g-10gb-6": "ml/other"})
    found = step(claimed, one.world.now)
    assert isinstance(found, Patch)
    assert found.outcome == Outcome(
        Result.IN_USE, "pods still hold devices that would go: ml/train (1 × 2g.20gb)"
    )


def test_without_a_cordon():
    """The node is not cordoned: a device plugin waits for pods and claims itself, so the layout is written at once."""
    one = Rollout(How(cordons=False, waits=False), owner=Owner("ann@host"))
    assert one.phase == "Waiting"
    one.world.settled = False
    one.world.ready("gpu-0", "Unknown")
    one.world.add_pod("train", "gpu-0")
    seen = replace(one.world.look("gpu-0"), claimed={"gpu-0-mig-2g-20gb-0": "ml/train"})
    found = step(seen, one.world.now)
    assert isinstance(found, Patch)
    assert found.cuts
    assert one.world.write(seen, found)
    one.world.answer("gpu-0", "no room")
    one.world.ready("gpu-0", "True")
    one.world.cordon("gpu-0")
    one.world.answer("gpu-0")
    assert one.step().outcome.result is Result.DONE
    assert one.world.cordoned("gpu-0"), "by somebody else"
    assert {ROLLOUT, RESULT}.isdisjoint(one.node["metadata"]["annotations"])


def test_without_a_cordon_pods_are_waited_for_where_mig_manager_cuts():
    """They are named until they end, or the time is up; nothing is written meanwhile."""
    waiting = "waiting for pods that hold devices which go: default/train (1 × 2g.20gb)"
    one = Rollout(How(cordons=False, drain_timeout=300.0))
    one.world.add_pod("train", "gpu-0")
    assert one.step(299.0) == Wait(waiting)
    assert one.step(1.0).outcome.result is Result.IN_USE
    assert (asked(one.node), one.world.cordoned("gpu-0")) == (LAYOUT, False)
    one = Rollout(How(cordons=False, drain_timeout=0.0))
    one.world.add_pod("train", "gpu-0")
    assert one.step().outcome.result is Result.IN_USE
