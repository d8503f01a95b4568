from random import Random

import pytest
from benchmarks.days.layouts import CARDS_OF_A_NODE, PRODUCT, PROFILES
from benchmarks.recuts.pool import SIZE_OF, Card, Pool, placed

from tessera.core.devices.device import Card as RealCard
from tessera.core.devices.device import Device, DeviceSet, Place, Span
from tessera.core.devices.preference import blocks_of, preferred
from tessera.core.mig.layout import CardLayout
from tessera.core.mig.placement import Instance, maximal_patterns
from tessera.core.planning.changes import Way

PATTERNS = maximal_patterns(PRODUCT, (), tuple(PROFILES.values()), (7, 3, 2, 1))
ONES, HALVES = (7, 0, 0, 0), (0, 0, 2, 0)


def device(card, one):
    place = Place(RealCard(card.index, blocks_of(PRODUCT)), Span(one.position, one.size))
    return Device(f"{card.index}-{one}", one.profile.resource, "x.y/z", place=place)


def wish_of_the_plugin(pool, size):
    """What the device plugin would name, by its own devices."""
    devices = [device(card, one) for card in pool.cards for one in (*card.idle, *card.used)]
    resource = PROFILES[size].resource
    free = {device(card, one).id for card in pool.cards for one in card.idle}
    elsewhere = [one for one in devices if one.id not in free and one.resource != resource]
    own = DeviceSet(resource, tuple(one for one in devices if one.resource == resource))
    return preferred(own, free & {one.id for one in own}, [], 1, elsewhere)


@pytest.mark.parametrize("seed", range(4))
def test_a_pod_gets_the_slice_that_the_device_plugin_would_name(seed):
    """On a node, the simulation chooses as the production code does, whatever is in use."""
    random = Random(seed)
    pool = Pool(random.choices(PATTERNS, k=CARDS_OF_A_NODE))
    held: list[tuple[Card, Instance]] = []
    for _ in range(40):
        if held and random.random() < 0.4:
            card, one = held.pop(random.randrange(len(held)))
            card.give_back(one)
            continue
        size = random.choice([*PROFILES])
        named = wish_of_the_plugin(pool, size)
        found = pool.take(size)
        assert ([device(*found).id] if found else []) == named
        held += [found] if found else []


def test_what_is_cut_is_gone_at_once_and_there_later():
    """A slice that goes cannot be used from then on, one that comes not yet; one that stays all the time."""
    pool = Pool([ONES])
    card = pool.cards[0]
    held = card.take(1)
    after = CardLayout.cut(
        PRODUCT, [*[PROFILES[1]] * 3, PROFILES[4]], card.supply().layout.instances
    ).instances
    assert held in after
    card.begin(after)
    assert len(card.idle) == 2
    assert pool.take(4) is None
    assert (card.supply().fixed, card.supply().layout.instances) == ("it is being cut", after)
    card.finish()
    assert pool.take(4) is not None


def test_mig_manager_clears_a_card():
    """By mig-manager, all of a card is away while it is cut, and a card in use is never cut."""
    pool = Pool([ONES], Way.MIG_MANAGER)
    card = pool.cards[0]
    card.begin(placed((3, 0, 0, 1)))
    assert card.idle == []
    card.finish()
    pool.take(4)
    with pytest.raises(ValueError, match="cannot be cut"):
        card.begin(placed((0, 0, 1, 1)))


def test_what_is_in_use_is_never_cut():
    """A cut that would move or remove a slice in use is refused."""
    pool = Pool([ONES])
    pool.take(1)
    with pytest.raises(ValueError, match="cannot be cut"):
        pool.cards[0].begin(placed(HALVES))


def test_what_comes_is_promised_to_those_who_wait():
    """The autopilot sees slices to come as held, as far as somebody waits for them; those need no further cut."""
    card = Pool([ONES]).cards[0]
    card.begin(placed(HALVES))
    sizes = {1: 5, 2: 0, 3: 1, 4: 0}
    card.promise(sizes)
    assert sizes == {1: 5, 2: 0, 3: 0, 4: 0}
    assert [SIZE_OF[one.profile] for one in card.supply().held] == [3]


def test_a_node_with_a_cordon_takes_no_pods():
    """Where a cut cordons the node, its other cards wait, too."""
    pool = Pool([ONES] * 9, cordons=True)
    pool.cards[0].begin(placed(HALVES))
    found = pool.take(1)
    assert found
    assert found[0].node == 1
