"""The production policy, asked as the controller asks it, with what it says carried out."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf
from typing import Final

from tessera.core.autopilot.propose import propose
from tessera.core.autopilot.values import Limits, Past, Want
from tessera.core.mig.placement import Instance
from tessera.simulation.days.cluster import NAMESPACE
from tessera.simulation.days.layouts import CARDS_OF_A_NODE, PROFILES
from tessera.simulation.recuts.play import Waiting
from tessera.simulation.recuts.pool import Card, Pool

SOON: Final = 10.0  # seconds between two looks at least
LATER: Final = 30.0  # and at most, while somebody waits
RECUTS_PER_HOUR: Final = 20  # for 16 cards
_FIXED: Final = "another card of its node is being cut"


def limits_for(cards: int) -> Limits:
    """The default limits; the budget grows with the cards."""
    return Limits(recuts_per_hour=RECUTS_PER_HOUR * cards // 16)


class Autopilot:
    """Looks when something changed, and remembers what the policy wants remembered; `forecasts`: also what was wanted before."""

    def __init__(self, limits: Limits, *, forecasts: bool = True) -> None:
        self.limits, self.forecasts = limits, forecasts
        self.past = Past()
        self.due = 0.0
        self._last = -inf

    def changed(self, waiting: Waiting, now: float) -> None:
        self.due = min(self.due, max(now, self._last + SOON))

    def look(self, pool: Pool, waiting: Waiting, now: float) -> Iterator[tuple[Card, Sequence[Instance]]]:
        sizes = {size: len(some) for size, some in waiting.items()}
        for card in pool.cards:
            if card.coming:
                card.promise(sizes)
        wants = [
            Want(PROFILES[size], NAMESPACE, task.created)
            for size, some in waiting.items()
            for task in list(some)[len(some) - sizes[size] :]
        ]
        closed = [_FIXED if pool.is_closed(number) else "" for number in range(len(pool.nodes))]
        cards = [card.supply(fixed=closed[card.node]) for card in pool.cards]
        past = self.past if self.forecasts else replace(self.past, at=None, levels={})
        proposal = propose(wants, cards, past, self.limits, now)
        self.past = proposal.past.after(proposal.recuts, now)
        self._last = now
        self.due = now + LATER if wants else inf
        for one in proposal.recuts:
            card = pool.cards[int(one.node.removeprefix("node-")) * CARDS_OF_A_NODE + one.number]
            yield card, one.after.instances
