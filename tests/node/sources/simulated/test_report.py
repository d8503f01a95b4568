"""What a node says about its simulated cards: what is there, whatever is desired."""

from tessera.core.mig.geometry import SIMULATED_H200_70GB, find_product
from tessera.core.mig.layout import CardLayout, NodeLayout, Slot, Strategy
from tessera.node.sources.layout import NodeLayoutStatus, State
from tessera.node.sources.node_link import beside, report_of, without
from tessera.protocol.mig.documents import read_layout

CARDS = [SIMULATED_H200_70GB] * 2
ONES, TWOS, SEVENS = (read_layout(text, CARDS) for text in ("1g.10gb=7", "2g.20gb=3", "7g.70gb=1"))


def ids(layout: NodeLayout, card: int) -> set[str]:
    return {Slot(card, one).uuid("node-1") for one in layout.cards[card].instances}


def test_labels_count_what_pods_can_get() -> None:
    """Seven slices of card 0 wait for a device that stays: the labels count those of card 1, in every strategy."""
    there = without(ONES, "node-1", ids(ONES, 0))
    pending = NodeLayoutStatus(State.PENDING, "7 to come")
    for strategy, name in ((Strategy.MIXED, "nvidia.com/mig-1g.10gb"), (Strategy.SINGLE, "nvidia.com/gpu")):
        report = report_of("node-1", there, ids(TWOS, 0), strategy, "1g.10gb=7", pending)
        assert report.labels[f"{name}.count"] == "7"
        assert report.labels["nvidia.com/mig.config.state"] == "pending"
    assert without(ONES, "node-1", ()) is ONES


def test_no_state_where_no_layout_is_desired() -> None:
    """The labels of the cards stand alone."""
    report = report_of("node-1", ONES, (), Strategy.MIXED, "", NodeLayoutStatus(State.SUCCESS))
    assert report.labels["nvidia.com/mig.config.state"] is None
    assert report.annotations["nvidia.com/mig.config.reason"] is None


def test_devices_that_stay_are_on_their_cards() -> None:
    """A slice that stays is beside what is there; a whole card that a pod keeps is whole, whatever is desired of it."""
    stay = sorted(ids(TWOS, 0))[:1]
    card = beside(without(SEVENS, "node-1", ids(SEVENS, 0)), "node-1", stay).cards[0]
    assert [str(one.profile) for one in card.instances] == ["2g.20gb"]
    assert not beside(SEVENS, "node-1", [Slot(1).uuid("node-1")]).cards[1].mig_enabled
    assert beside(SEVENS, "node-1", ()) is SEVENS


def test_two_layouts_may_have_more_engines_than_a_card() -> None:
    """One `.me` stays, another has come: no layout has both, so what stays is what is reported."""
    product = find_product("H100-80GB")
    assert product is not None
    old, new = (read_layout(_at(start), [product]) for start in (0, 1))
    place = old.cards[0].instances[0]
    (card,) = beside(new, "node-1", [Slot(0, place).uuid("node-1")]).cards
    assert card == CardLayout(product, mig_enabled=True, instances=(place,))


def _at(start: int) -> str:
    return (
        "{version: v1, mig-configs: {selected: [{devices: all, mig-enabled: true, mig-devices: "
        f"[{{name: 1g.10gb+me, position: {start}, size: 1}}]}}]}}}}"
    )
