"""Which devices to take: few cards, big holes left whole."""

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.devices.device import Card, Device, DeviceSet, Place, Span
from tessera.core.devices.preference import blocks_of, preferred
from tessera.core.mig.geometry import product_named

RESOURCE = "nvidia.com/mig-1g.10gb"
# eight memory slices: 7g at 0, 3g at 0 and 4, 2g at 0 2 4, 1g at 0 to 6
BLOCKS = tuple(
    Span(start, size)
    for size, starts in ((8, [0]), (4, [0, 4]), (2, [0, 2, 4]), (1, range(7)))
    for start in starts
)


def sliced(card: int, starts: list[int], size: int = 1, resource: str = RESOURCE) -> list[Device]:
    return [
        Device(
            f"{card}-{start}",
            resource=resource,
            cdi_kind="x.y/z",
            place=Place(Card(card, BLOCKS), Span(start, size)),
            numa=(card // 2,),
        )
        for start in starts
    ]


def choose(devices: list[Device], free: list[str], size: int, must: list[str] | None = None) -> list[str]:
    return preferred(DeviceSet(RESOURCE, tuple(devices)), free, must or [], size)


SEVEN = list(range(7))
TWO_CARDS = sliced(0, SEVEN) + sliced(1, SEVEN)


@pytest.mark.parametrize(
    ("free", "size", "must", "chosen"),
    [
        # one card, the half that is begun before the whole one
        (["0-0", "0-1", "0-3", "0-4", "0-5", "0-6"], 1, [], ["0-3"]),
        # a fresh card: two slices that leave the place of a 4g and of two 2g
        ([f"0-{n}" for n in SEVEN], 2, [], ["0-4", "0-6"]),
        # the last 1g place cannot serve a 3g: taken first where the halves are equally free
        (["0-2", "0-3", "0-6"], 1, [], ["0-6"]),
        # a begun card before a whole one
        ([f"0-{n}" for n in SEVEN] + ["1-3"], 1, [], ["1-3"]),
        # two devices on one card although another card is begun
        ([f"0-{n}" for n in SEVEN] + ["1-3"], 2, [], ["0-4", "0-6"]),
        # what must be included draws the rest to its card
        ([f"0-{n}" for n in SEVEN] + [f"1-{n}" for n in SEVEN], 2, ["1-5"], ["1-5", "1-4"]),
        # more than one card has: the fullest card first, then as few as can be
        (
            [f"0-{n}" for n in (0, 1)] + [f"1-{n}" for n in SEVEN],
            8,
            [],
            [f"1-{n}" for n in (0, 1, 2, 3, 4, 5, 6)] + ["0-1"],
        ),
        # ids that are not known are left out, and what there is is given
        (["9-9", "0-0"], 2, [], ["0-0"]),
        ([], 2, [], []),
        (["0-0", "0-1"], 1, ["0-1", "0-0"], ["0-1"]),
    ],
)
def test_slices(free: list[str], size: int, must: list[str], chosen: list[str]) -> None:
    """Few cards first, then the placement that leaves the largest profile allocatable."""
    assert sorted(choose(TWO_CARDS, [*free, *must], size, must)) == sorted(chosen)


def test_the_place_of_a_4g_stays_on_some_card() -> None:
    """Of two idle cards, one with small devices on the left and one with them on the right, the latter gives one: 4g fits only on the left."""
    left, right = sliced(0, [0, 1, 2]), sliced(1, [4, 5, 6])
    [chosen] = choose([*left, *right], [one.id for one in (*left, *right)], 1)
    assert chosen in {one.id for one in right}


def test_the_place_of_a_4g_stays() -> None:
    """Only the left half of a real card holds a 4g: where both halves are free, a small device is taken from the right one."""
    blocks = blocks_of(product_named("H100-80GB"))
    devices = [
        replace(one, place=replace(one.place, card=Card(0, blocks))) for one in sliced(0, SEVEN) if one.place
    ]
    assert sorted(choose(devices, [one.id for one in devices], 3)) == ["0-4", "0-5", "0-6"]


def test_other_resources_on_the_card_count() -> None:
    """A slice is taken beside what other resources have in use, not in the free half."""
    mine = sliced(0, [3, 4, 5, 6])
    other = sliced(0, [0], size=2, resource="nvidia.com/mig-2g.20gb")
    chosen = preferred(
        DeviceSet(RESOURCE, tuple(mine)), [each.id for each in mine], [], 1, in_use_elsewhere=other
    )
    assert chosen == ["0-3"]
    other = sliced(0, [4], size=2, resource="nvidia.com/mig-2g.20gb")
    mine = sliced(0, [0, 1, 2, 3, 6])
    chosen = preferred(
        DeviceSet(RESOURCE, tuple(mine)), [each.id for each in mine], [], 1, in_use_elsewhere=other
    )
    assert chosen == ["0-6"]


def test_whole_cards_stay_near_each_other() -> None:
    """Whole GPUs are taken from one NUMA node when one has enough."""
    cards = [device for card in range(4) for device in sliced(card, [0], size=8)]
    assert choose(cards, ["0-0", "2-0", "3-0"], 2) == ["2-0", "3-0"]
    assert choose(cards, ["0-0", "2-0", "3-0"], 2, ["0-0"]) == ["0-0", "2-0"]
    assert choose(cards, ["0-0", "1-0", "2-0", "3-0"], 4) == ["0-0", "1-0", "2-0", "3-0"]


def test_devices_without_a_card_come_in_their_order() -> None:
    """Where nothing is known about places, the order of the source decides: device_2 before device_10."""
    devices = [Device(f"device_{n}", resource=RESOURCE, cdi_kind="x.y/z") for n in range(12)]
    assert choose(devices, ["device_10", "device_2", "device_7"], 2) == ["device_2", "device_7"]


def test_a_thousand_devices_are_no_burden() -> None:
    """The kubelet waits for the answer while a pod starts: a thousand slices take well under a second of processor time."""
    devices = [device for card in range(143) for device in sliced(card, SEVEN)]
    began = time.process_time()
    assert len(choose(devices, [device.id for device in devices], 8)) == 8
    assert time.process_time() - began < 1.0


@given(
    free=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 6)), min_size=1),
    must=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 6)), max_size=3),
    size=st.integers(1, 10),
)
def test_the_preferred_are_free_once_and_on_few_cards(
    free: set[tuple[int, int]], must: set[tuple[int, int]], size: int
) -> None:
    """What is chosen was free, is there once, has what must be in it, and lies on as few cards as can be."""
    devices = [device for card in range(4) for device in sliced(card, SEVEN)]
    free_ids = [f"{card}-{start}" for card, start in free | must]
    must_ids = [f"{card}-{start}" for card, start in must][:size]
    chosen = choose(devices, free_ids, size, must_ids)
    assert len(chosen) == len(set(chosen)) == min(size, len(free_ids))
    assert set(chosen) <= set(free_ids)
    assert set(must_ids) <= set(chosen)
    if not must_ids:
        most_free = sorted((sum(card == each for card, _ in free | must) for each in range(4)), reverse=True)
        needed, cards = len(chosen), 0
        while needed > 0:
            needed, cards = needed - most_free[cards], cards + 1
        assert len({each.split("-")[0] for each in chosen}) == cards
