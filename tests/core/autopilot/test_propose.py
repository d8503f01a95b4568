"""The autopilot cuts idle slices anew for what waits, within its limits."""

from collections import Counter
from dataclasses import replace
from unittest.mock import create_autospec

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.autopilot.propose import propose
from tessera.core.autopilot.search import Search
from tessera.core.autopilot.together import Together
from tessera.core.autopilot.values import CardSupply, Cut, Kind, Levels, Limits, Past, Proposal, Want, Why
from tessera.core.autopilot.wanted import lacking
from tessera.core.mig.geometry import product_named
from tessera.core.mig.layout import CardLayout
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.changes import Way

H100 = product_named("H100-80GB")
P1, P2, P3, P4, P7 = PROFILES = tuple(
    map(MigProfile.parse, ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"))
)


def card(number: int, *profiles: MigProfile, held: int = 0, way: Way = Way.ANNOTATION) -> CardSupply:
    """A card cut so, whose last devices are held."""
    layout = CardLayout.cut(H100, profiles)
    return CardSupply("node-0", number, layout, layout.instances[len(layout.instances) - held :], way)


def want(profile: MigProfile, since: float = 0.0) -> Want:
    return Want(profile, "team", since)


def whys(proposal: Proposal) -> list[tuple[MigProfile, int, Why]]:
    return [(one.profile, one.number, one.why) for one in proposal.refusals]


def test_idle_slices_make_room_for_what_waits() -> None:
    """A want that nothing free serves gets room where idle slices go; what is held stays."""
    here = card(0, *[P1] * 7, held=3)
    [recut] = propose([want(P4)], [here], Past(), Limits(), 100.0).recuts
    assert P4 in recut.after.counts
    assert {*here.held} <= {*recut.after.instances}
    assert dict(recut.serves) == {P4: 1}
    assert dict(recut.takes) == {P1: 4}
    assert recut.reason.startswith("makes room for 1 × 4g.40gb; idle 4 × 1g.10gb go (worth ")


def test_one_card_serves_several() -> None:
    """A card is cut once for all that it can serve."""
    [recut] = propose([want(P4), want(P3)], [card(0, *[P1] * 7)], Past(), Limits(), 100.0).recuts
    assert dict(recut.serves) == {P3: 1, P4: 1}


def test_the_rest_of_a_card_is_cut_for_what_demand_has_been() -> None:
    """What a re-cut leaves beside what it serves goes to what was in use lately, not to what was not."""
    cards = [card(0, P4, P3), *(card(number, *[P1] * 7, held=7) for number in (1, 2, 3))]
    [recut] = propose([want(P2)], cards, Past(), Limits(), 100.0).recuts
    assert recut.after.counts == {P1: 5, P2: 1}, "nobody asked for 3g or 4g"


@pytest.mark.parametrize(
    ("cards", "past", "limits", "why"),
    [
        ([card(0, *[P1] * 7, held=7)], Past(), Limits(), Why.NO_ROOM),
        ([card(0, P3, P3, held=1, way=Way.MIG_MANAGER)], Past(), Limits(), Why.NO_ROOM),
        ([replace(card(0, P7), fixed="a rollout")], Past(), Limits(), Why.NO_ROOM),
        ([card(0, *[P1] * 7)], Past(), Limits(minimum={P1: 5}), Why.MINIMUM),
        ([card(0, *[P1] * 7)], Past(), Limits(maximum={P4: 0}), Why.MAXIMUM),
        ([CardSupply("n", 0, CardLayout(H100, mig_enabled=False))], Past(), Limits(keep_whole=1), Why.KEEP_WHOLE),
        ([card(0, *[P1] * 7)], Past(cuts=(Cut(0.0, "node-0", 0),)), Limits(), Why.COOL_DOWN),
        ([card(0, *[P1] * 7)], Past(cuts=(Cut(-3000.0, "x", 0),)), Limits(recuts_per_hour=1), Why.BUDGET),
        ([card(0, *[P1] * 7)], Past(cuts=(Cut(1e9, "x", 0),)), Limits(recuts_per_hour=1), Why.BUDGET),
    ],
)  # fmt: skip
def test_what_gets_no_room_and_why(cards: list[CardSupply], past: Past, limits: Limits, why: Why) -> None:
    """A want that gets no room is refused, with the reason."""
    proposal = propose([want(P4)], cards, past, limits, 100.0)
    assert (proposal.recuts, whys(proposal)) == ((), [(P4, 1, why)])


def test_what_demand_has_been_is_worth_more_than_one_pod() -> None:
    """An idle device that was in use all day is not taken for one young pod of which many devices come free."""
    busy = [card(number, *[P1] * 7, held=7) for number in range(8)]
    here = card(9, P4, P3, held=1)  # the 4g is idle for the moment
    idle = replace(here, held=here.layout.instances[1:])
    day = {str(P4): (3.0, 12.0, 0.0), str(P1): (56.0, 3136.0, 0.0), str(P3): (1.0, 1.0, 0.0)}
    proposal = propose([want(P1, 99.0)], [*busy, idle], Past(99.0, day), Limits(), 100.0)
    assert whys(proposal) == [(P1, 1, Why.NOT_WORTH_IT)]
    many = propose([want(P1, 99.0)] * 16, [*busy, idle], Past(99.0, day), Limits(), 100.0)
    assert sum(one.serves[P1] for one in many.recuts) == 4, "many that wait outweigh it"


def test_the_last_place_is_kept_for_half_an_hour() -> None:
    """Small pods get the last idle place of a profile that is in demand only when they have waited; one that leaves another place, at once."""
    busy = [card(number, *[P1] * 7, held=7) for number in range(4)]
    places = [card(number, P4, P3, held=0) for number in (8, 9)]
    last = [replace(one, held=one.layout.instances[1:]) for one in places]  # the 3g is in use
    day = {str(P4): (0.6, 0.7, 0.0), str(P1): (28.0, 784.0, 0.0), str(P3): (1.0, 1.0, 0.0)}

    def served(since: float, cards: list[CardSupply], levels: Levels = day) -> int:
        wants = [want(P1, since)] * 4
        found = propose(wants, [*busy, *cards], Past(1900.0, levels), Limits(), 2000.0)
        return sum(one.serves[P1] for one in found.recuts)

    assert served(1900.0, last) == 4
    assert served(1900.0, last[:1]) == 0
    assert served(100.0, last[:1]) == 4, "who has waited for half an hour gets it"
    little = {**day, str(P4): (0.4, 0.7, 0.0), str(P3): (0.4, 0.7, 0.0)}
    assert served(1900.0, last[:1], little) == 4, "larger ones are hardly wanted"


def test_no_limit_rests_on_a_re_cut_that_may_fail() -> None:
    """What one re-cut takes makes no room below `maximum` for what another one brings, nor the other way round: the first may be given up."""
    first = replace(card(0, *SMALL), queues=frozenset({1}))
    large = Want(P4, "team", 0.0, queue=1, priority=1)
    small = Want(P1, "team", 0.0, queue=2, number=7)

    whole = replace(card(1, P7), queues=frozenset({2}))
    recuts = propose([large, small], [first, whole], Past(), Limits(maximum={P1: 10}), 100.0).recuts
    assert (len(recuts), 7 + recuts[1].brings[P1]) == (2, 10)

    place = card(1, P4, P3, held=1)
    place = replace(place, held=place.layout.instances[1:], queues=frozenset({2}))
    recuts = propose([large, small], [first, place], Past(), Limits(minimum={P4: 1}), 100.0).recuts
    assert [one.number for one in recuts] == [0]


def test_the_budget_holds() -> None:
    """Re-cuts of the last hour count against the budget, also those of a clock that was ahead."""
    cards = [card(number, *[P1] * 7) for number in range(3)]
    limits = Limits(recuts_per_hour=1, cool_down=0)
    first = propose([want(P4)] * 3, cards, Past(), limits, 100.0)
    assert len(first.recuts) == 1
    again = propose([want(P4)] * 3, cards, first.past.after(first.recuts, 100.0), limits, 3000.0)
    assert not again.recuts
    assert len(propose([want(P4)] * 3, cards, again.past, limits, 3800.0).recuts) == 1
    ahead = propose([want(P4)] * 3, cards, first.past.after(first.recuts, 1e9), limits, 3000.0)
    assert len(propose([want(P4)] * 3, cards, ahead.past, limits, 6700.0).recuts) == 1


def test_a_flood_of_one_namespace() -> None:
    """A namespace counts with its part alone: the others' wants are served in turns with it, and it does not shape what is expected."""
    levels = {str(P4): (0.0, 0.0, 0.0)}
    cards = [card(number, *[P1] * 7) for number in range(4)]
    flood = [Want(P4, "flood", 0.0, number=100_000)]
    wants = [*flood, Want(P4, "team", 50.0)]
    proposal = propose(wants, cards, Past(0.0, levels), Limits(recuts_per_hour=2), 1e9)
    assert (P4, 100_000 - 8, Why.NAMESPACE) in whys(proposal)
    assert proposal.past.levels[str(P4)][0] == 9
    alone = propose([*flood, Want(P3, "team", 50.0)], cards, Past(), Limits(), 100.0)
    assert sum(one.serves.get(P3, 0) for one in alone.recuts) == 1


def test_what_others_wrote_into_the_memory() -> None:
    """Numbers that cannot be right are forgotten."""
    broken = {
        str(P4): (float("nan"), 1.0, 0.0),
        str(P1): (1e300, 1e300, 0.0),
        str(P2): (1.0,),
        "x": (5.0, 1.0, 0.0),
        "y": (5.0, 25.0),
    }
    past = propose([want(P4)], [card(0, *[P1] * 7)], Past(0.0, broken), Limits(), 100.0).past
    assert {name: round(level[0], 3) for name, level in past.levels.items()} == {str(P1): 0.0, str(P4): 0.002}


_LEVELS = st.dictionaries(  # what demand has been, often or never
    st.sampled_from([str(one) for one in PROFILES]),
    st.tuples(st.sampled_from((0.4, 2.0, 9.0)), st.sampled_from((100.0, 400.0)), st.sampled_from((0.0, 1.0))),
    max_size=4,
)


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[Want], list[CardSupply], Past, Limits]:
    cards: list[CardSupply] = []
    for number in range(draw(st.integers(1, 4))):
        profiles: list[MigProfile] = []
        for profile in draw(st.lists(st.sampled_from(PROFILES), max_size=5)):
            try:
                CardLayout.cut(H100, [*profiles, profile])
            except ValueError:
                continue
            profiles.append(profile)
        one = CardLayout.cut(H100, profiles)
        held = tuple(some for some in one.instances if draw(st.booleans()))
        way = draw(st.sampled_from([Way.ANNOTATION, Way.MIG_MANAGER]))
        layout = one if bool(profiles) or draw(st.booleans()) else CardLayout(H100, mig_enabled=False)
        fixed = draw(st.sampled_from(["", "", "a rollout"]))
        cards.append(
            CardSupply(f"node-{number % 2}", number, layout, held, way, frozenset({0, number}), fixed)
        )
    some = st.builds(
        Want,
        st.sampled_from(PROFILES),
        st.sampled_from(["a", "b"]),
        st.floats(0, 1000),
        st.integers(0, 3),
        st.integers(-1, 1),
        st.sampled_from(Kind),
        st.integers(1, 30),
    )
    pods = st.builds(
        lambda one, number, together: replace(one, number=number * together, together=together),
        some,
        st.integers(1, 3),
        st.integers(2, 4),
    )
    counts = st.dictionaries(st.sampled_from(PROFILES), st.integers(0, 9), max_size=2)
    limits = Limits(draw(counts), draw(counts), draw(st.integers(0, 2)), draw(st.integers(1, 4)), 600.0)
    cuts = draw(
        st.lists(st.builds(Cut, st.floats(-5000, 1200), st.just("node-0"), st.integers(0, 3)), max_size=3)
    )
    return (
        draw(st.lists(some | pods, max_size=6)),
        cards,
        Past(draw(st.none() | st.floats(0, 1000)), draw(_LEVELS), tuple(cuts)),
        limits,
    )


