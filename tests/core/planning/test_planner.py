"""Plans: valid, optimal on what can be counted out, never worse than first-fit decreasing."""

from collections import Counter
from itertools import product as cartesian

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.core.mig.geometry import PRODUCTS, SIMULATED_H200_70GB, Product, product_named
from tessera.core.mig.layout import CardLayout, DoesNotFit
from tessera.core.mig.placement import Instance, Wish, maximal_patterns, place
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.configurations import PlanChanges
from tessera.core.planning.fragmentation import CardUse, Room, rooms
from tessera.core.planning.kinds import CardToCut, NodeCards, QueuedProfile
from tessera.core.planning.planner import Objective, Plan, Question
from tessera.core.planning.planner import plan as plan_question
from tessera.core.planning.program import Found
from tessera.core.planning.summary import explain_plan
from tessera.solver import highs
from tests.core.planning.check import check_card, check_plan
from tests.examples import examples

H200 = product_named("H200")
A30 = product_named("A30")
Demand = dict[MigProfile, int]


def question(demand, cards, objective=Objective.DEVICES):
    """Cards of no node in particular, for a demand that may go anywhere."""
    wanted = {QueuedProfile(profile): count for profile, count in demand.items()}
    return Question(wanted, cards, [NodeCards(None, range(len(cards)))], objective)


def plan(demand: Demand, cards: list[CardToCut], objective: Objective = Objective.DEVICES) -> Plan:
    """A plan for cards of no node in particular."""
    return plan_question(question(demand, cards, objective), highs)


def demand_of(text: str) -> Demand:
    """`2g.35gb=3 1g.18gb=1` as demand."""
    return {
        MigProfile.parse(name): int(count)
        for name, _, count in (word.partition("=") for word in text.split())
    }


def kept(product: Product, text: str) -> CardToCut:
    """A card that holds `3g.71gb@0`."""
    wishes = [Wish(MigProfile.parse(n), int(p)) for n, _, p in (word.partition("@") for word in text.split())]
    return CardToCut(product, CardLayout.cut(product, wishes).instances)


def written(found: Plan) -> list[str]:
    return [" ".join(f"{i.profile}@{i.position}" for i in card.instances) for card in found.cards]


def score(found: Plan) -> tuple[int, int, int]:
    """What a plan wants small, most important first."""
    devices = sum(found.left_out.values())
    memory = sum(profile.memory_gb * count for profile, count in found.left_out.items())
    first = (devices, memory) if found.objective is Objective.DEVICES else (memory, devices)
    return (*first, len(found.opened))


