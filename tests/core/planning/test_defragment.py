"""Defragmentation: the fewest pods whose end makes room, counted out on small cases."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.core.mig.geometry import product_named
from tessera.core.mig.layout import CardLayout
from tessera.core.mig.placement import Wish, place
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.defragment import Cleared, HeldCard, defragment
from tessera.core.planning.summary import explain_advice
from tessera.solver import highs
from tests.examples import examples

H200 = product_named("H200")
A30 = product_named("A30")


def card(text: str, product=H200) -> HeldCard:
    """`3g.71gb@0=a 1g.18gb@4=b 1g.18gb@5`: devices, and the pods that hold them."""
    wishes, pods = [], {}
    for word in text.split():
        device, _, pod = word.partition("=")
        name, _, position = device.partition("@")
        wishes.append(Wish(MigProfile.parse(name), int(position)))
        if pod:
            pods[int(position)] = pod
    layout = CardLayout.cut(product, wishes)
    held = tuple(one for one in layout.instances if one.position in pods)
    return HeldCard(layout, held, tuple(pods[one.position] for one in held))


def wanted(text: str) -> dict[MigProfile, int]:
    return {
        MigProfile.parse(name): int(count)
        for name, _, count in (word.partition("=") for word in text.split())
    }


WHOLE = HeldCard(CardLayout(H200), (), ("w",))
THREE, SEVEN = MigProfile(3, 71), MigProfile(7, 141)


@pytest.mark.parametrize(
    ("demand", "cards", "pods", "told"),
    [
        ("3g.71gb=1", [card("1g.18gb@0=a 1g.18gb@4=b")], ["a"], ["room for the one device: 1 pod must end or move; fewer do not suffice"]),
        ("3g.71gb=1", [card("1g.18gb@0=a")], [], ["room for the one device is there; no pod must end"]),
        ("3g.71gb=1", [card("3g.71gb@0=a 3g.71gb@4")], [], ["room for the one device is there; no pod must end"]),
        # one pod with two small devices is fewer pods than two pods
        (
            "3g.71gb=2",
            [card("1g.18gb@0=a 1g.18gb@4=b"), card("1g.18gb@0=c 1g.18gb@4=c")],
            ["c"],
            ["room for all 2 devices: 1 pod must end or move; fewer do not suffice"],
        ),
        # also when its devices are on two cards
        (
            "7g.141gb=2",
            [card("3g.71gb@0=a"), card("3g.71gb@0=b"), card("3g.71gb@0=c"), card("3g.71gb@4=c")],
            ["c"],
            ["room for all 2 devices: 1 pod must end or move; fewer do not suffice"],
        ),
        ("7g.141gb=1", [card("1g.18gb@0=a 1g.18gb@4=b"), WHOLE], ["w"], ["room for the one device: 1 pod must end or move; fewer do not suffice"]),
        (
            "7g.141gb=2",
            [card("1g.18gb@0=a 1g.18gb@4=b")],
            ["a", "b"],
            ["room for 1 of 2 devices: 2 pods must end or move; fewer do not suffice", "no room for 7g.141gb ×1, even if every pod ended"],
        ),
        ("7g.141gb=1", [card("2g.12gb@0=a", A30)], [], ["room for 0 of 1 device is there; no pod must end", "no room for 7g.141gb ×1, even if every pod ended"]),
        ("7g.141gb=1", [], [], ["room for 0 of 1 device is there; no pod must end", "no room for 7g.141gb ×1, even if every pod ended"]),
    ],
)  # fmt: skip
def test_whose_end_makes_room(demand, cards, pods, told):
    """Held cards give the pods that must go, and sentences that say so."""
    advice = defragment(wanted(demand), cards, highs)
    assert sorted(advice.pods) == pods
    assert explain_advice(advice) == told


def test_the_room_is_where_it_is_said_to_be():
    """Each card that gets room says who goes from it and what fits then."""
    cards = [card("3g.71gb@0=a 3g.71gb@4=b"), card("1g.18gb@0=c 3g.71gb@4=d")]
    advice = defragment({THREE: 1}, cards, highs)
    assert len(advice.pods) == 1
    assert advice.served == {THREE: 1}
    assert defragment({SEVEN: 2}, cards, highs).cleared == (
        Cleared(0, ("a", "b"), {SEVEN: 1}),
        Cleared(1, ("c", "d"), {SEVEN: 1}),
    )


def brute_force(demand: dict[MigProfile, int], cards: list[HeldCard]) -> tuple[int, int]:
    """Devices without room and pods gone, at best: every set of pods is tried, smallest first."""
    pods = sorted({pod for one in cards for pod in one.pods})
    best = None
    for number in range(len(pods) + 1):
        for gone in combinations(pods, number):
            left = dict(demand)
            (profile,) = left  # one profile: each card holds as many as fit
            for one in cards:
                stay = [
                    Wish(i.profile, i.position)
                    for i, pod in zip(one.held, one.pods, strict=True)
                    if pod not in gone
                ]
                while left[profile] and place(one.layout.product, [*stay, Wish(profile)]) is not None:
                    stay.append(Wish(profile))
                    left[profile] -= 1
            score = (sum(left.values()), number)
            best = score if best is None or score < best else best
    assert best is not None
    return best


@settings(max_examples=examples(60))
@given(st.data())
def test_no_fewer_pods_suffice(data):
    """On cases small enough to try every set of pods, none that is smaller makes as much room."""
    cards = []
    for _ in range(data.draw(st.integers(1, 3))):
        profiles = data.draw(st.lists(st.sampled_from(H200.profiles), max_size=3))
        held = place(H200, [Wish(profile) for profile in profiles]) or ()
        pods = tuple(data.draw(st.sampled_from("abcdef")) for _ in held)
        cards.append(HeldCard(CardLayout(H200, mig_enabled=True, instances=held), held, pods))
    demand = {data.draw(st.sampled_from(H200.profiles)): data.draw(st.integers(1, 4))}
    advice = defragment(demand, cards, highs)
    assert not any(advice.gaps[:2])
    assert (sum(advice.left_out.values()), len(advice.pods)) == brute_force(demand, cards)
    for one in advice.cleared:  # what is said to fit does, beside those that stay
        there = cards[one.card]
        stay = [
            Wish(i.profile, i.position)
            for i, pod in zip(there.held, there.pods, strict=True)
            if pod not in advice.pods
        ]
        new = [Wish(profile) for profile, count in one.room.items() for _ in range(count)]
        assert place(H200, [*stay, *new]) is not None