@given(situations())
def test_laws(given_: tuple[list[Want], list[CardSupply], Past, Limits]) -> None:
    """What is held stays; limits, budget and cool-down hold; no card is cut twice; every want is served or refused, and none twice.

    The limits hold whichever of the re-cuts are carried out: one may be given up, or fail.
    What a card serves is on it, or idle on its node, for pods that want several devices of one node.
    """
    wants, cards, past, limits = given_
    now = 1000.0
    proposal = propose(wants, cards, past, limits, now)
    by_number = {one.number: one for one in cards}
    there = Counter(one.profile for card in cards for one in card.layout.instances)
    fewest, most = Counter(there), Counter(there)
    assert len({one.number for one in proposal.recuts}) == len(proposal.recuts)
    for one in proposal.recuts:
        before = by_number[one.number]
        assert not before.fixed
        assert {*before.held} <= {*one.after.instances}
        assert not (before.way is Way.MIG_MANAGER and before.held)
        assert not any(
            cut.number == one.number and now - cut.at < 600 for cut in past.cuts if cut.node == one.node
        )
        fewest.subtract(one.takes)
        most.update(one.brings)
    after = {(one.node, one.number): one.after for one in proposal.recuts}
    free, served = Counter[tuple[str, MigProfile]](), Counter[tuple[str, MigProfile]]()
    for card in cards:
        cut = after.get((card.node, card.number), card.layout)
        free.update((card.node, one.profile) for one in cut.instances if one not in card.held)
    for one in proposal.recuts:
        served.update({(one.node, profile): number for profile, number in one.serves.items()})
    assert served <= free
    assert all(fewest[one] >= min(there[one], least) for one, least in limits.minimum.items())
    assert all(most[one] <= max(there[one], limit) for one, limit in limits.maximum.items())
    whole = sum(not card.layout.mig_enabled for card in cards)
    assert whole - sum(not one.before.mig_enabled for one in proposal.recuts) >= min(whole, limits.keep_whole)
    spent = sum(now - cut.at < 3600 for cut in past.cuts)
    assert len(proposal.recuts) <= max(0, limits.recuts_per_hour - spent)
    asked, told = Counter[MigProfile](), Counter[MigProfile]()
    for one_want in wants:
        asked[one_want.profile] += one_want.number
    for one in proposal.recuts:
        told.update(one.serves)
    for refusal in proposal.refusals:
        told[refusal.profile] += refusal.number
    assert told == asked


