"""Which devices pods hold, remembered on disk: what was handed out stays held until it is proven free.

A record alone: a service writes here what it hands out, before a container gets it, and what the kubelet counts. A device
is free when the kubelet has not counted it for a while: a pod that comes is counted a moment after its devices were handed
out, and a pod that is deleted by force is no longer counted while its container still has seconds to end.
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
# Ticks for which the kubelet must not count a device before it is free: it gives the containers of a pod that is deleted by
# force 2 seconds before it kills them, and writes down what it was given within milliseconds; a busy machine takes longer
GRACE: Final = 10.0


class _Held(msgspec.Struct, frozen=True, array_like=True):
    resource: str
    id: str
    holder: str


class Holders:
    """Devices and who holds them; a file that cannot be written is no reason to stop."""

    def __init__(
        self, path: Path, clock: Callable[[], float] = time.monotonic, *, grace: float = GRACE
    ) -> None:
        """`grace`: seconds for which the kubelet must not count a device before it is free."""
        self._path = path
        self._clock = clock
        self._grace = grace
        self._holders: dict[Key, str] = {}
        self._saved: dict[Key, str] = {}
        self._not_counted: dict[Key, float] = {}  # held, and since when the kubelet does not count them
        self._logged = False
        self.lost = False  # whether the record of the last run could not be read

    def load(self) -> None:
        """What is on disk; called once, before anything else."""
        try:
            found = msgspec.json.decode(self._path.read_bytes(), type=list[_Held])
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            log.error("%s cannot be read, every device counts as held: %s", self._path, error)  # noqa: TRY400 # one line
            self.lost = True
            return
        self._holders = {(one.resource, one.id): one.holder for one in found}
        self._saved = dict(self._holders)

    def grant(self, keys: Iterable[Key]) -> None:
        """These are about to be handed out: on disk before a container has them."""
        for key in keys:
            self._holders[key] = A_POD
            self._not_counted.pop(key, None)
        self._save()

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
            if not self._logged:
                log.warning("%s: cannot be written: %s", self._path, error)
            self._logged = True
            return
        self._saved, self._logged = dict(self._holders), False
