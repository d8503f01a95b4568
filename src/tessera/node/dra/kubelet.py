"""The driver at the kubelet: its sockets, by which the kubelet finds it, and the kubelet's calls, each claim answered for itself.

The kubelet watches a folder for registration sockets. It finds ours when it is renamed into place, which is after everything
serves, and finds it again when the kubelet restarts; removing it ends the registration. Two processes of the driver may be registered at
once, so names are unique; what killed processes left is removed.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tessera.core.dra.slices import DRIVER
from tessera.core.errors import TesseraError
from tessera.kube.clock import Failures
from tessera.kube.files import Signature, signature_of
from tessera.node.dra.preparing import TIMEOUT, Claims
from tessera.node.metrics import DraMetrics
from tessera.node.rpc import Context, Handlers, Streams, handlers, remove_dead_sockets, serve
from tessera.protocol.kubelet import dra_messages as messages
from tessera.protocol.kubelet import dra_pb2 as dra
from tessera.protocol.kubelet import registration_pb2 as registration
from tessera.protocol.kubelet.dra_messages import ClaimName, DeviceCondition, PreparedDevice

if TYPE_CHECKING:
    import grpc.aio

log = logging.getLogger(__name__)

_STOP_GRACE: Final = 5.0  # seconds for calls under way when the driver ends; Kubernetes gives it 30 in all
_RESERVE: Final = 5.0  # seconds of the kubelet's deadline that are kept for the answer
_HEALTH_AGAIN: Final = 10.0  # seconds between lists of health without news
_HEALTH_STALE: Final = 30  # seconds after which the kubelet takes an entry for unknown: its own default


class DriverEndpoint:
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
        self._hidden = self._found.with_name(f".{self._found.name}")  # the kubelet ignores these
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
        """Which sockets there are, by device and inode; times change when one is renamed."""
        found = [signature_of(path) for path in (self._socket, self._found)]
        return [one and one[:2] for one in found]

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


class HealthService:
    """`DRAResourceHealth`, in every version that the kubelet may speak: the whole list at every change."""

    def __init__(self) -> None:
        self._conditions: tuple[DeviceCondition, ...] = ()
        self.streams = Streams(
            lambda: messages.health_response(self._conditions, int(time.time()), _HEALTH_STALE),
            _HEALTH_AGAIN,
        )

    def publish(self, conditions: Iterable[DeviceCondition]) -> None:
        """From now on this is the truth."""
        fresh = tuple(conditions)
        if fresh != self._conditions:
            self._conditions = fresh
            self.streams.send()

    def handlers(self) -> list[Handlers]:
        services = messages.HEALTH_SERVICES
        return [handlers({messages.WATCH_HEALTH[one]: self.streams.watch}) for one in services]


class ClaimService:
    """`DRAPlugin`, in every version that the kubelet may speak."""

    def __init__(self, claims: Claims, metrics: DraMetrics) -> None:
        self._claims = claims
        self._metrics = metrics

    def handlers(self) -> list[Handlers]:
        return [
            handlers({messages.PREPARE[one]: self._prepare, messages.UNPREPARE[one]: self._unprepare})
            for one in messages.PLUGIN_SERVICES
        ]

    async def _prepare(
        self, request: dra.NodePrepareResourcesRequest, context: Context
    ) -> dra.NodePrepareResourcesResponse:
        timeout = _timeout(context.time_remaining())
        prepared: dict[str, list[PreparedDevice]] = {}

        async def one(claim: ClaimName) -> None:
            prepared[claim.uid] = await self._claims.prepare(claim, timeout)

        errors = await self._each(messages.claims_of(request), one)
        for _ in errors:
            self._metrics.prepared("failed")
        return messages.prepare_response(prepared, errors)

    async def _unprepare(
        self, request: dra.NodeUnprepareResourcesRequest, context: Context
    ) -> dra.NodeUnprepareResourcesResponse:
        claims = messages.claims_of(request)
        errors = await self._each(claims, self._claims.unprepare)
        return messages.unprepare_response([claim.uid for claim in claims if claim.uid not in errors], errors)

    async def _each(
        self, claims: list[ClaimName], work: Callable[[ClaimName], Awaitable[None]]
    ) -> dict[str, str]:
        """Do it for every claim; what went wrong, by uid. One failure does not affect the other claims."""
        results = await asyncio.gather(*(work(claim) for claim in claims), return_exceptions=True)
        errors = {}
        for claim, result in zip(claims, results, strict=True):
            if result is None:
                continue
            if not isinstance(result, Exception):
                raise result  # cancelled
            if isinstance(result, (TesseraError, OSError)):
                log.warning("claim %s: %s", claim, result)
            else:
                log.error("claim %s", claim, exc_info=result)
            errors[claim.uid] = str(result) or repr(result)
        return errors


def _timeout(remaining: float | None) -> float:
    """How long a call may wait, given how long the kubelet does; None: for ever."""
    return TIMEOUT if remaining is None else min(TIMEOUT, max(0.0, remaining - _RESERVE))
