"""Changing what a node offers, and never taking a device from a running pod."""

from hypothesis import given
from hypothesis import strategies as st

from tessera.core.devices.device import Card, Device, Place, Span, Transition, transition


def slices(*places: tuple[int, int, int]) -> tuple[Device, ...]:
    """Devices by card, start and size."""
    return tuple(
        Device(
            f"{card}-{start}-{size}",
            resource=f"nvidia.com/mig-{size}g",
            cdi_kind="x.y/z",
            place=Place(Card(card), Span(start, size)),
        )
        for card, start, size in places
    )


def held(*devices: Device) -> dict[tuple[str, str], str]:
    return {device.key: "ml/train" for device in devices}


def test_nothing_in_use_changes_at_once() -> None:
    """What is not in use is replaced completely."""
    wanted = slices((0, 0, 4))
    assert transition(slices((0, 0, 2), (0, 2, 2)), wanted, {}) == Transition(wanted)


def test_a_device_in_use_stays_and_what_overlaps_waits() -> None:
    """The device of a running pod leaves only with it; the rest of the layout comes at once."""
    before = slices((0, 0, 2), (0, 2, 2), (1, 0, 2))
    wanted = slices((0, 0, 4), (0, 4, 2), (1, 0, 4))
    result = transition(before, wanted, held(before[1]))
    assert [device.id for device in result.devices] == ["0-4-2", "1-0-4", "0-2-2"]
    assert [device.id for device in result.waiting] == ["0-0-4"]
    (leaving,) = result.leaving
    assert leaving.problem == "no longer wanted, stays for ml/train"
    assert not leaving.healthy
    assert not result.complete
    # the next look at the same wish changes nothing, and the pod's end completes it
    assert transition(result.devices, wanted, held(before[1])) == result
    assert transition(result.devices, wanted, {}) == Transition(wanted)


def test_a_device_that_is_wanted_again_is_healthy_again() -> None:
    """Going back to the old layout ends the leaving."""
    before = slices((0, 0, 2))
    away = transition(before, slices((0, 0, 4)), held(*before))
    assert away.leaving
    assert transition(away.devices, before, held(*before)) == Transition(before)


def test_the_same_device_under_another_resource_waits_for_itself() -> None:
    """A device whose resource changes its name is not offered under both."""
    (before,) = slices((0, 0, 2))
    renamed = Device(before.id, resource="nvidia.com/gpu", cdi_kind="x.y/z", place=before.place)
    result = transition([before], [renamed], held(before))
    assert result.waiting == (renamed,)
    assert [device.key for device in result.devices] == [before.key]


PLACES = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 6), st.sampled_from([1, 2, 4])), unique=True, max_size=6
).map(lambda places: slices(*places))


@given(before=PLACES, wanted=PLACES, data=st.data())
def test_no_device_in_use_vanishes_and_none_overlap(
    before: tuple[Device, ...], wanted: tuple[Device, ...], data: st.DataObject
) -> None:
    """Nothing in use vanishes, nothing lies on the slices of what is leaving, nothing wanted is forgotten."""
    in_use = held(*data.draw(st.lists(st.sampled_from(before), unique=True))) if before else {}
    result = transition(before, wanted, in_use)
    there = {device.key for device in result.devices}
    assert set(in_use) <= there
    assert {device.key for device in wanted} <= there | {device.key for device in result.waiting}
    for device in result.devices:
        for other in result.leaving:
            assert (
                device.leaving
                or device.key in in_use
                or not (device.place and other.place and device.place.conflicts(other.place))
            )
