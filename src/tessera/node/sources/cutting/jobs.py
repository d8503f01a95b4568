"""Cuts in threads of their own, one for each card: a call that hangs holds up its card alone."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from tessera.node.sources.cutting.card import Busy, Failed, Order, Outcome, cut
from tessera.node.sources.cutting.journal import Journal
from tessera.node.sources.cutting.port import Driver, Refused

log = logging.getLogger(__name__)

_HANGS_AFTER: Final = 30.0  # seconds for one call; NVML makes and removes instances within a second or two


class Job:
    """One card's cut. The thread ends with the process: nothing waits for a call that does not come back."""

    def __init__(
        self,
        order: Order,
        driver: Driver,
        journal: Journal,
        ended: Callable[[], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.order = order
        self.outcome: Outcome | None = None  # None: at work
        self._driver = driver
        self._journal = journal
        self._ended = ended
        self._clock = clock
        self._call = ("", clock())
        self._thread = threading.Thread(target=self._run, name=f"cut {order.card}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)

    @property
    def hangs(self) -> str:
        """What has not come back for too long; empty: nothing."""
        name, since = self._call
        # the same words for as long as it lasts: they are written to the node
        hangs = self._clock() - since > _HANGS_AFTER
        return (
            f"waits for {name}, which has not come back for more than {_HANGS_AFTER:.0f} s" if hangs else ""
        )

    def _note(self, name: str) -> None:
        self._call = (name, self._clock())

    def _run(self) -> None:
        try:
            with self._driver.open(self.order.card, self._note) as card:
                outcome = cut(self.order, card, self._journal)
        except Refused as error:
            outcome = Busy(str(error))  # nothing was changed: the card does not answer
        except Exception as error:
            log.exception("the cut of card %s ended with an error", self.order.card)
            outcome = Failed(repr(error))
        self.outcome = outcome
        self._ended()
