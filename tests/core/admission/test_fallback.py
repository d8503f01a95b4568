"""Fallback: what each profile becomes."""

import pytest

from tessera.core.admission.fallback import (
    AsAsked,
    FallbackPolicy,
    Permission,
    Replace,
    Unmatched,
    Wishes,
    choose,
)
from tessera.core.kubernetes.quantity import Quantity
from tessera.core.kubernetes.resources import short
from tessera.core.kubernetes.scheduling import Taint
from tests.build import container, node, offers, pod, resource

SMALL = node("small", **{"1g.10gb": 28, "2g.20gb": 0})
MEDIUM = node("medium", **{"2g.20gb": 8, "3g.30gb": 4})
WHOLE = node("whole", gpu=8)


def chosen(asker, *nodes, policy=None, wishes=None):
    """The outcome in short: a map, "as asked" or "unmatched"."""
    outcome = choose(asker, offers(*nodes), policy or FallbackPolicy(), wishes or Wishes())
    if isinstance(outcome, Replace):
        return {short(old): short(new) for old, new in outcome.by.items()}
    return "as asked" if isinstance(outcome, AsAsked) else "unmatched"


def one(profile, count=1):
    return pod(container(**{profile: count}))


@pytest.mark.parametrize(
    ("asked", "nodes", "expected"),
    [
        ("3g.30gb", [MEDIUM], "as asked"),
        ("2g.20gb", [SMALL], {"2g.20gb": "1g.10gb"}),  # 28 × 1g, and 2g at "0", which is no offer
        ("3g.30gb", [SMALL, node("x", **{"2g.20gb": 1})], {"3g.30gb": "2g.20gb"}),
        ("3g.30gb", [SMALL], {"3g.30gb": "1g.10gb"}),
        ("3g.30gb", [WHOLE], {"3g.30gb": "gpu"}),
        ("1g.10gb", [MEDIUM], {"1g.10gb": "2g.20gb"}),  # the upgrade: the smallest of the larger ones
        ("1g.10gb", [MEDIUM, WHOLE], {"1g.10gb": "2g.20gb"}),
        ("2g.20gb", [node("x", **{"1g.10gb": 1, "3g.30gb": 1})], {"2g.20gb": "1g.10gb"}),  # smaller before larger
        ("2g.20gb", [node("x", **{"1g.10gb": 1, "1g.20gb": 1})], {"2g.20gb": "1g.20gb"}),  # memory counts before compute
        ("1g.10gb", [node("x", **{"1g.10gb.me": 1, "1g.20gb": 1})], {"1g.10gb": "1g.10gb.me"}),
        ("4g.71gb", [node("x", **{"1g.18gb": 7, "1g.35gb": 2})], {"4g.71gb": "1g.35gb"}),  # profiles nobody listed
        ("2g.20gb", [], "unmatched"),
        ("2g.20gb", [node("cpu", cpu=8)], "unmatched"),
        ("gpu", [SMALL], "as asked"),  # whole GPUs are not fallback's business
    ],
)  # fmt: skip
def test_order(asked, nodes, expected):
    """What was asked, then smaller from the largest down, then larger from the smallest up, then a whole GPU."""
    assert chosen(one(asked), *nodes) == expected


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (1, "as asked"),
        (3, "as asked"),
        (4, {"2g.20gb": "1g.10gb"}),
        (9, {"2g.20gb": "gpu"}),
        (99, "unmatched"),
    ],
)
def test_quantity(count, expected):
    """An offer is one node with at least the quantity that the pod needs there."""
    nodes = [node("a", **{"2g.20gb": 3}), node("b", **{"2g.20gb": 3, "1g.10gb": 7}), node("c", gpu=16)]
    assert chosen(one("2g.20gb", count), *nodes) == expected


def test_needs_add_up_as_the_scheduler_counts():
    """Containers and sidecars add up, an init container runs alone with the sidecars before it."""
    has_two = node("a", **{"2g.20gb": 2})
    assert chosen(pod(container(**{"2g.20gb": 1}), container(**{"2g.20gb": 1})), has_two) == "as asked"
    assert chosen(pod(*[container(**{"2g.20gb": 1})] * 3), has_two) == "unmatched"
    assert (
        chosen(pod(container(**{"2g.20gb": 2}), init=(container(**{"2g.20gb": 2}),)), has_two) == "as asked"
    )
    sidecar = container(restartable=True, **{"2g.20gb": 1})
    assert chosen(pod(container(**{"2g.20gb": 2}), init=(sidecar,)), has_two) == "unmatched"
    assert chosen(pod(init=(sidecar, container(**{"2g.20gb": 2}))), has_two) == "unmatched"
    assert chosen(pod(init=(container(**{"2g.20gb": 2}), sidecar)), has_two) == "as asked"


