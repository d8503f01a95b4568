"""The kubelet's part in DRA: it finds drivers by their registration sockets, and has claims prepared before a pod's containers start.

Like the real one it hands a container the devices of those requests that the container names. It polls its folder many times
a second; inotify notifies the real one. It does not follow the health of devices.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

from tessera.core.errors import TesseraError
from tessera.node.rpc import CallFailed, call
from tessera.protocol.kubelet import dra_messages as messages
from tessera.protocol.kubelet import dra_pb2 as dra
from tessera.protocol.kubelet import registration_pb2 as registration
from tessera.protocol.kubelet.dra_messages import ClaimName
from tessera.protocol.kubelet.v1beta1_pb2 import CDIDevice
from tessera.protocol.kubernetes.dra import decode_claim
from tessera.simulation.control_plane.claims import claim_names
from tessera.simulation.control_plane.store import Document, Stored
from tessera.simulation.kubelet import Grant

_TIMEOUT: Final = 30.0  # seconds that a driver may take, to come or to answer
_POLL_SECONDS: Final = 0.02
_SERVICE: Final = messages.PLUGIN_SERVICES[0]


class PrepareFailed(TesseraError):
    """A claim that no driver could prepare."""


Prepared = dict[tuple[str, str], list[str]]  # claim and request → CDI names


class Use(NamedTuple):
    """What a container has of a claim."""

    claim: str
    request: str = ""  # empty: all of them

    def grant(self, prepared: Prepared) -> Grant:
        names = [
            name
            for (claim, request), some in prepared.items()
            if claim == self.claim and self.request in ("", request)
            for name in some
        ]
        return Grant(cdi_devices=[CDIDevice(name=name) for name in names])


def uses(pod: Document) -> dict[str, list[Use]]:
    """Which container has what of which claim: those that it names, and the one for its extended resources."""
    names, spec = claim_names(pod), pod["spec"]
    found = {
        one["name"]: [
            Use(names[each["name"]], each.get("request", ""))
            for each in (one.get("resources") or {}).get("claims") or ()
        ]
        for one in (*(spec.get("initContainers") or ()), *spec["containers"])
    }
    extended = (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
    for each in extended.get("requestMappings") or ():
        found[each["containerName"]].append(Use(extended["resourceClaimName"], each["requestName"]))
    return found


class Drivers:
    """The drivers of one node, in a folder like `/var/lib/kubelet`."""

    def __init__(self, root: Path) -> None:
        self._registry = root / "plugins_registry"
        self._found: set[Path] = set()  # registration sockets that were answered
        self._sockets: dict[str, Path] = {}  # driver → where it serves
        # namespace/name of a pod → its claims, and whose devices they have
        self._prepared: dict[str, list[tuple[ClaimName, set[str]]]] = {}
        self._changed = asyncio.Condition()

    async def watch(self) -> NoReturn:
        """Register the drivers that come, until cancelled."""
        while True:
            there = set(self._registry.glob("[!.]*.sock"))
            self._found &= there
            for path in sorted(there - self._found):
                await self._register(path)
            await asyncio.sleep(_POLL_SECONDS)

    async def _register(self, path: Path) -> None:
        try:
            info = await call(path, messages.GET_INFO, registration.InfoRequest(), 1.0)
            await call(path, messages.NOTIFY, registration.RegistrationStatus(plugin_registered=True), 1.0)
        except CallFailed:
            return  # it is about to end, or to begin: the next poll shows it
        self._found.add(path)
        async with self._changed:
            self._sockets[info.name] = Path(info.endpoint)
            self._changed.notify_all()

    async def prepare(self, pod: str, claims: Iterable[Stored]) -> Prepared:
        found: Prepared = {}
        for stored in claims:
            claim = decode_claim(stored.encoded)
            name, drivers = (
                ClaimName(*stored.key, claim.metadata.uid),
                {one.driver for one in claim.status.results},
            )
            self._prepared.setdefault(pod, []).append((name, drivers))
            request = dra.NodePrepareResourcesRequest(claims=[_wire(name)])
            for driver in sorted(drivers):
                socket = await self._socket(driver)
                try:
                    answer = await call(socket, messages.PREPARE[_SERVICE], request, _TIMEOUT)
                except CallFailed as error:
                    raise PrepareFailed(f"prepare claim {name}: {error}") from error
                result = answer.claims[name.uid]
                if result.error:
                    raise PrepareFailed(f"prepare claim {name}: {result.error}")
                for device in result.devices:
                    for asked in device.request_names:
                        found.setdefault((name.name, asked), []).extend(device.cdi_device_ids)
        return found

    async def unprepare(self, pod: str) -> None:
        """A pod has ended: so have its claims."""
        for name, drivers in self._prepared.pop(pod, ()):
            request = dra.NodeUnprepareResourcesRequest(claims=[_wire(name)])
            for driver in drivers & self._sockets.keys():
                with suppress(
                    CallFailed
                ):  # the driver has gone; the real kubelet asks again when one is back
                    await call(self._sockets[driver], messages.UNPREPARE[_SERVICE], request, _TIMEOUT)

    async def _socket(self, driver: str) -> Path:
        try:
            async with asyncio.timeout(_TIMEOUT), self._changed:
                await self._changed.wait_for(lambda: driver in self._sockets)
        except TimeoutError as error:
            raise PrepareFailed(f"DRA driver {driver} is not registered") from error
        return self._sockets[driver]


def _wire(name: ClaimName) -> dra.Claim:
    return dra.Claim(namespace=name.namespace, name=name.name, uid=name.uid)
