"""Capacity: what there is, what is taken, what is left."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.devices.capacity import Capacity, PodUse, Usage, in_effect, in_order, pod_use, total
from tessera.core.kubernetes.pod import Pod
from tessera.core.kubernetes.quantity import ZERO, Quantity
from tessera.core.resources import is_any_gpu
from tests.build import GPU, MIG, amounts, container, node, pod

RESOURCES = ["cpu", "memory", GPU, MIG + "1g.10gb", MIG + "2g.20gb"]
PRODUCT = "nvidia.com/gpu.product"


def texts(given):
    return {resource: str(amount) for resource, amount in given.items()}


@pytest.mark.parametrize(
    ("one", "phase", "deleted", "uses"),
    [
        (pod(container(gpu=1), node_name="a"), "Running", False, {GPU: "1", "pods": "1"}),
        (pod(container(gpu=1), node_name="a"), "Pending", False, {GPU: "1", "pods": "1"}),
        (pod(container(gpu=1), node_name="a"), "Unknown", False, {GPU: "1", "pods": "1"}),
        (pod(container(gpu=1), node_name="a"), "", False, {GPU: "1", "pods": "1"}),
        (pod(container(gpu=1), node_name="a"), "Succeeded", False, {}),
        (pod(container(gpu=1), node_name="a"), "Failed", False, {}),
        (pod(container(gpu=1), node_name="a"), "Running", True, {GPU: "1", "pods": "1"}),
        (pod(container(gpu=1)), "Pending", True, {}),
        (pod(container(), node_name="a"), "Running", False, {"pods": "1"}),
        (pod(container(gpu=0), node_name="a"), "Running", False, {"pods": "1"}),
        # a limit without a request is one
        (pod(container(limits={"gpu": 2}), node_name="a"), "Running", False, {GPU: "2", "pods": "1"}),
        # the largest of the init containers, or the sum of the others
        (pod(container(gpu=1), container("b", gpu=1), init=(container("i", gpu=3),)), "Pending", False, {GPU: "3", "pods": "1"}),
        # a sidecar runs beside the containers, and beside the init containers behind it
        (pod(container(gpu=1), init=(container("s", gpu=1, restartable=True), container("i", gpu=3))), "Pending", False, {GPU: "4", "pods": "1"}),
        (pod(container(gpu=4), init=(container("i", gpu=3), container("s", gpu=1, restartable=True))), "Pending", False, {GPU: "5", "pods": "1"}),
        # overhead on top, requests of the pod as a whole in place of the sum
        (pod(container(cpu="500m"), overhead=amounts({"cpu": "250m", "memory": "64Mi"})), "Pending", False, {"cpu": "750m", "memory": "64Mi", "pods": "1"}),
        (pod(container(cpu="500m", gpu=1), pod_requests=amounts({"cpu": 2}), overhead=amounts({"cpu": "250m"})), "Pending", False, {"cpu": "2250m", GPU: "1", "pods": "1"}),
    ],
)  # fmt: skip
def test_what_a_pod_uses(one, phase, deleted, uses):
    """A pod uses what the scheduler counts for it; one that is over, or will never be bound, uses nothing."""
    assert texts(pod_use(one, phase, deleted=deleted).amounts) == uses


def test_only_what_matters_is_claimed():
    """A pod use holds the resources that were asked about."""
    assert texts(pod_use(pod(container(gpu=1, cpu=2)), "Pending", keep=is_any_gpu).amounts) == {GPU: "1"}


@pytest.mark.parametrize(
    ("spec", "actual", "allocated", "infeasible", "counts"),
    [
        ({"cpu": 1}, {"cpu": 1}, {"cpu": 1}, False, {"cpu": "1"}),
        ({"cpu": 2}, {"cpu": 1}, {"cpu": 1}, False, {"cpu": "2"}),  # asked to grow
        ({"cpu": 1}, {"cpu": 2}, {"cpu": 2}, False, {"cpu": "2"}),  # asked to shrink, not done
        ({"cpu": 1}, {"cpu": 2}, {"cpu": 1}, False, {"cpu": "2"}),
        ({"cpu": 8}, {"cpu": 1}, {"cpu": 2}, True, {"cpu": "2"}),  # the node will never give it
        ({"cpu": 1}, {}, {"memory": "1Gi"}, False, {"cpu": "1", "memory": "1Gi"}),
    ],
)
def test_resizing(spec, actual, allocated, infeasible, counts):
    """While a pod is resized the most counts of what it asks for, was promised and has."""
    assert (
        texts(in_effect(amounts(spec), amounts(actual), amounts(allocated), infeasible=infeasible)) == counts
    )


def test_nodes_and_sums():
    """Nodes come grouped by their GPUs; devices that went away under their pods leave less than nothing."""
    capacity = Capacity()
    capacity.put_node(node("b", labels={PRODUCT: "H200"}, **{"2g.20gb": 8, "gpu": 0}))
    capacity.put_node(node("a", labels={PRODUCT: "V100"}, gpu=8))
    capacity.put_node(node("c", labels={PRODUCT: "H200"}, **{"2g.20gb": 4}))
    capacity.put_node(node("d"))
    capacity.add(PodUse("x", "one", "b", amounts({"2g.20gb": 3})))
    capacity.add(PodUse("x", "two", "b", amounts({"3g.30gb": 1})))
    capacity.add(PodUse("x", "three", "", amounts({"2g.20gb": 2, "gpu": 1})))
    capacity.add(PodUse("x", "four", "elsewhere", amounts({"gpu": 1})))
    found = [
        (one.product, one.node.name, resource, *(str(n) for n in (u.allocatable, u.allocated, u.available)))
        for one in capacity.nodes()
        for resource, u in one.resources.items()
    ]
    assert found == [
        ("H200", "b", GPU, "0", "0", "0"),
        ("H200", "b", MIG + "2g.20gb", "8", "3", "5"),
        ("H200", "b", MIG + "3g.30gb", "0", "1", "-1"),
        ("H200", "c", MIG + "2g.20gb", "4", "0", "4"),
        ("V100", "a", GPU, "8", "0", "8"),
    ]
    assert texts(capacity.asked) == {GPU: "1", MIG + "2g.20gb": "2"}
    assert len(capacity) == 4
    assert "d" in capacity
    capacity.pop("b")
    assert [one.node.name for one in capacity.nodes()] == ["c", "a"]


def test_order_of_resources():
    """Whole GPUs first, then MIG devices from small to large, then the rest by name."""
    names = ["pods", MIG + "2g.20gb", "cpu", MIG + "1g.10gb.me", GPU, MIG + "1g.10gb", "example.com/x"]
    assert list(in_order(dict.fromkeys(names))) == [
        GPU, MIG + "1g.10gb", MIG + "1g.10gb.me", MIG + "2g.20gb", "cpu", "example.com/x", "pods",
    ]  # fmt: skip


quantities = st.sampled_from(["0", "1", "3", "250m", "1500m", "1Gi", "1536Mi", "7k", "0.5"]).map(
    Quantity.parse
)
some = st.dictionaries(st.sampled_from(RESOURCES), quantities, max_size=4)
uses = st.builds(
    PodUse, st.just("n"), st.text("abc", max_size=3), st.sampled_from(["", "a", "b", "c", "gone"]), some
)
clusters = st.lists(
    st.builds(
        lambda name, product, has: (name, product, has),
        st.sampled_from("abc"),
        st.sampled_from(["H200", "V100", ""]),
        some,
    ),
    max_size=4,
)


def capacity_of(nodes, given):
    capacity = Capacity()
    for name, product, has in nodes:
        capacity.put_node(node(name, labels={PRODUCT: product} if product else {}, **has_texts(has)))
    for use in given:
        capacity.add(use)
    return capacity


def has_texts(has):
    return {name: str(amount) for name, amount in has.items()}


@given(nodes=clusters, given_uses=st.lists(uses, max_size=8))
def test_law_allocated_and_available_are_allocatable(nodes, given_uses):
    """For every node, every product and all together: allocated + available = allocatable."""
    capacity = capacity_of(nodes, given_uses)
    rows = list(capacity.nodes())
    products = {product: total(one.resources for one in rows if one.product == product) for product in ["H200", "V100", ""]}  # fmt: skip
    everything = total(one.resources for one in rows)
    for usages in [*(one.resources for one in rows), *products.values(), everything]:
        for usage in usages.values():
            assert usage.allocated + usage.available == usage.allocatable
    assert total(products.values()) == everything
    there = {name: has for name, _, has in nodes}
    for resource in RESOURCES:
        allocatable = sum((has.get(resource, ZERO).value for has in there.values()), Fraction(0))
        taken = sum(
            (c.amounts[resource].value for c in given_uses if c.node in there and resource in c.amounts),
            Fraction(0),
        )
        usage = everything.get(resource, Usage())
        assert (usage.allocatable.value, usage.allocated.value) == (allocatable, taken)
        asked = sum((c.amounts[resource].value for c in given_uses if not c.node and resource in c.amounts), Fraction(0))  # fmt: skip
        assert capacity.asked.get(resource, ZERO).value == asked


@given(nodes=clusters, stay=st.lists(uses, max_size=5), leave=st.lists(uses, max_size=5), data=st.data())
def test_law_counting_out_undoes_counting_in(nodes, stay, leave, data):
    """Claims that came and went, in whatever order, leave no trace."""
    capacity = capacity_of(nodes, data.draw(st.permutations(stay + leave)))
    for use in data.draw(st.permutations(leave)):
        capacity.remove(use)

    def seen(one):
        return [(row.node.name, {r: u for r, u in row.resources.items() if u}) for row in one.nodes()], {
            r: a for r, a in one.asked.items() if a
        }

    assert seen(capacity) == seen(capacity_of(nodes, stay))


def test_a_pod_is_empty():
    """A pod without containers takes its place and nothing else."""
    assert texts(pod_use(Pod(node_name="a"), "Running").amounts) == {"pods": "1"}


def test_devices_by_a_claim_count_once():
    """While a bridged pod waits it asks for devices; when it has a node the claim has them, whatever its record says yet."""
    asks = {MIG + "2g.20gb": Quantity.parse("1"), "cpu": Quantity.parse("2")}
    text = "1*2g.20gb=2g.20gb/tessera-any,1g.10gb/tessera-any"
    waits, runs = (PodUse("ml", "p", on, asks, claim=text) for on in ("", "a"))
    one = Capacity()
    one.put_node(replace(node("a", cpu=8), dra={MIG + "1g.10gb": 3}))
    one.add(waits)
    assert texts(one.asked) == {MIG + "2g.20gb": "1", "cpu": "2"}
    one.remove(waits)
    one.add(runs)
    one.claimed = {"a": {MIG + "1g.10gb": 1}}
    assert {name: str(usage.allocated) for name, usage in one.usage("a").items()} == {
        MIG + "1g.10gb": "1",
        "cpu": "2",
    }
    one.remove(runs)
    assert str(one.usage("a")["cpu"].allocated) == "0"
