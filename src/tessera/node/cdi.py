"""The folder of CDI specs, shared with other vendors: ours are written whole, those of other vendors are never touched.

The device plugin has one spec for each kind of device. The DRA driver has one for each claim, from before the kubelet is answered
until the claim has ended; its names contain the claim's uid, so that none is ever used twice: container runtimes remember them.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from tessera.core.devices.device import Assignment, Device, Edits
from tessera.core.dra.slices import DRIVER
from tessera.core.errors import InvalidInput
from tessera.kube.files import Signature, signature_of
from tessera.node.files import PREFIX, SHARED_LEFTOVERS_AGE, put, remove_leftovers
from tessera.protocol import cdi
from tessera.protocol.kubelet.dra_messages import main_request

log = logging.getLogger(__name__)

_CLAIM_KIND: Final = f"{DRIVER}/claim"
# Not that of the device plugin, which removes what is not its own of that prefix
_CLAIM_PREFIX: Final = f"{DRIVER}-claim-"


class CdiDirectory:
    """Our specs in a folder that container runtimes read, `/var/run/cdi` as a rule."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: dict[Path, Signature | None] = {}  # as we left them
        self._cleaned = False

    def write(self, devices: Iterable[Device]) -> None:
        """Make the folder say this and nothing else of ours; new specs come before stale ones go."""
        wanted = {self._path(kind): cdi.encode(document) for kind, document in cdi.documents(devices).items()}
        if not self._cleaned:
            remove_leftovers(self._folder)
            self._cleaned = True
        for path, data in wanted.items():
            if put(path, data):
                log.info("CDI spec written: %s", path)
        for path in self._folder.glob(f"{PREFIX}*.json"):
            if path not in wanted:
                path.unlink(missing_ok=True)
                log.info("stale CDI spec removed: %s", path)
        self._written = {path: signature_of(path) for path in wanted}

    def published(self) -> frozenset[str]:
        """The names of the devices in our specs; a spec that cannot be read names none."""
        found: set[str] = set()
        for path in self._folder.glob(f"{PREFIX}*.json"):
            try:
                found.update(cdi.names(path.read_bytes()))
            except (OSError, InvalidInput) as error:
                log.warning("CDI spec %s cannot be read: %s", path, error)
        return frozenset(found)

    def intact(self) -> bool:
        """Whether the specs are as we left them; `/var/run` may be cleaned by any program."""
        return all(signature_of(path) == seen for path, seen in self._written.items())

    def _path(self, kind: str) -> Path:
        return self._folder / f"{PREFIX}{kind.replace('/', '_')}.json"


def cdi_names(uid: str, name: str, device: Device) -> tuple[str, ...]:
    """What the runtime is to inject for a device of a claim: ours, and the other vendor's where it describes the device."""
    ours = (f"{_CLAIM_KIND}={uid}-{name}",) if device.edits or device.env_list else ()
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
        data = cdi.encode(cdi.document(_CLAIM_KIND, edits))
        put(self._path(uid), data, lasting=False)  # after a power cut no container has it any more

    def there(self, uid: str) -> bool:
        return self._path(uid).exists()

    def names(self, uid: str) -> list[str] | None:
        """The names of the devices in a claim's spec; None: there is none that can be read."""
        try:
            found = cdi.names(self._path(uid).read_bytes())
        except (OSError, InvalidInput):
            return None
        return [name.removeprefix(f"{_CLAIM_KIND}={uid}-") for name in found]

    def remove(self, uid: str) -> None:
        self._path(uid).unlink(missing_ok=True)

    def clean(self, known: Iterable[str]) -> list[str]:
        """Remove the specs of claims that are not known, and what killed processes left; the uids."""
        remove_leftovers(self._folder, SHARED_LEFTOVERS_AGE)
        found = {
            path.name.removeprefix(_CLAIM_PREFIX).removesuffix(".json")
            for path in self._folder.glob(f"{_CLAIM_PREFIX}*.json")
        }
        stale = sorted(found - {*known})
        for uid in stale:
            self.remove(uid)
        return stale

    def _path(self, uid: str) -> Path:
        return self._folder / f"{_CLAIM_PREFIX}{uid}.json"


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
