"""What decides in `make chaos`: which fault comes next, and which promises a sample or a look breaks."""

import contextlib
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stress.chaos import samples
from stress.chaos.looks import BOUND_LONG, PROMISES, Cut, FleetLook, NodeLook, PodLook, Promises
from stress.chaos.samples import Use
from stress.chaos.schedule import Disturbance, Fault, Report, Schedule

ONE, TWO = "nvidia.com/mig-1g.18gb", "nvidia.com/mig-2g.35gb"


@given(st.integers(1, 20), st.integers(0, 100), st.integers(0, 2**32))
def test_each_fault_comes_as_often_as_the_others(kinds: int, turns: int, seed: int):
    """After any number of turns, no fault was tried twice more than another; a seed fixes the order."""
    names = [f"fault-{number}" for number in range(kinds)]
    orders = []
    for _ in range(2):
        tries = Counter[str]()
        schedule = Schedule(names, seed, tries)
        orders.append([schedule.choose_fault() for _ in range(turns)])
        assert max(tries.values(), default=0) - min(tries[name] for name in names) <= 1
        assert schedule.rarest() == turns // kinds
    assert orders[0] == orders[1]


def test_faults_that_other_parts_tried_come_last():
    """Parts that have faults in common try what was tried least in all of them."""
    tries = Counter({"common": 3})
    schedule = Schedule(["common", "own"], 1, tries)
    assert [schedule.choose_fault() for _ in range(3)] == ["own"] * 3
    assert schedule.rarest() == 3