def test_limits_count_as_requests():
    """A limit without a request is a request."""
    assert chosen(pod(container(limits={"2g.20gb": 1})), SMALL) == {"2g.20gb": "1g.10gb"}


def test_zero_is_no_request():
    """A profile asked for with quantity 0 is not looked at."""
    assert chosen(one("2g.20gb", 0), SMALL) == "as asked"


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([node("a", **{"2g.20gb": 1, "1g.10gb": 1})], "as asked"),
        # each is offered somewhere, both together only after a change: the smaller one is the milder step
        ([node("a", **{"2g.20gb": 2}), node("b", **{"1g.10gb": 2})], {"2g.20gb": "1g.10gb"}),
        ([node("a", **{"2g.20gb": 2}), node("b", **{"1g.10gb": 1})], {"1g.10gb": "2g.20gb"}),
        ([node("a", **{"2g.20gb": 1}), node("b", **{"1g.10gb": 1}), WHOLE], {"2g.20gb": "gpu", "1g.10gb": "gpu"}),
        ([node("a", **{"2g.20gb": 1, "gpu": 1})], {"1g.10gb": "gpu"}),
        ([node("a", **{"2g.20gb": 1}), node("b", **{"1g.10gb": 1})], "unmatched"),
    ],
)  # fmt: skip
def test_two_profiles_fit_together(nodes, expected):
    """What is chosen for all containers must fit on one node."""
    assert chosen(pod(container(**{"2g.20gb": 1}), container(**{"1g.10gb": 1})), *nodes) == expected


def test_one_profile_is_replaced_by_one():
    """A profile that two containers ask for becomes the same one in both."""
    both = pod(container(**{"2g.20gb": 1}), container(**{"2g.20gb": 1}))
    assert chosen(both, node("a", **{"2g.20gb": 1, "1g.10gb": 1})) == "unmatched"
    assert chosen(both, node("a", **{"2g.20gb": 1, "1g.10gb": 2})) == {"2g.20gb": "1g.10gb"}


def test_whole_gpus_beside():
    """Whole GPUs that the pod asks for besides must fit on the same node."""
    both = pod(container(**{"2g.20gb": 1}), container(gpu=1))
    assert chosen(both, node("a", **{"2g.20gb": 1}), node("b", gpu=2)) == {"2g.20gb": "gpu"}
    assert chosen(both, node("a", **{"2g.20gb": 1}), node("b", gpu=1)) == "unmatched"
    assert chosen(both, node("a", **{"2g.20gb": 1, "gpu": 1})) == "as asked"


def test_only_nodes_for_the_pod():
    """Nodes that the pod itself excludes offer nothing to it."""
    a100 = node("a", labels={"gpu": "a100"}, **{"2g.20gb": 1})
    v100 = node("v", labels={"gpu": "v100"}, gpu=1)
    tainted = node("t", taints=(Taint("dedicated"),), **{"2g.20gb": 1})
    asks = container(**{"2g.20gb": 1})
    assert chosen(pod(asks, node_selector={"gpu": "v100"}), a100, v100, tainted) == {"2g.20gb": "gpu"}
    assert chosen(pod(asks, node_name="v"), a100, v100) == {"2g.20gb": "gpu"}
    assert chosen(pod(asks), tainted, v100) == {"2g.20gb": "gpu"}
    assert chosen(pod(asks), node("n", taints=(Taint("nvidia.com/gpu"),), **{"2g.20gb": 1})) == "as asked"


@pytest.mark.parametrize(
    ("wish", "nodes", "expected"),
    [
        ("never", [SMALL], "unmatched"),
        ("never", [node("a", **{"2g.20gb": 1})], "as asked"),
        ("smaller", [node("a", **{"3g.30gb": 1}), WHOLE], {"2g.20gb": "gpu"}),
        ("smaller", [SMALL, node("a", **{"3g.30gb": 1})], {"2g.20gb": "1g.10gb"}),
        ("larger", [SMALL, node("a", **{"3g.30gb": 1})], {"2g.20gb": "3g.30gb"}),
        ("larger", [SMALL, WHOLE], {"2g.20gb": "gpu"}),
        ("any", [SMALL, node("a", **{"3g.30gb": 1})], {"2g.20gb": "1g.10gb"}),
    ],
)
def test_wishes(wish, nodes, expected):
    """A pod says which direction it can bear; both directions still end at a whole GPU."""
    assert chosen(one("2g.20gb"), *nodes, wishes=Wishes(Permission(wish))) == expected


