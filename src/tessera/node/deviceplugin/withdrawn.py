"""Devices that were withdrawn a moment ago: the kubelet may have chosen one for a pod before it knew, and ask for it yet.

It takes over a new list without an answer. But it writes its checkpoint after that (read in Kubernetes 1.36 and 1.37,
pkg/kubelet/cm/devicemanager/manager.go):

- A message of ListAndWatch replaces the healthy devices under the lock (`genericDeviceUpdateCallback`); after that it writes the
  checkpoint, in which `RegisteredDevices` are the healthy devices at that moment (`writeCheckpoint`).
- It chooses from the healthy devices under the same lock (`devicesToAllocate`), and calls Allocate at once. It lets go of the lock in
  one place: to ask which devices we prefer, after it has read which are healthy.

Hence: once the checkpoint lists a device no longer, the kubelet chooses it no more. A call about it may be on its way (`ON_THE_WAY`), or
be the next one after a question that we are answering, or have just answered. After that the device is released: an Allocate that comes
nevertheless is refused. The checkpoint proves this only if it listed the device before: else the kubelet may have yet to take over
the list in which the device was. Where it proves nothing, a device can come back for `RECALL`.

Until then the kubelet's list has it, unhealthy. When Allocate is answered the kubelet looks the device up in its list, and crashes if it
is not there (`allocateContainerResources`: a nil pointer).
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Final

from tessera.core.devices.device import ON_THE_WAY, RECALL, Device
from tessera.core.errors import InvalidInput
from tessera.node.state import Key
from tessera.protocol.kubelet import checkpoint

_POLL: Final = 0.02  # seconds between two readings of the checkpoint


@dataclass(slots=True)
class _Withdrawn:
    device: Device
    at: float
    listed: bool  # whether the kubelet's checkpoint had it then
    released: bool = False


class Withdrawn:
    def __init__(
        self, folder: Path, asked: Callable[[str], float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`folder`: of the kubelet's device plugins. `asked`: when the kubelet last asked about a resource; infinite: it does now."""
        self._checkpoint = folder / checkpoint.FILE
        self._asked = asked
        self._clock = clock
        self._some: dict[Key, _Withdrawn] = {}
        self._resources: set[str] = set()  # of which the kubelet's list has devices that were withdrawn
        self._unlisted = inf  # since when the checkpoint has none of those that are not released
        self._changed = asyncio.Event()

    def published(self, before: Iterable[Device], after: Iterable[Device]) -> None:
        """These are published instead of those before; called before they are sent."""
        now, there = self._clock(), {one.key for one in after}
        self._some = {
            key: one for key, one in self._some.items() if key not in there and one.at > now - RECALL
        }
        gone = [one for one in before if one.healthy and one.key not in there]
        if gone:
            listed = self._read(checkpoint.registered) or frozenset()
            self._some |= {one.key: _Withdrawn(one, now, one.key in listed) for one in gone}
            self._resources |= {one.resource for one in gone}
            self._unlisted = inf
            self._changed.set()

    def of(self, keys: Collection[Key]) -> list[Device]:
        """Those of these devices that can come back."""
        return [one.device for key, one in self._open.items() if key in keys]

    @property
    def released(self) -> frozenset[str]:
        """The ids that cannot come back, though they were withdrawn a moment ago."""
        names = {name for (_, name), one in self._some.items() if one.released}
        return frozenset(names - {name for _, name in self._open})

    def on_list(self, resource: str) -> Iterable[Device]:
        """Those of a resource that can come back, as the kubelet is to have them meanwhile."""
        return [
            one.device.unhealthy("withdrawn") for (name, _), one in self._open.items() if name == resource
        ]

    async def watch(self, over: Callable[[str], None], changed: asyncio.Event | None = None) -> None:
        """Call `over` for each resource of which no device can come back any more, until cancelled; with `changed`, release devices as the kubelet proves it."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._open:
                if changed and self.try_release():
                    changed.set()
                await asyncio.sleep(_POLL)
            resources, self._resources = self._resources, set()
            for resource in sorted(resources):
                over(resource)

    def try_release(self) -> bool:
        """Release what is withdrawn if the kubelet's checkpoint proves that it will ask for none of it; whether it was released."""
        now, some = self._clock(), self._open
        mentioned = self._read(lambda data: checkpoint.registered(data) | checkpoint.allocated(data))
        if mentioned is None or some.keys() & mentioned or not all(one.listed for one in some.values()):
            self._unlisted = inf
            return False
        self._unlisted = min(self._unlisted, now)
        if now - max([self._unlisted, *(self._asked(resource) for resource, _ in some)]) < ON_THE_WAY:
            return False
        for one in some.values():
            one.released = True
        return True

    @property
    def _open(self) -> dict[Key, _Withdrawn]:
        """Those that can come back."""
        since = self._clock() - RECALL
        return {key: one for key, one in self._some.items() if one.at > since and not one.released}

    def _read(self, what: Callable[[bytes], frozenset[Key]]) -> frozenset[Key] | None:
        """What the checkpoint says; None: it cannot be read."""
        try:
            return what(self._checkpoint.read_bytes())
        except (OSError, InvalidInput):
            return None
