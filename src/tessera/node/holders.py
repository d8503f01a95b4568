"""Which devices pods hold, remembered on disk: what was handed out stays held until it is proven free.

A record alone, the same for every protocol: a service says here what it hands out, before a container gets it, and what
is proven to be held. What a proof is, each protocol knows for itself.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from tessera.node.files import write_whole

log = logging.getLogger(__name__)

Key = tuple[str, str]  # resource, device id

A_POD: Final = "a pod"  # a holder whose name is not known yet
# Seconds from handing out until the kubelet has it in its books for certain, if the pod came about
_RECENT: Final = 10.0


class _Held(msgspec.Struct, frozen=True, array_like=True):
    resource: str
    id: str
    holder: str


class Holders:
    """Devices and who holds them; a file that is missing, broken or cannot be written is no reason to stop."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._holders: dict[Key, str] = {}
        self._saved: dict[Key, str] = {}
        self._granted: dict[Key, float] = {}
        self._complained = False

    def load(self) -> None:
        """What is on disk; called once, before anything else."""
        try:
            found = msgspec.json.decode(self._path.read_bytes(), type=list[_Held])
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            log.warning("%s: cannot be read, pods of the last run have no names: %s", self._path, error)
            return
        self._holders = {(one.resource, one.id): one.holder for one in found}
        self._saved = dict(self._holders)
        now = self._clock()  # a device without a name may have been handed out a moment before the restart
        self._granted = {key: now for key, holder in self._holders.items() if holder == A_POD}

    def grant(self, keys: Iterable[Key]) -> None:
        """These are about to be handed out: on disk before a container has them."""
        now = self._clock()
        for key in keys:
            self._holders[key] = A_POD
            self._granted[key] = now
        self._save()

    def named(self, holders: Mapping[Key, str]) -> None:
        """Pods that hold these devices; it says nothing about devices that are not among them."""
        for key, holder in holders.items():
            self._holders[key] = holder
            self._granted.pop(key, None)
        self._save()

    def proven(self, held: Collection[Key]) -> None:
        """These are held, and of all others only what was handed out so recently that the proof may lack it."""
        late = self._clock() - _RECENT
        self._granted = {key: at for key, at in self._granted.items() if at > late and key not in held}
        self._holders = {key: self._holders.get(key, A_POD) for key in (*held, *self._granted)}
        self._save()

    def of(self, keys: Iterable[Key]) -> dict[Key, str]:
        """Those of these devices that are held, and by whom."""
        return {key: self._holders[key] for key in keys if key in self._holders}

    @property
    def recent(self) -> frozenset[Key]:
        """What was handed out, and has not been seen with a pod yet."""
        return frozenset(self._granted)

    @property
    def all(self) -> frozenset[Key]:
        """Every device that is held."""
        return frozenset(self._holders)

    def _save(self) -> None:
        if self._holders == self._saved:
            return
        data = [_Held(resource, name, holder) for (resource, name), holder in sorted(self._holders.items())]
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, msgspec.json.encode(data))
        except OSError as error:
            if not self._complained:
                log.warning("%s: cannot be written: %s", self._path, error)
            self._complained = True
            return
        self._saved, self._complained = dict(self._holders), False
