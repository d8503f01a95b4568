"""The health of devices, published to the kubelet: the whole list at every change, and again before it grows stale there."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio

from tessera.node.polling import either
from tessera.protocol.kubelet import dra_messages as messages
from tessera.protocol.kubelet import health_pb2 as health
from tessera.protocol.kubelet.dra_messages import DeviceCondition

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_AGAIN: Final = 10.0  # seconds between lists without news
_STALE: Final = 30  # seconds after which the kubelet takes an entry for unknown: its own default


class HealthService:
    """`DRAResourceHealth`, in every version that the kubelet may speak."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._conditions: tuple[DeviceCondition, ...] = ()
        self._listeners: set[asyncio.Event] = set()
        self._epoch = 0  # streams of an earlier one end

    def publish(self, conditions: Iterable[DeviceCondition]) -> None:
        """From now on this is the truth."""
        fresh = tuple(conditions)
        if fresh != self._conditions:
            self._conditions = fresh
            self._wake()

    def close(self) -> None:
        """Let every stream end."""
        self._epoch += 1
        self._wake()

    def handlers(self) -> "list[grpc.GenericRpcHandler[Any, Any]]":
        """What a gRPC server needs to serve this."""
        return [
            grpc.method_handlers_generic_handler(
                service,
                {
                    method.name: grpc.unary_stream_rpc_method_handler(
                        self._watch, method.request.FromString, method.response.SerializeToString
                    )
                },
            )
            for service in messages.HEALTH_SERVICES
            for method in (messages.watch_health(service),)
        ]

    def _wake(self) -> None:
        for listener in self._listeners:
            listener.set()

    async def _watch(
        self, request: health.NodeWatchResourcesRequest, context: _Context
    ) -> AsyncIterator[health.NodeWatchResourcesResponse]:
        news, epoch = asyncio.Event(), self._epoch
        self._listeners.add(news)
        try:
            while epoch == self._epoch:
                news.clear()
                yield messages.health_response(self._conditions, int(self._clock()), _STALE)
                await either(news, _AGAIN)
        finally:
            self._listeners.discard(news)
