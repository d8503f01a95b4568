"""A plan's document is read as it was written, or refused in one sentence."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.errors import InvalidInput
from tessera.core.mig.geometry import PRODUCTS
from tessera.core.mig.layout import CardLayout, NodeLayout
from tessera.core.mig.placement import Wish, place
from tessera.core.planning.changes import NodeChange, Way
from tessera.protocol import yaml
from tessera.protocol.mig.plans import card_document, node_document, read_plan


def document(*changes):
    written = {
        "nodes": [node_document(change) for change in changes],
        "cards": [
            card_document(number, card, change.present.cards[number], node=change.name)
            for change in changes
            for number, card in enumerate(change.layout.cards)
        ],
    }
    return msgspec.to_builtins(written)


def cards(product):
    profiles = st.lists(st.sampled_from(product.profiles), max_size=3)
    cut = profiles.map(lambda some: place(product, map(Wish, some)) or ())
    on = cut.map(lambda instances: CardLayout(product, mig_enabled=True, instances=instances))
    return st.one_of(st.just(CardLayout(product)), on)


@st.composite
def node_changes(draw, name):
    some = cards(draw(st.sampled_from(PRODUCTS)))
    number = draw(st.integers(1, 3))
    before, after = (
        NodeLayout(tuple(draw(st.lists(some, min_size=number, max_size=number)))) for _ in range(2)
    )
    way = draw(st.sampled_from(Way))
    configuration = draw(st.sampled_from(["all-balanced", None])) if way is Way.MIG_MANAGER else None
    return NodeChange(name, way, before, after, {}, configuration)


@given(st.tuples(node_changes("a"), node_changes("b")))
def test_what_is_written_is_read(changes):
    """As JSON and as YAML, both ways; cards that are only told of do not matter."""
    plain = json.loads(json.dumps(document(*changes)))
    other = {**plain["cards"][0], "node": "c", "present": None}
    plain["cards"] += [other, {name: value for name, value in other.items() if name != "present"}]
    assert read_plan(json.dumps(plain)) == changes
    assert read_plan(yaml.dump(plain)) == changes


H200 = next(product for product in PRODUCTS if product.short_name == "H200")
CHANGE = NodeChange(
    "a", Way.ANNOTATION, NodeLayout((CardLayout(H200),)), NodeLayout((CardLayout(H200, mig_enabled=True),))
)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda one: one.pop("cards"), "plan: not a plan; expected what `tessera mig plan -o json` prints"),
        (lambda one: one.update(nodes=[], cards=[]), "plan: the plan changes no node"),
        (lambda one: one["nodes"][0].update(way="magic"), "plan: not a plan as `tessera mig plan -o json` prints it: Invalid enum value 'magic' - at `$.nodes[0].way`"),
        (lambda one: one["nodes"][0].update(more=1), "plan: not a plan as `tessera mig plan -o json` prints it: Object contains unknown field `more` - at `$.nodes[0]`"),
        (lambda one: one["nodes"][0].update(removed={}), "plan: node a: `removed` and `added` are not what its cards say"),
        (lambda one: one["cards"].clear(), "plan: node a: expected its cards, numbered from 0 in their order"),
        (lambda one: one["cards"][0].update(card=1), "plan: node a: expected its cards, numbered from 0 in their order"),
        (lambda one: one["cards"][0].update(node="b"), "plan: node a: expected its cards, numbered from 0 in their order"),
        (lambda one: one["cards"].append({**one["cards"][0], "node": "b"}), "plan: cards of node b change, which is not among the plan's nodes"),
        (lambda one: one["cards"][0].pop("node"), "plan: node a: expected its cards, numbered from 0 in their order"),
        (lambda one: one["cards"].append({**one["cards"][0], "card": 1, "present": None}), "plan: node a: how its cards are cut now is not known (`present` is null)"),
        (lambda one: one["cards"][0].update(migEnabled=False, devices=[{"profile": "1g.18gb", "position": 0, "size": 1}]), "plan: node a: `devices` must be empty while `migEnabled` is false"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(change, why):
    """One sentence, with the place."""
    plain = json.loads(json.dumps(document(CHANGE)))
    change(plain)
    with pytest.raises(InvalidInput) as error:
        read_plan(json.dumps(plain))
    assert str(error.value) == why


def test_devices_that_do_not_fit_are_refused():
    """A plan is checked against the geometry of its cards, as every layout is."""
    plain = json.loads(json.dumps(document(CHANGE)))
    plain["cards"][0]["devices"] = [{"profile": "3g.71gb", "position": at, "size": 4} for at in (0, 2)]
    with pytest.raises(InvalidInput, match=r"^plan: node a: .*3g.71gb"):
        read_plan(json.dumps(plain))