@pytest.mark.parametrize(
    ("demand", "cards", "layouts", "sentences"),
    [
        (
            "2g.20gb=5 3g.30gb=2",
            [CardToCut(SIMULATED_H200_70GB)] * 4,
            ["2g.20gb@0 2g.20gb@2 3g.30gb@4", "2g.20gb@0 2g.20gb@2 3g.30gb@4", "2g.20gb@5", ""],
            ["all 7 devices fit on 3 of 4 cards; fewer cards do not suffice", "not needed: card 3"],
        ),
        (
            "3g.71gb=1 4g.71gb=1",
            [CardToCut(H200)],
            ["4g.71gb@0 3g.71gb@4"],
            ["all 2 devices fit on 1 of 1 card; fewer cards do not suffice"],
        ),
        (
            "3g.71gb=2 1g.18gb=3",
            [CardToCut(H200)] * 4,
            ["3g.71gb@0 3g.71gb@4", "1g.18gb@4 1g.18gb@5 1g.18gb@6", "", ""],
            ["all 5 devices fit on 2 of 4 cards; fewer cards do not suffice", "not needed: cards 2-3"],
        ),
        (
            "7g.141gb=1 1g.18gb=7 2g.35gb=1",
            [CardToCut(H200)] * 2,
            ["7g.141gb@0", "1g.18gb@0 1g.18gb@1 1g.18gb@2 1g.18gb@3 1g.18gb@4 1g.18gb@5 1g.18gb@6"],
            [
                "8 of 9 devices fit, on 2 of 2 cards; no plan serves more devices",
                "left out: 2g.35gb ×1, no room is left for it",
            ],
        ),
        (
            "1g.18gb=3 4g.71gb=1",
            [CardToCut(H200), kept(H200, "3g.71gb@0"), kept(H200, "3g.71gb@4")],
            ["", "3g.71gb@0 1g.18gb@4 1g.18gb@5 1g.18gb@6", "4g.71gb@0 3g.71gb@4"],
            ["all 4 devices fit on 2 of 3 cards; no empty card is cut", "not needed: card 0"],
        ),
        (
            "3g.30gb=1 2g.12gb=1",
            [CardToCut(H200), CardToCut(A30)],
            ["", "2g.12gb@2"],
            [
                "1 of 2 devices fits, on 1 of 2 cards; no plan serves more devices",
                "left out: 3g.30gb ×1, no H200 or A30 has it; an H200 has 1g.18gb, 1g.18gb+me, 1g.35gb, 2g.35gb, 3g.71gb, 4g.71gb, 7g.141gb; an A30 has 1g.6gb, 1g.6gb+me, 2g.12gb, 2g.12gb+me, 4g.24gb",
                "not needed: card 0",
            ],
        ),
        ("1g.18gb=1", [], [], ["0 of 1 device fit; no plan serves more devices", "left out: 1g.18gb ×1, there are no cards"]),
        ("", [CardToCut(H200)], [""], ["all 0 devices fit on 0 of 1 card; no empty card is cut", "not needed: card 0"]),
    ],
)  # fmt: skip
def test_plans(demand, cards, layouts, sentences):
    """Demand and cards give one plan, and sentences that explain it."""
    found = plan(demand_of(demand), cards)
    assert written(found) == layouts
    assert explain_plan(PlanChanges(found)) == sentences
    assert check_plan(found, demand_of(demand), cards) == []


def test_the_objective_decides_what_is_left_out():
    """Counted in devices small ones win, counted in memory big ones do."""
    wanted = demand_of("7g.141gb=1 1g.18gb=3")
    assert plan(wanted, [CardToCut(H200)]).served == demand_of("1g.18gb=3")
    assert plan(wanted, [CardToCut(H200)], Objective.MEMORY).served == demand_of("7g.141gb=1")


def test_64_cards():
    """Every profile of an H200 at once, on 64 cards: served on the fewest there can be, and proven."""
    wanted = demand_of("1g.18gb=100 1g.18gb+me=9 1g.35gb=17 2g.35gb=31 3g.71gb=20 4g.71gb=7 7g.141gb=3")
    found = plan(wanted, [CardToCut(H200)] * 64)
    assert found.optimal
    assert not found.left_out
    assert len(found.used) == 43
    assert check_plan(found, wanted, [CardToCut(H200)] * 64) == []


def test_far_more_than_there_is():
    """Ten thousand devices on 64 cards of two kinds: still an answer that is proven."""
    wanted = demand_of("1g.18gb=4000 3g.71gb=3000 2g.12gb=2000 1g.6gb=1000")
    cards = [CardToCut(H200), CardToCut(A30)] * 32
    found = plan(wanted, cards)
    assert found.optimal
    assert found.served == demand_of("1g.6gb=128 1g.18gb=224")
    assert check_plan(found, wanted, cards) == []


def test_a_card_keeps_only_what_fits():
    """Devices that are to stay must fit their card."""
    three, four = Instance(MigProfile(3, 71), 0, 4), Instance(MigProfile(4, 71), 0, 4)
    with pytest.raises(DoesNotFit, match=r"put 3g.71gb at 4"):
        CardToCut(H200, (three, four))
    assert CardToCut(H200, (Instance(MigProfile(1, 18), 6, 1), three)).kept == (
        three,
        Instance(MigProfile(1, 18), 6, 1),
    )


def occupied(data, product: Product) -> CardToCut:
    """A card with up to two devices anywhere."""
    wishes = data.draw(st.lists(st.sampled_from(product.profiles), max_size=2))
    instances = place(product, [Wish(profile) for profile in wishes]) or ()
    return CardToCut(product, instances)


