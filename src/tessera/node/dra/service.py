"""The kubelet's calls: which claims to prepare and to end, each answered for itself, and how the devices are."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from tessera.core.errors import TesseraError
from tessera.node.dra.claims.preparing import TIMEOUT, Claims
from tessera.node.metrics import DraMetrics
from tessera.node.rpc import Context, Handlers, Streams, handlers
from tessera.protocol.kubelet import dra_messages as messages
from tessera.protocol.kubelet import dra_pb2 as dra
from tessera.protocol.kubelet.dra_messages import ClaimName, DeviceCondition, PreparedDevice

log = logging.getLogger(__name__)

_RESERVE: Final = 5.0  # seconds of the kubelet's deadline that are kept for the answer
_HEALTH_AGAIN: Final = 10.0  # seconds between lists of health without news
_HEALTH_STALE: Final = 30  # seconds after which the kubelet takes an entry for unknown: its own default


class HealthService:
    """`DRAResourceHealth`, in every version that the kubelet may speak: the whole list at every change."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._conditions: tuple[DeviceCondition, ...] = ()
        self.streams = Streams(
            lambda: messages.health_response(self._conditions, int(self._clock()), _HEALTH_STALE),
            _HEALTH_AGAIN,
        )

    def publish(self, conditions: Iterable[DeviceCondition]) -> None:
        """From now on this is the truth."""
        fresh = tuple(conditions)
        if fresh != self._conditions:
            self._conditions = fresh
            self.streams.send()

    def handlers(self) -> list[Handlers]:
        """What a gRPC server needs to serve this."""
        services = messages.HEALTH_SERVICES
        return [handlers({}, {messages.watch_health(one): self.streams.watch}) for one in services]


class ClaimService:
    """`DRAPlugin`, in every version that the kubelet may speak."""

    def __init__(self, claims: Claims, metrics: DraMetrics) -> None:
        self._claims = claims
        self._metrics = metrics

    def handlers(self) -> list[Handlers]:
        """What a gRPC server needs to serve this."""
        return [
            handlers({messages.prepare(one): self._prepare, messages.unprepare(one): self._unprepare})
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
