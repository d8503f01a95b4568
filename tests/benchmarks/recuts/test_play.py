from math import inf

from benchmarks.days.figures import MIXES
from benchmarks.days.layouts import fitted
from benchmarks.days.tasks import Demand, Task
from benchmarks.recuts.autopilot import Autopilot, limits_for
from benchmarks.recuts.nos import IDLE, WINDOW, Nos
from benchmarks.recuts.play import CUTTING, Idle, play
from benchmarks.recuts.pool import Pool, placed

from tessera.core.planning.changes import Way

ONES = (7, 0, 0, 0)


class Once:
    """Cuts the first card at a moment."""

    def __init__(self, moment, pattern):
        self.due, self.pattern = moment, pattern

    def changed(self, waiting, now):
        pass

    def look(self, pool, waiting, now):
        self.due = inf
        yield pool.cards[0], placed(self.pattern)


def day(cards=4, load=0.8):
    wanted = Demand(MIXES["swinging"], load, cards, days=0.5)
    return wanted.tasks(1), fitted(wanted.erlangs, cards)


def test_a_task_starts_when_its_slice_is_there():
    """A task whose slice is yet to be cut starts when that is done; who comes later waits for the one before."""
    tasks = [Task(0, 0.0, 4, 100.0), Task(1, 5.0, 4, 1.0)]
    outcome = play(tasks, Pool([ONES]), Once(20.0, (0, 0, 1, 1)))
    assert outcome.started == [20 + CUTTING, 120 + CUTTING]
    assert outcome.cuts == [20.0]


def test_without_cuts_a_size_that_is_not_there_never_starts():
    """A task takes exactly its size; it counts with all the time until the end."""
    outcome = play([Task(0, 0.0, 4, 100.0), Task(1, 0.0, 1, 100.0)], Pool([ONES]), Idle())
    assert outcome.started == [None, 0.0]
    assert (outcome.never, outcome.waits) == (0.5, [0.0, outcome.end])


def test_services_hold_cards_and_are_not_counted():
    """A service is in use all the time; waiting and slowdown are those of tasks that end, and seconds of work are no reason for a huge one."""
    outcome = play([Task(0, 0.0, 1, inf), Task(1, 10.0, 1, 1.0)], Pool([ONES]), Idle())
    assert outcome.waits == [0.0]
    assert round(outcome.use, 3) == round(1 / 7, 3)
    assert outcome.mean_slowdown == 1


def test_the_autopilot_keeps_to_its_budget():
    """With either way to cut, the production policy serves all tasks of a day within its limits; the cards themselves refuse what is in use."""
    tasks, cards = day()
    limits = limits_for(4)
    for way in Way:
        outcome = play(tasks, Pool(cards, way, cordons=way is Way.ANNOTATION), Autopilot(limits))
        assert outcome.never == 0
        assert 0 < outcome.most_cuts_in_an_hour <= limits.recuts_per_hour


def test_a_batch_of_nos_ends_when_nobody_comes_or_after_a_minute():
    """A pod alone is planned for after the idle time; where others keep coming, at the end of the window."""
    alone = play([Task(0, 0.0, 4, 1.0)], Pool([ONES]), Nos())
    assert alone.started == [IDLE + CUTTING]
    coming = [Task(number, 5.0 * number, 4, 1.0) for number in range(20)]
    assert play(coming, Pool([ONES] * 2), Nos()).cuts[0] == WINDOW


def test_nos_cuts_what_is_free():
    """Beside a slice in use a card has room for one 3g: nos cuts that, and the other task waits for it."""
    tasks = [Task(0, 0.0, 1, 10_000.0), Task(1, 1.0, 3, 50.0), Task(2, 1.0, 3, 50.0)]
    outcome = play(tasks, Pool([ONES]), Nos())
    first = 1 + IDLE + CUTTING
    assert outcome.started == [0.0, first, first + 50]
    assert outcome.cuts == [1 + IDLE]
