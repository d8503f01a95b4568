"""Device sets: all that is asked for, or nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.devices.device import (
    Assignment,
    Card,
    Device,
    DeviceNode,
    DeviceSet,
    DuplicateDevice,
    Edits,
    Mount,
    Place,
    Span,
    UnhealthyDevice,
    UnknownDevice,
    by_resource,
)
from tessera.core.errors import InvalidInput

RESOURCE = "device.example.com/gpu"


def device(name: str, problem: str = "", resource: str = RESOURCE) -> Device:
    return Device(name, resource=resource, cdi_kind="example.com/gpu", problem=problem)


SET = DeviceSet(RESOURCE, (device("a"), device("b"), device("c", "its file is gone")))


def test_assignments_follow_the_request() -> None:
    """Every container gets the devices it was asked for, in that order."""
    assert SET.assign([["b"], ["a"]]) == (Assignment((device("b"),)), Assignment((device("a"),)))
    assert SET.assign([]) == ()
    assert SET.assign([[]]) == (Assignment(()),)


@pytest.mark.parametrize(
    ("requests", "error", "message"),
    [
        ([["a", "x"]], UnknownDevice, f"{RESOURCE} has no device x now (3 devices in all)"),
        ([["a", "a"]], DuplicateDevice, f"{RESOURCE}: a asked for twice at once"),
        ([["a"], ["a"]], DuplicateDevice, f"{RESOURCE}: a asked for twice at once"),
        ([["a", "c"]], UnhealthyDevice, f"{RESOURCE}: c is unhealthy: its file is gone"),
        ([["a\n\x1b[31m"]], UnknownDevice, f"{RESOURCE} has no device a\\n\\x1b[31m now (3 devices in all)"),
        (
            [list("vwxyz")],
            UnknownDevice,
            f"{RESOURCE} has no device v, w, x and 2 more now (3 devices in all)",
        ),
    ],
)
def test_what_cannot_be_assigned_is_said(
    requests: list[list[str]], error: type[Exception], message: str
) -> None:
    """An id that is unknown, asked for twice or unhealthy fails the whole request, with a reason."""
    with pytest.raises(error) as raised:
        SET.assign(requests)
    assert str(raised.value) == message


def test_a_set_has_each_id_once() -> None:
    """Two devices of one resource cannot have one id."""
    with pytest.raises(InvalidInput, match="a stands twice"):
        DeviceSet(RESOURCE, (device("a"), device("a", "other")))


def test_ids_are_as_long_as_the_kubelet_takes() -> None:
    """The kubelet's limit of 63 characters is a device's."""
    assert device("x" * 63).id
    with pytest.raises(InvalidInput, match="64 characters"):
        device("x" * 64)
    with pytest.raises(InvalidInput, match="0 characters"):
        device("")


def test_resources_are_apart() -> None:
    """The same id may stand for devices of different resources."""
    sets = by_resource([device("a"), device("a", resource="other.com/x"), device("b")])
    assert {resource: [each.id for each in devices] for resource, devices in sets.items()} == {
        RESOURCE: ["a", "b"],
        "other.com/x": ["a"],
    }


def test_an_assignment_gathers_its_devices() -> None:
    """CDI names in order, edits once each, and the variable that lists the devices."""
    shared = Mount("/lib/shared.so", "/lib/shared.so")
    first, second = (
        Device(
            name,
            resource=RESOURCE,
            cdi_kind="example.com/gpu",
            edits=Edits(
                env=((f"HAS_{name}", "1"),), nodes=(DeviceNode(f"/dev/{name}", "/dev/x"),), mounts=(shared,)
            ),
            env_list="VISIBLE",
        )
        for name in ("one", "two")
    )
    both = Assignment((first, second))
    assert both.cdi_names == ("example.com/gpu=one", "example.com/gpu=two")
    assert both.environment == {"VISIBLE": "one,two"}
    assert both.edits == Edits(
        env=(("HAS_one", "1"), ("HAS_two", "1")),
        nodes=(DeviceNode("/dev/one", "/dev/x"), DeviceNode("/dev/two", "/dev/x")),
        mounts=(shared,),
    )


@pytest.mark.parametrize(
    ("one", "other", "conflict"),
    [((0, 2), (1, 1), True), ((0, 2), (2, 2), False), ((0, 8), (7, 1), True), ((4, 4), (0, 4), False)],
)
def test_places_conflict_when_they_share_a_slice(
    one: tuple[int, int], other: tuple[int, int], conflict: bool
) -> None:
    """Two places conflict on the same card only, and only if they overlap."""
    first, second = Span(*one), Span(*other)
    assert Place(Card(0), first).conflicts(Place(Card(0), second)) is conflict
    assert Place(Card(0), second).conflicts(Place(Card(0), first)) is conflict
    assert not Place(Card(0), first).conflicts(Place(Card(1), second))


@given(st.lists(st.lists(st.sampled_from("abcxyz"), max_size=4), max_size=4))
def test_all_or_nothing(requests: list[list[str]]) -> None:
    """Whatever is asked: everything is granted and each device once, or nothing is."""
    try:
        assignments = SET.assign(requests)
    except (UnknownDevice, DuplicateDevice, UnhealthyDevice):
        return
    granted = [each.id for assignment in assignments for each in assignment.devices]
    assert granted == [name for request in requests for name in request]
    assert len(set(granted)) == len(granted)
