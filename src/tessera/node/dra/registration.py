"""The driver at the kubelet: a socket that serves, and a second one by which the kubelet finds it.

The kubelet watches a folder for registration sockets. It finds ours when it is renamed into place, which is after everything
serves, and finds it again when the kubelet restarts; removing it ends the registration. Two processes of the driver may be registered at
once, so names are unique; what killed processes left is removed.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tessera.core.dra.slices import DRIVER
from tessera.core.errors import TesseraError
from tessera.kube.files import Signature, signature_of
from tessera.node.metrics import DraMetrics
from tessera.node.polling import Failures
from tessera.node.rpc import Context, Handlers, handlers, remove_dead_sockets, serve
from tessera.protocol.kubelet import dra_messages as messages
from tessera.protocol.kubelet import registration_pb2 as registration

if TYPE_CHECKING:
    import grpc.aio

log = logging.getLogger(__name__)

_STOP_GRACE: Final = 5.0  # seconds for calls under way when the driver ends; Kubernetes gives it 30 in all


class Endpoint:
    """Serves the driver's services, and keeps them registered."""

    def __init__(
        self,
        kubelet_dir: Path,
        token: str,
        services: Sequence[Handlers],
        metrics: DraMetrics,
        closing: Callable[[], None] = lambda: None,
    ) -> None:
        """`closing` is called before the server waits for streams to end."""
        self._plugins = kubelet_dir / "plugins" / DRIVER
        self._registry = kubelet_dir / "plugins_registry"
        self._socket = self._plugins / f"{token}.sock"
        self._found = self._registry / f"{DRIVER}-{token}-reg.sock"
        self._hidden = self._found.with_name(f".{self._found.name}")  # the kubelet does not look at these
        self._services = services
        self._metrics = metrics
        self._closing = closing
        self._servers: list[grpc.aio.Server] = []
        self._identities: list[Signature | None] = []
        self._failures = Failures(log, metrics.failed)
        self.registered = False

    async def ensure_registered(self) -> None:
        """Serve, and serve again when a socket is gone; call it every second."""
        if self._servers and None not in self._identities and self._identities == self._current():
            return
        if self._servers:
            log.warning("a socket was removed: serving and registering again")
            await self._stop()
        try:
            await self._start()
        except (TesseraError, OSError) as error:
            await self._stop()
            self._failures.add("serve", "cannot serve the kubelet, will try again: %s", error)
        self._failures.round_over()

    async def close(self) -> None:
        """End the registration: the kubelet then asks another process of the driver, if there is one."""
        self._found.unlink(missing_ok=True)
        await self._stop()

    def clean(self) -> None:
        """Remove the sockets of processes that were killed; our own, which may not listen yet, stay."""
        own = (self._socket, self._found, self._hidden)
        remove_dead_sockets(self._plugins, "*.sock", own)
        for pattern in (f"{DRIVER}-*-reg.sock", f".{DRIVER}-*-reg.sock"):
            remove_dead_sockets(self._registry, pattern, own)

    async def _start(self) -> None:
        self._plugins.mkdir(parents=True, exist_ok=True)
        self._registry.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(self.clean)
        self._servers.append(await serve(self._socket, self._services))
        registry = handlers({messages.GET_INFO: self._info, messages.NOTIFY: self._notified})
        self._servers.append(await serve(self._hidden, [registry]))
        self._hidden.rename(self._found)
        self._identities = self._current()

    async def _stop(self) -> None:
        servers, self._servers, self.registered = self._servers, [], False
        self._closing()
        await asyncio.gather(*(server.stop(_STOP_GRACE) for server in servers))
        for path in (self._found, self._socket):
            path.unlink(missing_ok=True)

    def _current(self) -> list[Signature | None]:
        return [_identity(path) for path in (self._socket, self._found)]

    async def _info(self, request: registration.InfoRequest, context: Context) -> registration.PluginInfo:
        return messages.plugin_info(DRIVER, str(self._socket))

    async def _notified(
        self, request: registration.RegistrationStatus, context: Context
    ) -> registration.RegistrationStatusResponse:
        self.registered = request.plugin_registered
        self._metrics.registrations.add("success" if request.plugin_registered else "failed")
        if request.plugin_registered:
            log.info("registered with the kubelet as %s", DRIVER)
        else:
            log.error("the kubelet refuses the driver: %s", request.error)
        return registration.RegistrationStatusResponse()


def _identity(path: Path) -> Signature | None:
    """Which socket it is: device and inode; times change when it is renamed."""
    found = signature_of(path)
    return found[:2] if found else None
