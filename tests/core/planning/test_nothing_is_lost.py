"""Plans never lose anything unsaid, whatever a node has, whoever holds it, and whatever mig-manager's configurations are."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tessera.core.devices.held import Held
from tessera.core.mig.geometry import product_named
from tessera.core.mig.layout import CardLayout, LayoutEntry, NodeLayout, Strategy
from tessera.core.mig.placement import Wish, place
from tessera.core.mig.profile import MigProfile
from tessera.core.planning.changes import Way
from tessera.core.planning.configurations import PlanChanges, changes_of
from tessera.core.planning.demand import most_wanted
from tessera.core.planning.kinds import CardToCut, NodeCards, QueuedProfile, cards_beside
from tessera.core.planning.planner import Question, plan
from tessera.core.resources import short
from tessera.solver import highs
from tests.build import GPU
from tests.core.planning.check import check_card

PRODUCTS = [product_named(name) for name in ("A100-80GB", "H200", "A30")]


def cut(draw, product):
    wishes = draw(st.lists(st.sampled_from(product.profiles), max_size=4))
    instances = place(product, map(Wish, wishes))
    return CardLayout(product, mig_enabled=draw(st.booleans()) or bool(instances), instances=instances or ())


@st.composite
def clusters(draw):
    """Nodes with one to three cards, what pods hold on each and what was given out, and the way they are cut."""
    nodes = []
    for _ in range(draw(st.integers(1, 2))):
        product = draw(st.sampled_from(PRODUCTS))
        layout = NodeLayout(tuple(cut(draw, product) for _ in range(draw(st.integers(1, 3)))))
        offered = layout.resources()
        names = st.sampled_from(sorted(offered)) if offered else st.nothing()
        held = frozenset(draw(st.sets(names, max_size=2))) if offered else frozenset()
        given_out = dict.fromkeys(draw(st.sets(names, max_size=1)) - held, 1) if offered else {}
        nodes.append((layout, held, given_out, draw(st.sampled_from(Way))))
    return nodes


@st.composite
def configurations(draw):
    entries = []
    for product in PRODUCTS:
        card = cut(draw, product)
        wishes = tuple(Wish(one.profile) for one in card.instances)
        numbers = draw(st.sampled_from([None, (0,)]))
        entries.append((LayoutEntry(numbers, card.mig_enabled, wishes),))
    return {f"config-{number}": one for number, one in enumerate(entries)}


@st.composite
def demands(draw):
    profiles = sorted({profile for product in PRODUCTS for profile in product.profiles})
    return draw(st.dictionaries(st.sampled_from(profiles), st.integers(1, 5), min_size=1, max_size=3))


def changes_for(cluster, demand, configs, *, fill) -> tuple[PlanChanges, list[NodeCards]]:
    cards: list[CardToCut] = []
    places = []
    for number, (layout, held, given_out, way) in enumerate(cluster):
        whole_only = way is Way.MIG_MANAGER
        here = cards_beside(layout, Strategy.MIXED, Held(held), given_out, whole_only=whole_only)
        places.append(NodeCards(f"n{number}", range(len(cards), len(cards) + len(here)), way=way))
        cards += here
    wanted = {QueuedProfile(profile): count for profile, count in demand.items()}
    order = most_wanted(demand, {}) if fill else None
    return changes_of(plan(Question(wanted, cards, places, fill=order), highs), places, configs), places


@given(clusters(), demands(), configurations(), st.booleans())
def test_plans_never_lose_anything_unsaid(cluster, demand, configs, fill):
    """What pods hold stays, what was given out is there, and removed, kept and added make up what was and what will be."""
    found, places = changes_for(cluster, demand, configs, fill=fill)
    changed = {change.name: change for change in found.nodes}
    for (layout, held, given_out, way), place_ in zip(cluster, places, strict=True):
        after = NodeLayout(tuple(found.plan.cards[number] for number in place_.cards))
        if place_.name not in changed:
            assert after == layout
            continue
        change = changed[place_.name]
        assert change.layout == after
        assert change.present == layout
        assert not [wrong for card in after.cards for wrong in check_card(card.product, card.instances)]
        before, then = layout.slots(), after.slots()
        for resource in held:
            if way is Way.ANNOTATION:
                assert {*before[resource]} <= {*then[resource]}
            else:  # a card with any of it is not touched
                assert not {slot.card for slot in before[resource]} & {*change.changed}
        for resource, number in given_out.items():
            assert len(then[resource]) >= number
        counts = Counter({short(name).replace(".me", "+me"): n for name, n in layout.resources().items()})
        assert not Counter(change.removed) - counts
        kept = counts - Counter(change.removed)
        assert kept + Counter(change.added) == Counter(
            {short(name).replace(".me", "+me"): n for name, n in after.resources().items()}
        )
        for number, (old, new) in enumerate(zip(layout.cards, after.cards, strict=True)):
            if number not in change.changed:
                assert (old.mig_enabled, old.counts) == (new.mig_enabled, new.counts)
                assert way is Way.MIG_MANAGER or old == new
        if GPU in held:
            assert [n for n, card in enumerate(layout.cards) if not card.mig_enabled] == [
                n for n, card in enumerate(after.cards) if not card.mig_enabled
            ]


@given(clusters(), demands(), configurations(), st.booleans())
def test_what_is_served_is_made(cluster, demand, configs, fill):
    """Every node makes as much as the plan serves on it, with whatever configuration; the rest is said to fill cards, or there is none."""
    found, places = changes_for(cluster, demand, configs, fill=fill)
    spans = {place_.name: place_.cards for place_ in places}
    for change in found.nodes:
        serves = sum(
            (Counter(found.plan.serves[n]) for n in spans[change.name] if n in found.plan.serves),
            Counter[MigProfile](),
        )
        added = Counter({MigProfile.parse(p): n for p, n in change.added.items() if p != "gpu"})
        assert added - serves == Counter(change.filled)
        made = sum((Counter(card.counts) for card in change.layout.cards), Counter[MigProfile]())
        assert not serves - made
        if not fill and change.configuration in (None, *found.new):
            assert not change.filled


@given(clusters(), demands(), configurations())
def test_the_same_question_has_the_same_answer(cluster, demand, configs):
    """Plans and names of configurations are deterministic."""
    assert changes_for(cluster, demand, configs, fill=True) == changes_for(
        cluster, demand, configs, fill=True
    )
