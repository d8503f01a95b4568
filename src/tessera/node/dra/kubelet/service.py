"""The kubelet's calls: which claims to prepare and to end, each answered for itself."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio

from tessera.core.errors import TesseraError
from tessera.node.dra.claims.preparing import TIMEOUT, Claims
from tessera.node.dra.metrics import DraMetrics
from tessera.protocol.kubelet import dra_messages as messages
from tessera.protocol.kubelet import dra_pb2 as dra
from tessera.protocol.kubelet.dra_messages import ClaimName, PreparedDevice

log = logging.getLogger(__name__)

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_RESERVE: Final = 5.0  # seconds of the kubelet's deadline that are kept for the answer


class ClaimService:
    """`DRAPlugin`, in every version that the kubelet may speak."""

    def __init__(self, claims: Claims, metrics: DraMetrics) -> None:
        self._claims = claims
        self._metrics = metrics

    def handlers(self) -> "list[grpc.GenericRpcHandler[Any, Any]]":
        """What a gRPC server needs to serve this."""
        found = []
        for service in messages.PLUGIN_SERVICES:
            prepare, unprepare = messages.prepare(service), messages.unprepare(service)
            calls = {
                prepare.name: grpc.unary_unary_rpc_method_handler(
                    self._prepare, prepare.request.FromString, prepare.response.SerializeToString
                ),
                unprepare.name: grpc.unary_unary_rpc_method_handler(
                    self._unprepare, unprepare.request.FromString, unprepare.response.SerializeToString
                ),
            }
            found.append(grpc.method_handlers_generic_handler(service, calls))
        return found

    async def _prepare(
        self, request: dra.NodePrepareResourcesRequest, context: _Context
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
        self, request: dra.NodeUnprepareResourcesRequest, context: _Context
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
