"""Which events are written: client-go's rules, with a clock that stands where it is put."""

from itertools import count

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tessera.kube.event_recorder import About, Correlator, Event

OWNER = About("apps/v1", "ReplicaSet", "web", "team", "u-1")


def event(message: str = "m", reason: str = "GPUFallback", about: About = OWNER) -> Event:
    return Event(about, reason, message)


def correlator() -> Correlator:
    numbers = count(1)
    return Correlator(lambda: str(next(numbers)))


def test_same_event_is_counted():
    """The same event again is one more of the first; another one has a name of its own."""
    one = correlator()
    told = [one.correlate(event(text), at) for at, text in enumerate(["a", "a", "b", "a"])]
    assert [(w.name, w.count, w.first, w.last) for w in told if w] == [
        ("web.1", 1, 0, 0),
        ("web.1", 2, 0, 1),
        ("web.2", 1, 2, 2),
        ("web.1", 3, 0, 3),
    ]


def test_events_that_differ_in_their_message_are_combined():
    """Nine messages of one kind are written one by one; from the tenth in ten minutes on they are one event that counts."""
    one = correlator()
    told = [one.correlate(event(f"m{number}"), 0.0) for number in range(12)]
    assert [w.event.message for w in told if w][8:] == [
        "m8",
        "(combined from similar events): m9",
        "(combined from similar events): m10",
        "(combined from similar events): m11",
    ]
    assert [(w.name, w.count) for w in told if w][9:] == [("web.10", 1), ("web.10", 2), ("web.10", 3)]
    later = one.correlate(event("m99"), 601.0)
    assert later is not None
    assert (later.event.message, later.count) == ("m99", 1)


def test_object_is_not_flooded():
    """25 writes at once, then one in five minutes; what was not written is in the next count. Other objects have their own."""
    one = correlator()
    told = [one.correlate(event(), 0.0) for _ in range(40)]
    assert sum(w is not None for w in told) == 25
    assert one.correlate(event(), 299.0) is None
    late = one.correlate(event(), 301.0)
    assert late is not None
    assert late.count == 42
    assert one.correlate(event(about=replace(OWNER, uid="u-2")), 301.0) is not None


def test_what_is_gone_begins_anew():
    """An event that the API server has forgotten is written again under another name, and counted from there."""
    one = correlator()
    one.correlate(event(), 0.0)
    second = one.correlate(event(), 1.0)
    assert second is not None
    again = one.forget(second)
    assert (again.name, again.count, again.first) == ("web.2", 1, 1.0)
    third = one.correlate(event(), 2.0)
    assert third is not None
    assert (third.name, third.count) == ("web.2", 2)


def test_what_was_never_written_is_not_counted_up():
    """After a write that failed, the next one is new."""
    one = correlator()
    first = one.correlate(event(), 0.0)
    assert first is not None
    one.lost(first)
    second = one.correlate(event(), 1.0)
    assert second is not None
    assert second.is_new


def test_messages_fit():
    """A message has 1024 bytes at most, and is cut between characters."""
    written = correlator().correlate(event("ü" * 900), 0.0)
    assert written is not None
    assert len(written.event.message.encode()) <= 1024
    assert written.event.message.endswith("ü…")


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 3)), max_size=300))
def test_memory_is_bounded(told: list[tuple[int, int]]):
    """However many objects have events, no more than a thousand or so are remembered."""
    one = correlator()
    for number, message in told * 10:
        one.correlate(event(str(message), about=replace(OWNER, uid=str(number))), 0.0)
    assert all(len(some.items()) <= 1024 for some in (one._buckets, one._similar, one._written))
