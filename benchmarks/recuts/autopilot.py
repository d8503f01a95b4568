"""The controller's autopilot, asked as the controller asks it, with what it says carried out.

What it remembers goes through the status of a MigLayout, as it does in a cluster.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf
from typing import Final

from benchmarks.days.cluster import NAMESPACE
from benchmarks.days.layouts import CARDS_OF_A_NODE, PROFILES
from benchmarks.recuts.play import Waiting
from benchmarks.recuts.pool import Card, Pool
from tessera.controller.layouts.auto import autopilot as controller
from tessera.controller.layouts.plan import SeenNode
from tessera.core.autopilot.values import Limits, Past, Want
from tessera.core.mig.placement import Instance
from tessera.core.planning.kinds import ANYWHERE
from tessera.inventory.wants import Situation
from tessera.protocol.kubernetes.nodes import decode_node
from tessera.protocol.mig.miglayout import MigLayout, write_past

SOON: Final = 10.0  # seconds between two looks at least
LATER: Final = 30.0  # and at most, while somebody waits
RECUTS_PER_HOUR: Final = 20  # for 16 cards
_POOL: Final = {"pool": "days"}  # the nodes' label
_FIXED: Final = "another card of its node is being cut"


def limits_for(cards: int) -> Limits:
    """The default limits; the budget grows with the cards."""
    return Limits(recuts_per_hour=max(1, RECUTS_PER_HOUR * cards // 16))


def layout_with(limits: Limits) -> MigLayout:
    """A MigLayout that may cut every node."""
    autopilot = {
        "dryRun": False,
        "recutsPerHour": limits.recuts_per_hour,
        "coolDown": f"{limits.cool_down:g}s",
    }
    metadata = {"name": "all", "uid": "1", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return MigLayout.read(
        json.dumps(
            {"metadata": metadata, "spec": {"mode": "Auto", "nodeSelector": _POOL, "autopilot": autopilot}}
        ).encode()
    )


class Autopilot:
    """Looks when something changed, at most every `soon` seconds; `forecasts`: remembers also what was wanted before."""

    def __init__(self, limits: Limits, *, forecasts: bool = True, soon: float = SOON) -> None:
        self.layout, self.forecasts, self._soon = layout_with(limits), forecasts, soon
        self.due = inf  # not before something changes
        self._decides = controller.Autopilot()
        self._nodes: dict[str, SeenNode] = {}
        self._last = -inf

    def changed(self, waiting: Waiting, now: float) -> None:
        self.due = min(self.due, max(now, self._last + self._soon))

    def look(self, pool: Pool, waiting: Waiting, now: float) -> Iterator[tuple[Card, Sequence[Instance]]]:
        seen = self._seen(pool, waiting)
        self._last = now
        self.due = now + LATER if seen.wants else inf
        if not self.forecasts:
            self._decides.reset()
        self._decides.look([self.layout], [self.layout], self._nodes, seen, now)
        proposal = self._decides.looks[self.layout.uid].proposal
        if proposal.recuts or not self.forecasts:
            self._write(proposal.past.after(proposal.recuts, now))
        for one in proposal.recuts:
            card = pool.cards[int(one.node.removeprefix("node-")) * CARDS_OF_A_NODE + one.number]
            yield card, one.after.instances

    def _seen(self, pool: Pool, waiting: Waiting) -> Situation:
        """What waits beyond what is on its way, and the cards."""
        sizes = {size: len(some) for size, some in waiting.items()}
        for card in pool.cards:
            if card.coming:
                card.promise(sizes)
        wants = [
            Want(PROFILES[size], NAMESPACE, task.created)
            for size, some in waiting.items()
            for task in list(some)[len(some) - sizes[size] :]
        ]
        cards = {}
        for number, node in enumerate(pool.nodes):
            fixed = _FIXED if pool.is_closed(number) else ""
            cards[f"node-{number:02}"] = tuple([card.supply(fixed) for card in node])
        if not self._nodes:
            self._nodes = {
                name: SeenNode.of(
                    decode_node(json.dumps({"metadata": {"name": name, "labels": _POOL}}).encode())
                )
                for name in cards
            }
        return Situation(tuple(wants), cards, {}, dict.fromkeys(cards, frozenset({ANYWHERE})))

    def _write(self, past: Past) -> None:
        """Re-cuts stand in the status before they begin; without a forecast, nothing else does."""
        past = replace(past, charges=())  # a task that waits takes what is cut for it
        kept = past if self.forecasts else replace(past, at=None, levels={})
        self.layout = replace(self.layout, raw_status={"autopilot": {"past": write_past(kept)}})
