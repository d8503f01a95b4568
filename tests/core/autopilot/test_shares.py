"""What a namespace may spend of the budget on re-cuts that none of its pods takes."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.autopilot.propose import propose
from tessera.core.autopilot.shares import HOUR, Allowances, Taker, count_lately, settle, share_of
from tessera.core.autopilot.values import CardSupply, Charge, Limits, Past, Use, Want, Why
from tessera.core.mig.geometry import product_named
from tessera.core.mig.layout import CardLayout
from tessera.core.mig.profile import MigProfile
from tessera.protocol.mig.miglayout import read_past, write_past

H100 = product_named("H100-80GB")
P1, P3, P7 = map(MigProfile.parse, ("1g.10gb", "3g.40gb", "7g.80gb"))
SMALL, LARGE = str(P1), str(P3)
NOW = 1_000_000.0


def charge(
    namespace: str, node: str = "node-0", number: int = 0, *, at: float = NOW, **more: object
) -> Charge:
    """A re-cut whose devices are offered 30 seconds after it began."""
    return replace(Charge(at, node, number, namespace, (LARGE,), at + 30), **more)  # type: ignore[arg-type]


def taker(namespace: str, at: float = NOW + 40, number: int = 1, profile: str = LARGE) -> Taker:
    return Taker(namespace, at, {profile: number})


def uses(charges: Sequence[Charge]) -> list[tuple[str, str]]:
    return [(settled.namespace, settled.use.value) for settled in charges]


@pytest.mark.parametrize(("recuts_per_hour", "share"), [(1, 1), (3, 1), (7, 1), (8, 2), (20, 5), (1000, 250)])
def test_a_share_is_a_quarter_and_at_least_one(recuts_per_hour: int, share: int) -> None:
    """A namespace's share is a quarter of the budget, rounded down, and at least one re-cut."""
    assert share_of(recuts_per_hour) == share


@pytest.mark.parametrize(
    ("charges", "takers", "after", "expected"),
    [
        ([charge("a")], {}, 100.0, [("a", "")]),
        ([charge("a")], {}, 150.0, [("a", "")]),
        ([charge("a")], {}, 151.0, [("a", "unused")]),
        ([charge("a")], {"node-0": [taker("a")]}, 60.0, [("a", "used")]),
        ([charge("a")], {"node-0": [taker("a")]}, 3000.0, [("a", "used")]),  # nobody looked in time
        ([charge("a")], {"node-0": [taker("a", NOW + 151)]}, 160.0, [("a", "unused")]),
        ([charge("a")], {"node-0": [taker("a", NOW - 5)]}, 160.0, [("a", "unused")]),
        ([charge("a")], {"node-0": [taker("a", profile=SMALL)]}, 160.0, [("a", "unused")]),
        ([charge("a")], {"node-1": [taker("a")]}, 160.0, [("a", "unused")]),
        ([charge("a")], {"node-0": [taker("b")]}, 160.0, [("a", "unused")]),
        ([charge("a", offered=None)], {"node-0": [taker("a")]}, 3000.0, [("a", "")]),
        ([charge("a", use=Use.UNUSED)], {"node-0": [taker("a")]}, 60.0, [("a", "unused")]),
        ([charge("a", use=Use.USED)], {}, 3000.0, [("a", "used")]),
        ([charge("a")], {"node-0": [taker("a")]}, HOUR, []),
    ],
)
def test_what_became_of_a_re_cut(
    charges: list[Charge], takers: dict[str, list[Taker]], after: float, expected: list[tuple[str, str]]
) -> None:
    """A re-cut is used where a pod of its namespace was bound for one of its devices within two minutes after they were offered."""
    assert uses(settle(charges, lambda node: takers.get(node, ()), NOW + after)) == expected


@pytest.mark.parametrize(
    ("takers", "expected"),
    [
        ([taker("a")], ["unused", "used"]),
        ([taker("a"), taker("a")], ["used", "used"]),
        ([taker("a", number=2)], ["used", "used"]),
    ],
)
def test_two_cards_of_a_node_need_two_devices_taken(takers: list[Taker], expected: list[str]) -> None:
    """One pod does not stand for all cards of a rollout, whenever it is seen."""
    charges = settle([charge("a", number=0), charge("a", number=1)], lambda _: takers, NOW + 60)
    settled = settle(charges, lambda _: takers, NOW + 200)
    assert sorted(uses(settled)) == [("a", use) for use in sorted(expected)]


def test_a_pod_that_has_ended_counts_once() -> None:
    """What was seen to be used stays used, and the same pod is not counted for a later re-cut of the node."""
    first = settle([charge("a")], lambda _: [taker("a")], NOW + 60)
    later = charge("a", number=1, at=NOW + 300)
    assert uses(settle([*first, later], lambda _: [taker("a")], NOW + 600)) == [
        ("a", "used"),
        ("a", "unused"),
    ]


