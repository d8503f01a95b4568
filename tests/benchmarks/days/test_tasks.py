from collections import Counter
from statistics import mean, pvariance, quantiles

import pytest
from benchmarks.days.figures import DAY, DURATIONS, HOUR, LARGE, MIXES, SMALL, TRACE_RATE, swinging
from benchmarks.days.tasks import SLICES, Demand


def test_the_same_seed_makes_the_same_tasks():
    """Tasks are a function of demand and seed, and another seed makes others."""
    demand = Demand(MIXES["large"], 0.7, cards=4)
    assert demand.tasks(1) == demand.tasks(1)
    assert demand.tasks(1) != demand.tasks(2)


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("load", [0.7, 0.9])
def test_the_load_is_what_was_asked_for(mix, load):
    """Services and all other tasks together run for so many of the cards' slice-seconds, whatever the seed."""
    demand = Demand(MIXES[mix], load, cards=16, days=7)
    for seed in range(3):
        work = sum(one.size * (7 * DAY if one.is_service else one.seconds) for one in demand.tasks(seed))
        assert work == pytest.approx(load * 16 * SLICES * 7 * DAY)


def test_arrivals_are_those_of_the_trace():
    """At the trace's own rate, hourly counts have its mean, its variance (8 times that) and its day: busy at 23:00, quiet at 14:00."""
    rate = Demand(MIXES["large"], 1, cards=1, days=1, services=0)
    cards = TRACE_RATE * 24 / len(rate.tasks(0))  # how many such tasks keep busy
    hours = Counter[int]()
    for seed in range(6):
        demand = Demand(MIXES["large"], cards, cards=1, days=28, services=0)
        hours.update(seed * 28 * 24 + int(one.created // HOUR) for one in demand.tasks(seed))
    counts = [hours[hour] for hour in range(6 * 28 * 24)]
    assert mean(counts) == pytest.approx(TRACE_RATE, rel=0.05)
    assert pvariance(counts) / mean(counts) == pytest.approx(8, rel=0.1)
    assert sum(counts[23::24]) > 3 * sum(counts[14::24])


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_durations_are_those_of_the_trace(size):
    """Half of the tasks are over within the trace's median, give or take; a twentieth runs for hours."""
    demand = Demand(lambda _: {size: 1.0}, 0.9, cards=64, services=0)
    found = quantiles([one.seconds for one in demand.tasks(0)], n=20)
    counted = {1: (3_068, 43_783), 2: (895, 25_700), 3: (1_451, 26_404), 4: (472, 11_841)}[size]
    assert (found[9], found[18]) == pytest.approx(counted, rel=0.45)
    assert found[9] == pytest.approx(DURATIONS[size].at(0.5), rel=0.1)


def test_the_mixes():
    """Tasks ask for sizes in their mix's proportion; the swinging mix is the one at 6:00 and the other at 18:00."""
    asked = Counter(one.size for one in Demand(MIXES["small"], 0.9, cards=64, services=0).tasks(0))
    assert {size: count / asked.total() for size, count in asked.items()} == pytest.approx(SMALL, abs=0.02)
    assert swinging(6 * HOUR) == pytest.approx(LARGE)
    assert swinging(18 * HOUR + DAY) == pytest.approx(SMALL)


def test_services_are_there_from_the_start():
    """The part of the load that is services comes first, in the mix's sizes, and never ends."""
    demand = Demand(MIXES["large"], 0.7, cards=64, services=0.5)
    services = [one for one in demand.tasks(0) if one.is_service]
    assert {one.created for one in services} == {0.0}
    assert sum(one.size for one in services) / (64 * SLICES) == pytest.approx(0.35, rel=0.03)
    assert not [one for one in Demand(services=0).tasks(0) if one.is_service]


def test_no_demand_is_no_task():
    """Nothing is wanted of a cluster without load."""
    assert Demand(load=0).tasks(0) == []