@pytest.mark.parametrize(
    ("memory", "nodes", "expected"),
    [
        ("20Gi", [node("a", **{"1g.10gb": 7, "1g.20gb": 1})], {"3g.30gb": "1g.20gb"}),
        ("20Gi", [node("a", **{"1g.10gb": 7})], "unmatched"),
        ("20Gi", [node("a", **{"1g.10gb": 7, "7g.80gb": 1})], {"3g.30gb": "7g.80gb"}),
        ("20G", [node("a", **{"1g.20gb": 7})], {"3g.30gb": "1g.20gb"}),
        ("20Gi", [SMALL, WHOLE], {"3g.30gb": "gpu"}),
        ("20Gi", [node("v", labels={"nvidia.com/gpu.memory": "16160"}, gpu=8)], "unmatched"),
        ("40Gi", [node("a", labels={"nvidia.com/gpu.memory": "40536"}, gpu=8)], {"3g.30gb": "gpu"}),
    ],
)
def test_min_memory(memory, nodes, expected):
    """Nothing smaller than the minimum is chosen; a profile's 20gb counts as 20 GiB, a card by its label."""
    assert chosen(one("3g.30gb"), *nodes, wishes=Wishes(min_memory=Quantity.parse(memory))) == expected


@pytest.mark.parametrize(
    ("policy", "nodes", "expected"),
    [
        (FallbackPolicy(downgrades=False), [SMALL, MEDIUM], {"1g.20gb": "2g.20gb"}),
        (FallbackPolicy(upgrades=False), [MEDIUM, WHOLE], {"1g.20gb": "gpu"}),
        (FallbackPolicy(whole_gpu=False), [WHOLE], "unmatched"),
        (FallbackPolicy(enabled=False), [SMALL], "unmatched"),
        (FallbackPolicy(autoscaled=frozenset({resource("1g.20gb")})), [SMALL], "as asked"),
        (FallbackPolicy(autoscaled=frozenset({resource("gpu")})), [], {"1g.20gb": "gpu"}),
        (FallbackPolicy(chains={resource("1g.20gb"): (resource("gpu"), resource("1g.10gb"))}), [SMALL, WHOLE], {"1g.20gb": "gpu"}),
        (FallbackPolicy(chains={resource("1g.20gb"): (resource("3g.30gb"), resource("1g.10gb"))}), [SMALL, MEDIUM], {"1g.20gb": "3g.30gb"}),
        (FallbackPolicy(chains={resource("1g.20gb"): ()}), [SMALL, WHOLE], "unmatched"),
        (FallbackPolicy(chains={resource("7g.80gb"): ()}), [SMALL], {"1g.20gb": "1g.10gb"}),
        (FallbackPolicy(upgrades=False, chains={resource("1g.20gb"): (resource("3g.30gb"), resource("gpu"))}), [MEDIUM, WHOLE], {"1g.20gb": "gpu"}),
    ],
)  # fmt: skip
def test_policy(policy, nodes, expected):
    """The operator's switches, chains and types that the autoscaler can bring."""
    assert chosen(one("1g.20gb"), *nodes, policy=policy) == expected


def test_unmatched_tells_everything():
    """What was asked, what was tried, what is there for the pod and what elsewhere."""
    asker = pod(container(**{"2g.20gb": 9}), node_selector={"zone": "a"})
    here = node("n", labels={"zone": "a"}, **{"1g.10gb": 7, "2g.20gb": 3})
    outcome = choose(asker, offers(here, WHOLE), FallbackPolicy(), Wishes())
    assert outcome == Unmatched(
        asked=((resource("2g.20gb"), 9),),
        tried=(resource("1g.10gb"), resource("gpu")),
        usable=((resource("1g.10gb"), 7), (resource("2g.20gb"), 3)),
        anywhere=((resource("gpu"), 8), (resource("1g.10gb"), 7), (resource("2g.20gb"), 3)),
    )


def test_too_many_profiles():
    """A pod with dozens of different profiles is refused at once instead of searched for ever."""
    asker = pod(container(**{f"1g.{i}gb": 1 for i in range(1, 40)}))
    outcome = choose(
        asker, offers(node("n", **{f"1g.{i}gb": 1 for i in range(41, 60)})), FallbackPolicy(), Wishes()
    )
    assert isinstance(outcome, Unmatched)
    assert outcome.too_many
    asker = pod(container(**{f"1g.{i}gb": 2 for i in range(1, 9)}))
    outcome = choose(
        asker, offers(node("n", **{f"1g.{i}gb": 3 for i in range(41, 48)})), FallbackPolicy(), Wishes()
    )
    assert isinstance(outcome, Unmatched)
