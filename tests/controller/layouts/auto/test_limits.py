"""Limits that hold whatever becomes of nodes that are being changed."""

from collections.abc import Mapping, Sequence

import msgspec

from tessera.controller.layouts.auto.deciding import careful
from tessera.controller.layouts.plan import SeenNode
from tessera.core.autopilot.values import CardSupply, Limits
from tessera.core.mig.layout import CardLayout
from tessera.core.mig.profile import MigProfile
from tessera.protocol.kubernetes.nodes import decode_node
from tessera.protocol.mig import documents as mig
from tessera.protocol.mig.rollouts import ROLLOUT, Owner, Phase, RolloutRecord, written
from tests.build import GPU, MIG
from tests.inventory.objects import LAYOUT, node
from tests.rollout.plugin import CARDS

TWO, THREE, SEVEN = (MigProfile.parse(one) for one in ("2g.20gb", "3g.30gb", "7g.70gb"))
HALVES: Mapping[str, int] = {MIG + "2g.20gb": 4, MIG + "3g.30gb": 2}
LIMITS = Limits({THREE: 3}, {SEVEN: 2}, 1, 20, 600.0)


def seen(name: str, has: Mapping[str, int], record: RolloutRecord | None = None) -> SeenNode:
    document = node(name, {one: str(number) for one, number in has.items()}, "NVIDIA-H200", layout=LAYOUT)
    if record is not None:
        document["metadata"]["annotations"][ROLLOUT] = written(record)
    return SeenNode.of(decode_node(msgspec.json.encode(document)))


CUT = mig.read_layout(LAYOUT, CARDS).cards


def cards(name: str, layouts: Sequence[CardLayout] = CUT) -> Mapping[str, Sequence[CardSupply]]:
    return {name: tuple(CardSupply(name, number, one) for number, one in enumerate(layouts))}


def under_way(expected: Mapping[str, int], offered: Mapping[str, int] = HALVES) -> RolloutRecord:
    return RolloutRecord(
        Owner("m", "u"),
        Phase.CORDONED,
        0.0,
        0.0,
        60.0,
        "after",
        offered=dict(offered),
        expected=dict(expected),
    )


def test_nodes_that_are_as_they_are_seen():
    """Where nothing is being changed, the limits are as they were given."""
    assert careful(LIMITS, [seen("n", HALVES)], cards("n"), ()) == LIMITS


def test_devices_that_go_do_not_count_and_those_that_come_do():
    """A card is on its way from 2 × 2g + 3g to 7g: until it is known how that ends, it counts as none of either for the minimum, and as 7g for the maximum."""
    then = {MIG + "2g.20gb": 2, MIG + "3g.30gb": 1, MIG + "7g.70gb": 1}
    one = seen("n", HALVES, under_way(then))
    assert careful(LIMITS, [one], cards("n"), ()) == Limits({THREE: 4}, {SEVEN: 1}, 1, 20, 600.0)


def test_whole_gpus_on_their_way():
    """A whole GPU that is being cut does not count as one; without a limit there is none afterwards, either."""
    whole = (CardLayout(CARDS[0]),) * 2
    one = seen("n", {GPU: 2}, under_way({GPU: 1, MIG + "7g.70gb": 1}, {GPU: 2}))
    assert careful(LIMITS, [one], cards("n", whole), ()).keep_whole == 2
    assert careful(Limits(), [one], cards("n", whole), ()).keep_whole == 0


def test_what_is_allocatable_of_a_node_whose_layout_is_not_known():
    """It counts for the maximum, and not for the minimum."""
    one = seen("n", {MIG + "7g.70gb": 1, MIG + "3g.30gb": 1})
    assert careful(LIMITS, [one], {}, ()) == Limits({THREE: 3}, {SEVEN: 1}, 1, 20, 600.0)


def test_a_watch_that_is_behind():
    """A node was cut a moment ago, and one watch has seen it: of both views the worse counts."""
    one = seen("n", {MIG + "7g.70gb": 2})
    assert careful(LIMITS, [one], cards("n"), {"n"}) == Limits({THREE: 5}, {SEVEN: 0}, 1, 20, 600.0)
