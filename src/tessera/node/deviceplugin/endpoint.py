"""One resource at the kubelet: a socket that serves, a registration, and doing both again when need be.

A kubelet that starts deletes every socket in its folder and has forgotten every plugin. A kubelet whose stream broke
off never comes back by itself. Both are seen from the outside (the sockets, the stream), once a second, and answered
in the same way: a new server on a new socket, and a new registration.
"""

import logging
import re
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tessera.core.errors import TesseraError
from tessera.kube.clock import Retries
from tessera.kube.files import Signature, signature_of
from tessera.node.deviceplugin.service import ResourceService
from tessera.node.files import PREFIX
from tessera.node.metrics import Metrics
from tessera.node.rpc import CallFailed, call, serve
from tessera.protocol.kubelet import messages

if TYPE_CHECKING:
    import grpc.aio

log = logging.getLogger(__name__)

KUBELET_SOCKET: Final = "kubelet.sock"
_REGISTER_TIMEOUT: Final = 5.0
_STREAM_GRACE: Final = 10.0  # seconds without a listening kubelet after which it has forgotten us
_STOP_GRACE: Final = 1.0  # seconds for answers under way when a server ends
_RETRY: Final = (1.0, 8.0)  # seconds, doubling from the first to the second


class PluginEndpoint:
    """Keeps one resource known to whatever kubelet is there."""

    def __init__(self, service: ResourceService, folder: Path, metrics: Metrics) -> None:
        self.service = service
        self._folder = folder
        self._metrics = metrics
        self._server: grpc.aio.Server | None = None
        self._socket = folder
        self._socket_identity: Signature | None = None
        self._kubelet: Signature | None = None  # the one we registered with
        self._listened_at = 0.0  # when a kubelet last listened
        self._waiting = False
        # of registrations, by the kubelet: another one need not wait
        self._retries = Retries(time.monotonic, *_RETRY)

    @property
    def registered(self) -> bool:
        """Whether a kubelet knows this resource, and listens."""
        return self._kubelet is not None and bool(self.service.streams)

    async def ensure_registered(self) -> None:
        """Serve and register where need be; call it every second."""
        kubelet = signature_of(self._folder / KUBELET_SOCKET)
        reason = self._why_again(kubelet)
        if reason:
            log.info("%s: %s: serving and registering again", self.service.resource, reason)
            await self.close()
        if kubelet is None and not self._waiting:
            log.info("%s: waiting for a kubelet at %s", self.service.resource, self._folder / KUBELET_SOCKET)
        self._waiting = kubelet is None
        if self._kubelet is None and kubelet is not None and self._retries.is_due(kubelet):
            await self._serve_and_register(kubelet)

    async def close(self) -> None:
        """End serving, and close the streams of a kubelet that listens."""
        server, self._server, self._kubelet = self._server, None, None
        if server is None:
            return
        self.service.streams.close()
        await server.stop(_STOP_GRACE)
        self._socket.unlink(missing_ok=True)

    def _why_again(self, kubelet: Signature | None) -> str:
        if self._kubelet is None:
            return ""
        if self.service.streams:
            self._listened_at = time.monotonic()
        if signature_of(self._socket) != self._socket_identity:
            return "its socket was removed"
        if kubelet is not None and kubelet != self._kubelet:
            return "the kubelet restarted"
        if time.monotonic() - self._listened_at > _STREAM_GRACE:
            return "the kubelet no longer listens"
        return ""

    async def _serve_and_register(self, kubelet: Signature) -> None:
        resource = self.service.resource
        try:
            await self._serve()
            request = messages.register_request(resource, self._socket.name)
            await call(self._folder / KUBELET_SOCKET, messages.REGISTER, request, _REGISTER_TIMEOUT)
        except TesseraError as error:
            await self.close()
            self._metrics.registrations.add(resource, "failed")
            if not self._retries.has_failed(kubelet) or (isinstance(error, CallFailed) and error.refused):
                log.warning("%s: cannot register, will try again: %s", resource, error)
            self._retries.put_off(kubelet)
            return
        self._kubelet, self._listened_at = kubelet, time.monotonic()
        self._retries.clear()
        self._metrics.registrations.add(resource, "success")
        log.info("%s: registered with the kubelet, %d devices", resource, len(self.service.devices))

    async def _serve(self) -> None:
        name = re.sub(r"[^A-Za-z0-9.-]", "_", self.service.resource)[-24:]
        self._socket = self._folder / f"{PREFIX}{name}-{secrets.token_hex(4)}.sock"
        self._server = await serve(self._socket, [self.service.handlers()])
        self._socket_identity = signature_of(self._socket)
