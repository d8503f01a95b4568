"""Waiting pods that could have had what is free: they get nothing of it, and nothing is planned for them."""

from dataclasses import replace

import pytest

from tessera.core.planning.blocked_pods import (
    PodTimes,
    ReachedKinds,
    blocked_by_reach,
    blocked_by_turns,
    without_pods,
)
from tessera.core.planning.waiting import allowed_nodes, groups_of
from tests.core.planning.test_waiting import SINCE, ZONE_A, room, use


def groups(*uses):
    return groups_of(uses, SINCE)


def crowd(number, **asks):
    return [replace(use(f"p{index:03}", **asks), created=f"2026-11-15T08:00:{index % 60:02}Z") for index in range(number)]  # fmt: skip


@pytest.mark.parametrize(
    ("number", "free", "age", "blocked"),
    [
        (1, 1, 29, 0),
        (1, 1, 30, 1),
        (60, 28, 29, 0),
        (60, 28, 89, 56),  # two turns
        (60, 28, 90, 60),
        (100, 1, 600, 11),  # one device has just come free: most of an honest queue stays
        (5, 0, 9999, 0),  # nothing is free
    ],
)
def test_pods_take_turns_at_what_is_free(number, free, age, blocked):
    """A command that looks once goes by the pods' times: 30 s for each turn, and no more turns than until the first is asked again."""
    some = groups(*crowd(number, small="1"))
    times = {name: PodTimes(1000.0, 1000.0) for group in some for name in group.names}
    rooms = [room("n", small=free)]
    found = blocked_by_turns(some, allowed_nodes(some, rooms)[0], rooms, times, 1000.0 + age)
    assert len(found) == blocked
    assert rooms[0].free == room("n", small=free).free, "nothing was given out"
    assert sum(len(group.names) for group in without_pods(some, found)) == number - blocked


@pytest.mark.parametrize(
    ("times", "blocked"),
    [
        (PodTimes(0.0, 70.0), True),
        (PodTimes(0.0, 70.5), False),  # the scheduler has looked only then
        (PodTimes(70.5, 0.0), False),  # it was asked again
        (PodTimes(0.0, None), False),  # the scheduler has said nothing: another rule
    ],
)
def test_what_was_in_reach_all_the_time(times, blocked):
    """The pods that fit in what nobody took, however many they are; not those that may not go there, or ask for more."""
    uses = [use("a", small="1"), use("b", small="1"), use("zone", ZONE_A, small="1"), use("two", small="2")]
    uses += [use("cpu", small="1", cpu="8")]
    some = groups(*uses, use("runs", node="n", record="3g.30gb->1g.10gb", small="1"))
    known = {name: times for group in some for name in group.names}
    idle = [room("n", small=1, cpu=4)]
    found = blocked_by_reach(some, allowed_nodes(some, idle)[0], idle, known, 100.0, ReachedKinds())
    assert found == ({"ml/a", "ml/b"} if blocked else set())