def draw_question(data, most_cards: int, most_devices: int) -> tuple[Demand, list[CardToCut], Objective]:
    products = data.draw(st.lists(st.sampled_from(PRODUCTS), min_size=1, max_size=2))
    cards = [
        occupied(data, data.draw(st.sampled_from(products)))
        for _ in range(data.draw(st.integers(0, most_cards)))
    ]
    profiles = sorted({profile for product in products for profile in product.profiles})
    wanted = data.draw(st.dictionaries(st.sampled_from(profiles), st.integers(0, most_devices), max_size=4))
    return wanted, cards, data.draw(st.sampled_from(Objective))


def first_fit_decreasing(
    wanted: Demand, cards: list[CardToCut], objective: Objective
) -> tuple[int, int, int]:
    """Biggest first, each on the first card that takes it, occupied cards first; its score."""
    order = sorted(range(len(cards)), key=lambda number: not cards[number].kept)
    held = [[Wish(i.profile, i.position) for i in card.kept] for card in cards]
    used = set()
    left: Counter[MigProfile] = Counter()
    for profile in sorted(wanted, reverse=True):
        for _ in range(wanted[profile]):
            for number in order:
                if place(cards[number].product, [*held[number], Wish(profile)]) is not None:
                    held[number].append(Wish(profile))
                    used.add(number)
                    break
            else:
                left[profile] += 1
    devices, memory = left.total(), sum(profile.memory_gb * count for profile, count in left.items())
    first = (devices, memory) if objective is Objective.DEVICES else (memory, devices)
    return (*first, sum(not cards[number].kept for number in used))


@given(st.data())
def test_a_plan_is_valid_and_never_worse_than_first_fit(data):
    """Every plan passes the check that was written apart, beats or equals first-fit decreasing, and is the same twice."""
    wanted, cards, objective = draw_question(data, most_cards=6, most_devices=12)
    found = plan(wanted, cards, objective)
    assert check_plan(found, wanted, cards) == []
    assert score(found) <= first_fit_decreasing(wanted, cards, objective)
    assert plan(dict(reversed(wanted.items())), cards, objective) == found
    assert all(explain_plan(PlanChanges(found)))


def brute_force(wanted: Demand, cards: list[CardToCut], objective: Objective) -> tuple[int, int, int]:
    """The best score there is, by trying every layout of every card."""
    profiles = sorted(wanted)
    options = []
    for card in cards:
        held = [Wish(i.profile, i.position) for i in card.kept]
        options.append(
            [
                counts
                for counts in cartesian(*(range(wanted[profile] + 1) for profile in profiles))
                if place(
                    card.product,
                    held + [Wish(p) for p, n in zip(profiles, counts, strict=True) for _ in range(n)],
                )
                is not None
            ]
        )
    best = None
    for choice in cartesian(*options):
        left = {p: max(0, wanted[p] - sum(counts[i] for counts in choice)) for i, p in enumerate(profiles)}
        devices, memory = sum(left.values()), sum(p.memory_gb * n for p, n in left.items())
        first = (devices, memory) if objective is Objective.DEVICES else (memory, devices)
        found = (
            *first,
            sum(any(counts) and not card.kept for counts, card in zip(choice, cards, strict=True)),
        )
        best = found if best is None or found < best else best
    assert best is not None
    return best


@settings(max_examples=examples(60))
@given(st.data())
def test_small_plans_are_optimal(data):
    """On cases small enough to try everything, nothing is better than the plan."""
    wanted, cards, objective = draw_question(data, most_cards=3, most_devices=3)
    found = plan(wanted, cards, objective)
    assert found.optimal
    assert score(found) == brute_force(wanted, cards, objective)


def test_maximal_patterns():
    """A pattern is maximal when no device more fits; every one is a layout."""
    profiles = tuple(map(MigProfile.parse, ("4g.71gb", "3g.71gb", "1g.18gb")))
    assert maximal_patterns(H200, (), profiles, (1, 2, 7)) == (
        (0, 0, 7),
        (0, 1, 4),
        (0, 2, 0),
        (1, 0, 3),
        (1, 1, 0),
    )


