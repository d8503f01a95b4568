"""What is asked of the driver to cut a card, and how it refuses."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol

from tessera.core.errors import TesseraError
from tessera.core.mig.cutting import GpuInstance
from tessera.core.mig.geometry import Product
from tessera.core.mig.placement import Instance
from tessera.node.sources.asking import Asker
from tessera.node.sources.nvml_card import NvmlCard

log = logging.getLogger(__name__)


class DriverRefused(TesseraError):
    """NVML does not do what was asked; with its message."""


class CardInUse(DriverRefused):
    """Some program uses the card or the instance."""


class RefusedForGood(DriverRefused):
    """The card, the driver or our rights do not allow it: the same would be refused again."""


class NeedsReset(DriverRefused):
    """The card does it only after a reset or a reboot."""


class Writer(Protocol):
    """One card that is open for changes. Every method may raise `DriverRefused`, and may hang."""

    def modes(self) -> tuple[bool, bool]:
        """Whether MIG is on now, and whether it will be after a reset."""
        ...

    def switch(self, *, on: bool) -> None:
        """Turn MIG mode on or off; `NeedsReset` if that takes effect after a reset only."""
        ...

    def made(self) -> Sequence[GpuInstance]:
        """The GPU instances of a card with MIG on."""
        ...

    def create(self, instance: Instance) -> int:
        """Make a GPU instance in its place; its number."""
        ...

    def create_compute(self, gpu_instance: int) -> None:
        """Make the compute instance that takes all of a GPU instance."""
        ...

    def destroy_compute(self, gpu_instance: int, compute_instance: int) -> None: ...

    def destroy(self, gpu_instance: int) -> None: ...


class GpuDriver(Protocol):
    """The driver, as far as cards are cut by it."""

    def product(self, uuid: str) -> Product:
        """The profiles of a card and where they may lie, as the driver itself says; no profiles: it cannot be cut."""
        ...

    def open(self, uuid: str, on_call: Callable[[str], None]) -> AbstractContextManager[Writer]:
        """A card to be changed; `on_call` gets the name of every call before it is made."""
        ...


class Products:
    """What the driver says about cards, by their UUIDs: asked once, and one that does not answer holds up no other."""

    def __init__(self, driver: GpuDriver, clock: Callable[[], float] = time.monotonic) -> None:
        self._driver = driver
        self._asker = Asker(clock)
        self.known: dict[str, Product] = {}

    async def learn(self, cards: Iterable[NvmlCard]) -> dict[str, Product]:
        """Ask about cards that are not known yet; what was learned."""
        new = {
            card.uuid: partial(self._driver.product, card.uuid)
            for card in cards
            if card.uuid and card.uuid not in self.known and not card.problem
        }
        learned = {}
        for uuid, answer in (await asyncio.to_thread(self._asker.ask, new) if new else {}).items():
            try:
                learned[uuid] = answer.result()
            except DriverRefused as error:
                log.warning("card %s: NVML does not say how it can be cut: %s", uuid, error)
        self.known |= learned
        return learned

    def why_unknown(self, uuid: str) -> str:
        return self._asker.unanswered.get(uuid) or "does not say how it can be cut"
