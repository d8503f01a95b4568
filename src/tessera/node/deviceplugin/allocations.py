"""Which devices pods hold, remembered on disk, and how the kubelet proves that one is free.

What was handed out stays held until it is proven free: it is on disk before a container gets it.

PodResources names the pods that hold devices, and that is all it is good for: for about a second after every start of the
kubelet its list is empty, then static pods are in it and the API server's are not, and plain init containers never are. So
a device that the list lacks may be in use. What proves it free is the kubelet's checkpoint (read in Kubernetes 1.36,
pkg/kubelet/cm/devicemanager/manager.go):

- The kubelet reads its checkpoint before it serves anything, so it never knows less than what it wrote last.
- It strikes out a pod's devices in `UpdateAllocatedDevices` alone, which does nothing until every source of pods has been
  heard, and then takes the pods that have ended. `List` calls it.
- Every message of ListAndWatch makes it write the checkpoint, whole, by renaming.

Hence: call List, send the devices once more, and read the checkpoint that comes after that. A device that is in neither is
not counted by the kubelet. That alone does not prove it free: a pod that comes is counted a moment after its devices were
handed out, and one that is deleted by force is struck out while its container has seconds to end. What the kubelet has not
counted for a while is free (`GRACE`). As long as no such checkpoint comes, what was held is held.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

import grpc

from tessera.core.errors import InvalidInput
from tessera.kube.clock import Once
from tessera.kube.files import signature_of
from tessera.node.files import Saved
from tessera.node.rpc import CallFailed, call
from tessera.node.state import Key
from tessera.protocol.kubelet import checkpoint, messages
from tessera.protocol.kubelet.podresources_pb2 import ListPodResourcesRequest

log = logging.getLogger(__name__)

A_POD: Final = "a pod"  # a holder whose name is not known yet
# Ticks for which the kubelet must not count a device before it is free: it gives the containers of a pod that is deleted by
# force 2 seconds before it kills them, and writes down what it was given within milliseconds; a busy machine takes longer
GRACE: Final = 10.0

_TIMEOUT: Final = 1.0  # seconds for List; the kubelet waits for us meanwhile
_CHECKPOINT_TIMEOUT: Final = 1.0  # seconds; one write and one fsync, usually some milliseconds
_POLL: Final = 0.01  # seconds between two checks of it
_AGAIN: Final = 5.0  # seconds until the kubelet is made to write again about what it has just said is held


class Holders:
    """Devices and who holds them; a file that cannot be written is no reason to stop."""

    def __init__(
        self, path: Path, clock: Callable[[], float] = time.monotonic, *, grace: float = GRACE
    ) -> None:
        """`grace`: seconds for which the kubelet must not count a device before it is free."""
        self._file = Saved[list[tuple[str, str, str]]](
            path, list[tuple[str, str, str]], unreadable=", every device counts as held"
        )
        self._clock = clock
        self._grace = grace
        self._holders: dict[Key, str] = {}
        self._not_counted: dict[Key, float] = {}  # held, and since when the kubelet does not count them
        self.lost = False  # whether the record of the last run could not be read

    def load(self) -> None:
        """What is on disk; called once, before anything else."""
        self._holders = {(resource, name): holder for resource, name, holder in self._file.load() or ()}
        self.lost = bool(self._file.error)

    def grant(self, keys: Iterable[Key]) -> None:
        """These are about to be handed out: on disk before a container has them."""
        self.named(dict.fromkeys(keys, A_POD))

    def named(self, holders: Mapping[Key, str]) -> None:
        """Pods that hold these devices; it says nothing about devices that are not among them."""
        for key, holder in holders.items():
            self._holders[key] = holder
            self._not_counted.pop(key, None)
        self._save()

    def counted(self, keys: Collection[Key]) -> None:
        """The kubelet counts these as held, and no others: what it has not counted for long enough is free."""
        now = self._clock()
        since = {key: self._not_counted.get(key, now) for key in self._holders if key not in keys}
        self._not_counted = {key: at for key, at in since.items() if now - at < self._grace}
        self._holders = {key: self._holders.get(key, A_POD) for key in (*keys, *self._not_counted)}
        self._save()

    def of(self, keys: Iterable[Key]) -> dict[Key, str]:
        """Those of these devices that are held, and by whom."""
        return {key: self._holders[key] for key in keys if key in self._holders}

    @property
    def recent(self) -> frozenset[Key]:
        """What was handed out, and has not been seen with a pod yet."""
        return frozenset(key for key, holder in self._holders.items() if holder == A_POD)

    @property
    def all(self) -> frozenset[Key]:
        return frozenset(self._holders)

    def _save(self) -> None:
        self._file.save([(*key, holder) for key, holder in sorted(self._holders.items())])


class Allocations:
    """Keeps the record of holders right by what the kubelet says and proves."""

    def __init__(
        self,
        kubelet_dir: Path,
        holders: Holders,
        send_again: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`send_again` sends one list of devices to the kubelet once more; False when no kubelet listens."""
        self._socket = kubelet_dir / "pod-resources" / "kubelet.sock"
        self._checkpoint = kubelet_dir / "device-plugins" / checkpoint.FILE
        self.holders = holders
        self._send_again = send_again
        self._clock = clock
        self.listed: Mapping[Key, str] = {}  # who holds what, as the kubelet said last; there may be more
        self._proven = False  # whether there was a proof in this run
        self._unimplemented = False  # whether the kubelet will never say
        # not free after all, and when that was said
        self._refuted: tuple[frozenset[Key], float] = (frozenset(), 0.0)
        self._silent = Once()  # the kubelet, about what pods hold
        self._uids: dict[Key, str] = {}  # of the pods that hold devices, as far as they are known

    def held(self, keys: Collection[Key]) -> dict[Key, str]:
        """Those of these devices that are not proven free, and the pods that hold them.

        Before the first proof that is all of them: the record may come from a disk that was full.
        """
        held = self.holders.of(keys)
        if self._proven or self._unimplemented or not self._socket.exists():
            return held
        return dict.fromkeys(keys, A_POD) | held

    def in_use(self, keys: Collection[Key]) -> Mapping[Key, str] | None:
        """Those of these devices that are not proven free, and the UIDs of their pods; empty: it is not known which. None: nothing is known."""
        if not self._proven:
            return None
        try:
            pods = checkpoint.pods(self._checkpoint.read_bytes())
        except (OSError, InvalidInput):
            return None
        there = {*self.holders.of(keys), *(key for key in keys if key in pods)}
        self._uids = {key: pods.get(key) or self._uids.get(key, "") for key in there}
        return self._uids

    async def ask(self) -> bool:
        """Ask the kubelet which pods hold devices; False when it cannot be asked."""
        try:
            answer = await call(self._socket, messages.LIST_PODS, ListPodResourcesRequest(), _TIMEOUT)
        except CallFailed as error:
            self._unimplemented = error.status is grpc.StatusCode.UNIMPLEMENTED
            if self._silent.begin(error.status.name):
                log.warning(
                    "cannot ask which devices are in use, what was handed out counts as used: %s", error
                )
            return False
        if self._silent.end():
            log.info("the kubelet lists again which devices are in use")
        self.listed = messages.holders(answer)
        return True

    async def counted(self) -> frozenset[Key] | None:
        """Every device that the kubelet counts, by its list and by its checkpoint as it is on disk; None: neither can be read."""
        known = frozenset(self.listed) if self._socket.exists() and await self.ask() else None
        try:
            return (known or frozenset()) | checkpoint.allocated(self._checkpoint.read_bytes())
        except FileNotFoundError:
            return known or frozenset()  # it has never allocated a device
        except (OSError, InvalidInput):
            return known

    async def settle(self, keys: Collection[Key]) -> None:
        """Bring the record up to date for these devices, as far as the kubelet proves anything now."""
        if not await self.ask():
            return
        self.holders.named({key: self.listed[key] for key in keys if key in self.listed})
        doubtful = self.holders.all - self.listed.keys()
        if self._proven and self._refuted_lately(doubtful):
            return
        allocated = await self._written_again()
        if allocated is None:
            return
        self._proven = True
        self.holders.counted((allocated | self.listed.keys()) & {*keys, *self.holders.all})
        self._refuted = (allocated & doubtful, self._clock())

    def _refuted_lately(self, doubtful: frozenset[Key]) -> bool:
        """Whether nothing is in doubt, or only what the kubelet has just written that it is held."""
        if not doubtful:
            self._refuted = (doubtful, self._clock())
        refuted, at = self._refuted
        return refuted == doubtful and self._clock() < at + _AGAIN

    async def _written_again(self) -> frozenset[Key] | None:
        """What is in the checkpoint that the kubelet writes because of what we send now; None: it wrote none."""
        before = signature_of(self._checkpoint)
        if not self._send_again():
            return None
        try:
            async with asyncio.timeout(_CHECKPOINT_TIMEOUT):
                while signature_of(self._checkpoint) in (before, None):
                    await asyncio.sleep(_POLL)
            return checkpoint.allocated(self._checkpoint.read_bytes())
        except (TimeoutError, OSError, InvalidInput) as error:
            log.debug("the kubelet proves nothing about devices now: %r", error)
            return None