@pytest.mark.parametrize(
    ("instances", "complaints"),
    [
        ([("3g.71gb", 0, 4), ("3g.71gb", 4, 4)], []),
        ([("3g.30gb", 0, 3)], ["NVIDIA H200 has no 3g.30gb"]),
        ([("3g.71gb", 2, 4)], ["3g.71gb at 2 of size 4 is no placement of it"]),
        ([("1g.18gb", 0, 2)], ["1g.18gb at 0 of size 2 is no placement of it"]),
        ([("1g.18gb", 3, 1), ("2g.35gb", 2, 2)], ["slice 3 belongs to 1g.18gb at 3 and to 2g.35gb at 2"]),
        (
            [("1g.18gb+me", 0, 1), ("1g.18gb+me", 1, 1)],
            ["1g.18gb+me ×2, at most 1", "media engines 2 times of 1"],
        ),
        (
            [("7g.141gb", 4, 8)],
            ["7g.141gb at 4 of size 8 is no placement of it", "beyond the 8 memory slices"],
        ),
    ],
)
def test_the_check_finds_what_is_wrong(instances, complaints):
    """The check that plans are held against sees overlaps, false places, too many, and what a card does not have."""
    made = [Instance(MigProfile.parse(name), position, size) for name, position, size in instances]
    assert check_card(H200, made) == complaints


def test_the_check_compares_with_the_question():
    """A plan that answers another question is found out."""
    cards = [kept(H200, "3g.71gb@0")]
    found = plan(demand_of("1g.18gb=1"), [CardToCut(H200)])
    assert check_plan(found, demand_of("1g.18gb=2"), cards) == [
        "card 0: 3g.71gb at 0 had to stay",
        "1g.18gb: 2 asked for, 1 served, 0 left out",
    ]
    assert check_plan(found, {}, []) == ["1 layouts for 0 cards"]


def test_rooms():
    """What is free, what would fit beside, and what cutting empty cards again would bring."""
    split = CardLayout.cut(H200, [MigProfile(3, 71), MigProfile(1, 18)])  # 3g at 4, 1g at 3
    full = CardLayout.cut(H200, [MigProfile(1, 18)] * 7)
    whole = CardLayout(H200)
    cards = [
        CardUse(split, (split.instances[1],)),  # its 3g is in use
        CardUse(full),
        CardUse(whole),
        CardUse(whole, whole_in_use=True),
    ]
    found = rooms(cards)
    assert found[MigProfile(1, 18)] == Room(free=8, beside=3, recut=18)
    assert found[MigProfile(3, 71)] == Room(free=0, beside=0, recut=4)
    assert found[MigProfile(7, 141)] == Room(free=0, beside=0, recut=2)
    assert found[MigProfile(1, 18)].lost == 7
    assert list(found) == list(H200.profiles)


# nodes, queues and limits


def on_nodes(
    demand: str,
    nodes: dict[str, tuple[list[CardToCut], set[int]]],
    most_nodes: int | None = None,
    most_cards: int | None = None,
) -> tuple[Plan, list[CardToCut], list[NodeCards]]:
    """A plan for `3g.71gb=2@1` (two for queue 1), on nodes that serve queues."""
    wanted = {}
    for word in demand.split():
        counts, _, queue = word.partition("@")
        name, _, count = counts.partition("=")
        wanted[QueuedProfile(MigProfile.parse(name), int(queue or 0))] = int(count)
    cards: list[CardToCut] = []
    places = []
    for name, (some, queues) in nodes.items():
        places.append(NodeCards(name, range(len(cards), len(cards) + len(some)), frozenset(queues)))
        cards += some
    return (
        plan_question(Question(wanted, cards, places, most_nodes=most_nodes, most_cards=most_cards), highs),
        cards,
        places,
    )


