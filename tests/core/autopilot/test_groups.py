"""Cards that are alike."""

from tessera.core.autopilot.groups import Groups
from tessera.core.autopilot.values import CardSupply
from tessera.core.mig.geometry import product_named
from tessera.core.mig.layout import CardLayout
from tessera.core.mig.profile import MigProfile

H100 = product_named("H100-80GB")
SMALL, LARGE = MigProfile.parse("1g.10gb"), MigProfile.parse("7g.80gb")


def test_whom_cards_serve_changes_nothing_of_what_they_could_be() -> None:
    """What waits changes from look to look, and with it whom a card serves: what is worked out about the card is kept once."""
    layout = CardLayout.cut(H100, [SMALL] * 7)
    cards = [CardSupply("a", number, layout, queues=frozenset({number})) for number in (1, 2)]
    groups = Groups(cards)
    assert groups.within((SMALL, LARGE)) == {SMALL: 14, LARGE: 2}
    one, other = map(groups.group_of, cards)
    assert [one.queues, other.queues] == [card.queues for card in cards]
    [option] = [way for way in one.state.options if LARGE in way.after.counts]
    assert one.state.reached(option, ((LARGE, 1),)) is other.state.reached(option, ((LARGE, 1),))
