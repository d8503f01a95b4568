"""nos's rule: pods that wait are taken in batches, and geometries are tried card by card, of what is free.

A batch is planned when no pod came for some seconds, and at the latest when its first has waited for a minute. Node by node, every card gets
the geometry that gives most of what is lacking; a node's new geometries stay if one of the pods fits on the node, the smallest pods first. No plan is made
before the last one is carried out. There is no budget, and nothing is remembered. Two things are kinder than nos: who still waits is in the next batch
at once, and only geometries are tried that fit beside the places in use (nos goes by counts).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import inf
from typing import Final

from benchmarks.days.layouts import PRODUCT, PROFILES
from benchmarks.recuts.play import Waiting
from benchmarks.recuts.pool import SIZE_OF, Card, Pool
from tessera.core.mig.placement import Instance, Wish, maximal_patterns, place_keeping

WINDOW: Final = 60.0  # seconds from a batch's first pod
IDLE: Final = 10.0  # seconds without another
_MOST: Final = tuple(shape.most if (shape := PRODUCT.shape(one)) else 0 for one in PROFILES.values())
_Places = tuple[Instance, ...]


class Nos:
    def __init__(self) -> None:
        self.due = inf
        self._first = inf  # when the batch began
        self._same = False  # as at the last look, which found nothing to cut

    def changed(self, waiting: Waiting, now: float) -> None:
        self._same = False
        if any(some and some[-1].created == now for some in waiting.values()):
            self._first = min(self._first, now)
            self.due = min(self._first + WINDOW, now + IDLE)

    def look(self, pool: Pool, waiting: Waiting, now: float) -> Iterator[tuple[Card, Sequence[Instance]]]:
        lacking = Counter({size: len(some) for size, some in waiting.items() if some})
        self._first = now if lacking else inf
        self.due = now + IDLE if lacking else inf
        if self._same or any(card.coming for card in pool.cards):
            return
        self._same = True
        for node in pool.nodes:
            if not lacking:
                return
            for cut in _plan(node, lacking):
                self._same = False
                yield cut


def _plan(node: Sequence[Card], lacking: Counter[int]) -> Iterator[tuple[Card, _Places]]:
    """New geometries for a node's cards, if they help; what they serve is no longer lacking."""
    required, free, cuts = Counter(lacking), Counter[int](), list[tuple[Card, _Places]]()
    for card in node:
        found = _geometry(_ordered(card.used), _ordered(card.idle), tuple(sorted(required.items())))
        if found is not None:
            cuts.append((card, found))
        left = [one for one in found if one not in card.used] if found else card.idle
        here = Counter(SIZE_OF[one.profile] for one in left)
        free += here
        required -= here
    served = lacking & free
    lacking -= served
    if served:
        yield from cuts


@lru_cache(maxsize=1 << 16)
def _geometry(used: _Places, idle: _Places, required: tuple[tuple[int, int], ...]) -> _Places | None:
    """How a card is cut that gives most of what is required; None: no other way gives more than nothing."""
    has = Counter(SIZE_OF[one.profile] for one in idle)
    asked = [(size, count) for size, count in required if has[size] < count]
    best, most = None, 0
    for pattern in maximal_patterns(PRODUCT, used, tuple(PROFILES.values()), _MOST):
        counts = dict(zip(PROFILES, pattern, strict=True))
        given = sum(min(counts[size], count) for size, count in asked)
        if given > most:
            best, most = pattern, given
    if best is None:
        return None
    fixed = [Wish(one.profile, one.position) for one in used]
    open_ = [
        Wish(profile) for profile, count in zip(PROFILES.values(), best, strict=True) for _ in range(count)
    ]
    return place_keeping(PRODUCT, [*fixed, *open_], idle)


def _ordered(some: Sequence[Instance]) -> _Places:
    return tuple(sorted(some, key=lambda one: one.position))