def node(name: str, *layouts: tuple[MigProfile, ...]) -> list[CardSupply]:
    return [replace(card(number, *layout), node=name) for number, layout in enumerate(layouts)]


def pod(profile: MigProfile, number: int, priority: int = 0) -> Want:
    return Want(profile, "team", 0.0, priority=priority, number=number, together=number)


def by_node(proposal: Proposal) -> dict[str, int]:
    found = Counter[str]()
    for one in proposal.recuts:
        found[one.node] += sum(one.serves.values())
    return dict(found)


SMALL = (P1,) * 7


@pytest.mark.parametrize(
    ("wants", "cards", "expected"),
    [
        # two cards of one node, and not one of each
        ([pod(P7, 2)], [*node("a", SMALL), *node("b", SMALL, SMALL), *node("c", SMALL)], {"b": 2}),
        # with what is idle there
        ([pod(P3, 3)], [*node("a", SMALL), *node("b", SMALL, (P3, P4))], {"b": 3}),
        # each pod by itself
        ([replace(pod(P3, 2), number=4)], [*node("a", SMALL), *node("b", SMALL)], {"a": 2, "b": 2}),
        # beside a pod that wants one
        ([pod(P7, 2), want(P7)], [*node("a", SMALL), *node("b", SMALL, SMALL)], {"a": 1, "b": 2}),
        # no card is left for a pod that wants one
        ([pod(P3, 2), want(P3)], node("b", SMALL, SMALL), {"b": 2}),
        # of higher priority, that one goes first
        ([pod(P7, 2), replace(want(P7), priority=1)], node("b", SMALL, SMALL), {"b": 1}),
        # it goes before pods of its own priority still, whether that one gets room or not
        (
            [pod(P7, 2), want(P7), replace(want(P4), priority=1)],
            [*node("a", SMALL), *node("b", SMALL, SMALL)],
            {"a": 1, "b": 2},
        ),
        ([pod(P7, 2), want(P7), replace(want(P7), queue=9, priority=1)], node("b", SMALL, SMALL), {"b": 2}),
    ],
)  # fmt: skip
def test_a_pod_that_wants_several_has_them_on_one_node(
    wants: list[Want], cards: list[CardSupply], expected: dict[str, int]
) -> None:
    """A pod runs on one node: devices for one pod on two nodes serve nobody."""
    assert by_node(propose(wants, cards, Past(), Limits(), 100.0)) == expected


