"""The index: what it says is what walking all nodes would say, whatever came before."""

from dataclasses import replace
from functools import reduce
from operator import or_

from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.core.admission.view import labels as labels_module
from tessera.core.admission.view.labels import LabelColumn, Labels
from tessera.core.admission.view.offers import Offers
from tessera.core.admission.view.usable import COMING, UNLIMITED, Column, Usable
from tessera.core.kubernetes.node import (
    STATED_BY_EVERY_NODE,
    Namespace,
    Node,
    others,
    why_excluded,
    why_too_small,
)
from tessera.core.kubernetes.quantity import Quantity
from tessera.core.kubernetes.scheduling import NodeSelectorTerm, Requirement, Taint, Toleration
from tessera.core.resources import WHOLE_GPU
from tests.build import amounts, node, pod, resource
from tests.examples import examples

KEYS = ["zone", "gpu", "size"]
VALUES = ["a", "b", "7", "07", "12", "9" * 19, "٣"]
AMOUNTS = ["", "x", "5", "12", "07", "-3", "9" * 19]  # values of taints and tolerations
GPUS = ["1g.10gb", "2g.20gb", "gpu", "1g.10gb.shared"]
OTHERS = ["cpu", "memory", "rdma/hca"]
labels = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES))
cards = st.fixed_dictionaries(
    {},
    optional={
        "nvidia.com/gpu.memory": st.sampled_from(["16160", "81559"]),
        "nvidia.com/gpu.product": st.sampled_from(["Tesla-V100", "T4-SHARED"]),
    },
)
taints = st.lists(
    st.builds(Taint, st.sampled_from(["dedicated", "mine/x", "nvidia.com/gpu"]), st.sampled_from(AMOUNTS), st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule"])),
    max_size=3,
).map(tuple)  # fmt: skip
tolerations = st.lists(
    st.builds(
        Toleration, st.sampled_from(["dedicated", "dedicated", "mine/x", ""]), st.sampled_from(["Exists", "Equal", "Equal", "", "Gt", "Lt", "?"]),
        st.sampled_from(AMOUNTS), st.sampled_from(["", "NoSchedule", "NoExecute"]),
    ),
    max_size=4,
).map(tuple)  # fmt: skip
names = st.sampled_from(["n1", "n2", "n3", "n4", "n5", "n6"])
counts = st.dictionaries(st.sampled_from(GPUS), st.integers(0, 3))
rest = st.dictionaries(st.sampled_from(OTHERS), st.sampled_from(["0", "1", "1500m", "2", "3Gi"]))
nodes = st.builds(
    lambda name, labels, cards, taints, has, rest, away, dra: Node(
        name,
        labels | cards,
        taints,
        amounts(has | rest),
        amounts({one: count for one, count in away.items() if count and not has.get(one)}),
        {resource(one): count for one, count in dra.items()},
    ),
    names, labels, cards, taints, counts, rest, counts, st.just({}) | counts,
)  # fmt: skip
requirements = st.builds(
    Requirement, st.sampled_from(KEYS), st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "?"]),
    st.lists(st.sampled_from(VALUES), max_size=2).map(tuple),
)  # fmt: skip
fields = st.builds(
    Requirement,
    st.sampled_from(["metadata.name", "metadata.name", "metadata.uid"]),
    st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]),
    st.lists(names, min_size=1, max_size=2).map(tuple),
)
terms = st.builds(
    NodeSelectorTerm, st.lists(requirements, max_size=2).map(tuple), st.lists(fields, max_size=1).map(tuple)
)
pods = st.builds(
    lambda selector, affinity, name, tolerations: pod(
        node_selector=selector, required_terms=affinity, node_name=name, tolerations=tolerations
    ),
    st.just({}) | labels, st.none() | st.lists(terms, max_size=2).map(tuple), st.just("") | names,
    tolerations,
)  # fmt: skip
needs = st.dictionaries(
    st.sampled_from([*OTHERS, "no/such", resource("1g.10gb.shared")]),
    st.sampled_from(["0", "1", "1600m", "2", "2Gi"]).map(lambda text: Quantity.parse(text).number),
)
changes = st.lists(st.one_of(nodes, nodes, names, pods, st.just("prepare")), max_size=14)
transients = st.sampled_from([(), ("mine/*",)])


