"""Fallback: what each profile becomes."""

from fractions import Fraction

import pytest

from tessera.core.admission.fallback.candidates import Step
from tessera.core.admission.fallback.found import AsAsked, Replace, Trial, Unmatched
from tessera.core.admission.fallback.search import FallbackSearch
from tessera.core.admission.policy import NO_CONSTRAINTS, FallbackPolicy, Minimum, Permission
from tessera.core.kubernetes.node import Node
from tessera.core.kubernetes.quantity import Quantity
from tessera.core.kubernetes.scheduling import NodeSelectorTerm, Requirement, Taint
from tessera.core.resources import short
from tests.build import amounts, container, node, offers, pod, resource

SMALL = node("small", **{"1g.10gb": 28, "2g.20gb": 0})
MEDIUM = node("medium", **{"2g.20gb": 8, "3g.30gb": 4})
WHOLE = node("whole", gpu=8)
MEMORY = "nvidia.com/gpu.memory"


def chosen(asker, *nodes, policy=None, wishes=None):
    """The outcome in short: a map, "as asked" or "unmatched"."""
    outcome = FallbackSearch(
        asker, offers(*nodes), policy or FallbackPolicy(), wishes or NO_CONSTRAINTS
    ).choose()
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
        ("4g.71gb", [node("x", **{"1g.18gb": 7, "1g.35gb": 2})], {"4g.71gb": "1g.35gb"}),  # profiles that stand in no table
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
        (8, "unmatched"),  # eight whole GPUs in place of eight slices would be a waste
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
        ([node("a", **{"2g.20gb": 1}), node("b", **{"1g.10gb": 1}), WHOLE], "unmatched"),  # two whole GPUs are too many
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
    assert (
        chosen(one("2g.20gb"), *nodes, wishes=NO_CONSTRAINTS.also(Permission(wish), "the pod's")) == expected
    )


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
    assert (
        chosen(
            one("3g.30gb"),
            *nodes,
            wishes=NO_CONSTRAINTS.at_least(Minimum(Quantity.parse(memory), "the pod's min-memory")),
        )
        == expected
    )


