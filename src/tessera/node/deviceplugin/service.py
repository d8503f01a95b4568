"""The kubelet's questions about one resource, answered.

Every answer is decided from the device set as it is at that moment; a question that cannot be answered is a gRPC
status with one sentence, and changes nothing.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from math import inf
from typing import Final, TypeVar

import grpc

from tessera.core.devices.device import (
    CannotAssign,
    Device,
    DeviceSet,
    DuplicateDevice,
    Handover,
    UnhealthyDevice,
    UnknownDevice,
)
from tessera.core.devices.preference import preferred
from tessera.node.deviceplugin.allocations import Allocations
from tessera.node.metrics import Metrics
from tessera.node.rpc import Context, Handlers, Streams, handlers
from tessera.node.state import Key
from tessera.protocol.kubelet import messages
from tessera.protocol.kubelet import v1beta1_pb2 as v1beta1

log = logging.getLogger(__name__)

_CODES: Final = {
    UnknownDevice: grpc.StatusCode.NOT_FOUND,
    DuplicateDevice: grpc.StatusCode.ALREADY_EXISTS,
    UnhealthyDevice: grpc.StatusCode.FAILED_PRECONDITION,
}

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


class ResourceService:
    """`v1beta1.DevicePlugin` for one resource."""

    def __init__(
        self,
        resource: str,
        allocations: Allocations,
        handover: Handover,
        metrics: Metrics,
        all_devices: Callable[[], Iterable[Device]],
        recall: Callable[[frozenset[Key]], Collection[str]],
        withdrawn: Callable[[str], Iterable[Device]],
    ) -> None:
        """`recall` says which of these devices may be handed out though a layout has just taken them; they are back then.

        `withdrawn` are those that it may say this of: the kubelet's list has them, unhealthy.
        """
        self.resource = resource
        self.streams = Streams(  # of the kubelets that listen
            lambda: messages.device_list((*self.devices, *withdrawn(resource)))
        )
        self.devices = DeviceSet(resource)  # what is published to the kubelet
        self._allocations = allocations
        self._handover = handover
        self._metrics = metrics
        self._all_devices = all_devices
        self._recall = recall
        self._in_flight: set[str] = set()
        self._questions = 0  # that are being answered
        self._answered = -inf  # when the last one was

    @property
    def asked(self) -> float:
        """When the kubelet's last question about this resource was answered; infinite: one is being answered."""
        return inf if self._questions else self._answered

    def publish(self, devices: DeviceSet) -> None:
        """From now on this is the truth; a kubelet that listens gets all of it."""
        if devices != self.devices:
            self.devices = devices
            self.streams.send()

    def handlers(self) -> Handlers:
        return handlers(
            {
                messages.OPTIONS: self._answering(self._options),
                messages.PREFERRED: self._answering(self._prefer),
                messages.ALLOCATE: self._answering(self._allocate),
                messages.PRE_START: self._answering(self._pre_start),
                messages.LIST_AND_WATCH: self.streams.watch,
            }
        )

    def _answering(
        self, answer: Callable[[_Request, Context], Awaitable[_Response]]
    ) -> Callable[[_Request, Context], Awaitable[_Response]]:
        """Turn what is raised into a gRPC status; an unexpected error is logged and harms no other call."""

        async def answering(request: _Request, context: Context) -> _Response:
            self._questions += 1
            try:
                return await answer(request, context)
            except CannotAssign as error:
                if isinstance(request, v1beta1.AllocateRequest):
                    self._metrics.allocations.add(self.resource, "refused")
                log.warning("refused: %s", error)
                await context.abort(_CODES[type(error)], str(error))
            except Exception:
                log.exception("%s: cannot answer the kubelet", self.resource)
                await context.abort(
                    grpc.StatusCode.INTERNAL, f"{self.resource}: internal error, see the plugin's log"
                )
            finally:
                self._questions -= 1
                self._answered = time.monotonic()
            raise AssertionError("abort raises")

        return answering

    async def _options(self, _: v1beta1.Empty, context: Context) -> v1beta1.DevicePluginOptions:
        return messages.options()

    async def _prefer(
        self, request: v1beta1.PreferredAllocationRequest, context: Context
    ) -> v1beta1.PreferredAllocationResponse:
        elsewhere = [
            device for device in self._all_devices() if device.resource != self.resource and device.place
        ]
        if elsewhere:
            await self._allocations.ask()
            held = {*self._allocations.listed, *self._allocations.holders.recent}
            elsewhere = [device for device in elsewhere if device.key in held]

        def choose(available: list[str], must_include: list[str], size: int) -> list[str]:
            return preferred(self.devices, available, must_include, size, elsewhere)

        return messages.preferred_response(request, choose)

    async def _allocate(self, request: v1beta1.AllocateRequest, context: Context) -> v1beta1.AllocateResponse:
        requests = messages.requested_ids(request)
        ids = {device_id for ids in requests for device_id in ids}
        keys = frozenset((self.resource, device_id) for device_id in ids)
        leaving = {*self._recall(keys)}
        self.devices.assign(requests, leaving)
        clash = sorted(ids & self._in_flight)
        if clash:
            raise DuplicateDevice(f"{self.resource}: {clash[0]} is being handed out at this moment")
        self._in_flight |= ids
        context.add_done_callback(lambda _: self._in_flight.difference_update(ids))  # type: ignore[arg-type] # stubs
        # the kubelet decides who gets what; should it ever decide on a device that a pod has, better refuse
        if await self._allocations.ask():
            for device_id in sorted(ids):
                holder = self._allocations.listed.get((self.resource, device_id))
                if holder:
                    raise DuplicateDevice(f"{self.resource}: {device_id} is in use by {holder}")
        leaving |= {*self._recall(keys)}
        assignments = self.devices.assign(requests, leaving)  # once more: the list may have changed meanwhile
        self._allocations.holders.grant(keys)
        for assignment in assignments:
            self._metrics.allocations.add(self.resource, "granted")
            log.info("handed out: %s", ", ".join(assignment.cdi_names))
        return messages.allocate_response(assignments, self._handover)

    async def _pre_start(
        self, request: v1beta1.PreStartContainerRequest, context: Context
    ) -> v1beta1.PreStartContainerResponse:
        for device in self.devices.find(request.devices_ids):
            if device.problem and not device.leaving:
                raise UnhealthyDevice(f"{self.resource}: {device.id} cannot be used now: {device.problem}")
        return v1beta1.PreStartContainerResponse()
