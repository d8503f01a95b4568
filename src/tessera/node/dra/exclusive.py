"""Which process offers the node's devices: the newest process of the driver, and only where no device plugin does.

During an update two processes of the driver run. Each holds a lock on a file of its own, named after the time it began; a lock that is
free belonged to a process that has ended. A claim does not regard the node's allocatable, and a device plugin does not regard
claims: with both, a device goes to two pods. A resource at 0 is no conflict: a plugin that is gone leaves that behind.
"""

import fcntl
import secrets
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, Final, Self

import grpc

from tessera.core.devices.device import Device
from tessera.core.errors import InvalidInput, TesseraError
from tessera.core.kubernetes.node import Node
from tessera.core.text import first_of
from tessera.kube.rest.client import Client, path_of
from tessera.node.assembly import Settings
from tessera.node.files import SHARED_LEFTOVERS_AGE, remove_leftovers
from tessera.node.rpc import CallFailed, call
from tessera.protocol.kubelet import messages
from tessera.protocol.kubelet.podresources_pb2 import ListPodResourcesRequest
from tessera.protocol.kubernetes.nodes import NodeIn, decode_node

_TIMEOUT: Final = 5.0  # seconds for the kubelet's list of pods
_HIDDEN: Final = ".new"  # a file that is not locked yet


class DriverProcess:
    """This process among those of the driver on this node."""

    def __init__(self, folder: Path) -> None:
        self.token = secrets.token_hex(4)
        self._folder = folder
        self._path = folder / f"{time.time_ns():020}-{self.token}"
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        hidden = self._folder / f".{self._path.name}{_HIDDEN}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            remove_leftovers(self._folder, SHARED_LEFTOVERS_AGE, f".*{_HIDDEN}")
            self._file = hidden.open("wb")
            fcntl.flock(self._file, fcntl.LOCK_EX)
            hidden.rename(self._path)  # seen by others only now that it is locked
        except OSError as error:
            raise TesseraError(
                f"{self._folder}: the DRA driver cannot write there, so it does not start: {error.strerror or error}"
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        self._path.unlink(missing_ok=True)
        if self._file:
            self._file.close()

    def leads(self) -> bool:
        """Whether no newer process lives; files of processes that have ended are removed on the way."""
        others = [path for path in self._folder.glob("[0-9]*") if path != self._path]
        living = [path.name for path in others if _lives(path)]
        return not any(name > self._path.name for name in living)


def _lives(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(OSError):  # on a disk that became read-only it stays
                path.unlink(missing_ok=True)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


async def read_node(client: Client, name: str) -> NodeIn:
    try:
        return decode_node(await client.get(path_of("v1", "nodes", name=name)))
    except InvalidInput as error:
        raise InvalidInput(f"node {name} cannot be read: {error}") from error


async def conflict(node: Node, settings: Settings, devices: Iterable[Device]) -> str:
    """Why nothing may be offered: which of these devices a device plugin offers or pods have from one; empty: none.

    `CallFailed`: it is not known. A kubelet that starts does not answer, and then lists no pods for a moment. It has them all when it
    lists the driver's own, which is younger than those of a plugin that is gone.
    """
    devices = tuple(devices)
    resources = sorted({device.resource for device in devices})
    both = [f"{one}: {node.allocatable[one]}" for one in resources if node.allocatable.get(one)]
    if both:
        return f"a device plugin offers the same devices on this node ({first_of(both, 3)}); stop it first"
    socket = settings.kubelet_dir / "pod-resources" / "kubelet.sock"
    if not (socket.exists() or settings.pod):
        return ""
    listed = await call(socket, messages.LIST_PODS, ListPodResourcesRequest(), _TIMEOUT)
    if settings.pod and settings.pod not in messages.pods(listed):
        raise CallFailed(
            "the kubelet has just started, and does not list its pods yet", grpc.StatusCode.UNAVAILABLE
        )
    pods = messages.holders(listed)
    held = sorted({f"{device.id} ({pods[device.key]})" for device in devices if device.key in pods})
    return f"pods still have devices from a device plugin: {first_of(held, 3)}" if held else ""


def remembered(node: NodeIn, devices: Iterable[Device]) -> list[str]:
    """Resources of these devices that the kubelet still counts though no plugin offers them.

    Until it forgets, after 5 minutes, it fails to start containers that ask for them as extended resources, claims or not
    (read in 1.36: devicemanager/manager.go, callPreStartContainerIfNeeded; seen on 1.36.3).
    """
    status = node.status
    return sorted(
        name
        for name in {device.resource for device in devices}
        if (status.capacity or {}).get(name, "0") != "0" and (status.allocatable or {}).get(name, "0") == "0"
    )