@pytest.mark.parametrize(
    ("cards", "past", "limits", "why"),
    [
        ([*node("a", SMALL), *node("b", SMALL)], Past(), Limits(), Why.NO_NODE),
        (node("a", SMALL, SMALL), Past(), Limits(recuts_per_hour=1), Why.BUDGET),
        (node("a", SMALL, SMALL), Past(), Limits(minimum={P1: 7}), Why.MINIMUM),
        (node("a", SMALL, SMALL), Past(), Limits(maximum={P7: 1}), Why.MAXIMUM),
        (node("a", SMALL, SMALL), Past(cuts=(Cut(0.0, "a", 0),)), Limits(), Why.COOL_DOWN),
        (node("a", SMALL, SMALL), Past(cuts=(Cut(0.0, "a", 0), Cut(0.0, "a", 1))), Limits(), Why.COOL_DOWN),
    ],
)
def test_why_a_pod_that_wants_several_gets_none(
    cards: list[CardSupply], past: Past, limits: Limits, why: Why
) -> None:
    """Nothing is cut for a part of a pod; the pod is refused once, with the reason."""
    proposal = propose([pod(P7, 2)], cards, past, limits, 100.0)
    assert (proposal.recuts, whys(proposal)) == ((), [(P7, 2, why)])


def test_a_weightier_pod_is_not_refused_with_a_lighter_one() -> None:
    """What is not worth it for a pod that fell back may be worth it for one that waits and comes after it."""
    fell_back, waits = replace(pod(P7, 2), kind=Kind.FELL_BACK), replace(pod(P7, 2), since=1.0)
    past = Past(99.0, {str(P1): (10.0, 110.0, 0.0)})
    proposal = propose([fell_back, waits], node("a", SMALL, SMALL), past, Limits(), 100.0)
    assert (len(proposal.recuts), whys(proposal)) == (2, [(P7, 2, Why.NO_NODE)])
    alone = propose([fell_back], node("a", SMALL, SMALL), past, Limits(), 100.0)
    assert (len(alone.recuts), whys(alone)) == (0, [(P7, 2, Why.NOT_WORTH_IT)])


