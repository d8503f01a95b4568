"""Which devices pods hold, by what a node says and what the API says: what is called idle is idle."""

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tessera.core.devices.capacity import Capacity, PodUse
from tessera.core.devices.held import Held, believed, resource_at
from tessera.core.kubernetes.quantity import Quantity
from tessera.core.mig.geometry import product_named
from tessera.core.mig.layout import CardLayout, NodeLayout, Slot, Strategy
from tessera.core.mig.profile import MigProfile
from tests.build import GPU, MIG

H200 = product_named("H200")
LAYOUT = NodeLayout(
    (
        CardLayout.cut(H200, [MigProfile(1, 18)] * 7),
        CardLayout.cut(H200, [MigProfile(3, 71), MigProfile(1, 18)]),
        CardLayout(H200),
    )
)
SLOTS = LAYOUT.slots()
PLACES = {(slot.card, slot.place): slot for some in SLOTS.values() for slot in some}
ONE, THREE = MIG + "1g.18gb", MIG + "3g.71gb"
(BIG,) = SLOTS[THREE]
SAID = {0: {"1g.18gb@2": "aaaaaaaa"}, 1: {BIG.place: "bbbbbbbb"}}


def use(uid, **amounts):
    names = {"one": ONE, "three": THREE, "gpu": GPU}
    return PodUse(
        "ml", uid, "n", {names[key]: Quantity.parse(number) for key, number in amounts.items()}, uid=uid
    )


def held(published, uses, places=PLACES) -> Held:
    capacity = Capacity()
    for one in uses:
        capacity.add(one)
    resources = {resource for one in uses for resource in one.amounts}
    return believed(published, Strategy.MIXED, places, resources, lambda name: capacity.holders("n", name))


def test_what_agrees_is_believed():
    """The same pods hold the same numbers by the API: these devices are held, and the others are idle."""
    found = held(SAID, [use("aaaaaaaa-1", one=1), use("bbbbbbbb-2", three=1)])
    assert found == Held(frozenset(), frozenset({PLACES[0, "1g.18gb@2"], BIG}))
    assert held({}, []) == Held(frozenset())


@pytest.mark.parametrize(
    ("published", "uses"),
    [
        (SAID, [use("cccccccc", one=1), use("bbbbbbbb", three=1)]),  # one pod has gone and one has come
        (SAID, [use("aaaaaaaa", one=2), use("bbbbbbbb", three=1)]),
        (SAID, [use("aaaaaaaa", one=1), use("cccccccc", one=1), use("bbbbbbbb", three=1)]),
        ({**SAID, 0: {"1g.18gb@2": ""}}, [use("aaaaaaaa", one=1), use("bbbbbbbb", three=1)]),  # whose is it?
        ({**SAID, 0: {"1g.18gb@9": "aaaaaaaa"}}, [use("aaaaaaaa", one=1), use("bbbbbbbb", three=1)]),
    ],
)
def test_of_what_does_not_agree_any_may_be_held(published, uses):
    """Each resource is believed by itself."""
    assert held(published, uses) == Held(frozenset({ONE}), frozenset({BIG}))


def test_what_is_said_of_a_pod_that_has_gone_is_held():
    """Its device may not be free yet, or its pod is not known; the others are idle all the same."""
    everything = frozenset({PLACES[0, "1g.18gb@2"], BIG})
    assert held(SAID, [use("bbbbbbbb", three=1)]) == held(SAID, []) == Held(frozenset(), everything)
    assert held({0: {"1g.18gb@2": ""}}, []).slots == {PLACES[0, "1g.18gb@2"]}


def test_what_the_layout_does_not_tell_of_is_held():
    """A device that no layout has is of no known card: its resource is none of the layout's, so all stays."""
    assert held({0: {"nonsense": "aaaaaaaa"}}, []) == Held(frozenset({""}))
    assert held({0: {"2g.35gb@0": "aaaaaaaa"}}, []) == Held(frozenset({MIG + "2g.35gb"}))


def test_the_resource_of_a_place():
    """By the strategy: a slice has its profile's name, or is a GPU."""
    assert resource_at("1g.18gb+me@3", Strategy.MIXED) == MIG + "1g.18gb.me"
    assert resource_at("1g.18gb@3", Strategy.SINGLE) == resource_at("gpu", Strategy.MIXED) == GPU


POD = st.tuples(st.sampled_from([ONE, THREE, GPU]), st.integers(1, 2))


@given(st.lists(POD, max_size=4), st.lists(POD, max_size=4), st.sets(st.integers(0, 3)), st.integers(0, 999))
@example([(ONE, 1)], [(ONE, 1)], {0}, 1)  # as many as before, another pod, another device
def test_what_is_called_idle_is_never_held(before, after, gone, seed):
    """Pods come and go after the node has said what is in use: no device of a pod is called idle, whichever it got."""
    free, chance = {name: list(some) for name, some in SLOTS.items()}, random.Random(seed)
    pods: dict[str, tuple[str, list[Slot]]] = {}

    def come(name, resource, number):
        chance.shuffle(free[resource])
        chosen, free[resource] = free[resource][:number], free[resource][number:]
        pods[name] = resource, chosen  # where there are not enough, it waits with what it has

    for number, one in enumerate(before):
        come(f"{number:08}", *one)
    published: dict[int, dict[str, str]] = {}
    for name, (_, some) in pods.items():
        for slot in some:
            published.setdefault(slot.card, {})[slot.place] = name
    asked = {f"{number:08}": one for number, one in enumerate(before)}
    for number in gone & {*range(len(before))}:
        resource, some = pods.pop(f"{number:08}")
        free[resource] += some
        del asked[f"{number:08}"]
    for number, one in enumerate(after, len(before)):
        come(f"{number:08}", *one)
        asked[f"{number:08}"] = one
    found = held(published, [use_of(name, {resource: n}) for name, (resource, n) in asked.items()])
    for resource, some in pods.values():
        assert resource in found.resources or {*some} <= found.slots


def use_of(pod, counts):
    return PodUse("ml", pod, "n", {name: Quantity.parse(str(n)) for name, n in counts.items()}, uid=pod)