@pytest.mark.parametrize(
    ("demand", "nodes", "limits", "layouts", "touched"),
    [
        # a device on a node that the waiting pod cannot use is no help
        ("3g.71gb=2@1", {"a": ([CardToCut(H200)], {2}), "b": ([CardToCut(H200)], {1})}, {}, ["", "3g.71gb@0 3g.71gb@4"], ["b"]),
        ("3g.71gb=2@1", {"a": ([CardToCut(H200)] * 2, {2})}, {}, ["", ""], []),
        # what only one node can do for one queue is left to it
        (
            "7g.141gb=1@1 7g.141gb=1@2",
            {"a": ([CardToCut(H200)], {1, 2}), "b": ([CardToCut(H200)], {1})},
            {},
            ["7g.141gb@0", "7g.141gb@0"],
            ["a", "b"],
        ),
        # the fewest nodes: both on the one that has two cards
        (
            "7g.141gb=2",
            {"a": ([CardToCut(H200)], {0}), "b": ([CardToCut(H200)] * 2, {0})},
            {},
            ["", "7g.141gb@0", "7g.141gb@0"],
            ["b"],
        ),
        # fewer empty cards come before fewer nodes
        (
            "3g.71gb=2",
            {"a": ([kept(H200, "3g.71gb@4")], {0}), "b": ([kept(H200, "3g.71gb@4")], {0}), "c": ([CardToCut(H200)], {0})},
            {},
            ["3g.71gb@0 3g.71gb@4", "3g.71gb@0 3g.71gb@4", ""],
            ["a", "b"],
        ),
        ("7g.141gb=3", {"a": ([CardToCut(H200)], {0}), "b": ([CardToCut(H200)] * 2, {0})}, {"most_nodes": 1}, ["", "7g.141gb@0", "7g.141gb@0"], ["b"]),
        ("7g.141gb=3", {"a": ([CardToCut(H200)], {0}), "b": ([CardToCut(H200)] * 2, {0})}, {"most_cards": 1}, ["7g.141gb@0", "", ""], ["a"]),
        ("1g.18gb=2 3g.71gb=1", {"a": ([CardToCut(H200)], {0}), "b": ([CardToCut(H200)], {0})}, {"most_cards": 1}, ["1g.18gb@2 1g.18gb@3 3g.71gb@4", ""], ["a"]),
    ],
)  # fmt: skip
def test_plans_on_nodes(demand, nodes, limits, layouts, touched):
    """Devices are cut where they serve, on the fewest nodes, within the limits."""
    found, _, _ = on_nodes(demand, nodes, **limits)
    assert written(found) == layouts
    assert list(found.nodes) == touched
    assert found.optimal


def best_on_nodes(wanted, cards, places, most_nodes, most_cards) -> tuple[int, int, int, int]:
    """The best score there is on nodes, by trying every layout of every card: unserved, memory, empty cards, nodes."""
    profiles = sorted({one.profile for one in wanted})
    most = {p: sum(count for one, count in wanted.items() if one.profile == p) for p in profiles}
    options = []
    for card in cards:
        held = [Wish(i.profile, i.position) for i in card.kept]
        options.append(
            [
                counts
                for counts in cartesian(*(range(most[p] + 1) for p in profiles))
                if place(card.product, held + [Wish(p) for p, n in zip(profiles, counts, strict=True) for _ in range(n)])
                is not None
            ]
        )  # fmt: skip
    best = None
    for choice in cartesian(*options):
        used = [number for number, counts in enumerate(choice) if any(counts)]
        touched = [one for one in places if any(number in used for number in one.cards)]
        if len(touched) > most_nodes or len(used) > most_cards:
            continue
        served = {p: _matched(wanted, p, [(one.queues, sum(choice[n][i] for n in one.cards)) for one in places]) for i, p in enumerate(profiles)}  # fmt: skip
        found = (
            sum(most.values()) - sum(served.values()),
            sum(p.memory_gb * (most[p] - served[p]) for p in profiles),
            sum(not cards[number].kept for number in used),
            len(touched),
        )
        best = found if best is None or found < best else best
    assert best is not None
    return best


def _matched(wanted, profile, supplies):
    """How much of a demand supplies serve, by Hall: what any set of queues cannot get is lost."""
    queues = {one.queue: count for one, count in wanted.items() if one.profile == profile}
    total = sum(queues.values())
    lost = 0
    for chosen in cartesian((False, True), repeat=len(queues)):
        some = {queue for queue, yes in zip(queues, chosen, strict=True) if yes}
        asked = sum(queues[queue] for queue in some)
        lost = max(lost, asked - sum(count for serves, count in supplies if serves & some))
    return total - lost


