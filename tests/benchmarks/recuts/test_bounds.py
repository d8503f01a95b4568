"""What cutting cards could bring at best."""

from benchmarks.days.tasks import Task
from benchmarks.recuts.bounds import free_cutting, moving


def test_a_place_that_is_kept() -> None:
    """Small tasks leave the last place for a 4g alone, and wait for room beside it; without that, they take it."""
    small = [Task(number, 0.0, 1, 500.0) for number in range(5)]
    tasks = [*small, Task(5, 10.0, 4, 100.0)]
    assert free_cutting(tasks, 1).started == [0.0, 0.0, 0.0, 0.0, 0.0, 500.0]
    assert free_cutting(tasks, 1, kept=1).started == [0.0, 0.0, 0.0, 500.0, 500.0, 10.0]


def test_pods_that_move_for_nothing() -> None:
    """A task starts as soon as enough slices are free on all cards together; without moving it waits for a place."""
    tasks = [
        *(Task(number, 0.0, 2, 500.0 if number == 2 else 100.0) for number in range(3)),
        Task(3, 10.0, 4, 50.0),
    ]
    assert moving(tasks, 1).started == [0.0, 0.0, 0.0, 100.0]
    assert free_cutting(tasks, 1).started == [0.0, 0.0, 0.0, 500.0]
    tasks = [Task(0, 0.0, 4, 50.0), Task(1, 0.0, 3, 50.0), Task(2, 0.0, 1, 50.0)]
    assert moving(tasks, 1).started == [0.0, 0.0, 50.0]