def changed(some):
    """An index after changes and questions."""
    index = Offers()
    for change in some:
        if change == "prepare":
            for _ in index.prepare():
                pass
        elif isinstance(change, str):
            index.remove(change)
        elif isinstance(change, Node):
            index.put(change)
        else:
            index.for_pod(change)  # makes columns that later changes must keep right
    return index


def offering(index):
    return [one for one in index.nodes.values() if one.offer.counts]


def named(index, nodes):
    """The names of the nodes that are bits of a number."""
    return {name for name, bit in index._bits.items() if bit & nodes}


@given(changes, pods, needs, transients)
@settings(max_examples=examples(400))
def test_the_nodes_of_a_pod_like_a_walk(changes, asker, needs, transient):
    """After any sequence of changes and questions, a pod gets the nodes that a walk over all nodes finds."""
    index = changed(changes)
    found = index.large_enough(index.for_pod(asker, transient), needs)
    assert named(index, found) == {
        one.name
        for one in offering(index)
        if why_excluded(asker, one, transient) is None and why_too_small(needs, one) is None
    }
    assert not found & COMING
    assert found.bit_count() == len(named(index, found))


def without_dra(offer):
    return replace(
        offer, counts=tuple(pair for pair in offer.counts if pair[0] not in offer.dra), dra=frozenset()
    )


@given(changes, pods, st.booleans(), st.frozensets(st.sampled_from(GPUS).map(resource), max_size=1))
@settings(max_examples=examples(400))
def test_what_is_offered_like_a_walk(changes, asker, dra, coming):
    """What the nodes of a pod offer, where it comes from, and which of them have how much of what together: as a walk finds it."""
    index = changed(changes)
    usable = Usable(index.columns, index.for_pod(asker), dra=dra, coming=coming)
    walked = {
        one.name: one.offer if dra else without_dra(one.offer)
        for one in offering(index)
        if why_excluded(asker, one) is None
    }
    offers = list(walked.values())
    most = {one: max((offer.count(one) for offer in offers), default=0) for one in map(resource, GPUS)}
    assert usable.most == {one: most[one] for one in most if most[one]} | dict.fromkeys(coming, UNLIMITED)
    whole = [one for one in offers if one.count(WHOLE_GPU)]
    assert usable.whole == all(one.whole for one in whole)
    told = [one.card_memory_gb for one in whole if one.card_memory_gb is not None]
    assert usable.card_memory_gb == min(told, default=None)
    for one in most:
        assert usable.from_dra(one) == any(one in offer.dra for offer in offers)
        plugin = any(one not in offer.dra for offer in offers if offer.count(one))
        assert usable.from_plugin(one) == (plugin or one in coming)
        for other in most:
            for need in (1, 2, UNLIMITED + 1):
                room = usable.with_room(usable.with_room(usable.nodes, one, need), other, 1)
                assert named(index, room) == {
                    name
                    for name, offer in walked.items()
                    if offer.count(one) >= need and offer.count(other) >= 1
                }
                assert bool(room & COMING) == (coming == {one} == {other} and need <= UNLIMITED)


@given(changes, pods, pods)
@settings(max_examples=examples(200))
def test_the_whole_cluster_like_a_walk(changes, one, other):
    """What the cluster offers, which resources it has at all, and which offers two sets of nodes have in common."""
    index = changed(changes)
    there = offering(index)
    every = {name for offering in there for name, _ in offering.offer.counts}
    assert index.anywhere() == {name: max(node.offer.count(name) for node in there) for name in every}
    for name in [*OTHERS, "no/such"]:
        stated = [name in dict(others(node)) for node in there]
        assert index.has_anywhere(name) == (any(stated) or (name in STATED_BY_EVERY_NODE and not all(stated)))
    some, more = index.for_pod(one), index.for_pod(other)
    offers = [{index.nodes[name].offer for name in named(index, nodes)} for nodes in (some, more)]
    assert index.columns.share(some, more) == bool(offers[0] & offers[1])
    both = {index.nodes[name].offer for name in named(index, some & more)}
    assert index.columns.lost(some, some & more) == (both != offers[0])


