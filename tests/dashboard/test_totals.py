"""What the page remembers of the last hours, and what it forgets."""

from hypothesis import given
from hypothesis import strategies as st

from tessera.dashboard.totals import MOST_POINTS, MOST_RESOURCES, SPAN, History


def test_only_changes_are_kept():
    """A number that stays takes no memory; a resource that is gone has come down to nothing."""
    history = History()
    assert history.see(0, {"a": (8, 0, 0), "b": (4, 4, 1)}) == ["a", "b"]
    assert history.see(60, {"a": (8, 0, 0), "b": (4, 3, 0)}) == ["b"]
    assert history.see(120, {"b": (4, 3, 0)}) == ["a"]
    assert history.of("a") == [(0, 8, 0, 0), (120, 0, 0, 0)]
    assert history.of("b") == [(0, 4, 4, 1), (60, 4, 3, 0)]
    assert history.of("c") == []


def test_what_is_long_ago_is_forgotten():
    """The last point before the hours that are shown stays: it says how they began."""
    history = History()
    for at in (0, 10, 20, 20 + SPAN):
        history.see(at, {"a": (8, at % 7, 0)})
    assert [point[0] for point in history.of("a")] == [20, 20 + SPAN]


def test_resources_without_end():
    """Who invents resources gets no more memory for them."""
    history = History()
    for number in range(3 * MOST_RESOURCES):
        history.see(number, {f"r{number}": (1, 0, 0)})
    assert sum(bool(history.of(f"r{number}")) for number in range(3 * MOST_RESOURCES)) == MOST_RESOURCES


@given(st.lists(st.integers(1, 400), min_size=1, max_size=900))
def test_memory_is_bounded_and_the_newest_is_exact(gaps):
    """However often numbers change: so many points at most, in order, and the last of them is now."""
    history, now = History(), 0
    for number, gap in enumerate(gaps):
        now += gap
        history.see(now, {"a": (8, number, 0)})
    points = history.of("a")
    assert len(points) <= MOST_POINTS
    assert points == sorted(points)
    assert points[-1] == (now, 8, len(gaps) - 1, 0)
    recent = min(len(gaps), MOST_POINTS // 4)
    assert [point[2] for point in points if point[0] > now - SPAN][-recent:] == list(
        range(len(gaps) - min(recent, sum(point[0] > now - SPAN for point in points)), len(gaps))
    )