@pytest.mark.parametrize(
    ("policy", "nodes", "expected"),
    [
        (FallbackPolicy(downgrades=False), [SMALL, MEDIUM], {"1g.20gb": "2g.20gb"}),
        (FallbackPolicy(upgrades=False), [MEDIUM, WHOLE], {"1g.20gb": "gpu"}),
        (FallbackPolicy(whole_gpu=False), [WHOLE], "unmatched"),
        (FallbackPolicy(min_memory=Quantity.parse("11Gi")), [SMALL], "unmatched"),
        (FallbackPolicy(min_memory=Quantity.parse("10Gi")), [SMALL], {"1g.20gb": "1g.10gb"}),
        (FallbackPolicy(min_memory_fraction=Fraction(1, 2)), [SMALL], {"1g.20gb": "1g.10gb"}),
        (FallbackPolicy(min_memory_fraction=Fraction(51, 100)), [SMALL, WHOLE], {"1g.20gb": "gpu"}),
        (FallbackPolicy(min_memory_fraction=Fraction(51, 100)), [SMALL, node("v", labels={MEMORY: "10240"}, gpu=8)], "unmatched"),
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
    """What was asked, every candidate with its reason, what is there for the pod and what elsewhere."""
    asker = pod(container(**{"2g.20gb": 9}), node_selector={"zone": "a"})
    here = node("n", labels={"zone": "a"}, **{"1g.10gb": 7, "2g.20gb": 3})
    outcome = FallbackSearch(asker, offers(here, WHOLE), FallbackPolicy(), NO_CONSTRAINTS).choose()
    assert outcome == Unmatched(
        asked=((resource("2g.20gb"), 9),),
        trials=(
            trial("2g.20gb", "2g.20gb", Step.AS_ASKED, "not enough: at most 3 a node, 9 needed"),
            trial("2g.20gb", "1g.10gb", Step.SMALLER, "not enough: at most 7 a node, 9 needed"),
            trial("2g.20gb", "gpu", Step.WHOLE_GPU, "forbidden by fallback.maxWholeGPUs: 1"),
        ),
        usable=((resource("1g.10gb"), 7), (resource("2g.20gb"), 3)),
        anywhere=((resource("gpu"), 8), (resource("1g.10gb"), 7), (resource("2g.20gb"), 3)),
    )


def trial(asked, candidate, kind, reason, *, offered=False, chosen=False):
    return Trial(resource(asked), resource(candidate), kind, offered, reason, chosen)


def test_too_many_profiles():
    """A pod with dozens of different profiles is refused at once instead of searched for ever."""
    many = pod(container(**{f"1g.{i}gb": 1 for i in range(1, 40)}))
    outcome = FallbackSearch(many, offers(node("n", **{f"1g.{i}gb": 1 for i in range(41, 60)})), FallbackPolicy(), NO_CONSTRAINTS).choose()  # fmt: skip
    assert isinstance(outcome, Unmatched)
    assert outcome.too_many
    eight = pod(container(**{f"1g.{i}gb": 2 for i in range(1, 9)}))
    assert chosen(eight, node("n", **{f"1g.{i}gb": 3 for i in range(41, 48)})) == "unmatched"


PRODUCT = "nvidia.com/gpu.product"


@pytest.mark.parametrize(
    "labels",
    [
        {PRODUCT: "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "nvidia.com/mig.strategy": "single"},
        {PRODUCT: "Tesla-T4-SHARED"},
        {"nvidia.com/gpu.replicas": "4"},
        {"nvidia.com/gpu.sharing-strategy": "mps"},
        {"nvidia.com/gpu.sharing-strategy": "time-slicing"},
    ],
)
def test_slices_and_shares_by_the_name_of_a_gpu(labels):
    """What is called nvidia.com/gpu is a whole GPU only where the node does not say otherwise, and on every node."""
    shared = node("s", labels=labels, gpu=7)
    assert chosen(one("3g.20gb"), shared) == "unmatched"
    assert chosen(one("3g.20gb"), shared, WHOLE) == "unmatched"
    assert chosen(one("7g.40gb"), shared, WHOLE, SMALL) == {"7g.40gb": "1g.10gb"}
    away = node("s", labels={**labels, "zone": "b"}, gpu=7)
    here = node("w", labels={"zone": "a"}, gpu=7)
    asker = pod(container(**{"3g.20gb": 1}), node_selector={"zone": "a"})
    assert chosen(asker, away, here) == {"3g.20gb": "gpu"}, "nodes that the pod cannot use do not matter"
    assert chosen(pod(container(gpu=1)), shared) == "as asked"


def test_labels_that_say_whole():
    """One replica, no sharing: a whole GPU."""
    labels = {PRODUCT: "Tesla-T4", "nvidia.com/gpu.replicas": "1", "nvidia.com/gpu.sharing-strategy": "none"}
    assert chosen(one("3g.20gb"), node("n", labels=labels, gpu=1)) == {"3g.20gb": "gpu"}


def test_shares_of_slices():
    """A share is no profile: left alone when asked for, chosen only where a chain names it, and never below a minimum."""
    shares = node("s", **{"1g.10gb.shared": 28})
    assert chosen(one("1g.20gb"), shares) == "unmatched"
    assert chosen(one("1g.10gb"), shares) == "unmatched"
    assert chosen(one("1g.10gb.shared"), SMALL) == "as asked"
    chain = FallbackPolicy(chains={resource("1g.20gb"): (resource("1g.10gb.shared"),)})
    assert chosen(one("1g.20gb"), shares, policy=chain) == {"1g.20gb": "1g.10gb.shared"}
    minimum = NO_CONSTRAINTS.at_least(Minimum(Quantity.parse("2Gi"), "the pod's min-memory"))
    assert chosen(one("1g.20gb"), shares, policy=chain, wishes=minimum) == "unmatched"


@pytest.mark.parametrize(
    ("asked", "has", "expected"),
    [
        ("1g.24gb.me.all", {"1g.24gb.gfx": 4, "1g.24gb.me": 1, "2g.48gb": 2}, "unmatched"),
        ("1g.24gb.me.all", {"1g.24gb.gfx": 4, "gpu": 1}, {"1g.24gb.me.all": "gpu"}),
        ("2g.12gb.me", {"1g.6gb": 4, "1g.6gb.me": 1}, {"2g.12gb.me": "1g.6gb.me"}),
        (
            "1g.24gb.me",
            {"1g.24gb.me.all": 1},
            {"1g.24gb.me": "1g.24gb.me.all"},
        ),  # which has those engines too
        ("1g.24gb.gfx", {"1g.24gb": 4, "1g.24gb.me": 4}, "unmatched"),
        ("1g.24gb", {"1g.24gb.gfx": 4}, {"1g.24gb": "1g.24gb.gfx"}),
        ("2g.48gb", {"1g.24gb.gfx": 4, "1g.24gb-me": 4}, {"2g.48gb": "1g.24gb.gfx"}),
    ],
)
def test_engines_are_kept(asked, has, expected):
    """Engines that were asked for are there afterwards, or it is a whole GPU, which has them all."""
    assert chosen(one(asked), node("n", **has)) == expected


@pytest.mark.parametrize(
    ("asked", "count", "nodes", "expected"),
    [
        ("7g.80gb", 1, [SMALL, WHOLE], {"7g.80gb": "gpu"}),
        ("7g.80gb", 3, [SMALL, WHOLE], {"7g.80gb": "gpu"}),  # three cards for three cards: no waste
        ("7g.80gb", 1, [node("n", **{"7g.80gb": 1, "gpu": 1})], "as asked"),
        ("7g.80gb", 1, [SMALL, node("v", labels={MEMORY: "16160"}, gpu=8)], {"7g.80gb": "1g.10gb"}),
        ("7g.80gb", 1, [SMALL, WHOLE, node("v", labels={MEMORY: "16160"}, gpu=8)], {"7g.80gb": "1g.10gb"}),  # it could land there
        ("7g.80gb", 1, [SMALL, node("h", labels={MEMORY: "81559"}, gpu=8)], {"7g.80gb": "gpu"}),
        ("7g.999gb", 1, [SMALL, WHOLE], {"7g.999gb": "gpu"}),  # a card that stands in no table
        ("4g.24gb", 1, [SMALL, WHOLE], {"4g.24gb": "gpu"}),  # A30
        ("4g.96gb", 1, [SMALL, WHOLE], {"4g.96gb": "gpu"}),  # RTX PRO 6000
        ("7g.70gb", 1, [SMALL, WHOLE], {"7g.70gb": "gpu"}),  # simulated
        ("4g.40gb", 1, [SMALL, WHOLE], {"4g.40gb": "1g.10gb"}),  # half an A100
    ],
)  # fmt: skip
def test_whole_cards(asked, count, nodes, expected):
    """A profile that is a whole card has a whole GPU for its equal, unless a label says that it could be smaller."""
    assert chosen(one(asked, count), *nodes) == expected


def test_equals_obey_the_operator():
    """Where whole GPUs are forbidden, or a chain is given, there is no equal."""
    assert chosen(one("7g.80gb"), SMALL, WHOLE, policy=FallbackPolicy(whole_gpu=False)) == {"7g.80gb": "1g.10gb"}  # fmt: skip
    chain = FallbackPolicy(chains={resource("7g.80gb"): (resource("1g.10gb"), resource("gpu"))})
    assert chosen(one("7g.80gb"), SMALL, WHOLE, policy=chain) == {"7g.80gb": "1g.10gb"}


@pytest.mark.parametrize(
    ("count", "nodes", "most", "expected"),
    [
        (3, [node("a", labels={MEMORY: "40536"}, gpu=8)], 1, "unmatched"),
        (1, [node("a", labels={MEMORY: "40536"}, gpu=8)], 1, {"7g.80gb": "gpu"}),
        (3, [node("a", labels={MEMORY: "40536"}, gpu=8)], 3, {"7g.80gb": "gpu"}),
        (3, [node("h", labels={MEMORY: "81559"}, gpu=8)], 1, {"7g.80gb": "gpu"}),
        (3, [WHOLE], 1, {"7g.80gb": "gpu"}),  # no label speaks of its memory
        (3, [WHOLE, node("a", labels={MEMORY: "40536"}, gpu=8)], 1, "unmatched"),  # it could land there
    ],
)
def test_a_chain_ends_at_a_whole_gpu(count, nodes, most, expected):
    """A whole GPU that stands in a chain is an equal only if no card has less memory; else `maxWholeGPUs` holds for it."""
    chain = FallbackPolicy(max_whole_gpus=most, chains={resource("7g.80gb"): (resource("gpu"),)})
    assert chosen(one("7g.80gb", count), *nodes, policy=chain) == expected


def test_the_whole_gpus_of_a_chain_are_counted_with_the_others():
    """A small card in place of a 7g, and one in place of a 1g: two whole GPUs, and one is allowed."""
    both = pod(container(**{"7g.80gb": 1}), container(**{"1g.10gb": 1}))
    chain = FallbackPolicy(chains={resource("7g.80gb"): (resource("gpu"),)})
    assert chosen(both, node("h", labels={MEMORY: "81559"}, gpu=8), policy=chain) == {"7g.80gb": "gpu", "1g.10gb": "gpu"}  # fmt: skip
    assert chosen(both, node("a", labels={MEMORY: "40536"}, gpu=8), policy=chain) == "unmatched"


def test_most_whole_gpus():
    """The operator can allow more, or none."""
    two = pod(container(**{"1g.10gb": 1}), container(**{"2g.20gb": 1}))
    assert chosen(two, WHOLE) == "unmatched"
    assert chosen(two, WHOLE, policy=FallbackPolicy(max_whole_gpus=2)) == {"1g.10gb": "gpu", "2g.20gb": "gpu"}
    assert chosen(one("1g.10gb", 7), WHOLE, policy=FallbackPolicy(max_whole_gpus=6)) == "unmatched"
    assert chosen(one("1g.10gb"), WHOLE, policy=FallbackPolicy(max_whole_gpus=0)) == "unmatched"
    both = pod(container(**{"7g.80gb": 1}), container(**{"1g.10gb": 1}))
    assert chosen(both, WHOLE) == {"7g.80gb": "gpu", "1g.10gb": "gpu"}, "an equal does not count"


@pytest.mark.parametrize(
    ("asks", "has", "holds"),
    [
        ({"cpu": 64}, {"cpu": 16}, False),
        ({"cpu": 16}, {"cpu": 16}, True),
        ({"cpu": "15900m"}, {"cpu": "15890m"}, False),
        ({"cpu": 64}, {}, True),  # the node does not say
        ({"memory": "2Ti"}, {"cpu": 16, "memory": "1Ti"}, False),
        ({"rdma/hca": 1}, {"cpu": 16}, False),
        ({"rdma/hca": 1}, {"rdma/hca": 1}, True),
        ({"hugepages-2Mi": "1Gi"}, {"cpu": 1}, False),
        ({"amd.com/gpu": 1}, {"cpu": 16}, False),
    ],
)
def test_nodes_that_could_never_hold_the_pod(asks, has, holds):
    """A node on which the pod would not fit even if it were empty offers nothing to it."""
    asker = pod(container(**{"2g.20gb": 1, **asks}))
    small = node("small", **{"2g.20gb": 1, **has})
    other = node("other", **{"1g.10gb": 1, **dict.fromkeys(asks, "1P")})
    assert chosen(asker, small, other) == ("as asked" if holds else {"2g.20gb": "1g.10gb"})
    assert chosen(asker, small) == ("as asked" if holds else "unmatched")


def test_needs_count_as_the_scheduler_counts():
    """Init containers, overhead and pod-level requests are part of what a node must hold."""
    fit = node("n", **{"2g.20gb": 1, "cpu": 8})
    asks = container(**{"2g.20gb": 1, "cpu": 4})
    assert chosen(pod(asks, init=(container(cpu=8),)), fit) == "as asked"
    assert chosen(pod(asks, init=(container(cpu=9),)), fit) == "unmatched"
    assert chosen(pod(asks, container(cpu=5)), fit) == "unmatched"
    assert chosen(pod(asks, overhead=amounts({"cpu": 5})), fit) == "unmatched"
    assert chosen(pod(asks, pod_requests=amounts({"cpu": 9})), fit) == "unmatched"


def test_nodes_of_one_group_differ_in_size():
    """Among nodes with the same offer one that is large enough suffices, wherever it stands, and only if it may be used."""
    sizes = [node(f"n{i}", labels={"zone": "ab"[i % 2]}, **{"2g.20gb": 1, "cpu": i}) for i in range(1, 9)]
    asks = container(**{"2g.20gb": 1, "cpu": 8})
    assert chosen(pod(asks), *sizes) == "as asked"
    assert chosen(pod(asks, node_selector={"zone": "a"}), *sizes) == "as asked"
    assert chosen(pod(asks, node_selector={"zone": "b"}), *sizes) == "unmatched"


def test_what_is_away_counts():
    """Devices that are away for a moment are offered, and so is room for them."""
    restarting = Node(
        "n",
        allocatable=amounts({"2g.20gb": 0, "rdma/hca": 0}),
        unavailable=amounts({"2g.20gb": 2, "rdma/hca": 1}),
    )
    asker = pod(container(**{"2g.20gb": 2, "rdma/hca": 1}))
    assert chosen(asker, restarting, SMALL) == "as asked"


@pytest.mark.parametrize(
    "bound",
    [
        {"node_name": "n"},
        {"required_terms": (NodeSelectorTerm(fields=(Requirement("metadata.name", "In", ("n",)),)),)},
    ],
)
def test_what_the_autoscaler_brings_is_not_for_bound_pods(bound):
    """No autoscaler can add anything to the one node that a pod is bound to."""
    policy = FallbackPolicy(autoscaled=frozenset({resource("2g.20gb")}))
    here = node("n", **{"1g.10gb": 1})
    assert chosen(one("2g.20gb"), here, policy=policy) == "as asked"
    assert chosen(pod(container(**{"2g.20gb": 1}), **bound), here, policy=policy) == {"2g.20gb": "1g.10gb"}


def test_taints_that_the_operator_knows_to_pass():
    """Keys, and all keys of a domain."""
    asker, policy = one("2g.20gb"), FallbackPolicy(transient_taints=("example.com/*", "draining"))
    for key, expected in (
        ("example.com/upgrading", "as asked"),
        ("draining", "as asked"),
        ("draining/x", {"2g.20gb": "1g.10gb"}),
        ("sub.example.com/x", {"2g.20gb": "1g.10gb"}),
        ("dedicated", {"2g.20gb": "1g.10gb"}),
    ):
        tainted = node("n", taints=(Taint(key),), **{"2g.20gb": 1})
        assert chosen(asker, tainted, SMALL, policy=policy) == expected, key


def test_a_chain_is_tried_in_its_own_order_with_several_profiles():
    """A chain's first rung comes before its others, whatever they are."""
    chains = {resource("2g.20gb"): (resource("3g.30gb"), resource("1g.10gb"))}
    both = pod(container(**{"2g.20gb": 1}), container(**{"1g.5gb": 1}))
    has = node("n", **{"1g.10gb": 2, "3g.30gb": 1, "1g.5gb": 1})
    assert chosen(both, has, policy=FallbackPolicy(chains=chains)) == {"2g.20gb": "3g.30gb"}


def test_verdicts_name_what_was_passed_over():
    """Candidates that are there, and not together with the rest, say so; the chosen one is marked."""
    both = pod(container(**{"2g.20gb": 1}), container(**{"1g.10gb": 1}))
    question = FallbackSearch(
        both,
        offers(node("a", **{"2g.20gb": 2}), node("b", **{"1g.10gb": 2})),
        FallbackPolicy(),
        NO_CONSTRAINTS,
    )
    assert list(question.trials({resource("2g.20gb"): resource("1g.10gb")})) == [
        trial("2g.20gb", "2g.20gb", Step.AS_ASKED, "not together with the rest", offered=True),
        trial("2g.20gb", "1g.10gb", Step.SMALLER, "offered, up to 2 a node", offered=True, chosen=True),
        trial("2g.20gb", "gpu", Step.WHOLE_GPU, "not offered"),
        trial("1g.10gb", "1g.10gb", Step.AS_ASKED, "offered, up to 2 a node", offered=True, chosen=True),
        trial("1g.10gb", "2g.20gb", Step.LARGER, "offered, up to 2 a node", offered=True),
        trial("1g.10gb", "gpu", Step.WHOLE_GPU, "not offered"),
    ]


@pytest.mark.parametrize("size", [2_000])
def test_huge_pods_are_decided_in_time(size):
    """Thousands of containers, profiles and affinity terms: bounded work, counted by the search itself."""
    profiles = [f"1g.{i}gb" for i in range(1, 9)]
    many = [container(**{profiles[i % 8]: 1}) for i in range(size)]
    init = tuple(container(**{profiles[i % 8]: i}) for i in range(1, size))
    terms = tuple(NodeSelectorTerm((Requirement("zone", "In", (f"z{i}",)),)) for i in range(size))
    nodes = [node(f"n{i}", labels={"zone": f"z{i}"}, **{"1g.100gb": 1 + i % 7}) for i in range(500)]
    question = FallbackSearch(
        pod(*many, init=init, required_terms=terms), offers(*nodes), FallbackPolicy(), NO_CONSTRAINTS
    )
    assert isinstance(question.choose(), Unmatched)
    assert question._together is not None
    assert question._together.combinations <= 10_001
