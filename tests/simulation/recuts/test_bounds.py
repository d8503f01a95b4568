"""What cutting cards could bring at best."""

from tessera.simulation.days.tasks import Task
from tessera.simulation.recuts.bounds import free_cutting


def test_a_place_that_is_kept() -> None:
    """Small tasks leave the last place for a 4g alone, and wait for room beside it; without that, they take it."""
    small = [Task(number, 0.0, 1, 500.0) for number in range(5)]
    tasks = [*small, Task(5, 10.0, 4, 100.0)]
    assert free_cutting(tasks, 1).started == [0.0, 0.0, 0.0, 0.0, 0.0, 500.0]
    assert free_cutting(tasks, 1, kept=1).started == [0.0, 0.0, 0.0, 500.0, 500.0, 10.0]
