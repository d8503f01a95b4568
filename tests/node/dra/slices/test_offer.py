"""Names and order of what is offered."""

import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tessera.core.devices.device import Device
from tessera.node.dra.slice_documents import offer
from tests.node.dra.samples import card, listed, mig


def names(*devices: Device) -> list[str]:
    return list(offer(devices))


def test_names_say_what_and_where() -> None:
    """Cards by number, slices by card, profile and place, listed devices by id; all of them DNS labels."""
    assert names(card(3)) == ["gpu-3"]
    assert names(mig("2g.20gb", 4, number=1)) == ["gpu-1-mig-2g-20gb-4"]
    assert names(listed("device_0")) == ["device-0"]
    assert names(listed("MIG-AB:c")) == ["mig-ab-c"]
    assert names(listed("x" * 63)) == ["x" * 63]
    assert names(listed("_")) == ["device"]


def test_names_that_would_be_equal_are_told_apart() -> None:
    """Two resources may have devices of one id: both get a hash, the same whatever else there is."""
    one, two, other = listed("a_1"), listed("a-1", "other.example.com/x"), listed("b")
    first = names(one, two)
    assert len({*first}) == 2
    assert all(re.fullmatch(r"a-1-[0-9a-f]{10}", name) for name in first)
    assert {*names(one, two, other)} == {*first, "b"}


def test_names_do_not_depend_on_health_or_layout() -> None:
    """The same device has the same name when it is unhealthy, leaving, or beside others."""
    device = mig("2g.20gb", 4)
    ill = replace(device, problem="XID 79", leaving=True)
    assert names(device) == names(ill) == ["gpu-0-mig-2g-20gb-4"]
    assert "gpu-0-mig-2g-20gb-4" in names(ill, mig("1g.10gb", 0), card(1))


def test_small_devices_first_and_whole_cards_last() -> None:
    """Listed ones, then slices from small to large and card by card, then whole cards."""
    devices = [
        card(2),
        mig("3g.30gb", 0, 1),
        mig("1g.10gb", 6, 1),
        mig("1g.10gb", 6, 0),
        listed("a"),
        mig("2g.20gb", 4, 0),
    ]
    assert names(*devices) == [
        "a",
        "gpu-0-mig-1g-10gb-6",
        "gpu-1-mig-1g-10gb-6",
        "gpu-0-mig-2g-20gb-4",
        "gpu-1-mig-3g-30gb-0",
        "gpu-2",
    ]


def test_the_least_harmful_place_first() -> None:
    """Every place of a profile: handing them out in this order keeps the largest holes as long as can be."""
    places = [mig("1g.10gb", start, cut=False) for start in range(7)]
    ordered = [device.place for device in offer(places).values()]
    starts = [place.span.start for place in ordered if place]
    assert sorted(starts) == list(range(7))
    assert starts[0] in (0, 6), "the edge, so that 3g and 2g still have room"
    assert abs(starts[0] - starts[1]) == 1, "then its neighbour"


@given(st.permutations([card(1), mig("1g.10gb", 0), mig("1g.10gb", 1), mig("2g.20gb", 2), listed("a")]))
def test_the_order_is_the_same_however_sources_list_devices(devices: list[Device]) -> None:
    """Slices are not rewritten because a source lists its devices in another order."""
    assert names(*devices) == names(*sorted(devices, key=lambda device: device.id))