@settings(max_examples=examples(60))
@given(st.data())
def test_small_plans_on_nodes_are_optimal(data):
    """With queues, nodes and limits too, nothing is better than the plan on cases small enough to try everything."""
    product = data.draw(st.sampled_from(PRODUCTS))
    nodes = {
        f"node-{number}": (
            [occupied(data, product) for _ in range(data.draw(st.integers(1, 2)))],
            data.draw(st.sets(st.integers(1, 2), min_size=1)),
        )
        for number in range(data.draw(st.integers(1, 2)))
    }
    profile = st.sampled_from(product.profiles)
    wanted = data.draw(
        st.dictionaries(
            st.builds(QueuedProfile, profile, st.integers(1, 2)), st.integers(1, 2), min_size=1, max_size=2
        )
    )
    demand = " ".join(f"{one.profile}={count}@{one.queue}" for one, count in wanted.items())
    limits = {"most_nodes": data.draw(st.integers(1, 2)), "most_cards": data.draw(st.integers(1, 4))}
    found, cards, places = on_nodes(demand, nodes, **limits)
    assert found.optimal
    whole = {
        p: sum(n for one, n in wanted.items() if one.profile == p) for p in {one.profile for one in wanted}
    }
    assert check_plan(found, whole, cards) == []
    assert (*score(found), len(found.nodes)) == best_on_nodes(wanted, cards, places, **limits)


@given(st.data())
def test_cards_in_groups_are_planned_as_well_as_one_by_one(data):
    """A plan over kinds with counts is as good as one in which every card is a node of its own that is like no other."""
    wanted, cards, objective = draw_question(data, most_cards=6, most_devices=9)
    grouped = plan(wanted, cards, objective)
    # each card serves the demand through a queue of its own: none is like another
    places = [
        NodeCards(f"n{number}", range(number, number + 1), frozenset({0, -number - 1}))
        for number in range(len(cards))
    ]
    question = Question({QueuedProfile(p): n for p, n in wanted.items()}, cards, places, objective)
    one_by_one = plan_question(question, highs)
    assert score(grouped) == score(one_by_one)


@given(st.data())
def test_more_cards_serve_no_less(data):
    """Serving is monotone: a card more never makes a plan leave more out."""
    wanted, cards, objective = draw_question(data, most_cards=5, most_devices=9)
    more = [*cards, occupied(data, data.draw(st.sampled_from(PRODUCTS)))]
    assert score(plan(wanted, more, objective))[:2] <= score(plan(wanted, cards, objective))[:2]


def test_at_the_bound_the_gap_is_told():
    """A plan that is not proven best says how much better the best could be, in figures."""

    def given_up(program, goal, start):
        found = highs(program, goal, start)
        return Found(tuple(start), found.bound)

    found = plan_question(question(demand_of("3g.71gb=12"), [CardToCut(H200)] * 6), given_up)
    assert not found.optimal
    assert explain_plan(PlanChanges(found))[:2] == [
        "0 of 12 devices fit, on 0 of 6 cards; at most 12 devices more could be served",
        "left out: 3g.71gb ×12, no room was found for it",
    ]


def test_forty_thousand_cards():
    """Twenty kinds of cards, two thousand of each: proven, and every layout fits."""
    states = [kept(H200, f"1g.18gb@{at}") for at in range(7)] + [
        CardToCut(H200),
        kept(H200, "3g.71gb@0"),
        kept(H200, "3g.71gb@4"),
    ]
    cards = (states * 4000)[:40_000]
    places = [NodeCards(f"node-{number}", range(8 * number, 8 * number + 8)) for number in range(5000)]
    wanted = demand_of("3g.71gb=30000 7g.141gb=2000 2g.35gb=9000")
    found = plan_question(Question({QueuedProfile(p): n for p, n in wanted.items()}, cards, places), highs)
    assert found.gaps[:3] == (0, 0, 0)
    assert check_plan(found, wanted, cards) == []


def cut(text: str, *, mig=True) -> CardLayout:
    """A card that is cut into `1g.18gb@0 3g.71gb@4` now."""
    return CardLayout(H200, mig_enabled=mig, instances=kept(H200, text).kept)


