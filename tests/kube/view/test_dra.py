"""What DRA serves on a node, from ResourceSlices and DeviceClasses to numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.dra import pools
from tessera.core.dra.slices import may_be_meant
from tessera.core.kubernetes.node import Node
from tessera.kube.view.dra import DraObjects
from tessera.kube.watch.table import Key
from tessera.protocol.dra import objects as kinds
from tessera.protocol.dra.names import EVERY_NAME
from tessera.protocol.dra.objects import read_class
from tests.protocol.dra.samples import DRIVER, class_, device, raw, slice_

TWO, ONE = "nvidia.com/mig-2g.20gb", "nvidia.com/mig-1g.10gb"
A = f"device.attributes['{DRIVER}']"
CLASSES = (
    class_("two", f"device.driver == '{DRIVER}' && {A}.profile == '2g.20gb'", resource=TWO),
    class_("one", f"device.driver == '{DRIVER}' && {A}.profile == '1g.10gb'", resource=ONE),
)


def served(slices, classes=CLASSES, node="n", names=None, **labels):
    """What DRA serves on a node, without the names that every class has."""
    found = DraObjects()
    found.replace_classes(read_class(raw(one)) for one in classes)
    if names is not None:
        found.reader.names = names
    found.replace_slices([found.reader.read(raw(one)) for one in slices])
    every = found.pools.served(Node(node, labels))
    implicit = {f"deviceclass.resource.kubernetes.io/{one['metadata']['name']}" for one in classes}
    return {name: number for name, number in every.items() if name not in implicit}


def put(sink, document):
    """Give an object to an entry, as a watch does."""
    decoded = sink.decode(raw(document))
    assert decoded is not None
    sink.put(decoded)


def of(profile, *names, **more):
    return [device(name, profile=profile, **more) for name in names]


def test_devices_of_a_class():
    """As many as the class selects; and each class by its own name too."""
    slices = [slice_("s", *of("2g.20gb", "a", "b"), *of("1g.10gb", "c"), *of("3g.40gb", "d"))]
    assert served(slices) == {TWO: 2, ONE: 1}
    assert served(slices, node="elsewhere") == {}
    assert served(slices, classes=()) == {}
    found = DraObjects()
    found.replace_classes([read_class(raw(class_("all")))])
    found.replace_slices([found.reader.read(raw(slices[0]))])
    assert found.pools.served(Node("n")) == {"deviceclass.resource.kubernetes.io/all": 4}


@pytest.mark.parametrize(
    ("where", "nodes"),
    [
        ({"allNodes": True}, {"n", "m"}),
        (
            {
                "nodeSelector": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "rack", "operator": "In", "values": ["a"]}]}
                    ]
                }
            },
            {"n"},
        ),
        ({"someDay": True}, set()),  # a way that this release does not know
    ],
)
def test_where_a_slice_is(where, nodes):
    """By rule, for the whole slice or for each device."""
    racks = {"n": "a", "m": "b"}
    whole = slice_("s", *of("2g.20gb", "a"), node=None, **where)
    each = slice_("s", *of("2g.20gb", "a", where=where), node=None, perDeviceNodeSelection=True)
    for one in (whole, each):
        assert {name for name, rack in racks.items() if served([one], node=name, rack=rack)} == nodes


def test_each_device_on_its_node():
    """Devices of one slice may be on different nodes."""
    devices = [
        *of("2g.20gb", "a", "b", where={"nodeName": "n"}),
        *of("2g.20gb", "c", where={"nodeName": "m"}),
    ]
    one = slice_("s", *devices, node=None, perDeviceNodeSelection=True)
    assert [served([one], node=name) for name in ("n", "m", "x")] == [{TWO: 2}, {TWO: 1}, {}]


@pytest.mark.parametrize(
    ("effect", "number"), [("NoSchedule", 1), ("NoExecute", 1), ("None", 2), ("Someday", 2)]
)
def test_tainted_devices(effect, number):
    """Claims for extended resources tolerate nothing; effects that the scheduler does not know are ignored there too."""
    devices = [*of("2g.20gb", "well"), *of("2g.20gb", "ill", taint=effect)]
    assert served([slice_("s", *devices)]) == {TWO: number}


@pytest.mark.parametrize(
    ("slices", "number"),
    [
        # (generation, slices in the pool, devices) of each slice
        ([(1, 1, 2)], 2),
        ([(1, 2, 2)], 0),  # one is missing
        ([(1, 2, 2), (1, 2, 3)], 5),
        ([(1, 1, 2), (2, 1, 3)], 3),  # the old one is out of date
        ([(1, 2, 2), (1, 2, 2), (2, 2, 3)], 0),  # a new one is being written
        ([(1, 2, 2), (1, 3, 3)], 5),  # they do not agree, and one is right
    ],
)
def test_pools(slices, number):
    """Only whole pools of the newest generation."""
    written = [
        slice_(
            str(at), *of("2g.20gb", *(f"{at}-{n}" for n in range(count))), generation=generation, total=total
        )
        for at, (generation, total, count) in enumerate(slices)
    ]
    assert served(written) == ({TWO: number} if number else {})
    assert served(written[::-1]) == ({TWO: number} if number else {})


@pytest.mark.parametrize(
    ("slices", "number"),
    [
        # (node, generation, devices) of each slice of one pool, which says how many there are
        ([("n", 1, ["a", "b"])], 2),
        ([("n", 1, ["a", "a"])], 0),
        ([("n", 1, ["a"]), ("n", 1, ["b"])], 2),
        ([("n", 1, ["a", "b"]), ("n", 1, ["b"])], 0),
        ([("n", 1, ["a"]), ("m", 1, ["a"])], 1),  # slices for other nodes do not count
        ([("n", 1, ["a"]), ("n", 2, ["a"])], 1),  # nor what is out of date
    ],
)
def test_names_that_are_there_twice(slices, number):
    """A pool in which two devices have one name is invalid to the scheduler: none of its devices is offered."""
    newest = max(generation for _, generation, _ in slices)
    total = sum(generation == newest for _, generation, _ in slices)
    written = [
        slice_(str(at), *of("2g.20gb", *names), pool="p", node=node, generation=generation, total=total)
        for at, (node, generation, names) in enumerate(slices)
    ]
    other = slice_("other", *of("2g.20gb", "a"), pool="q")
    assert served(written) == ({TWO: number} if number else {})
    assert served([*written, other]) == {TWO: number + 1}, "other pools are not concerned"


def test_tainted_and_other_devices_count_as_names():
    """Names are compared whether or not a claim could have the device, and whichever class it is of."""
    tainted = [*of("2g.20gb", "a"), *of("2g.20gb", "b", taint="NoSchedule"), *of("3g.40gb", "b")]
    assert served([slice_("s", *tainted)]) == {}


def test_counter_sets_that_are_there_twice():
    """Two counter sets of one name make a pool invalid too."""
    sets = [{"name": "card", "counters": counters(memory="8")}]
    takes = [{"counterSet": "card", "counters": counters(memory="1")}]
    device_slice = slice_("d", *of("2g.20gb", "a", consumes=takes), total=2)
    once = slice_("c", total=2, sharedCounters=sets)
    assert served([device_slice, once]) == {TWO: 1}
    assert served([device_slice, slice_("c", total=2, sharedCounters=sets * 2)]) == {}


def test_a_newer_generation_elsewhere():
    """While the rest of a pool is being replaced on other nodes, what is there for this node is out of date."""
    here = slice_("here", *of("2g.20gb", "a"), pool="p", generation=1, total=2)
    there = slice_("there", *of("2g.20gb", "b"), pool="p", node="m", generation=1, total=2)
    newer = slice_("newer", *of("2g.20gb", "b"), pool="p", node="m", generation=2, total=2)
    assert served([here, there]) == {TWO: 1}
    assert served([here, there, newer]) == {}


def counters(**amounts):
    return {name: {"value": amount} for name, amount in amounts.items()}


def card(profile, *starts, size, compute):
    """Every place of a profile on a card of eight memory slices."""
    return [
        device(
            f"{profile.replace('.', '-')}-{start}",
            profile=profile,
            consumes=[
                {
                    "counterSet": "card",
                    "counters": counters(
                        compute=str(compute), **{f"slice{at}": "1" for at in range(start, start + size)}
                    ),
                }
            ],
        )
        for start in starts
    ]


def test_cards_that_may_be_cut():
    """Not all places can be cut together: the scarcest counter says how many."""
    sets = [{"name": "card", "counters": counters(compute="7", **{f"slice{at}": "1" for at in range(8)})}]
    devices = [
        *card("1g.10gb", *range(7), size=1, compute=1),
        *card("2g.20gb", 0, 2, 4, 6, size=2, compute=2),
    ]
    both = [slice_("d", *devices, total=2), slice_("c", total=2, sharedCounters=sets)]
    assert served(both) == {ONE: 7, TWO: 3}
    # without its counters a pool is not whole; with others it is invalid
    assert served(both[:1]) == {}
    sets[0]["name"] = "another"
    assert served([both[0], slice_("c", total=2, sharedCounters=sets)]) == {}


def test_devices_for_many():
    """A device that several claims may hold at a time is never too few."""
    one = device("a", profile="2g.20gb")
    assert served([slice_("s", {**one, "allowMultipleAllocations": True})])[TWO] >= 32


@pytest.mark.parametrize(("amount", "number"), [("1", 32), ("7", 32), ("8", 0)])
def test_devices_for_many_that_are_cut(amount, number):
    """It takes from its counters once, however many claims hold it; if they have no room for one, it is none."""
    one = device(
        "a", profile="2g.20gb", consumes=[{"counterSet": "card", "counters": counters(compute=amount)}]
    )
    sets = [{"name": "card", "counters": counters(compute="7")}]
    slices = [
        slice_("d", {**one, "allowMultipleAllocations": True}, total=2),
        slice_("c", total=2, sharedCounters=sets),
    ]
    assert served(slices) == ({TWO: number} if number else {})


def test_two_counter_sets():
    """A device that the second set has no room for is none."""
    both = [{"counterSet": name, "counters": counters(compute="2")} for name in ("one", "other")]
    sets = [
        {"name": "one", "counters": counters(compute="7")},
        {"name": "other", "counters": counters(compute="1")},
    ]
    slices = [
        slice_("d", *of("2g.20gb", "a"), device("b", profile="2g.20gb", consumes=both), total=2),
        slice_("c", total=2, sharedCounters=sets),
    ]
    assert served(slices) == {TWO: 1}


def test_tainted_devices_belong_to_their_pool():
    """A slice is for a node if a device of it is there, tainted or not: the pool is whole with it, or invalid by it."""
    ill = slice_(
        "ill", *of("2g.20gb", "a", taint="NoSchedule", where={"nodeName": "n"}), pool="p", node=None, total=2,
        perDeviceNodeSelection=True,
    )  # fmt: skip
    well = slice_("well", *of("2g.20gb", "b"), pool="p", total=2)
    elsewhere = slice_("elsewhere", *of("2g.20gb", "c"), pool="p", node="m", generation=2, total=1)
    assert served([ill, well, elsewhere]) == {TWO: 1}
    cut = device(
        "a",
        profile="2g.20gb",
        taint="NoSchedule",
        consumes=[{"counterSet": "none", "counters": counters(x="1")}],
    )
    assert served([slice_("s", cut, *of("2g.20gb", "b"))]) == {}


@pytest.mark.parametrize(
    ("first", "second", "serves"),
    [
        ({"created": "2026-01-01T00:00:00Z"}, {"created": "2026-02-01T00:00:00Z"}, "b"),
        ({"created": "2026-02-01T00:00:00Z"}, {"created": "2026-01-01T00:00:00Z"}, "a"),
        ({"created": "2026-01-01T00:00:00Z"}, {"created": "2026-01-01T00:00:00Z"}, "a"),
        ({}, {}, "a"),
    ],
)
def test_two_classes_with_one_name(first, second, serves):
    """The younger serves it; of equally old ones that whose name sorts first."""
    classes = [
        class_("a", f"{A}.profile == '2g.20gb'", resource=TWO, **first),
        class_("b", f"{A}.profile == '1g.10gb'", resource=TWO, **second),
    ]
    slices = [slice_("s", *of("2g.20gb", "x"), *of("1g.10gb", "y", "z"))]
    for order in (classes, classes[::-1]):
        assert served(slices, order) == {TWO: {"a": 1, "b": 2}[serves]}


def test_what_cannot_be_evaluated_counts(caplog):
    """Its devices count as selected, and a warning says which class and why; once."""
    found = DraObjects()
    found.replace_classes([read_class(raw(class_("odd", f"{A}.nothing == 1", resource=TWO)))])
    slices = [found.reader.read(raw(slice_(name, *of("2g.20gb", "a"), pool=name))) for name in ("s", "t")]
    nodes = []
    found = DraObjects(lambda _: nodes.append(found.pools.served(Node("n")).get(TWO, 0)))
    found.replace_classes([read_class(raw(class_("odd", f"{A}.nothing == 1", resource=TWO)))])
    found.replace_slices(slices)
    found.replace_slices(slices)
    assert nodes == [2, 2]
    (message,) = caplog.messages
    assert message.startswith("device class odd: it cannot be said which devices it selects")
    assert list(found.class_errors) == ["odd"]


def test_too_many_kinds(monkeypatch):
    """Beyond a limit the devices that a class looks at one by one count for it; other classes select as before."""
    monkeypatch.setattr(kinds, "MOST_KINDS", 4)
    classes = [class_("mine", f"{A}.uuid == '1'", resource=ONE), *CLASSES[:1]]
    slices = [slice_("s", *(device(f"d{n}", uuid=str(n), profile=f"{1 + n % 2}g.20gb") for n in range(9)))]
    assert served(slices, classes) == {ONE: 1 + 5, TWO: 4}, (
        "four were told apart, the others are unknown to one"
    )
    profiles = ["2g.20gb"] * 4 + [f"{n}g" for n in range(16)]
    slices = [slice_("s", *(device(f"d{n}", uuid=str(n), profile=one) for n, one in enumerate(profiles)))]
    assert served(slices, classes) == {ONE: 1 + 16, TWO: 4 + 12}, "of the last twelve nothing was kept"


def test_a_class_that_made_too_many_kinds_goes(monkeypatch):
    """Then less is looked at, and the slices are read again for it."""
    monkeypatch.setattr(kinds, "MOST_KINDS", 3)
    reads = []
    found = DraObjects(reread=lambda: reads.append(found.reader.names))
    every = [read_class(raw(one)) for one in (class_("mine", f"{A}.uuid == '1'"), *CLASSES)]
    found.replace_classes(every)
    written = raw(slice_("s", *(device(f"d{n}", uuid=str(n), profile="2g.20gb") for n in range(9))))
    found.replace_slices([found.reader.read(written)])
    found.replace_classes(every[1:])
    found.replace_slices([found.reader.read(written)])
    assert [set(one.some) for one in reads if one] == [{"uuid", "profile"}, {"profile"}]
    assert [(one.kind.lacks, one.number) for one in found.pools.slices["s"].contents.groups] == [
        (frozenset(), 9)
    ]
    found.replace_classes(every[2:])
    assert len(reads) == 2, "where there are few, what is kept too much does no harm"


def test_answers_are_not_kept_for_ever(monkeypatch):
    """A driver that writes its slices again all day does not fill the memory."""
    monkeypatch.setattr(pools, "_MOST_SHARED", 4)
    found = DraObjects()
    found.replace_classes([read_class(raw(one)) for one in CLASSES])
    found.replace_slices([])
    sink = found.slices()
    for number in range(1, 30):
        put(sink, slice_("s", *of("2g.20gb", *map(str, range(number)))))
        assert found.pools.served(Node("n"))[TWO] == number
    assert len(found.pools._shared) <= 4


def test_a_class_that_comes_while_slices_are_read():
    """It serves when slices were read for it, not by what those lack that were read before; until then the classes before serve."""
    found = DraObjects()
    found.replace_classes([read_class(raw(one)) for one in CLASSES])
    written = raw(slice_("s", *of("2g.20gb", "a", healthy=True)))
    found.replace_slices([found.reader.read(written)])
    early = found.reader.read(written)
    sink = found.classes()
    put(sink, class_("two", f"has({A}.healthy)", resource=TWO))
    put(sink, class_("healthy", f"has({A}.healthy)", resource="example.com/healthy"))
    served = []
    for one in (early, found.reader.read(written)):
        found.replace_slices([one])
        served.append({name for name in found.pools.served(Node("n")) if not name.startswith("deviceclass.")})
    assert served == [{TWO}, {TWO, "example.com/healthy"}]


EXPRESSIONS = (
    f"{A}.profile == '2g.20gb'",
    f"'index' in {A} && {A}.index < 3",
    f"{A}.?index.orValue(0) > 1 || {A}.profile.startsWith('1g')",
    f"has({A}.healthy) && {A}.healthy",
    f"device.capacity['{DRIVER}'].memory.isGreaterThan(quantity('15Gi'))",
    f"{A}.nothing == 'x'",
    "device.attributes.exists(d, d == 'other')",
)
DEVICES = st.builds(
    lambda more, memory: device("d", **more, **({"memory": memory} if memory else {})),
    st.fixed_dictionaries(
        {},
        optional={
            "profile": st.sampled_from(["1g.10gb", "2g.20gb"]),
            "index": st.integers(0, 4),
            "healthy": st.booleans(),
            "uuid": st.text("ab", max_size=3),
        },
    ),
    st.sampled_from(["", "10Gi", "20Gi"]),
)


@given(st.lists(DEVICES, max_size=8), st.lists(st.sampled_from(EXPRESSIONS), max_size=3, unique=True))
def test_by_kind_is_as_by_device(devices, expressions):
    """Asked once for each kind, a class selects as many devices as if each were asked about by itself, with all it has."""
    classes = [class_(f"c{at}", text, resource=f"example.com/{at}") for at, text in enumerate(expressions)]
    named = [{**one, "name": f"d{at}"} for at, one in enumerate(devices)]
    together = served([slice_("s", *named)], classes)
    alone: dict[str, int] = {}
    for one in devices:
        for name, number in served([slice_("s", one)], classes, names=EVERY_NAME).items():
            alone[name] = alone.get(name, 0) + number
    assert together == alone


def by_rack(*racks):
    expressions = [{"key": "rack", "operator": "In", "values": list(racks)}]
    return {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": expressions}]}}


BY_NAME = {
    "nodeSelector": {
        "nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]},
            {"matchExpressions": [{"key": "rack", "operator": "Exists"}, *by_rack("b")["nodeSelector"]["nodeSelectorTerms"][0]["matchExpressions"]]},
        ]
    }
}  # fmt: skip
NOT_IN = {
    "nodeSelector": {
        "nodeSelectorTerms": [
            {"matchExpressions": [{"key": "rack", "operator": "NotIn", "values": ["a"]}]},
        ]
    }
}


@pytest.mark.parametrize(
    ("where", "concerned"),
    [
        ({"nodeName": "n"}, {"n"}),
        ({"allNodes": True}, {None}),
        (by_rack("a"), {("rack", "a")}),
        (by_rack("a", "b"), {("rack", "a"), ("rack", "b")}),
        (BY_NAME, {"n", ("rack", "b")}),
        (NOT_IN, {None}),
        ({"someDay": True}, set()),
    ],
)
def test_which_nodes_a_slice_concerns(where, concerned):
    """Those that its place names, by name or by label: thousands of others are not worked out again."""
    told = []
    found = DraObjects(lambda spots: told.append(set(spots)))
    found.replace_classes([read_class(raw(one)) for one in CLASSES])
    sink = found.slices()
    whole = slice_("s", *of("2g.20gb", "a"), pool="p", node=None, **where)
    each = slice_("s", *of("2g.20gb", "a", where=where), pool="p", node=None, perDeviceNodeSelection=True)
    for one in (whole, each):
        put(sink, slice_("t", *of("2g.20gb", "b"), pool="p", node="other"))
        told.clear()
        put(sink, one)
        put(sink, one)
        more = {
            **one["spec"],
            "devices": [*one["spec"]["devices"], *of("2g.20gb", "c", where=one is each and where)],
        }
        put(sink, {**one, "spec": more})
        sink.remove(Key("", "s"))
        # its pool may have become whole by it, or not; an update that says the same is none; no more than its devices changed
        assert told == [concerned | {"other"}, set(), concerned, concerned | {"other"}]


def test_counters_concern_their_pool():
    """Whatever place their slice names, all of the pool's devices take from them."""
    told = []
    found = DraObjects(
        lambda spots: told.append(found.pools.served(Node("n")).get(TWO, 0) if "n" in spots else None)
    )
    found.replace_classes([read_class(raw(one)) for one in CLASSES])
    takes = [{"counterSet": "card", "counters": counters(x="1")}]
    written = [slice_("d", *of("2g.20gb", "a", "b", "c", consumes=takes), pool="p", total=2)]
    for room in ("1", "2"):
        sets = [{"name": "card", "counters": counters(x=room)}]
        written.append(slice_("c", pool="p", node="m", total=2, sharedCounters=sets))
    found.replace_slices([])
    told.clear()
    sink = found.slices()
    for one in written:
        put(sink, one)
    assert told == [0, 1, 2]


