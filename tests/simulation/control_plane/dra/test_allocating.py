"""Devices for requests: the search against a list of all solutions, of which the first is taken."""

from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.dra.slices import Kind, PoolId
from tessera.simulation.control_plane.allocating import (
    Alternative,
    Device,
    Stock,
    allocate,
    score,
    score_of,
)

POOL = PoolId("driver", "pool")
KIND = Kind("driver")
COUNTER = (POOL, "card", "slices")


def stock(*devices, slices=0):
    """Devices called after their type (`2g-0`); those that take slices of a card say how many (`2g-0:2`), tainted ones `!`."""
    found = []
    for text in devices:
        name, _, taken = text.rstrip("!").partition(":")
        takes = {COUNTER: int(taken)} if taken else {}
        found.append(Device((POOL, name), KIND, takes, text.endswith("!")))
    return Stock(tuple(found), {COUNTER: slices})


def requests(*texts):
    """`2g,1g*2`: one of 2g, else two of 1g."""
    return [
        tuple(
            Alternative(f"r{number}/{one}", (one.partition("*")[0],), int(one.partition("*")[2] or 1), score_of(place))
            for place, one in enumerate(text.split(","))
        )
        for number, text in enumerate(texts)
    ]  # fmt: skip


def selects(expressions, device):
    return device.id[1].startswith(expressions[0])


def allocated(wanted, have, taken=()):
    held = [one for one in have.devices if one.id[1] in taken]
    found = allocate(requests(*wanted), have, held, selects)
    return None if found is None else [(one.alternative.request, one.device.id[1]) for one in found]


@pytest.mark.parametrize(
    ("have", "taken", "wanted", "expected"),
    [
        # the first alternative that is free, of it the device that is listed first
        (["1g-0", "1g-1", "2g-0"], [], ["2g,1g"], [("r0/2g", "2g-0")]),
        (["1g-0", "1g-1", "2g-0"], ["2g-0"], ["2g,1g"], [("r0/1g", "1g-0")]),
        (["1g-0", "1g-1", "2g-0"], ["2g-0", "1g-0"], ["2g,1g"], [("r0/1g", "1g-1")]),
        (["1g-0", "1g-1", "2g-0"], ["2g-0", "1g-0", "1g-1"], ["2g,1g"], None),
        # each alternative says how many
        (["1g-0", "1g-1"], [], ["2g,1g*2"], [("r0/1g*2", "1g-0"), ("r0/1g*2", "1g-1")]),
        (["1g-0", "1g-1"], ["1g-1"], ["2g,1g*2"], None),
        # a tainted device is no device
        (["1g-0!", "1g-1"], [], ["1g"], [("r0/1g", "1g-1")]),
        # each request for itself; an earlier one keeps what is better ...
        (["1g-0", "2g-0"], [], ["2g,1g", "2g,1g"], [("r0/2g", "2g-0"), ("r1/1g", "1g-0")]),
        # ... unless a later one then has nothing
        (["1g-0", "2g-0"], [], ["2g,1g", "2g"], [("r0/1g", "1g-0"), ("r1/2g", "2g-0")]),
        (["1g-0", "2g-0"], [], ["2g", "2g"], None),
        # places that overlap take slices of one card
        (["2g-0:2", "2g-2:2", "3g-0:3", "1g-4:1"], ["2g-0"], ["3g,2g"], [("r0/2g", "2g-2")]),
        (["2g-0:2", "2g-2:2", "3g-0:3", "1g-4:1"], [], ["3g", "1g"], [("r0/3g", "3g-0"), ("r1/1g", "1g-4")]),
        (["2g-0:2", "2g-2:2", "3g-0:3", "1g-4:1"], [], ["3g", "2g"], None),
    ],
)  # fmt: skip
def test_table(have, taken, wanted, expected):
    """What is given, by requests, devices and what is taken; a card has four slices."""
    assert allocated(wanted, stock(*have, slices=4), taken) == expected


def test_score():
    """Eight for the first alternative, seven for the next, once for each request; nothing for a request without alternatives."""
    have = stock("1g-0", "1g-1", "2g-0", slices=0)
    found = allocate(requests("2g,1g", "3g,1g*2"), have, (), selects)
    exact = allocate([(Alternative("r", ("1g",), 2),)], have, (), selects)
    assert found is not None
    assert exact is not None
    assert [score(found), score(exact)] == [8 + 7, 0]


# The same by another way: all solutions are listed, and the first in order is taken.

TYPES = ("1g", "2g", "3g")
devices = st.lists(
    st.tuples(st.sampled_from(TYPES), st.integers(0, 2), st.booleans(), st.booleans()), min_size=1, max_size=5
)
wishes = st.lists(
    st.lists(st.tuples(st.sampled_from(TYPES), st.integers(1, 2)), min_size=1, max_size=2, unique=True),
    min_size=1,
    max_size=3,
)


def oracle(have, card, wanted):
    """The first solution: by the first request's alternative and devices, then the second's, and so on."""
    free = [number for number, (_, _, tainted, taken) in enumerate(have) if not (tainted or taken)]
    used = sum(size for _, size, _, taken in have if taken)
    solutions = []
    for places in product(*(range(len(one)) for one in wanted)):
        chosen = [one[place] for one, place in zip(wanted, places, strict=True)]
        choices = [[some for some in combinations(free, count) if all(have[n][0] == kind for n in some)] for kind, count in chosen]  # fmt: skip
        for some in product(*choices):
            every = [number for each in some for number in each]
            if len(set(every)) == len(every) and used + sum(have[n][1] for n in every) <= card:
                solutions.append(tuple(zip(places, some, strict=True)))
    return min(solutions, default=None)


@given(devices, st.integers(0, 4), wishes)
def test_the_first_of_all_solutions(have, room, wanted):
    """For random devices, counters and requests the search finds the first of all solutions, and one whenever there is one."""
    card = sum(size for _, size, _, taken in have if taken) + room
    names = [f"{kind}-{number}:{size}{'!' * tainted}" for number, (kind, size, tainted, _) in enumerate(have)]
    held = [f"{kind}-{number}" for number, (kind, _, _, taken) in enumerate(have) if taken]
    expected = oracle(have, card, wanted)
    texts = [",".join(f"{kind}*{count}" for kind, count in one) for one in wanted]
    found = allocated(texts, stock(*names, slices=card), held)
    if expected is None:
        assert found is None
        return
    flat = [
        (f"r{number}/{wanted[number][place][0]}*{wanted[number][place][1]}", f"{have[n][0]}-{n}")
        for number, (place, some) in enumerate(expected)
        for n in some
    ]
    assert found == flat