def test_a_part_goes_on_until_each_fault_was_tried_often_enough(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """A part whose time is over tries what is still missing, is calm after each round, and notes a fault that does not end."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr("stress.chaos.schedule.time.sleep", sleep)
    monkeypatch.setattr("stress.chaos.schedule.time.monotonic", lambda: now[0])
    calls = Counter[str]()

    @contextlib.contextmanager
    def strike(name: str, error: type[Exception] | None = None):
        calls[name] += 1
        if error is not None:
            raise error
        yield
        calls[f"{name} mended"] += 1

    report = Report(7)
    faults = [Fault("a", lambda: strike("a")), Fault("b", lambda: strike("b", OSError))]
    part = Disturbance("part", faults, report, random.Random(7))
    part.run(10.0 / 60, 5, lambda: calls.update(["calm"]))
    assert calls == {"a": 5, "a mended": 5, "b": 5, "calm": 5}
    assert report.findings == ["part: 'b' did not end: "], "the same is noted once"
    assert "a      5            part" in report.table()
    assert "DID NOT HOLD" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("memory_mib", "grew"),
    [
        ([40, 44, 44, 44, 44, 44], False),
        ([40] * 3 + [90] * 3, True),
        ([200, 200, 230, 230, 236, 236], False),  # 15 percent, and what may come in addition
        ([200, 200, 230, 230, 240, 240], True),
        ([44, 44, 44, 44, 90, 44, 44, 44, 44], False),  # a peak that was given back
        ([10, 100], False),  # too few to say
    ],
)
def test_memory_is_flat(memory_mib: list[int], grew: bool):
    """The end is compared with what there was after the warm-up."""
    complaints = samples.complaints_about_memory("controller", [mib * 1024 for mib in memory_mib])
    assert bool(complaints) == grew


def test_a_hot_loop_is_seen():
    """A process that uses a quarter of a processor while nothing happens is named; a process that came meanwhile is not."""
    before = {"webhook": Use(1, 1.0), "controller-1": Use(1, 10.0)}
    after = {"webhook": Use(1, 1.5), "controller-1": Use(1, 13.0), "controller-2": Use(1, 9.0)}
    shares = samples.processor_shares(before, after, 6.0)
    assert shares == {"webhook": 0.5 / 6, "controller-1": 0.5}
    assert samples.complaints_about_idle(shares, 19.0) == [
        "controller-1 used 50% of a processor while nothing happened"
    ]
    assert samples.complaints_about_idle({}, 21.0) == [
        "the API server got 21 requests a second while nothing happened"
    ]


def test_what_no_log_should_say(tmp_path: Path):
    """Tracebacks, and more lines than anybody can read."""
    log = tmp_path / "plugin.log"
    log.write_text("fine\n")
    assert samples.complaints_about_log(log, 1.0) == []
    log.write_text("Traceback\n" * 100)
    assert samples.complaints_about_log(log, 1.0) == [
        "plugin.log has 100 lines after 1 s",
        "Traceback in plugin.log",
    ]


def node(name: str, *, cordoned: bool = False, rolling_out: bool = False) -> NodeLook:
    return NodeLook(name=name, pool=name.partition("-")[0], is_cordoned=cordoned, is_rolling_out=rolling_out)


def pod(uid: str, amounts: dict[str, int] | None = None, bound_for: float = BOUND_LONG) -> PodLook:
    return PodLook(uid=uid, name=f"pod-{uid}", node="fixed-1", amounts=amounts or {}, bound_for=bound_for)


def broken(
    nodes: list[NodeLook] | None = None, pods: list[PodLook] | None = None, cuts: list[Cut] | None = None
) -> list[str]:
    """The complaints about a look at a fleet in which two pods must stay."""
    promises = Promises(
        most_unavailable={"fixed": 2, "auto": 1},
        cordoned_by_admin=frozenset({"fixed-0"}),
        untouched={"u": "agent"},
        guarded={"g": "guarded"},
    )
    stay = [pod("u"), pod("g")]
    look = FleetLook(nodes=nodes or [], pods=stay if pods is None else pods, cuts=cuts or [])
    return [complaint for promise in PROMISES for complaint in promise.complain(look, promises)]


def test_nodes_that_may_be_unavailable():
    """Nodes with a cordon or a rollout count, by pool; one that an admin has cordoned counts while it is rolled out."""
    two = [node("fixed-1", cordoned=True), node("fixed-2", rolling_out=True)]
    assert broken([*two, node("fixed-0", cordoned=True), node("auto-1", cordoned=True)]) == []
    third = node("fixed-0", cordoned=True, rolling_out=True)
    assert broken([*two, third]) == ["fixed-1, fixed-2, fixed-0 are unavailable, 2 may be"]
    assert broken([node("fixed-0")]) == ["fixed-0 is not cordoned any more"]


def test_pods_that_must_stay():
    """A foreign pod, and a pod that a budget guards."""
    assert broken(pods=[pod("g")]) == ["pod agent is gone"]
    assert broken(pods=[pod("u")]) == ["pod guarded is gone"]


def test_devices_that_pods_hold():
    """A cut takes no device that a pod has held for long; what the layout keeps is not taken."""
    holds = [pod("u"), pod("g"), pod("a", {TWO: 2}), pod("b", {TWO: 1, ONE: 1})]
    cut = Cut("fixed-1", {TWO: 3, ONE: 2}, {TWO: 2, ONE: 7})
    assert broken(pods=holds, cuts=[cut]) == ["fixed-1 is cut to 2 × nvidia.com/mig-2g.35gb, and pods hold 3"]
    late = [*holds[:2], pod("a", {TWO: 3}, bound_for=BOUND_LONG - 1)]
    assert broken(pods=late, cuts=[cut]) == []
    assert broken(pods=holds, cuts=[Cut("fixed-2", *cut[1:])]) == []
    assert broken(pods=holds, cuts=[Cut("fixed-1", {TWO: 2, ONE: 2}, {TWO: 2, ONE: 1})]) == []


def test_a_look_reads_what_the_api_server_says():
    """Cordons and records of nodes; of pods the devices of a node's cards."""
    read = NodeLook.read(
        {
            "metadata": {
                "name": "n",
                "labels": {"pool": "auto"},
                "annotations": {"tessera.dev/rollout": "{}"},
            },
            "spec": {"unschedulable": True},
        }
    )
    assert read == NodeLook(name="n", pool="auto", is_cordoned=True, is_rolling_out=True)
    containers = [
        {"resources": {"limits": {TWO: "1", "cpu": "1"}}},
        {"resources": {"limits": {TWO: "2"}}},
        {},
    ]
    document = {
        "metadata": {"uid": "a", "name": "pod-a"},
        "spec": {"nodeName": "fixed-1", "containers": containers},
    }
    assert PodLook.read(document, BOUND_LONG) == pod("a", {TWO: 3})