@pytest.mark.parametrize("profiles", [((SMALL,), (LARGE,)), ((SMALL, LARGE), (LARGE,))])
def test_fault_99_cards_cut_together_for_several_profiles(profiles: tuple[tuple[str, ...], ...]) -> None:
    """Two cards of a node are cut for one profile each, and a pod takes each device: both re-cuts are used."""
    charges = [charge("a", number=number, profiles=made) for number, made in enumerate(profiles)]
    takers = [taker("a", NOW + 40, profile=LARGE), taker("a", NOW + 41, profile=SMALL)]
    assert uses(settle(charges, lambda _: takers, NOW + 60)) == [("a", "used")] * 2


@pytest.mark.parametrize("looks", [[260], [145, 260], [145, 160, 260]])
def test_fault_99_one_pod_for_two_rollouts(looks: list[int]) -> None:
    """Cards of a node are cut one after the other, and one pod comes: it counts for one of the re-cuts."""
    charges: Sequence[Charge] = [charge("a"), charge("a", number=1, at=NOW + 100)]
    for after in looks:
        stored = read_past(write_past(Past(charges=tuple(charges)))) or Past()
        charges = settle(stored.charges, lambda _: [taker("a", NOW + 140)], NOW + after)
    assert sorted(use for _, use in uses(charges)) == ["unused", "used"]
    assert [settled.node for settled in settle(charges, lambda _: (), NOW + 300)] == ["", ""]


def test_namespaces_whose_pods_took_each_other_s_devices() -> None:
    """The scheduler does not know for whom a device was made: both have used their re-cut."""
    charges = [charge("a", "node-0"), charge("b", "node-1")]
    takers = {"node-0": [taker("b")], "node-1": [taker("a")]}
    assert sorted(uses(settle(charges, takers.__getitem__, NOW + 60))) == [("a", "used"), ("b", "used")]


def test_who_took_another_s_device_leaves_its_own_to_it() -> None:
    """A namespace whose pods never come has the re-cut then that nobody takes."""
    charges = [charge("phantom", "node-0"), charge("team", "node-1")]
    takers = {"node-0": [taker("team")], "node-1": []}
    settled = settle(charges, takers.__getitem__, NOW + 60)
    assert sorted(uses(settled)) == [("phantom", ""), ("team", "used")]
    assert sorted(uses(settle(settled, takers.__getitem__, NOW + 200))) == [
        ("phantom", "unused"),
        ("team", "used"),
    ]


def test_times_that_are_yet_to_come_count_as_now() -> None:
    """A clock that was ahead has written them: they are over after an hour, as others are."""
    ahead = charge("a", at=NOW + 1e6)
    (clamped,) = count_lately([ahead], NOW)
    assert (clamped.at, clamped.offered) == (NOW, NOW)
    assert count_lately([clamped], NOW + HOUR) == ()


def test_when_a_share_is_free_again() -> None:
    """The oldest of the re-cuts that count ends it; used ones do not count."""
    charges = [charge("a", number=number, at=NOW + number) for number in range(3)]
    allowances = Allowances([*charges, charge("a", at=NOW - 9, use=Use.USED)], 8)
    assert (allowances.left("a"), allowances.free_at("a")) == (-1, NOW + 1 + HOUR)
    assert (allowances.left("b"), allowances.free_at("b")) == (2, None)


def card(number: int, *profiles: MigProfile, node: str = "") -> CardSupply:
    return CardSupply(node or f"node-{number}", number, CardLayout.cut(H100, profiles))


def test_a_burst_of_one_namespace() -> None:
    """Four re-cuts are wanted at once and the share is one: one begins, the others are refused with the time, and another namespace gets its own."""
    cards = [card(number, *[P1] * 7) for number in range(4)]
    wants = [Want(P7, "greedy", NOW - 100, number=4)]
    proposal = propose(wants, cards, Past(), Limits(recuts_per_hour=3), NOW)
    assert [recut.namespace for recut in proposal.recuts] == ["greedy"]
    refused = [(one.profile, one.number, one.why, one.until) for one in proposal.refusals]
    assert refused == [(P7, 3, Why.SHARE, NOW + HOUR)]
    proposal = propose([*wants, Want(P3, "team", NOW)], cards, Past(), Limits(recuts_per_hour=3), NOW)
    assert Counter(recut.namespace for recut in proposal.recuts) == {"greedy": 1, "team": 1}


def test_what_is_refused_for_a_share_raises_no_forecast() -> None:
    """Wants of a namespace that has spent its share do not count as demand that is expected."""
    past = Past(NOW - 60, {}, (), (charge("greedy", at=NOW - 60),))
    proposal = propose(
        [Want(P7, "greedy", NOW - 100, number=4)], [card(0, P7)], past, Limits(recuts_per_hour=3), NOW
    )
    assert proposal.recuts == ()
    assert proposal.past.levels[str(P7)][0] == 0
    assert proposal.demand[P7].waiting == 4, "people see it"


