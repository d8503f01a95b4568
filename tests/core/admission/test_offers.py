"""The index: what it says is what walking all nodes would say, whatever came before."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.core.admission.view.offers import Offers
from tessera.core.kubernetes.node import Namespace, why_excluded
from tessera.core.kubernetes.scheduling import NodeSelectorTerm, Requirement, Taint, Toleration
from tests.build import node, pod
from tests.examples import examples

KEYS = ["zone", "gpu", "size"]
VALUES = ["a", "b", "7"]
labels = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES))
taints = st.lists(
    st.builds(Taint, st.sampled_from(["dedicated", "nvidia.com/gpu"]), st.sampled_from(["", "x"]), st.sampled_from(["NoSchedule", "NoExecute"])),
    max_size=2,
).map(tuple)  # fmt: skip
names = st.sampled_from(["n1", "n2", "n3", "n4"])
nodes = st.builds(
    lambda name, labels, taints, has: node(name, labels=labels, taints=taints, **has),
    names, labels, taints, st.dictionaries(st.sampled_from(["1g.10gb", "2g.20gb", "gpu", "cpu"]), st.integers(0, 2)),
)  # fmt: skip
requirements = st.builds(
    Requirement, st.sampled_from(KEYS), st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]),
    st.lists(st.sampled_from(VALUES), min_size=1, max_size=2).map(tuple),
)  # fmt: skip
fields = st.builds(
    Requirement,
    st.just("metadata.name"),
    st.sampled_from(["In", "NotIn"]),
    st.lists(names, min_size=1, max_size=2).map(tuple),
)
terms = st.builds(
    NodeSelectorTerm, st.lists(requirements, max_size=2).map(tuple), st.lists(fields, max_size=1).map(tuple)
)
pods = st.builds(
    lambda selector, affinity, name, tolerations: pod(
        node_selector=selector, required_terms=affinity, node_name=name, tolerations=tolerations
    ),
    labels, st.none() | st.lists(terms, max_size=2).map(tuple), st.just("") | names,
    st.lists(st.builds(Toleration, st.just("dedicated"), st.sampled_from(["Exists", "Equal"]), st.sampled_from(["", "x"])), max_size=1).map(tuple),
)  # fmt: skip
changes = st.lists(st.one_of(nodes, names, pods), max_size=12)


@given(changes, pods)
@settings(max_examples=examples(300))
def test_like_a_walk(changes, asker):
    """After any sequence of changes and questions, the index gives what a walk over the nodes gives."""
    index = Offers()
    for change in changes:
        if isinstance(change, str):
            index.remove(change)
        elif hasattr(change, "allocatable"):
            index.put(change)
        else:
            index.for_pod(change)  # makes tables that later changes must keep right
    walked = {
        one.offer for one in index.nodes.values() if one.offer.counts and why_excluded(asker, one) is None
    }
    assert set(index.for_pod(asker)) == walked
    assert len(index.for_pod(asker)) == len(walked)


def test_version_grows_only_with_what_matters():
    """A node that comes again unchanged, or has no GPU, leaves every answer valid."""
    index = Offers([node("n", gpu=1)])
    version = index.version
    assert not index.put(node("n", gpu=1))
    assert index.put(node("plain", labels={"zone": "a"}))
    assert index.put(node("plain", labels={"zone": "b"}, **{"2g.20gb": 0}))
    assert index.remove("plain")
    assert not index.remove("other")
    assert not index.remove_namespace("other")
    assert index.version == version
    assert index.put(node("n", gpu=2))
    assert index.version > version
    version = index.version
    assert index.put_namespace(Namespace("x"))
    assert index.version > version
    version = index.version
    assert index.put(node("n"))
    assert index.version > version


def test_replace():
    """A new list of nodes takes the place of the old one: what is not in it is gone."""
    index = Offers([node("a", gpu=1), node("b", **{"1g.10gb": 1})])
    index.replace([node("b", **{"2g.20gb": 1})])
    assert list(index.nodes) == ["b"]
    assert index.anywhere() == {"nvidia.com/mig-2g.20gb": 1}


def test_many_kinds_of_pods():
    """Pods that each look at other labels do not make the index grow without bound."""
    index = Offers([node("a", labels={"k1": "x"}, gpu=1)])
    for i in range(500):
        index.for_pod(pod(node_selector={f"k{i}": "x"}))
    assert len(index._tables) <= 64
    assert index.for_pod(pod()) == [node("a", gpu=1).offer]
    assert index.for_pod(pod(node_selector={"k1": "x"})) == [node("a", gpu=1).offer]
