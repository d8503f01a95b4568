"""The autopilot cuts idle slices anew for what waits, within its limits."""

from tessera.core.autopilot.propose import propose
from tessera.core.autopilot.values import CardSupply, Limits, Past, Want, Why
from tessera.core.mig.layout import CardLayout
from tessera.core.mig.product import product_named
from tessera.core.mig.profile import MigProfile

H100 = product_named("H100-80GB")
P1, P2, P3, P4 = map(MigProfile.parse, ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb"))


def card(number: int, *profiles: MigProfile, held: int = 0) -> CardSupply:
    """A card cut so, whose last devices are held."""
    layout = CardLayout.cut(H100, profiles)
    return CardSupply("node-0", number, layout, layout.instances[len(layout.instances) - held :])


def want(profile: MigProfile, since: float = 0.0) -> Want:
    return Want(profile, "team", since)


def test_idle_slices_make_room_for_what_waits() -> None:
    """A want that nothing free serves gets room where idle slices go; what is held stays."""
    here = card(0, *[P1] * 7, held=3)
    [recut] = propose([want(P4)], [here], Past(), Limits(), 100.0).recuts
    assert P4 in recut.after.counts
    assert {*here.held} <= {*recut.after.instances}
    assert dict(recut.serves) == {P4: 1}
    assert dict(recut.takes) == {P1: 4}


def test_what_is_held_makes_no_room() -> None:
    """Where all is held, the want is refused with the reason."""
    proposal = propose([want(P4)], [card(0, *[P1] * 7, held=7)], Past(), Limits(), 100.0)
    assert not proposal.recuts
    assert [(one.profile, one.number, one.why) for one in proposal.refusals] == [(P4, 1, Why.NO_ROOM)]


def test_the_budget_holds() -> None:
    """Re-cuts of the last hour count against the budget."""
    cards = [card(number, *[P1] * 7) for number in range(3)]
    limits = Limits(recuts_per_hour=1, cool_down=0)
    first = propose([want(P4)] * 3, cards, Past(), limits, 100.0)
    assert len(first.recuts) == 1
    again = propose([want(P4)] * 3, cards, first.past.after(first.recuts, 100.0), limits, 3000.0)
    assert not again.recuts
    assert len(propose([want(P4)] * 3, cards, again.past, limits, 3800.0).recuts) == 1