PLACES = st.sampled_from(
    [
        {"nodeName": "n"},
        {"nodeName": "m"},
        {"allNodes": True},
        by_rack("a"),
        by_rack("b"),
        BY_NAME,
        NOT_IN,
        {},
    ]
)
WRITTEN = st.builds(
    lambda name, pool, generation, total, where, each, taint, number: slice_(
        name,
        *of("2g.20gb", *(f"{name}-{n}" for n in range(number)), where=where if each else None, taint=taint),
        pool=pool,
        generation=generation,
        total=total,
        node=None,
        **({"perDeviceNodeSelection": True} if each else where),
    ),
    st.sampled_from("stuv"),
    st.sampled_from("pq"),
    st.integers(1, 2),
    st.integers(1, 2),
    PLACES,
    st.booleans(),
    st.sampled_from(["", "", "NoSchedule"]),
    st.integers(0, 2),
)
COUNTERS = st.builds(
    lambda name, generation, where: slice_(
        name, pool="p", generation=generation, total=2, node=None, **where,
        sharedCounters=[{"name": "card", "counters": {"x": {"value": "1"}}}],
    ),
    st.sampled_from("stuv"),
    st.integers(1, 2),
    PLACES,
)  # fmt: skip


@given(st.lists(st.one_of(WRITTEN, WRITTEN, COUNTERS, st.sampled_from("stuv")), max_size=12))
def test_what_is_not_concerned_stays(events):
    """After each event only the concerned nodes are asked about again, and all are right."""
    nodes = [Node("n", {"rack": "a"}), Node("m", {"rack": "b"}), Node("o", {})]
    kept: dict[str, object] = {one.name: {} for one in nodes}

    def changed(spots):
        kept.update({one.name: found.pools.served(one) for one in nodes if may_be_meant(one, spots)})

    found = DraObjects(changed)
    found.replace_classes([read_class(raw(one)) for one in CLASSES])
    found.replace_slices([])
    sink = found.slices()
    for one in events:
        if isinstance(one, str):
            sink.remove(Key("", one))
        else:
            put(sink, one)
        assert kept == {node.name: found.pools.served(node) for node in nodes}
    fresh = DraObjects()
    fresh.replace_classes([read_class(raw(one)) for one in CLASSES])
    fresh.replace_slices(found.pools.slices.values())
    assert kept == {node.name: fresh.pools.served(node) for node in nodes}
