"""From the slices that a card has to those that are wanted."""

import pytest

from tessera.core.mig.cutting import GpuInstance, Steps, steps
from tessera.core.mig.geometry import product_named
from tessera.core.mig.layout import CardLayout, resolve
from tessera.core.mig.placement import Instance, Wish, place, place_keeping
from tessera.core.mig.profile import MigProfile
from tessera.protocol.mig.documents import read_layout

H200 = product_named("H200")


def at(text: str) -> Instance:
    """`3g.71gb@4`."""
    profile, _, position = text.partition("@")
    (one,) = CardLayout.cut(H200, [Wish(MigProfile.parse(profile), int(position))]).instances
    return one


def shown(found: Steps) -> list[list[str]]:
    made = [
        [f"{one.instance.profile}@{one.instance.position}" for one in some]
        for some in (found.destroy, found.complete)
    ]
    return made + [
        [f"{one.profile}@{one.position}" for one in some] for some in (found.create, found.waiting)
    ]


@pytest.mark.parametrize(
    ("present", "wanted", "kept", "expected"),
    [
        ("", "2g.35gb@0 3g.71gb@4", "", [[], [], ["2g.35gb@0", "3g.71gb@4"], []]),
        ("2g.35gb@0 3g.71gb@4", "2g.35gb@0 3g.71gb@4", "", [[], [], [], []]),
        ("2g.35gb@0 3g.71gb@4", "3g.71gb@4", "", [["2g.35gb@0"], [], [], []]),
        ("2g.35gb@0 3g.71gb@4", "1g.18gb@0 3g.71gb@4", "", [["2g.35gb@0"], [], ["1g.18gb@0"], []]),
        # what is kept stays, and what would lie on it waits
        ("2g.35gb@0 3g.71gb@4", "1g.18gb@0 1g.18gb@2", "2g.35gb@0", [["3g.71gb@4"], [], ["1g.18gb@2"], ["1g.18gb@0"]]),
        # one profile in place of another of the same size
        ("1g.18gb@0", "1g.18gb+me@0", "", [["1g.18gb@0"], [], ["1g.18gb+me@0"], []]),
        # places are free, and compute slices are not: 4g + 3g take all seven
        ("4g.71gb@0", "3g.71gb@4 1g.18gb@0", "4g.71gb@0", [[], [], ["3g.71gb@4"], ["1g.18gb@0"]]),
        ("3g.71gb@0 3g.71gb@4", "1g.18gb@6 2g.35gb@4", "3g.71gb@0", [["3g.71gb@4"], [], ["1g.18gb@6", "2g.35gb@4"], []]),
    ],
)  # fmt: skip
def test_steps(present: str, wanted: str, kept: str, expected: list[list[str]]) -> None:
    """Nothing that is wanted goes, nothing that is kept goes, and nothing is made that does not fit beside them."""
    made = [GpuInstance(number, at(text)) for number, text in enumerate(present.split())]
    numbers = [number for number, text in enumerate(present.split()) if text in kept.split()]
    assert shown(steps(H200, made, [at(text) for text in wanted.split()], numbers)) == expected


def test_a_slice_without_its_device() -> None:
    """One that is in the right place gets its compute instance; if it is kept, that waits."""
    made = [
        GpuInstance(0, at("2g.35gb@0"), (), whole=False),
        GpuInstance(1, at("3g.71gb@4"), (0, 1, 2), whole=False),
    ]
    wanted = [at("2g.35gb@0"), at("3g.71gb@4")]
    assert shown(steps(H200, made, wanted, [1])) == [[], ["2g.35gb@0"], [], ["3g.71gb@4"]]


@pytest.mark.parametrize(
    ("wishes", "present", "expected"),
    [
        ("3g.71gb 2g.35gb", "3g.71gb@0", "3g.71gb@0 2g.35gb@4"),
        ("3g.71gb 2g.35gb 2g.35gb", "3g.71gb@0", "2g.35gb@0 2g.35gb@2 3g.71gb@4"),  # it cannot stay
        ("3g.71gb@4 2g.35gb", "3g.71gb@0 2g.35gb@2", "2g.35gb@2 3g.71gb@4"),
        ("1g.18gb 1g.18gb", "1g.18gb@0 1g.18gb@1 1g.18gb@2", "1g.18gb@0 1g.18gb@1"),
        ("4g.71gb 1g.18gb", "1g.18gb@0 1g.18gb@5", "4g.71gb@0 1g.18gb@5"),
    ],
)
def test_what_is_there_stays_where_it_can(wishes: str, present: str, expected: str) -> None:
    """Wishes without a place get those of slices that are there, as many as fit together."""
    asked = [(one.partition("@")[0], one.partition("@")[2]) for one in wishes.split()]
    some = [Wish(MigProfile.parse(name), int(where) if where else None) for name, where in asked]
    placed = place_keeping(H200, some, [at(text) for text in present.split()])
    assert placed == tuple(at(text) for text in expected.split())
    assert place_keeping(H200, some, ()) == place(H200, some)


def test_layouts_of_cards_that_are_cut() -> None:
    """Each card keeps its own."""
    layout = read_layout("3g.71gb=1", [H200, H200], [[at("3g.71gb@0")], []])
    assert [card.instances for card in layout.cards] == [(at("3g.71gb@0"),), (at("3g.71gb@4"),)]
    assert resolve([], [H200], [[at("3g.71gb@0")]]).cards[0].instances == ()
