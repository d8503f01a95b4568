"""Laws of one node's rollout on random schedules: actors that act on what they saw long ago, and a world that moves."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tessera.protocol.mig.rollouts import ROLLOUT, Owner
from tessera.rollout.step import begin, rebuild_record, step, write_again
from tessera.rollout.values import Evict, How, NotUnderWay, Patch
from tessera.simulation.control_plane.kinds import NODES
from tests.inventory.objects import LAYOUT
from tests.rollout.machine.world import World, asked

OWNER = Owner("inference", "uid-1")
ACTORS = ("a", "b")
# how an actor dies: it looks, and never acts on it; how it is paused: it acts on what it saw long ago
ACTS = [f"{what} {one}" for one in ACTORS for what in ("look", "act", "turn", "turn")]
WORLD = ["answer", "refuse", "pod", "end pod", "budget", "dies", "lives", "second", "minute", "hour"]
TIMES = {"second": 6.0, "minute": 60.0, "hour": 3600.0}
NODE = {
    "answer": lambda world: world.answer("gpu-0"),
    "refuse": lambda world: world.answer("gpu-0", "no room"),
    "dies": lambda world: world.ready("gpu-0", "Unknown"),
    "lives": lambda world: world.ready("gpu-0", "True"),
    "uncordon": lambda world: world.cordon("gpu-0", None),
    "cordon": lambda world: world.cordon("gpu-0"),
    "other layout": lambda world: world.edit(
        "gpu-0", {"metadata": {"annotations": {"run.ai/mig.config": "3g.30gb=2"}}}
    ),
}
HANDS = ["uncordon", "cordon", "other layout"]


class Schedule:
    def __init__(self, how: How, *, cordoned: bool) -> None:
        self.world = World("gpu-0")
        self.how = how
        self.saw: dict[str, Any] = {}
        self.pods = 0
        if cordoned:
            self.world.cordon("gpu-0")

    def play(self, what: str) -> None:
        world, (verb, *rest) = self.world, what.split()
        match verb, *rest:
            case "look", actor:
                self.saw[actor] = world.look("gpu-0")
            case "act", actor:
                self.act(self.saw.get(actor))
            case "turn", _:
                self.act(world.look("gpu-0"))
            case "pod", *_:
                self.pods += 1
                world.add_pod(f"pod-{self.pods}", "gpu-0")
            case "end", _:
                world.end_pod(f"pod-{self.pods}")
            case "budget", *_:
                world.budget = not world.budget
            case _ if what in TIMES:
                world.now += TIMES[what]
            case _:
                NODE[what](world)

    def act(self, seen) -> bool:
        """Carry out the next step, or begin; whether there is nothing more to do."""
        world = self.world
        if seen is None:
            return False
        found = step(seen, world.now)
        if found == NotUnderWay():
            if asked(world.store.get(NODES, "gpu-0").document) != LAYOUT:
                return True
            found = begin(seen, world.change("gpu-0"), OWNER, self.how, world.now)
        if isinstance(found, Patch):
            world.write(seen, found)
            return found.outcome is not None
        if isinstance(found, Evict):
            world.evict(found)
        return False

    def settle(self) -> None:
        """One actor is left, and the world stands still but for the time: the rollout ends."""
        for _ in range(100):
            seen = self.world.look("gpu-0")
            if step(seen, self.world.now) == NotUnderWay():
                return
            self.act(seen)
            self.world.now += 60.0
        raise AssertionError(f"it does not end: {step(self.world.look('gpu-0'), self.world.now)}")


@given(st.lists(st.sampled_from([*ACTS, *WORLD]), min_size=40, max_size=60), st.booleans(), st.booleans())
def test_fault_37_whenever_it_dies(schedule, drain, cordoned):
    """Whoever acts, dies or acts late, and whatever the node does: it is not left cordoned, nor uncordoned for who cordoned it before,
    and no rollout cuts it twice."""
    one = Schedule(How(drain=drain, drain_timeout=300.0), cordoned=cordoned)
    for what in schedule:
        one.play(what)
        assert len(one.world.cuts) <= len(one.world.begins)
        record = one.world.record("gpu-0")
        assert one.world.cordoned("gpu-0") == (cordoned or record is not None)
    one.settle()
    assert one.world.cordoned("gpu-0") == cordoned
    assert len(one.world.cuts) <= len(one.world.begins)


class SlotSchedule(Schedule):
    """The same of a node whose slot says whether it was cordoned before; a person removes its record."""

    def __init__(self, how: How, *, cordoned: bool) -> None:
        super().__init__(how, cordoned=cordoned)
        self.cordoned = cordoned

    def play(self, what: str) -> None:
        if what == "remove":
            self.world.edit("gpu-0", {"metadata": {"annotations": {ROLLOUT: None}}})
        else:
            super().play(what)

    def act(self, seen) -> bool:
        if seen is None or seen.record is not None or not seen.cordoned or self.cordoned:
            return super().act(seen)
        record = rebuild_record(seen, OWNER, self.world.now, timeout=60.0, cordoned_before=self.cordoned)
        self.world.write(seen, write_again(seen, record))
        return False


@given(
    st.lists(st.sampled_from([*ACTS, *WORLD, "remove", "remove"]), min_size=40, max_size=60),
    st.booleans(),
    st.booleans(),
)
def test_fault_78_whenever_its_record_goes(schedule, drain, cordoned):
    """Whoever acts, dies or acts late, and whenever a person removes the record: the node is not left
    cordoned, nor uncordoned for who cordoned it before."""
    one = SlotSchedule(How(drain=drain, drain_timeout=300.0), cordoned=cordoned)
    for what in schedule:
        one.play(what)
        if one.world.record("gpu-0") is not None or cordoned:
            assert one.world.cordoned("gpu-0")
    one.act(one.world.look("gpu-0"))  # it has a slot, so it is looked at
    one.settle()
    assert one.world.cordoned("gpu-0") == cordoned


@given(st.lists(st.sampled_from([*ACTS, *WORLD]), min_size=40, max_size=60), st.booleans(), st.booleans())
def test_whenever_it_dies_without_a_cordon(schedule, waits, cordoned):
    """Whoever acts, dies or acts late: a rollout without a cordon leaves the node's cordon as it is, ends, and cuts the node once at most."""
    one = Schedule(How(cordons=False, waits=waits, drain_timeout=300.0), cordoned=cordoned)
    for what in schedule:
        one.play(what)
        assert len(one.world.cuts) <= len(one.world.begins)
        assert one.world.cordoned("gpu-0") == cordoned
    one.settle()
    assert one.world.cordoned("gpu-0") == cordoned
    assert len(one.world.cuts) <= len(one.world.begins)


@given(st.lists(st.sampled_from([*ACTS, *WORLD, *HANDS]), min_size=40, max_size=60))
def test_fault_38_whatever_hands_do(schedule):
    """A rollout ends also on a node that people change; a layout of theirs is left on it."""
    one = Schedule(How(drain_timeout=300.0), cordoned=False)
    theirs = False
    for what in schedule:
        one.play(what)
        theirs |= what == "other layout"
    one.settle()
    if theirs:
        assert asked(one.world.store.get(NODES, "gpu-0").document) == "3g.30gb=2"
    assert len(one.world.cuts) <= len(one.world.begins)
