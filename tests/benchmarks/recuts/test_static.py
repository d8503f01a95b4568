from collections import Counter
from itertools import product
from random import Random

import pytest
from benchmarks.days.figures import MIXES
from benchmarks.days.layouts import PRODUCT, PROFILES, fitted
from benchmarks.days.tasks import Demand, Task
from benchmarks.recuts.bounds import FreePool, free_cutting, no_mig
from benchmarks.recuts.outcome import AFTER
from benchmarks.recuts.play import Idle, play
from benchmarks.recuts.pool import Card, Pool
from benchmarks.recuts.static import best_counts, best_static, serve, waits_by_number

from tessera.core.mig.layout import CardLayout
from tessera.core.mig.placement import Instance, maximal_patterns

PATTERNS = maximal_patterns(PRODUCT, (), tuple(PROFILES.values()), (7, 3, 2, 1))


def day(mix="swinging", cards=4, load=0.9):
    wanted = Demand(MIXES[mix], load, cards, days=1)
    return wanted.tasks(1), wanted


@pytest.mark.parametrize("seed", range(3))
def test_the_best_static_layout_is_that_of_trying_all(seed):
    """The integer program finds what every combination of cards finds, for waits that fall with every slice, convex or not."""
    random = Random(seed)
    waits = []
    for most in (14, 6, 4, 2):
        falls = sorted((random.randrange(1000) for _ in range(most)), reverse=seed % 2 == 0)
        waits.append({number: sum(falls[number:]) for number in range(most + 1)})
    tried = [tuple(map(sum, zip(*both, strict=True))) for both in product(PATTERNS, repeat=2)]
    least = min(sum(one[count] for one, count in zip(waits, counts, strict=True)) for counts in tried)
    found = best_counts(waits, 2)
    assert sum(one[count] for one, count in zip(waits, found, strict=True)) == least


@pytest.mark.parametrize("mix", MIXES)
def test_the_best_static_layout_waits_no_longer_than_one_for_the_mean(mix):
    """Known in advance, tasks wait no longer than with cards that are cut for what is in use in the mean."""
    tasks, wanted = day(mix, cards=8)
    assert (
        best_static(tasks, 8)[0].mean_wait <= play(tasks, Pool(fitted(wanted.erlangs, 8)), Idle()).mean_wait
    )


def test_sizes_are_queues_of_their_own():
    """What is worked out by queues is what happens on cards with places."""
    tasks, wanted = day()
    cards = fitted(wanted.erlangs, 4)
    played = play(tasks, Pool(cards), Idle())
    for size, count in zip(PROFILES, map(sum, zip(*cards, strict=True)), strict=True):
        some = [one for one in tasks if one.size == size]
        assert serve(some, count, tasks[-1].created + AFTER) == [played.started[one.number] for one in some]


def test_waits_begin_with_the_services():
    """With fewer slices than services nothing would ever start; the search does not ask for that."""
    tasks = [Task(0, 0.0, 1, float("inf")), Task(1, 0.0, 1, 60.0), Task(2, 0.0, 1, 60.0)]
    assert waits_by_number(tasks, 7, 1000.0) == {1: 2000, 2: 60, 3: 0}


def test_free_cutting_starts_what_fits():
    """Two 3g and then a 4g: free cutting puts the first ones where a 4g has no place, and nothing waits that has one."""
    tasks = [
        Task(0, 0.0, 3, 50.0),
        Task(1, 0.0, 3, 50.0),
        Task(2, 0.0, 4, 50.0),
        Task(3, 0.0, 4, 50.0),
        Task(4, 1.0, 1, 50.0),
    ]
    assert free_cutting(tasks, 2).started == [0.0, 0.0, 0.0, 0.0, 50.0]


def test_free_cutting_makes_cards_that_exist():
    """Whatever is taken and given back, every card is one that can be cut so."""
    random, pool = Random(3), FreePool(3)
    held: list[tuple[Card, Instance]] = []
    for _ in range(200):
        if held and random.random() < 0.45:
            card, one = held.pop(random.randrange(len(held)))
            card.give_back(one)
        elif found := pool.take(random.choice([*PROFILES])):
            held.append(found)
        for card in pool.cards:
            CardLayout(PRODUCT, mig_enabled=True, instances=card.used)
    assert Counter(one for _, one in held) == Counter(one for card in pool.cards for one in card.used)


def test_without_mig_a_task_takes_a_card():
    """The smallest task, too."""
    assert no_mig([Task(0, 0.0, 1, 10.0), Task(1, 0.0, 4, 10.0)], 1).started == [0.0, 10.0]
