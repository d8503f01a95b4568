"""How much is kept of a pod that is followed."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.devices.capacity import Capacity, PodUse
from tessera.core.devices.followed import (
    LARGE,
    UNCOUNTED,
    NamespaceBytes,
    is_small_place,
    kept_resources,
    place_bytes,
)
from tessera.core.kubernetes.pod import Pod
from tessera.core.kubernetes.quantity import ZERO, Quantity
from tessera.core.kubernetes.scheduling import NodeSelectorTerm, Requirement, Toleration
from tessera.core.planning.waiting import NodeRoom, allowed_nodes, groups_of
from tests.build import MIG, node

ONE = Quantity.parse("1")
INVENTED = [f"ex.io/invented-{number}" for number in range(9000)]
REAL = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "pods",
    MIG + "1g.10gb",
    MIG + "1g.10gb.shared",
    "nvidia.com/gpu",
]


def test_real_resources_are_always_kept():
    """What every node has, and what a known card can have, wherever it stands among invented resources."""
    kept = kept_resources([*INVENTED, *REAL, "rdma/hca"], {"rdma/hca"})
    assert kept[-8:] == [*REAL, "rdma/hca"]
    assert kept[:-8] == INVENTED[: len(kept) - 8]
    assert sum(len(one) for one in kept[:-8]) < 2048


@pytest.mark.parametrize("names", [["a/b"] * 9000, INVENTED, [f"{MIG}{n}g.{n}gb" for n in range(10, 9000)]])
def test_invented_resources_are_few(names):
    """Short names, long names, and names of slices that no card has: two kilobytes with what they cost besides."""
    assert 0 < len(kept_resources(names)) <= 25


@pytest.mark.parametrize(
    ("place", "is_small"),
    [
        (Pod(), True),
        (Pod(node_selector={f"key-{n}": "value" for n in range(16)}), True),
        (
            Pod(
                required_terms=(NodeSelectorTerm((Requirement("host", "NotIn", ("node-12345",) * 350),), ()),)
            ),
            True,
        ),
        (
            Pod(required_terms=(NodeSelectorTerm((Requirement("host", "In", ("x" * 60,) * 14_000),), ()),)),
            False,
        ),
        (
            Pod(required_terms=(NodeSelectorTerm((), (Requirement("metadata.name", "In", ("x",) * 5000),)),)),
            False,
        ),
        (Pod(tolerations=tuple(Toleration(f"key-{n}") for n in range(8000))), False),
        (Pod(node_selector={f"key-{n}": "value" for n in range(8000)}), False),
    ],
)
def test_where_a_pod_may_go_is_kept_where_it_is_small(place, is_small):
    """Hundreds of nodes by name are; a megabyte of anything is not."""
    assert is_small_place(place) is is_small
    assert place_bytes(place) > 0 or place == Pod()


def test_fault_70_a_waiting_pod_beyond_the_bounds_asks_for_what_no_node_has():
    """A bound pod keeps what it takes of its node; only one that waits asks for more."""
    amounts = dict.fromkeys([*REAL, *INVENTED], ONE)
    waits, bound = PodUse("team", "p", amounts=amounts).bounded(), PodUse("team", "p", "n", amounts).bounded()
    assert waits.is_partial
    assert not bound.is_partial
    assert {*REAL, UNCOUNTED} <= waits.amounts.keys()
    assert {*REAL} <= bound.amounts.keys()
    assert UNCOUNTED not in bound.amounts
    assert max(len(waits.amounts), len(bound.amounts)) < 40


@pytest.mark.parametrize("bound_to", ["", "gpu-1"])
def test_a_pod_whose_places_are_not_kept_may_go_nowhere(bound_to):
    """No move is advised, and no card is cut, for a pod that may not be able to use the node."""
    labels = {f"key-{number}": "value" for number in range(8000)}
    one_device, three_devices = {MIG + "1g.10gb": ONE}, {MIG + "3g.40gb": ONE}
    use = PodUse("team", "p", bound_to, one_device, asked=three_devices, where=Pod(node_selector=labels))
    for bounded in (use.bounded(), replace(use.bounded(), amounts=one_device)):
        groups = groups_of([bounded], since="")
        assert [*allowed_nodes(groups, [NodeRoom(node("gpu-2"), {})])[0]] == [[] for _ in groups]


def test_a_usual_pod_is_kept_as_it_is():
    """Nothing is copied where nothing is left out."""
    use = PodUse(
        "team", "p", amounts=dict.fromkeys([*REAL, "rdma/hca"], ONE), where=Pod(node_selector={"a": "b"})
    )
    assert use.bounded() is use


def test_nodes_that_never_were_are_forgotten():
    """A pod can name any node; when it is gone, nothing of that name stays."""
    capacity = Capacity()
    capacity.put_node(node("real"))
    for number in range(50):
        for name in ("real", f"invented-{number}"):
            use = PodUse("team", "p", name, {"cpu": ONE})
            capacity.add(use)
            before = capacity.edition(name)
            capacity.remove(use)
            assert capacity.edition(name) != before
    assert capacity._editions.keys() == {"real"}
    capacity.add(PodUse("team", "p", "invented", {"cpu": ONE}))
    capacity.forget_pods()
    assert capacity._editions.keys() == {"real"}
    assert capacity.usage("real").get("cpu", None) is None or capacity.usage("real")["cpu"].allocated == ZERO


def test_fault_95_large_objects_of_a_namespace_have_a_total():
    """Large objects count until they are gone, each once; another namespace and small objects have room all the time."""
    kept, large = NamespaceBytes(), 32 * 1024
    taken = [number for number in range(1000) if kept.take("team", f"pod-{number}", large)]
    assert taken == [*range(64)]
    assert kept.take("other", "pod", large)
    assert kept.take("team", "small", LARGE - 1)
    assert kept.take("team", "pod-0", large), "the same object again"
    assert not kept.take("team", "pod-0", 2 * large), "it has grown too large"
    assert kept.take("team", "pod-70", large), "in the place of the one that has grown"
    kept.remove("team", "pod-999")
    assert not kept.take("team", "pod-71", large)
    kept.remove("team", "pod-1")
    assert kept.take("team", "pod-71", large)
    kept.clear()
    assert not kept


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 9), st.integers(0, 2**20), st.booleans()), max_size=60
    )
)
def test_a_namespace_never_has_more_than_its_bytes(changes):
    """However objects come, change and go: the sums are those of the objects that are kept."""
    kept, sizes = NamespaceBytes(), dict[tuple[str, str], int]()
    for namespace, number, size, is_gone in changes:
        key = (namespace, str(number))
        sizes.pop(key, None)
        if is_gone:
            kept.remove(*key)
            continue
        others = sum(known for (other, _), known in sizes.items() if other == namespace)
        fits = size < LARGE or others + size <= 2 * 2**20
        assert kept.take(*key, size) is fits
        if fits and size >= LARGE:
            sizes[key] = size
    assert bool(kept) is bool(sizes)
