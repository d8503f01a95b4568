"""Device-seconds by namespace: exact for what was watched, and nothing else."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tessera.core.devices.capacity import PodUse
from tessera.core.kubernetes.quantity import Quantity
from tessera.dashboard.usage import NamespaceUse, demand_part
from tests.build import MIG


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def use(node: str = "", amount: int = 1, namespace: str = "team", **more: Any) -> PodUse:
    return PodUse(namespace, "p", node, {MIG + "1g.10gb": Quantity.parse(amount)}, **more)


def counted(usage: NamespaceUse) -> dict[tuple[str, str, str], float]:
    family = next(iter(usage.metrics()))
    return {
        (labels["namespace"], labels["resource"].removeprefix(MIG), labels["kind"]): value
        for _, labels, value in family.samples
    }


def started() -> tuple[NamespaceUse, Clock]:
    clock = Clock()
    usage = NamespaceUse(clock, since=1000.0)
    usage.watching(now=True)
    return usage, clock


def test_a_pod_from_its_creation_to_its_end():
    """Ten seconds without a node, five starting, twenty running, three ending; then nothing more."""
    usage, clock = started()
    for seconds, one, runs in (
        (10, use(), False),
        (5, use("a"), False),
        (20, use("a"), True),
        (3, use("a", ending=True), True),
    ):
        usage.put("p", one, runs=runs)
        clock.now += seconds
    usage.remove("p")
    clock.now += 1000
    assert counted(usage) == {
        ("team", "1g.10gb", "asked"): 38,
        ("team", "1g.10gb", "got"): 28,
        ("team", "1g.10gb", "idle"): 8,
        ("team", "1g.10gb", "missing"): 10,
    }


def test_fallback_is_asked_for_as_it_was_first():
    """What a pod asked for before fallback is what it asked for; what it holds is what it got."""
    usage, clock = started()
    usage.put(
        "p",
        use("a", amount=2, record="2g.20gb->1g.10gb", asked={MIG + "2g.20gb": Quantity.parse(2)}),
        runs=True,
    )
    clock.now += 10
    assert counted(usage) == {
        ("team", "2g.20gb", "asked"): 20,
        ("team", "1g.10gb", "got"): 20,
        ("team", "2g.20gb", "missing"): 20,
    }
    assert usage.now() == {MIG + "2g.20gb": (2, 0, 2)}


def test_what_is_missing_now():
    """Of what is asked for, what a pod waits for or was not given; what it got instead does not make up for it."""
    usage, clock = started()
    usage.put("waits", use(amount=2), runs=False)
    usage.put("has", use("a", amount=3), runs=True)
    usage.put(
        "fell", use("a", record="2g.20gb->1g.10gb", asked={MIG + "2g.20gb": Quantity.parse(1)}), runs=True
    )
    assert usage.now() == {MIG + "1g.10gb": (5, 3, 2), MIG + "2g.20gb": (1, 0, 1)}
    usage.remove("waits")
    assert usage.now()[MIG + "1g.10gb"] == (3, 3, 0)
    clock.now += 3600
    usage.reject("team", {MIG + "1g.10gb": 1})
    usage.reject("other-team", {MIG + "7g.80gb": 2})
    part = demand_part(usage)
    assert [
        (row["name"], row["asked"], row["got"], row["missing"], row["rejected"]) for row in part["rows"]
    ] == [
        ("1g.10gb", 3, 3, 0, 1),
        ("2g.20gb", 1, 0, 1, 0),
        ("7g.80gb", 0, 0, 0, 2),
    ]
    assert [tuple(row.values()) for row in part["namespaces"]] == [
        ("team", "1g.10gb", 3.0, 4.0, 0.0, 0.0, 1),
        ("team", "2g.20gb", 1.0, 0.0, 0.0, 1.0, 0),
        ("other-team", "7g.80gb", 0.0, 0.0, 0.0, 0.0, 2),
    ]


def test_rejections_are_bounded():
    """However many namespaces and names: the first thousand are told apart, and the page shows some."""
    usage, _ = started()
    for number in range(3000):
        usage.reject(f"n{number}", {MIG + "1g.10gb": 1})
    assert (len(usage.rejected), usage.rejected["other", "other"]) == (1001, 2000)
    part = demand_part(usage)
    assert (len(part["namespaces"]), part["more"]) == (50, 951)


def test_what_is_not_watched_is_not_counted():
    """While the API server is not heard no second counts; how long was watched, and since when, is told."""
    usage, clock = started()
    usage.put("p", use("a"), runs=True)
    clock.now += 10
    usage.watching(now=False)
    clock.now += 500
    usage.put("p", use("a", amount=3), runs=True)  # what a new list says
    usage.watching(now=True)
    clock.now += 1
    assert counted(usage)["team", "1g.10gb", "got"] == 13
    _, watched, since, _ = (next(iter(family.samples), [0] * 3)[2] for family in usage.metrics())
    assert (watched, since) == (11, 1000.0)


def test_namespaces_beyond_the_limit_are_counted_together():
    """However many namespaces there are, the number of series is bounded, and no second is lost."""
    usage, clock = started()
    for number in range(6000):
        usage.put(number, use("a", namespace=f"n{number}"), runs=True)
    clock.now += 1
    found = counted(usage)
    assert len(found) <= 10_003
    assert sum(value for (_, _, kind), value in found.items() if kind == "got") == 6000


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans(), st.integers(0, 5)), max_size=40)
)
def test_the_sum_is_what_adding_up_second_by_second_gives(steps: list[tuple[int, int, bool, int]]):
    """Whatever pods come and go, the counters are the sum over time of what was held."""
    usage, clock = started()
    held: dict[int, int] = {}
    expected = 0
    for pod, amount, there, seconds in steps:
        if there and amount:
            usage.put(pod, use("a", amount=amount), runs=True)
            held[pod] = amount
        else:
            usage.remove(pod)
            held.pop(pod, None)
        clock.now += seconds
        expected += sum(held.values()) * seconds
    assert counted(usage).get(("team", "1g.10gb", "got"), 0) == expected


def test_fault_48_series_are_bounded_and_go():
    """What nobody uses any more is gone an hour later; too many series are counted together, whatever their names are."""
    usage, clock = started()
    usage.put("p", use("a"), runs=True)
    clock.now += 10
    usage.remove("p")
    clock.now += 3600
    assert ("team", "1g.10gb", "got") in counted(usage)
    clock.now += 1
    assert counted(usage) == {}

    many = {f"example.com/{number}": Quantity.parse(1) for number in range(12_000)}
    usage.put("q", PodUse("team", "q", "", many), runs=False)
    assert len(counted(usage)) <= 10_002
    assert counted(usage)["other", "other", "asked"] == 0