def test_pods_that_are_alike_are_judged_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of pods that wait for several devices, each since another second, are not each compared with thousands of nodes."""
    judge = create_autospec(Together._best, side_effect=Together._best)
    monkeypatch.setattr(Together, "_best", judge)
    pods = [
        replace(pod(P7, 2), since=float(second), namespace=f"team-{second % 50}") for second in range(200)
    ]
    proposal = propose(pods, [*node("a", SMALL), *node("b", SMALL)], Past(), Limits(), 1000.0)
    assert whys(proposal) == [(P7, 400, Why.NO_NODE)]
    assert judge.call_count == 2, "before and after the pods that want one device"


def test_many_priorities_take_few_walks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A priority that is looked at by itself takes a walk over all cards: hundreds of them take no hundreds of walks, and each pod has its answer."""
    walk = create_autospec(Together.recuts, side_effect=Together.recuts)
    monkeypatch.setattr(Together, "recuts", walk)
    pods = [replace(pod(P7, 2, priority), namespace=f"team-{priority}") for priority in range(300)]
    proposal = propose(pods, node("a", SMALL, SMALL), Past(), Limits(), 100.0)
    assert by_node(proposal) == {"a": 2}
    assert sum(one.number for one in proposal.refusals) == 598
    assert walk.call_count < 10


