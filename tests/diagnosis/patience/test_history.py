"""What was evicted before, and what that means for the next."""

import json

import pytest

from tessera.core.errors import InvalidInput
from tessera.diagnosis.patience.history import Doubt, History, Tries

NOW = 1_800_000_000.0


def read(document):
    return History.read(json.dumps(document).encode())


def test_it_outlives_the_process():
    """What is written can be read, with the version that the next write needs; an empty ConfigMap is an empty history."""
    history = History("7").with_evictions([("rs", "a", 300.0), ("job", "b", 60.0)], NOW, 60.0)
    again = read(history.document("ns"))
    assert again == history
    doubts = {"a": Doubt("web-1", NOW - 5, NOW + 3600, NOW + 600)}
    assert read(history.with_doubts(doubts).document("ns")).doubts == doubts
    assert again.owners == {"rs": Tries(1, NOW, 300.0), "job": Tries(1, NOW, 60.0)}
    assert read({"metadata": {"resourceVersion": "3"}}) == History("3")


@pytest.mark.parametrize("text", ["", "[]", '{"owners": {"x": 1}}', '{"recent": "x"}'])
def test_a_history_that_someone_wrote(text):
    """It is told where and what, and nothing is evicted by it."""
    with pytest.raises(InvalidInput, match=r"ConfigMap tessera-patience, key evictions\.json: "):
        read({"data": {"evictions.json": text}})


def test_the_owners_patience_doubles_each_time():
    """An owner whose pods were evicted in vain waits twice as long for the next; others do not."""
    history = History()
    waits = []
    for _ in range(4):
        waits.append(history.wait("rs", 300.0))
        history = history.with_evictions([("rs", "a", 300.0)], NOW, 60.0)
    assert (waits, history.wait("other", 300.0)) == ([300.0, 600.0, 1200.0, 2400.0], 300.0)


def test_an_eviction_that_helped_does_not_count():
    """The owner's other pods, for whom there is room too, wait no longer for it."""
    history = History().with_evictions([("rs", "a", 300.0)], NOW, 60.0)
    history.helped("rs")
    assert history.wait("rs", 300.0) == 300.0


def test_an_eviction_that_was_refused_does_not_count():
    """Nor does it take back more than itself."""
    history = History().with_evictions([("rs", "a", 300.0)], NOW, 60.0)
    history = history.with_evictions([("rs", "a", 300.0)], NOW, 60.0)
    history.undone("rs")
    assert history.wait("rs", 300.0) == 600.0
    history.undone("rs")
    history.undone("rs")
    assert history.wait("rs", 300.0) == 300.0


def test_no_owner_is_evicted_for_ever():
    """Between two evictions of an owner whose pods wait again and again nothing is forgotten: in a year there are a few."""
    history, now, times = History(), NOW, 0
    while now < NOW + 365 * 86400:
        now += history.wait("rs", 300.0)
        history = history.with_evictions([("rs", "a", 300.0)], now, 60.0)
        times += 1
    assert times == 17
    assert history.with_evictions([], now + 3 * history.wait("rs", 300.0), 60.0).owners == {}


@pytest.mark.parametrize("pause", [121.0, 3600.0])
def test_an_owner_is_remembered_for_a_day(pause):
    """However short its patience and however rarely something comes free: each eviction in vain doubles it."""
    history, now = History(), NOW
    for times in range(5):
        assert history.wait("rs", 30.0) == 30.0 * 2**times
        now += history.wait("rs", 30.0) + pause
        history = history.with_evictions([("rs", "a", 30.0)], now, 60.0)
    assert history.with_evictions([], now + 86401, 60.0).owners == {}


def test_ten_a_minute():
    """Whoever they were of, and whichever process did them."""
    history = History()
    for at in range(10):
        history = history.with_evictions([("rs", "a", 300.0)], NOW + at, 60.0)
    assert [history.left(NOW + at, 10, 60.0) for at in (10, 59, 60, 65, 70)] == [0, 0, 1, 6, 10]
    assert read(history.document("ns")).left(NOW + 10, 10, 60.0) == 0


def test_it_stays_small():
    """A thousand owners; the last ones stay."""
    some = [(f"owner-{number}", "a", 300.0) for number in range(1500)]
    history = History().with_evictions(some, NOW, 60.0)
    assert (len(history.owners), next(iter(history.owners))) == (1000, "owner-500")
    recent = history.with_evictions([], NOW + 60.0, 60.0)
    assert recent.recent == []
    assert len(json.dumps(recent.document("ns"))) < 100 * 1024
