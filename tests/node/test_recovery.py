"""Devices of the last run, rebuilt without its record."""

from hypothesis import given
from hypothesis import strategies as st

from tessera.core.devices.device import Device, transition
from tessera.node.state import rebuilt, unknown
from tests.node.running import GPU, mock_devices, slices

POSSIBLE = [device for size in (1, 2, 3, 4, 8) for device in slices(size, range(9 - size))]


def test_what_is_held_and_what_was_published() -> None:
    """Held devices come by resource and id, the others by their CDI name; ids that are no UUIDs only with their resource."""
    two, mock = slices(2, [0, 2, 4]), mock_devices(2)
    counted = {two[0].key, mock[0].key, ("other.example/x", mock[1].id), (GPU, "device_9")}
    assert rebuilt([*POSSIBLE, *mock], counted, {two[1].cdi_name, "simulated.example/gpu=gone"}) == (
        mock[0], two[0], two[1],
    )  # fmt: skip
    assert unknown(POSSIBLE, counted) == []
    assert unknown(POSSIBLE, {(two[0].resource, "MIG-of-another-product")}) == ["MIG-of-another-product"]


def test_a_slice_is_known_by_its_id_alone() -> None:
    """Another MIG strategy called it otherwise: the kubelet counts it under that name."""
    (device,) = rebuilt(POSSIBLE, {("nvidia.com/gpu", "MIG-0-2-2")})
    assert (device.resource, device.place) == ("nvidia.com/gpu", slices(2, [2])[0].place)


@st.composite
def layouts(draw: st.DrawFn) -> list[Device]:
    """Devices of one card that can be there together."""
    found: list[Device] = []
    for device in draw(st.lists(st.sampled_from(POSSIBLE), max_size=8)):
        if not any(map(device.overlaps, found)):
            found.append(device)
    return found


@given(layouts(), layouts(), st.data())
def test_fault_57_nothing_overlaps_what_a_pod_holds(
    before: list[Device], wanted: list[Device], data: st.DataObject
) -> None:
    """Whatever was there, whatever of it pods hold and specs list, whatever is wanted now: no slice is offered twice."""
    counted = {device.key for device in before if data.draw(st.booleans())}
    published = {device.cdi_name for device in before if data.draw(st.booleans())}
    devices = rebuilt([*POSSIBLE, *wanted], counted, published)
    for held in (counted, {device.key for device in devices}):  # as it is proven, and before anything is
        offered = transition(devices, wanted, dict.fromkeys(held, "a pod")).devices
        assert counted <= {device.key for device in offered}
        for device in offered:
            assert device.key in counted or not any(
                device.overlaps(other) for other in before if other.key in counted
            )