@given(st.lists(st.tuples(st.integers(0, 400), st.booleans()), max_size=300), st.integers(0, 401))
@settings(max_examples=examples(100))
def test_a_column_like_a_list(changes, asked):
    """However many amounts there are and whatever came and went: who has at least so much, the most and the least."""
    column, has = Column(), {}
    for bit, (amount, stays) in enumerate(changes):
        column.add(amount, 1 << bit)
        has[bit] = amount
        if not stays:
            gone = bit // 2
            if gone in has:
                column.at_least(asked)  # what is put together for it must be kept right
                column.remove(has.pop(gone), 1 << gone)
    for least in (asked, 0, 200):
        nodes = [1 << bit for bit, amount in has.items() if amount >= least]
        assert column.at_least(least) == reduce(or_, nodes, 0)
    among = reduce(or_, (1 << bit for bit in has if bit % 3), 0)
    left = [amount for bit, amount in has.items() if bit % 3]
    assert column.most(among) == max(left, default=0)
    assert column.least(among) == min(left, default=None)


def test_a_number_takes_the_bit_of_one_that_is_gone():
    """Nodes that come and go do not make the numbers longer."""
    index = Offers()
    for number in range(500):
        index.put(node(f"n{number}", gpu=1))
        index.remove(f"n{number - 3}")
    assert index.for_pod(pod()).bit_length() < 8


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


def test_labels_that_no_node_has_are_not_kept():
    """Pods that each look at other labels leave nothing behind."""
    index = Offers([node("a", labels={"k1": "x"}, gpu=1)])
    for i in range(500):
        index.for_pod(pod(node_selector={f"k{i}": "x"}))
    assert list(index._labels._columns) == ["k1"]
    assert named(index, index.for_pod(pod(node_selector={"k1": "x"}))) == {"a"}
    index.put(node("b", labels={"k2": "x"}, gpu=1))
    assert named(index, index.for_pod(pod(node_selector={"k2": "x"}))) == {"b"}


def test_a_prepared_index_makes_nothing_in_a_decision(monkeypatch):
    """Who has the time makes the columns of labels beforehand. Labels that come later have theirs at once, as nodes come."""
    index = Offers(
        node(f"n{i}", labels={"zone": "a", "size": str(i), f"own{i}": "x"}, gpu=1) for i in range(200)
    )
    assert len(list(index.prepare())) > 3
    index.put(node("late", labels={"rack": "7"}, gpu=1))
    monkeypatch.setattr(Labels, "_shed", None)  # which every column that is made calls
    monkeypatch.setattr(LabelColumn, "_made_of_numbers", None)
    for key in ("zone", "size", "own3", "rack"):
        term = NodeSelectorTerm((Requirement(key, "Exists"), Requirement(key, "NotIn", ("y",))))
        compared = NodeSelectorTerm((Requirement(key, "Gt", ("150",)),))
        found = named(index, index.for_pod(pod(required_terms=(term,))))
        assert found == {name for name, one in index.nodes.items() if key in one.labels}
        assert len(named(index, index.for_pod(pod(required_terms=(compared,))))) == (
            49 if key == "size" else 0
        )


def test_prepared_columns_leave_half_of_the_room(monkeypatch):
    """Labels beyond the bound get their columns when a pod looks at them, and others go for that; the answer stays the same."""
    monkeypatch.setattr(labels_module, "_MOST_BYTES", 40_000)
    index = Offers(node(f"n{i}", labels={f"k{k}": f"{i}" for k in range(20)}, gpu=1) for i in range(100))
    for _ in index.prepare():
        pass
    assert 20_000 <= index.label_bytes <= 40_000
    assert 0 < len(index._labels._columns) < 20
    for key in range(20):
        assert named(index, index.for_pod(pod(node_selector={f"k{key}": "7"}))) == {"n7"}
        assert index.label_bytes <= 40_000


def test_few_columns_however_many_labels():
    """Each node with a label of its own: as many columns as the bound says, and right answers for all of them."""
    index = Offers(node(f"n{i}", labels={f"own{i}": "x"}, gpu=1) for i in range(300))
    for _ in index.prepare():
        pass
    for i in range(300):
        assert named(index, index.for_pod(pod(node_selector={f"own{i}": "x"}))) == {f"n{i}"}
    assert len(index._labels._columns) == labels_module._MOST_COLUMNS