def planned(demand, cards, fill=None):
    """A plan for cards that are there, with what the rest of a card is filled with."""
    wanted = {QueuedProfile(profile): count for profile, count in demand_of(demand).items()}
    order = None if fill is None else tuple(map(MigProfile.parse, fill.split()))
    return plan_question(Question(wanted, cards, [NodeCards("a", range(len(cards)))], fill=order), highs)


SMALL = cut(" ".join(f"1g.18gb@{at}" for at in range(7)))


@pytest.mark.parametrize(
    ("card", "demand", "fill", "layout"),
    [
        (CardToCut(H200), "4g.71gb=1", None, "4g.71gb@0"),
        (CardToCut(H200), "4g.71gb=1", "1g.18gb 2g.35gb", "4g.71gb@0 1g.18gb@4 1g.18gb@5 1g.18gb@6"),
        (CardToCut(H200), "4g.71gb=1", "2g.35gb 1g.18gb", "4g.71gb@0 2g.35gb@4 1g.18gb@6"),
        (CardToCut(H200), "4g.71gb=1", "4g.71gb 7g.141gb", "4g.71gb@0"),
        # what the card had comes back where nobody asks for anything that fits
        (CardToCut(H200, (), SMALL, whole_only=True), "4g.71gb=1", "7g.141gb", "4g.71gb@0 1g.18gb@4 1g.18gb@5 1g.18gb@6"),
        (CardToCut(H200, (), SMALL, whole_only=True), "4g.71gb=1", None, "4g.71gb@0"),
        # single devices that are not in the way stay, before anything is filled
        (CardToCut(H200, (), SMALL), "4g.71gb=1", "2g.35gb", "4g.71gb@0 1g.18gb@4 1g.18gb@5 1g.18gb@6"),
        (CardToCut(H200, (), SMALL), "4g.71gb=1", None, "4g.71gb@0 1g.18gb@4 1g.18gb@5 1g.18gb@6"),
        (CardToCut(H200, (), cut("1g.18gb@0 3g.71gb@4")), "3g.71gb=1", None, "3g.71gb@0 3g.71gb@4"),
        (CardToCut(H200, (), cut("2g.35gb@0 2g.35gb@4")), "3g.71gb=1", None, "2g.35gb@0 3g.71gb@4"),
    ],
)  # fmt: skip
def test_the_rest_of_a_card(card, demand, fill, layout):
    """It is filled with what is wanted most, as far as it fits; then with what was there."""
    assert written(planned(demand, [card], fill)) == [layout]


def test_cards_that_are_not_needed_stay_as_they_are():
    """Cut, uncut, fixed, or with MIG on and nothing on it."""
    present = [SMALL, CardLayout(H200), CardLayout(H200, mig_enabled=True), cut("3g.71gb@0")]
    cards = [CardToCut(H200, (), one, fixed=True) for one in present] + [CardToCut(H200, (), SMALL)]
    found = planned("7g.141gb=1", cards)
    assert list(found.cards[:4]) == present
    assert written(found)[4:] == ["7g.141gb@0"]


def test_a_plan_removes_as_little_as_it_can():
    """Of cards that would do it takes the one that loses the least of what is idle."""
    empty = CardToCut(H200, (), CardLayout(H200, mig_enabled=True))
    small, one = CardToCut(H200, (), SMALL), CardToCut(H200, (), cut("1g.18gb@0"))
    whole = CardToCut(H200, (), CardLayout(H200))
    for cards, taken in (
        ([whole, small, one, empty], 3),
        ([whole, small, one], 2),
        ([whole, small], 1),
        ([whole, small, CardToCut(H200, (), cut("3g.71gb@4"))], 2),
    ):
        assert planned("7g.141gb=1", cards).used == (taken,)
    # beside three of the seven there is room: four are lost, and of the whole card all
    assert planned("4g.71gb=1", [whole, small]).used == (1,)


def test_fixed_cards_are_not_cut():
    """Whatever room they seem to have."""
    cards = [
        CardToCut(H200, fixed=True),
        kept(H200, "1g.18gb@6"),
        CardToCut(H200, kept(H200, "1g.18gb@6").kept, whole_only=True),
    ]
    found = planned("4g.71gb=3", cards)
    assert (found.used, found.fixed) == ((1,), frozenset({0, 2}))