def test_a_pod_that_needs_more_cards_than_the_share_allows() -> None:
    """It gets none of them, and it is said why; with a larger budget it gets all."""
    cards = [card(number, *[P1] * 7, node="node-0") for number in range(2)]
    want = Want(P7, "team", NOW - 100, number=2, together=2)
    proposal = propose([want], cards, Past(), Limits(recuts_per_hour=7), NOW)
    assert (proposal.recuts, [one.why for one in proposal.refusals]) == ((), [Why.SHARE])
    proposal = propose([want], cards, Past(), Limits(recuts_per_hour=8), NOW)
    assert [recut.namespace for recut in proposal.recuts] == ["team", "team"]


def test_what_keeps_places_whole_is_nobody_s() -> None:
    """A re-cut for what is expected is charged to no namespace."""
    levels = {str(P7): (2.0, 5.0, 1.0)}
    proposal = propose([], [card(0, *[P1] * 7)], Past(NOW - 10, levels), Limits(), NOW)
    assert [recut.namespace for recut in proposal.recuts] == [""]
    assert proposal.past.after(proposal.recuts, NOW).charges == ()


def _pods_on(seen: dict[str, list[Taker]], node: str) -> list[Taker]:
    return seen.get(node, [])


SPACES = ("a", "b", "attacker")
MOMENTS = st.integers(0, 300)


@given(
    st.lists(
        st.builds(
            lambda namespace, node, number, at, profiles: charge(
                namespace, node, number, at=NOW + at, profiles=tuple(sorted(profiles))
            ),
            st.sampled_from(SPACES),
            st.sampled_from(["node-0", "node-1"]),
            st.integers(0, 3),
            MOMENTS,
            st.sets(st.sampled_from([SMALL, LARGE]), min_size=1),
        ),
        max_size=8,
    ),
    st.lists(
        st.tuples(
            st.sampled_from(["node-0", "node-1"]),
            st.builds(
                taker,
                st.sampled_from(SPACES),
                MOMENTS.map(lambda moment: NOW + moment),
                st.integers(1, 2),
                st.sampled_from([SMALL, LARGE]),
            ),
        ),
        max_size=6,
    ),
    st.lists(st.integers(1, 80), max_size=9),
)
def test_each_device_counts_once(
    charges: list[Charge], pods: list[tuple[str, Taker]], steps: list[int]
) -> None:
    """No namespace has more used re-cuts than its pods took devices, however often and whenever they are looked at."""
    now, settled = NOW, tuple(charges)
    for seconds in [*steps, 600]:
        now += seconds
        seen: dict[str, list[Taker]] = {}
        for node, pod in pods:
            if pod.at <= now:
                seen.setdefault(node, []).append(pod)
        settled = settle(settled, partial(_pods_on, seen), now)
    used = Counter(charged.namespace for charged in settled if charged.use is Use.USED)
    taken = Counter[str]()
    for _, pod in pods:
        taken[pod.namespace] += sum(pod.devices.values())
    assert used <= taken
    assert {charged.node for charged in settled} <= {""}


@given(
    st.integers(1, 24),
    st.lists(
        st.tuples(st.sampled_from(SPACES), st.booleans(), st.integers(1, 4), st.integers(5, 400)), max_size=25
    ),
)
def test_laws(budget: int, steps: list[tuple[str, bool, int, int]]) -> None:
    """No namespace has more unused re-cuts within an hour than its share, whatever comes; nor is the budget exceeded.

    The attacker's pods never take anything. The others' do, if they want to. A namespace whose pods take all that is cut for them is refused for its share
    only until they have it. All of it goes through the status, as after a restart.
    """
    now, past, takers = NOW, Past(), dict[str, list[Taker]]()
    limits, fresh = Limits(recuts_per_hour=budget, cool_down=0.0), 0
    begun, always_takes = list[tuple[float, str, str]](), {"a", "b"}
    for namespace, takes, number, seconds in steps:
        now += seconds
        takes = takes and namespace != "attacker"
        past = replace(past, charges=settle(past.charges, lambda node: takers.get(node, ()), now))
        cards = [card(0, *[P1] * 7, node=f"node-{fresh + place}") for place in range(6)]
        fresh += 6
        proposal = propose([Want(P7, namespace, now - 60, number=number)], cards, past, limits, now)
        spent = sum(one.use is not Use.USED for one in past.charges if one.namespace == namespace)
        left = budget - sum(now - cut.at < HOUR for cut in past.cuts)
        assert len(proposal.recuts) == max(0, min(number, left, share_of(budget) - spent))
        past = proposal.past.after(proposal.recuts, now)
        past = replace(
            past, charges=tuple(one if one.offered else replace(one, offered=now) for one in past.charges)
        )
        for recut in proposal.recuts:
            begun.append((now, recut.node, namespace))
            if takes:
                takers[recut.node] = [Taker(namespace, now + 1, {str(P7): 1})]
        always_takes -= set() if takes else {namespace}
        past = read_past(write_past(past)) or Past()
        lately = [entry for entry in begun if now - entry[0] < HOUR]
        assert len(lately) <= budget
        unused = Counter(space for _, node, space in lately if node not in takers)
        assert max(unused.values(), default=0) <= share_of(budget)
        assert not any(
            one.use is Use.UNUSED
            for one in settle(past.charges, lambda node: takers.get(node, ()), now)
            if one.namespace in always_takes
        )
