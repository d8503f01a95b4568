"""Where devices come from: a list in the configuration, simulated GPUs, NVML.

What belongs here: one module or folder per kind of source, each turning what it sees into `core.devices.Device` values.
What does not: the kubelet, CDI files, and what happens to devices that are in use when they are no longer wanted; a
source says what ought to be there now.
"""

import asyncio
from collections.abc import Iterable, Sequence
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


class BlockingSource(Protocol):
    """Something that knows devices, and waits for files or a driver when it is asked."""

    def devices(self) -> Sequence[Device]:
        """What ought to be there now, and how it is."""
        ...


class Answers:
    """What several sources say together: where one cannot say, what it said before holds."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self._sources = tuple(sources)
        self._last: dict[Source, Sequence[Device]] = {}

    async def ask(self) -> tuple[list[Device], SourceFailed | None]:
        """Every device, and the failure of a source that could not say; one that never could is raised."""
        failure = None
        for source in self._sources:
            try:
                self._last[source] = await source.devices()
            except SourceFailed as error:
                if source not in self._last:
                    raise
                failure = error
        return [device for source in self._sources for device in self._last[source]], failure


class InThread:
    """A source that may block, asked in a thread; never twice at the same time."""

    def __init__(self, source: BlockingSource) -> None:
        self._source = source

    async def devices(self) -> Sequence[Device]:
        """What the source says."""
        return await asyncio.to_thread(self._source.devices)
