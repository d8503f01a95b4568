from benchmarks.days.clock import Clock
from benchmarks.days.scheduler import Binding, Scheduler


def needs(**counts):
    return tuple(counts.items())


def key(name):
    return ("team", name)


def scheduler(**nodes):
    made = Scheduler()
    for name, has in nodes.items():
        made.put_node(name, has)
    return made


def bound(made):
    return [(one.key[1], one.node, dict(one.needs)) for one in made.schedule()]


def test_priority_then_age():
    """Of pods that want the same, the one of higher priority is first, then the oldest."""
    made = scheduler(n={"a": 2})
    for name, created, priority in (("young", 3, 0), ("old", 1, 0), ("urgent", 4, 10)):
        made.add(key(name), (needs(a=1),), created, priority)
    assert bound(made) == [("urgent", "n", {"a": 1}), ("old", "n", {"a": 1})]
    made.release("n", needs(a=1))
    assert bound(made) == [("young", "n", {"a": 1})]


def test_who_does_not_fit_keeps_nobody_else_waiting():
    """A pod that fits nowhere waits; a younger one that asks for something else runs."""
    made = scheduler(n={"a": 1, "b": 1})
    made.add(key("large"), (needs(a=2),), 1)
    made.add(key("small"), (needs(a=1, b=1),), 2)
    assert bound(made) == [("small", "n", {"a": 1, "b": 1})]


def test_a_claim_takes_the_first_alternative_that_is_free():
    """Of alternatives the first that some node has free is taken, when the pod is scheduled."""
    made = scheduler(n={"a": 1}, m={"b": 1})
    options = (needs(a=1), needs(b=1))
    for number in range(3):
        made.add(key(f"p{number}"), options, number)
    assert bound(made) == [("p0", "n", {"a": 1}), ("p1", "m", {"b": 1})]
    made.release("m", needs(b=1))
    assert bound(made) == [("p2", "m", {"b": 1})]


def test_all_on_one_node():
    """What a pod needs comes from one node, which is the one that has most of it."""
    made = scheduler(few={"a": 2}, many={"a": 3})
    made.add(key("p"), (needs(a=2),), 1)
    made.add(key("q"), (needs(a=2),), 2)
    made.add(key("r"), (needs(a=2),), 3)
    assert bound(made) == [("p", "many", {"a": 2}), ("q", "few", {"a": 2})]


def test_a_pod_that_is_gone_is_not_bound():
    """A pod that was removed while it waited takes nothing."""
    made = scheduler(n={"a": 1})
    made.add(key("gone"), (needs(a=1),), 1)
    made.add(key("there"), (needs(a=1),), 2)
    made.remove(key("gone"))
    assert list(made.schedule()) == [Binding(key("there"), "n", needs(a=1))]


def test_nodes_change():
    """What a node has less of is not given away again, a cordoned node takes no pod, and one that is opened again does."""
    made = scheduler(n={"a": 1})
    made.add(key("p"), (needs(a=1),), 1)
    assert bound(made) == [("p", "n", {"a": 1})]
    made.put_node("n", {"a": -1, "b": 1}, cordoned=True)
    made.release("n", needs(a=1))
    made.add(key("q"), (needs(a=1), needs(b=1)), 2)
    assert bound(made) == []
    made.put_node("n", {})
    assert bound(made) == [("q", "n", {"b": 1})]


def test_the_clock_does_things_in_order():
    """The clock jumps to what is due next; what is due at once keeps its order; what is past is done at once."""
    clock, done = Clock(), []

    def first():
        done.append(("a", clock.now))
        clock.at(1, lambda: done.append(("now", clock.now)))

    clock.at(5, lambda: done.append(("b", clock.now)))
    clock.at(5, lambda: done.append(("c", clock.now)))
    clock.at(2, first)
    clock.at(9, lambda: done.append(("late", clock.now)))
    clock.run(until=8)
    assert done == [("a", 2), ("now", 2), ("b", 5), ("c", 5)]
    assert clock.now == 8
