"""The claims that are prepared on this node, on disk: one file for each, whole or not at all.

A file is written before anything is done for a claim (`started`), again when all of it is done (`completed`), and goes when
the claim has ended. Every process of the driver reads and writes under one lock, since two may run at once. What was
prepared before the last start of the machine is not believed: containers and device files are gone. A file named after the boot
says that the driver has run in it: at its first start in a boot, a record that cannot be read is of an earlier one too.
"""

import fcntl
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from tessera.core.devices.device import Device, Span
from tessera.core.errors import TesseraError
from tessera.node.files import write_whole
from tessera.protocol.kubelet.dra_messages import ClaimName

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_UID: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,63}", re.ASCII)
_SHARED_INSTANCE: Final = re.compile(r"\d+c\.")  # 1c.3g.71gb: compute instances that share one GPU instance


class Phase(StrEnum):
    """How far a claim is."""

    STARTED = "started"
    COMPLETED = "completed"


class HeldDevice(msgspec.Struct, frozen=True):
    """A device that a claim has, and what it takes of its card."""

    device: str  # its name in the slices
    request: str
    resource: str
    id: str
    cdi_names: tuple[str, ...]
    parent: str = ""  # the card's UUID; empty: it lies on none, or shares its slices
    start: int = 0
    size: int = 0
    admin: bool = False

    @classmethod
    def of(
        cls, device: Device, name: str, request: str, cdi_names: tuple[str, ...], *, admin: bool
    ) -> "HeldDevice":
        """What a claim has with this device."""
        shared = _SHARED_INSTANCE.match(device.model.profile)
        place = device.place if device.model.parent and not shared else None
        span = place.span if place else Span(0, 0)
        parent = device.model.parent if place else ""
        return cls(name, request, device.resource, device.id, cdi_names, parent, span.start, span.size, admin)

    @property
    def card(self) -> str:
        """What is done about it is done in order with everything else of this name."""
        return self.parent or self.id

    def overlaps(self, other: "HeldDevice") -> bool:
        """Whether only one claim may have the two: the same device, or a memory slice of both."""
        if self.admin or other.admin:
            return False
        if (self.resource, self.id) == (other.resource, other.id):
            return True
        return (
            bool(self.parent)
            and self.parent == other.parent
            and Span(self.start, self.size).overlaps(Span(other.start, other.size))
        )


class PreparedClaim(msgspec.Struct, frozen=True):
    """A claim that is prepared, or about to be."""

    uid: str
    namespace: str
    name: str
    boot: str
    phase: Phase
    devices: tuple[HeldDevice, ...]

    @property
    def claim(self) -> ClaimName:
        return ClaimName(self.namespace, self.name, self.uid)

    def __str__(self) -> str:
        return f"claim {self.namespace}/{self.name}"


class UnreadableEntry(TesseraError):
    """A file that does not say what its claim holds."""

    def __init__(self, path: Path, error: Exception) -> None:
        super().__init__(
            f"{path} does not say which devices its claim holds ({error}); end the claim's pod, restart the machine, or remove "
            "the file when no container of it runs"
        )
        self.path = path
        self.uid = path.stem


_DECODER: Final = msgspec.json.Decoder(PreparedClaim)


class PreparedClaims:
    """The folder of entries. Every method waits for the disk: call it in a thread, with the lock held where it says so."""

    def __init__(self, folder: Path, boot_id: Path = BOOT_ID) -> None:
        self._folder = folder
        self.boot = boot_id.read_text().strip()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Alone among all processes of the driver on this node."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "lock").open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield  # closing the file gives the lock back, and so does the end of the process

    def begin(self) -> list[UnreadableEntry]:
        """Begin at a start, before a claim is prepared; the entries that cannot be read and are of an earlier boot, which go."""
        marker = self._folder / f"{self.boot}.boot"
        with self.locked():
            if marker.exists():
                return []
            unreadable = self.read()[1]
            marker.touch()
            others = [path for path in self._folder.glob("*.boot") if path != marker]
            for path in (*others, *(one.path for one in unreadable)):
                with suppress(OSError):  # what cannot be removed stays, and holds back new claims
                    path.unlink()
        return unreadable

    def get(self, uid: str) -> PreparedClaim | None:
        """The entry of a claim; one that cannot be read is an `UnreadableEntry`."""
        return self._read(self._path(uid))

    def readable(self) -> list[PreparedClaim]:
        return self.read()[0]

    def read(self) -> tuple[list[PreparedClaim], list[UnreadableEntry]]:
        """Every entry, and those that cannot be read: each of these may hold anything."""
        entries, unreadable = [], []
        for path in sorted(self._folder.glob("*.json")):
            try:
                entries.append(self._read(path))
            except UnreadableEntry as error:
                unreadable.append(error)
        return [entry for entry in entries if entry is not None], unreadable

    def taken(self, devices: Iterable[Device]) -> dict[tuple[str, str], str]:
        """Of these devices, those that a claim of this boot has, in part or in whole: which one. An entry that cannot be read may have any."""
        entries, unreadable = self.read()
        if unreadable and (self._folder / f"{self.boot}.boot").exists():
            return {device.key: str(unreadable[0]) for device in devices}
        held = [(one, entry) for entry in entries if entry.boot == self.boot for one in entry.devices]
        return {
            device.key: f"{entry} has it from the DRA driver"
            for device in (devices if held else ())
            for one, entry in held
            if HeldDevice.of(device, "", "", (), admin=False).overlaps(one)
        }

    def uids(self) -> set[str]:
        """The claims that have a file, readable or not."""
        return {path.stem for path in self._folder.glob("*.json")}

    def write(self, entry: PreparedClaim) -> None:
        """Put an entry in place, whole; lock held. A power cut may lose it: entries of an earlier boot are not believed anyway."""
        write_whole(self._path(entry.uid), msgspec.json.encode(entry), lasting=False)

    def remove(self, uid: str) -> None:
        self._path(uid).unlink(missing_ok=True)

    def _path(self, uid: str) -> Path:
        if not _UID.fullmatch(uid):
            raise TesseraError(f"{uid!r} is no uid of a claim")
        return self._folder / f"{uid}.json"

    def _read(self, path: Path) -> PreparedClaim | None:
        try:
            return _DECODER.decode(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UnreadableEntry(path, error) from error


def in_the_way(
    entries: Iterable[PreparedClaim], uid: str, wanted: Sequence[HeldDevice], boot: str
) -> list[tuple[HeldDevice, PreparedClaim]]:
    """Those of the wanted devices that another claim holds in part or in whole, and that claim."""
    others = [entry for entry in entries if entry.uid != uid and entry.boot == boot]
    return [
        (device, entry)
        for device in wanted
        for entry in others
        if any(device.overlaps(held) for held in entry.devices)
    ]
