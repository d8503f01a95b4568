"""What both ways to cut real cards share: by a layout (`source`), and as claims ask for it (`on_demand`).

Also which other programs cut the cards of a node: then we do not.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tessera.core.devices.device import Device
from tessera.core.dra.slices import API_VERSION
from tessera.kube.errors import ApiError, KubeError
from tessera.kube.rest.client import Client, path_of
from tessera.node.sources.cutting.journal import BOOT_ID, Journal, Lock
from tessera.node.sources.cutting.port import GpuDriver, Products
from tessera.node.sources.cutting.reading import mode_stays, unreadable
from tessera.node.sources.laid_out import LaidOutSource
from tessera.node.sources.nvml import NvmlSource
from tessera.node.sources.nvml_card import NvmlCard
from tessera.protocol.kubernetes.objects import InvalidObject, decode_list
from tessera.protocol.mig.nodes import BY_MIG_MANAGER

_NVIDIAS: Final = "gpu.nvidia.com"  # NVIDIA's DRA driver
_THEIRS: Final = (
    f"NVIDIA's DRA driver ({_NVIDIAS}) offers the cards of this node; take it off this node first"
)
_AGAIN: Final = 60.0  # seconds until it is asked again whether that serves the node
_SOON: Final = 5.0  # until it is asked again where there was no answer
_TIMEOUT: Final = 5.0  # the devices wait for the answer


class Neighbours:
    """Looks for NVIDIA's mig-manager and for slices of NVIDIA's DRA driver."""

    def __init__(self, client: Client | None, node: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._node = node
        self._clock = clock
        self._asked: float | None = None
        # what speaks against us; None: there was no answer yet
        self._driver: str | None = None if client else ""
        self._unknown = ""  # why not

    async def objection(self, labels: Mapping[str, str]) -> str:
        """Why the cards are not ours to cut; empty: they are."""
        if labels.get(BY_MIG_MANAGER) == "true":
            return (
                f"NVIDIA's mig-manager cuts the cards of this node (label {BY_MIG_MANAGER}=true); set nvidia.com/mig.config, "
                "or take mig-manager off this node"
            )
        every = _AGAIN if self._driver is not None else _SOON
        if self._client and (self._asked is None or self._clock() - self._asked >= every):
            self._asked = self._clock()
            await self._query(self._client)
        return self._unknown if self._driver is None else self._driver

    async def _query(self, client: Client) -> None:
        """Ask the API server; while it does not answer, its last answer holds."""
        query = {"fieldSelector": f"spec.nodeName={self._node},spec.driver={_NVIDIAS}", "limit": "1"}
        try:
            async with asyncio.timeout(_TIMEOUT):
                found = await client.get(path_of(API_VERSION, "resourceslices"), query)
            theirs = bool(decode_list(found).items)
        except (KubeError, InvalidObject, TimeoutError) as error:
            if not (isinstance(error, ApiError) and error.is_not_found):
                what = str(error) or "the API server does not answer"
                self._unknown = (
                    f"it cannot be learned whether NVIDIA's DRA driver offers the cards of this node: {what}"
                )
                return
            theirs = False  # a cluster without that API
        self._driver = _THEIRS if theirs else ""


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
