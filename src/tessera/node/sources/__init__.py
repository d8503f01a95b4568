"""Where devices come from: a list in the configuration, simulated GPUs, NVML.

What belongs here: one module or folder per kind of source, each turning what it sees into `core.devices.Device` values.
What does not: the kubelet, CDI files, and what happens to devices that are in use when they are no longer wanted; a
source says what ought to be there now.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from tessera.core.devices.device import Device
from tessera.core.errors import TesseraError


class SourceFailed(TesseraError):
    """A source cannot say at the moment; what it said before holds."""


class Source(Protocol):
    """Something that knows devices."""

    async def devices(self) -> Sequence[Device]:
        """What ought to be there now, and how it is; asked every second."""
        ...


class InThread:
    """A source that may block, asked in a thread; never twice at the same time."""

    def __init__(self, ask: Callable[[], Sequence[Device]]) -> None:
        self._ask = ask

    async def devices(self) -> Sequence[Device]:
        """What the source says."""
        return await asyncio.to_thread(self._ask)