def test_what_mig_manager_cuts_stays() -> None:
    """mig-manager cuts a card again only once all of it is idle: no card goes for one young pod, where large devices have been wanted."""
    busy = [card(number, *[P1] * 7, held=7, way=Way.MIG_MANAGER) for number in range(4)]
    day = {str(P4): (2.0, 5.0, 0.0), str(P3): (2.0, 5.0, 0.0), str(P1): (24.0, 577.0, 0.0)}
    idle = card(9, P4, P3, way=Way.MIG_MANAGER)
    proposal = propose([want(P1, 99.0)], [*busy, idle], Past(99.0, day), Limits(), 100.0)
    assert (proposal.recuts, whys(proposal)) == ((), [(P1, 1, Why.NOT_WORTH_IT)])
    many = propose([want(P1, 99.0)] * 8, [*busy, idle], Past(99.0, day), Limits(), 100.0)
    assert [one.after.counts for one in many.recuts] == [{P1: 4, P3: 1}], "what stays is cut for both"


def test_a_quiet_day_is_no_promise() -> None:
    """What mig-manager cuts stays for longer than demand is remembered: then demand varies at least as that of independent pods."""
    steady = 5.0, 25.1, 0.0
    assert lacking(steady, 8) < 0.001
    assert lacking(steady, 8, for_long=True) > 0.05
    bursts = 5.0, 61.0, 0.0  # more than independent pods
    assert lacking(bursts, 8, for_long=True) == lacking(bursts, 8)


def test_nothing_is_cut_for_pods_that_cannot_go_there() -> None:
    """The rest of a re-cut card is not cut for pods that wait for other nodes: the next small pod would have it re-cut again, and so on."""
    here = replace(card(0, P4, P3), queues=frozenset({1}))
    elsewhere = [Want(P4, "team", 0.0, queue=2), Want(P3, "team", 0.0, queue=2)] * 4
    day = {str(P1): (1.0, 2.0, 0.0), str(P3): (4.0, 20.0, 4.0), str(P4): (4.0, 20.0, 4.0)}
    small = Want(P1, "team", 0.0, queue=1)
    [recut] = propose([*elsewhere, small], [here], Past(99.0, day), Limits(), 100.0).recuts
    assert recut.after.counts == {P1: 7}
    idle = replace(card(0, *[P1] * 7), queues=frozenset({1}))
    assert propose(elsewhere, [idle], Past(99.0, day), Limits(), 100.0).recuts == (), (
        "no place is kept for them either"
    )


def test_what_waits_counts_as_it_lasts() -> None:
    """A profile that is new is expected as far as it is in use: one pod that waits has not been demand for half a day."""
    here = card(0, *[P1] * 7, held=2)
    past = propose([want(P4)], [here], Past(), Limits(), 0.0).past
    assert past.levels == {str(P1): (2.0, 6.0, 0.0), str(P4): (0.0, 0.0, 0.0)}
    later = propose([want(P4)], [here], past, Limits(), 12 * 3600.0).past
    mean, _, waited = later.levels[str(P4)]
    assert (round(mean, 2), round(waited, 4)) == (0.63, 0.0007), (
        "nobody looked meanwhile, so nobody waited for long"
    )


def test_what_may_be_in_use_is_no_demand() -> None:
    """A device that is not proven idle stays, but only what pods have counts as demand."""
    proposal = propose([want(P4)], [card(0, *[P1] * 7, held=7)], Past(), Limits(), 100.0, {P1: 1})
    assert proposal.past.levels[str(P1)][0] == proposal.demand[P1].in_use == 1
    assert proposal.demand[P1].idle == 0


def test_cards_that_are_alike_are_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two re-cuts cards that are alike are judged once, on however many nodes: ten times the nodes take no more work for a re-cut."""

    def judged(nodes: int) -> object:
        cards = [
            replace(card(0, *SMALL), node=f"node-{number}", queues=frozenset({1, 1000 + number}))
            for number in range(nodes)
        ]
        judge = create_autospec(Search._judge, side_effect=Search._judge)
        with monkeypatch.context() as patch:
            patch.setattr(Search, "_judge", judge)
            wants, limits = [Want(P4, "team", 0.0, queue=1, number=20)], Limits(recuts_per_hour=80)
            proposal = propose(wants, cards, Past(), limits, 100.0)
        assert len(proposal.recuts) == 20
        return judge.call_count

    assert judged(300) == judged(30)
