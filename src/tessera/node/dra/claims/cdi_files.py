"""The CDI specs of claims: one file for each, there from before the kubelet is answered until the claim has ended.

The names contain the claim's uid, so that none is ever used twice: container runtimes remember them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from tessera.core.devices.device import Assignment, Device, Edits
from tessera.core.errors import InvalidInput
from tessera.node.dra.names import DRIVER
from tessera.node.files import SHARED_LEFTOVERS_AGE, remove_leftovers, write_whole
from tessera.protocol import cdi
from tessera.protocol.kubelet.dra_messages import main_request

_KIND: Final = f"{DRIVER}/claim"
_PREFIX: Final = (
    f"{DRIVER}-claim-"  # not that of the device plugin, which takes away what is not its own of that prefix
)


def cdi_names(uid: str, name: str, device: Device) -> tuple[str, ...]:
    """What the runtime is to inject for a device of a claim: ours, and the other vendor's where it describes the device."""
    ours = (f"{_KIND}={uid}-{name}",) if device.edits or device.env_list else ()
    theirs = () if device.edits else (device.cdi_name,)
    return (*ours, *theirs)


class ClaimFiles:
    """The claims' specs in the folder that container runtimes read. Every method waits for the disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, uid: str, given: Sequence[tuple[str, str, Device]]) -> None:
        """Put a claim's spec in place: its devices by request and name, in order."""
        edits = _edits(uid, given)
        if not edits:
            return  # others describe all of them; a spec without devices is none
        self._folder.mkdir(parents=True, exist_ok=True)
        document = cdi.document(_KIND, edits)
        path, data = self._path(uid), cdi.encode(document)
        if not path.exists() or path.read_bytes() != data:
            write_whole(path, data, lasting=False)  # after a power cut no container has it any more

    def there(self, uid: str) -> bool:
        """Whether a claim has its spec."""
        return self._path(uid).exists()

    def names(self, uid: str) -> list[str] | None:
        """The names of the devices in a claim's spec; None: there is none that can be read."""
        try:
            found = cdi.names(self._path(uid).read_bytes())
        except (OSError, InvalidInput):
            return None
        return [name.removeprefix(f"{_KIND}={uid}-") for name in found]

    def remove(self, uid: str) -> None:
        """Take a claim's spec away."""
        self._path(uid).unlink(missing_ok=True)

    def clean(self, known: Iterable[str]) -> list[str]:
        """Take away the specs of claims that are not known, and what killed processes left; the uids."""
        remove_leftovers(self._folder, SHARED_LEFTOVERS_AGE)
        found = {
            path.name.removeprefix(_PREFIX).removesuffix(".json")
            for path in self._folder.glob(f"{_PREFIX}*.json")
        }
        stale = sorted(found - {*known})
        for uid in stale:
            self.remove(uid)
        return stale

    def _path(self, uid: str) -> Path:
        return self._folder / f"{_PREFIX}{uid}.json"


def _edits(uid: str, given: Sequence[tuple[str, str, Device]]) -> Mapping[str, Edits]:
    """Each device's own edits, and the variable that lists the devices: all of its request, the least that a container gets."""
    by_request: dict[str, list[Device]] = {}
    for request, _, device in given:
        by_request.setdefault(main_request(request), []).append(device)
    found = {}
    for request, name, device in given:
        listed = Assignment(tuple(by_request[main_request(request)])).environment
        if not device.edits and not listed:
            continue
        found[f"{uid}-{name}"] = replace(device.edits, env=(*device.edits.env, *listed.items()))
    return found
