from math import inf

import pytest
from benchmarks.days.figures import MIXES
from benchmarks.days.layouts import BALANCED, PRODUCT, PROFILES, RESOURCES, fitted, nodes_of
from benchmarks.days.tasks import Demand, Task
from benchmarks.days.week import Pace, Variant, play

from tessera.core.mig.layout import CardLayout

CARDS = 8


def demand(mix="large", load=0.9):
    return Demand(MIXES[mix], load, CARDS, days=2)


def layout(wanted):
    return list(nodes_of(fitted(wanted.erlangs, CARDS)))


@pytest.mark.parametrize("mix", MIXES)
def test_cards_are_cut_for_their_demand(mix):
    """Every card is one that can be cut so, and every size has more slices than are in use in the mean."""
    wanted = Demand(MIXES[mix], 0.7, 16)
    cards = fitted(wanted.erlangs, 16)
    for card in cards:
        CardLayout.cut(
            PRODUCT, [one for one, count in zip(PROFILES.values(), card, strict=True) for _ in range(count)]
        )
    offered = dict(zip(PROFILES, map(sum, zip(*cards, strict=True)), strict=True))
    assert all(offered[size] > wanted.erlangs[size] for size in PROFILES)


def test_nodes_have_eight_cards():
    """Nodes offer what their cards are cut into, added up."""
    each = {RESOURCES[1]: 16, RESOURCES[2]: 8, RESOURCES[3]: 8}
    assert list(nodes_of([BALANCED] * 9)) == [
        ("node-00", each),
        ("node-01", {name: count // 8 for name, count in each.items()}),
    ]


def test_missing_changes_nothing_where_every_profile_is_offered():
    """Where nodes offer all that is asked for, the webhook leaves every pod alone, however long it waits."""
    wanted = demand()
    tasks, nodes = wanted.tasks(1), layout(wanted)
    assert play(tasks, nodes, Variant.MISSING) == play(tasks, nodes, Variant.NOTHING)


def test_missing_runs_what_is_not_offered():
    """Where no card has a 4g, tasks for one never start by themselves; with the webhook they run on a 3g."""
    tasks = demand(load=0.3).tasks(1)
    nodes = list(nodes_of([BALANCED] * CARDS))
    without, with_it = play(tasks, nodes, Variant.NOTHING), play(tasks, nodes, Variant.MISSING)
    assert {one.task.size for one in without.fates if not one.given} == {4}
    assert with_it.never == 0
    assert {one.given for one in with_it.fates if one.task.size == 4} == {3}


@pytest.mark.parametrize("variant", [Variant.FULL, Variant.PATIENCE, Variant.BRIDGE])
def test_what_is_free_is_taken(variant):
    """With `full` a pod gets what is free when it comes, a claim what is free when it is scheduled: tasks wait less, some run on other sizes."""
    wanted = demand()
    tasks, nodes = wanted.tasks(1), layout(wanted)
    without, with_it = play(tasks, nodes, Variant.NOTHING), play(tasks, nodes, variant)
    assert with_it.mean_wait < without.mean_wait * 0.7
    assert with_it.replaced > 0.1


def test_patience_moves_who_waits():
    """A task that came while nothing was free runs on what comes free, after its patience; without patience it waits for what it asked for."""
    nodes = [("n", {RESOURCES[1]: 1, RESOURCES[2]: 1})]
    tasks = [Task(0, 0.0, 2, inf), Task(1, 1.0, 1, 1000.0), Task(2, 2.0, 2, 60.0)]
    (_, waits), (_, moves) = (
        play(tasks, nodes, variant).fates for variant in (Variant.FULL, Variant.PATIENCE)
    )
    assert (waits.given, moves.given) == (0, 1)
    assert moves.waited == pytest.approx(1000, abs=3)


def test_a_smaller_slice_is_slower():
    """At the compute's pace a 4g task on a 2g takes twice as long, and on a larger slice it is no faster."""
    task = Task(0, 0.0, 2, 60.0)
    for size, seconds in ((1, 120.0), (2, 60.0), (4, 60.0)):
        assert Pace.COMPUTE.seconds(task, ((RESOURCES[size], 1),)) == seconds
        assert Pace.SAME.seconds(task, ((RESOURCES[size], 1),)) == 60.0


def test_what_is_counted():
    """Waiting is from creation to start, with the tasks that never start; services do not count."""
    nodes = [("n", {RESOURCES[1]: 1, RESOURCES[2]: 1})]
    tasks = [Task(0, 0.0, 2, inf), Task(1, 0.0, 1, 100.0), Task(2, 10.0, 1, 1.0), Task(3, 20.0, 2, 1.0)]
    week = play(tasks, nodes, Variant.NOTHING)
    assert [one.task.number for one in week.fates] == [1, 2, 3]
    assert [round(one.waited) for one in week.fates[:2]] == [0, 90]
    assert week.never == pytest.approx(1 / 3)
    assert (week.replaced, week.evictions) == (0, 0)
    assert play(tasks, nodes, Variant.BRIDGE, Pace.COMPUTE).never == 0
