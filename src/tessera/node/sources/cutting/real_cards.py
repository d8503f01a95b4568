"""What both ways to cut real cards share: by a layout (`source`), and as claims ask for it (`on_demand`)."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tessera.core.devices.device import Device
from tessera.node.sources.cutting.journal import BOOT_ID, Journal, Lock
from tessera.node.sources.cutting.neighbours import Neighbours
from tessera.node.sources.cutting.port import GpuDriver, Products
from tessera.node.sources.cutting.reading import mode_stays, unreadable
from tessera.node.sources.laid_out import LaidOutSource
from tessera.node.sources.nvml import NvmlSource
from tessera.node.sources.nvml_card import NvmlCard


@dataclass(eq=False, kw_only=True)
class RealCards(LaidOutSource):
    """Owns the cards and their cuts. What asks NVML does it in a thread."""

    _gpus: NvmlSource = field(kw_only=False)
    _driver: GpuDriver = field(kw_only=False)
    switch_mode: bool = False
    clock: Callable[[], float] = time.monotonic
    boot_id: Path = BOOT_ID

    def __post_init__(self) -> None:
        super().__post_init__()
        self._neighbours = Neighbours(self.client, self.node, self.clock)
        self._lock = Lock(self.state_dir / "cut" / "lock")
        self._journal = Journal(self.state_dir / "cut", self.boot_id)
        self._cards = Products(self._driver, self.clock)
        self._products = self._cards.known

    def begin(self, devices: tuple[Device, ...]) -> tuple[Device, ...]:
        """Of the devices of the last run, those that may still be there: after a start of the machine no slice is."""
        if not self._journal.new_boot():
            return devices
        return tuple(
            device
            for device in devices
            if device.cdi_kind != self._gpus.cdi_kind or not (device.model.profile and device.model.cut)
        )

    def _card(self, uuid: str) -> NvmlCard | None:
        return next((card for card in self._gpus.cards if uuid and card.uuid == uuid), None)

    def _name(self, uuid: str) -> str:
        card = self._card(uuid)
        return f"card {card.index}" if card else f"card {uuid}"

    def _obstacle(self, card: NvmlCard, *, mig: bool) -> str:
        """Why a card cannot be cut so that its MIG mode is this; empty: it can."""
        if card.problem:
            return card.problem
        if card.uuid not in self._products:
            return self._cards.why_unknown(card.uuid)
        return mode_stays(card) if card.mig_enabled != mig and not self.switch_mode else unreadable(card)
