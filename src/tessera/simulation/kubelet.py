"""A kubelet, as far as device plugins can see one.

It serves Registration and PodResources on unix sockets, listens to every plugin's ListAndWatch, counts what is
allocatable, and asks plugins for devices when a pod comes. Like the real one it deletes all sockets in its folder when
it starts, refuses a socket that it is connected to already, and takes a plugin whose stream ends for gone until it registers
again. It keeps what it has allocated, and the healthy devices, in a checkpoint on disk; pods that have ended leave the checkpoint when a client asks
PodResources and the kubelet knows every pod. A test can stop it, have it hang up on a plugin, and restart it so that it does not
know its pods yet.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio

from tessera.core.errors import TesseraError
from tessera.node.rpc import CallFailed, call, handlers, serve
from tessera.protocol.kubelet import checkpoint, messages
from tessera.protocol.kubelet import podresources_pb2 as podresources
from tessera.protocol.kubelet import v1beta1_pb2 as v1beta1

Grant: TypeAlias = v1beta1.ContainerAllocateResponse
Held: TypeAlias = dict[str, list[str]]  # resource → ids
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

_TIMEOUT: Final = 30.0  # seconds that something may take to come about, on a machine that is busy


class AdmissionFailed(TesseraError):
    """A pod that the kubelet rejects: not enough devices, a plugin that refuses, or a CDI name that no spec file has."""


@dataclass(slots=True)
class Plugin:
    """A plugin as the kubelet sees it."""

    resource: str
    endpoint: str
    options: v1beta1.DevicePluginOptions = field(default_factory=v1beta1.DevicePluginOptions)
    lists: int = 0  # how many lists it has sent
    follower: "asyncio.Task[None] | None" = None


class Kubelet:
    """The device manager of one node, in a folder like `/var/lib/kubelet`."""

    def __init__(
        self, root: Path, on_change: Callable[[], None] = lambda: None, *, pod_resources: bool = True
    ) -> None:
        self.folder = root / "device-plugins"
        self.plugins: dict[str, Plugin] = {}
        self.devices: dict[str, dict[str, bool]] = {}  # resource → id → healthy
        self.pods: dict[str, dict[str, Held]] = {}  # namespace/name → container → what it holds
        self.uids: dict[str, str] = {}  # namespace/name → UID, of the pods that it got
        self.unknown: set[str] = set()  # pods that run and that it has not heard of since it started
        # like `pods`, with init containers and pods that ended
        self._allocated: dict[str, dict[str, Held]] = {}
        self.registrations: list[str] = []  # resources, in the order they came
        self._pod_resources = root / "pod-resources" / "kubelet.sock" if pod_resources else None
        self._on_change = on_change
        self._servers: list[grpc.aio.Server] = []
        self._condition = asyncio.Condition()

    # what a node's status would say

    @property
    def capacity(self) -> dict[str, int]:
        """All devices, by resource."""
        return {resource: len(devices) for resource, devices in self.devices.items()}

    @property
    def allocatable(self) -> dict[str, int]:
        """Healthy devices, by resource."""
        return {resource: sum(devices.values()) for resource, devices in self.devices.items()}

    async def until(self, condition: Callable[["Kubelet"], bool], timeout: float = _TIMEOUT) -> None:
        """Wait until a condition holds; TimeoutError if it never does."""
        async with asyncio.timeout(timeout), self._condition:
            await self._condition.wait_for(lambda: condition(self))

    # its life

    async def start(self) -> None:
        """Delete every socket in the folder, then serve."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.iterdir():
            if path.is_socket():
                path.unlink()
        registration = handlers({messages.REGISTER: self._register})
        self._servers.append(await serve(self.folder / "kubelet.sock", [registration]))
        if self._pod_resources is not None:
            self._pod_resources.parent.mkdir(parents=True, exist_ok=True)
            self._pod_resources.unlink(missing_ok=True)
            listing = handlers({messages.LIST_PODS: self._list_pods})
            self._servers.append(await serve(self._pod_resources, [listing]))

    async def stop(self) -> None:
        """End as a process does: drop all connections, and forget all devices."""
        for plugin in tuple(self.plugins.values()):
            await self._drop(plugin)
        for server in self._servers:
            await server.stop(None)
        self._servers.clear()
        self.devices.clear()
        await self._changed()

    async def restart(self, unknown: Iterable[str] = ()) -> None:
        """Stop and start; pods keep their devices. PodResources does not list those in `unknown`."""
        await self.stop()
        self.unknown = {*unknown}
        await self.start()

    async def hang_up(self, resource: str) -> None:
        """End the stream of one plugin; the plugin must register again."""
        await self._drop(self.plugins[resource])
        await self._changed()

    # pods

    async def admit(
        self,
        pod: str,
        wanted: Mapping[str, int],
        ids: Mapping[str, list[str]] | None = None,
        *,
        container: str = "main",
    ) -> dict[str, Grant]:
        """Give a container of a pod (`namespace/name`) its devices; `ids` overrides the choice."""
        chosen = {
            resource: (ids or {}).get(resource) or await self._choose(resource, count)
            for resource, count in wanted.items()
        }
        grants = {resource: await self._allocate(resource, those) for resource, those in chosen.items()}
        self.pods.setdefault(pod, {})[container] = chosen
        self._write_checkpoint()
        for resource in chosen:
            await self.pre_start(pod, resource, container=container)
        await self._changed()
        return grants

    async def pre_start(self, pod: str, resource: str, *, container: str = "main") -> None:
        """Ask the plugin whether a container of the pod may start (again)."""
        plugin = self._plugin(resource)
        if plugin.options.pre_start_required:
            request = v1beta1.PreStartContainerRequest(devices_ids=self.pods[pod][container][resource])
            await self._call(plugin, messages.PRE_START, request)

    async def remove(self, pod: str) -> None:
        """The pod has ended; its devices are free."""
        self.pods.pop(pod, None)
        await self._changed()

    async def _choose(self, resource: str, count: int) -> list[str]:
        held = [one.get(resource, []) for containers in self.pods.values() for one in containers.values()]
        taken = {device for some in held for device in some}
        devices = self.devices.get(resource, {}).items()
        free = [device for device, well in devices if well and device not in taken]
        if len(free) < count:
            raise AdmissionFailed(f"Insufficient {resource}: {count} asked for, {len(free)} free")
        plugin = self._plugin(resource)
        if not plugin.options.get_preferred_allocation_available:
            return free[:count]
        question = v1beta1.ContainerPreferredAllocationRequest(
            available_deviceIDs=free, allocation_size=count
        )
        request = v1beta1.PreferredAllocationRequest(container_requests=[question])
        answer = await self._call(plugin, messages.PREFERRED, request)
        preferred = [device for device in answer.container_responses[0].deviceIDs if device in free]
        return list(dict.fromkeys([*preferred, *free]))[:count]

    async def _allocate(self, resource: str, ids: list[str]) -> Grant:
        request = v1beta1.AllocateRequest(
            container_requests=[v1beta1.ContainerAllocateRequest(devices_ids=ids)]
        )
        answer = await self._call(self._plugin(resource), messages.ALLOCATE, request)
        (grant,) = answer.container_responses
        gone = {*ids} - self.devices.get(resource, {}).keys()
        if gone:
            raise AssertionError(
                f"a real kubelet crashes here: {gone} were given out and are not on its list"
            )
        return grant

    def _plugin(self, resource: str) -> Plugin:
        """The plugin of a resource; it may be gone, since plugins restart."""
        plugin = self.plugins.get(resource)
        if plugin is None:
            raise AdmissionFailed(f"can't allocate unregistered device {resource}")
        return plugin

    async def _call(
        self,
        plugin: Plugin,
        method: messages.Method[messages.Request, messages.Response],
        request: messages.Request,
    ) -> messages.Response:
        socket = self.folder / plugin.endpoint
        try:
            return await call(socket, method, request, _TIMEOUT)
        except CallFailed as error:
            details = str(error).removeprefix(f"{socket}: {method.name}: ")
            raise AdmissionFailed(f"{method.name}: {error.status.name}: {details}") from error

    # what it serves, and the plugins it listens to

    async def _register(self, request: v1beta1.RegisterRequest, context: _Context) -> v1beta1.Empty:
        if request.version != messages.VERSION:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"version {request.version} is not supported")
        old = self.plugins.get(request.resource_name)
        if old is not None and old.endpoint == request.endpoint:
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, f"{request.endpoint} is connected already")
        if old is not None:
            await self._drop(old)
        plugin = Plugin(request.resource_name, request.endpoint, request.options)
        self.plugins[plugin.resource] = plugin
        self.registrations.append(plugin.resource)
        plugin.follower = asyncio.create_task(self._follow(plugin))
        await self._changed()
        return v1beta1.Empty()

    async def _follow(self, plugin: Plugin) -> None:
        method = messages.LIST_AND_WATCH
        options = (("grpc.use_local_subchannel_pool", 1),)
        async with grpc.aio.insecure_channel(f"unix:{self.folder / plugin.endpoint}", options) as channel:
            with suppress(grpc.aio.AioRpcError):  # it is gone
                async for answer in channel.unary_stream(method.path, **method.codec)(v1beta1.Empty()):
                    plugin.lists += 1
                    self.devices[plugin.resource] = {
                        device.ID: device.health == messages.HEALTHY for device in answer.devices
                    }
                    self._write_checkpoint()
                    await self._changed()
        self._forget(plugin)
        await self._changed()

    async def _drop(self, plugin: Plugin) -> None:
        self._forget(plugin)
        if plugin.follower is not None:
            plugin.follower.cancel()
            await asyncio.wait((plugin.follower,))

    def _forget(self, plugin: Plugin) -> None:
        """A plugin that is gone leaves its devices, all unhealthy."""
        if self.plugins.get(plugin.resource) is plugin:
            del self.plugins[plugin.resource]
            self.devices[plugin.resource] = dict.fromkeys(self.devices.get(plugin.resource, {}), False)

    async def _list_pods(
        self, request: podresources.ListPodResourcesRequest, context: _Context
    ) -> podresources.ListPodResourcesResponse:
        self._note()
        if not self.unknown:
            self._allocated = {pod: self._allocated[pod] for pod in self.pods}
        return podresources.ListPodResourcesResponse(
            pod_resources=[
                podresources.PodResources(
                    namespace=pod.partition("/")[0],
                    name=pod.partition("/")[2],
                    containers=[
                        podresources.ContainerResources(
                            name=container,
                            devices=[
                                podresources.ContainerDevices(resource_name=resource, device_ids=ids)
                                for resource, ids in held.items()
                            ],
                        )
                        for container, held in containers.items()
                    ],
                )
                for pod, containers in self.pods.items()
                if pod not in self.unknown
            ]
        )

    def _note(self) -> None:
        for pod, containers in self.pods.items():
            self._allocated[pod] = self._allocated.get(pod, {}) | containers

    def _write_checkpoint(self) -> None:
        self._note()
        entries = [
            checkpoint.CheckpointEntry(self.uids.get(pod, pod), container, resource, {"-1": ids})
            for pod, containers in self._allocated.items()
            for container, held in containers.items()
            for resource, ids in held.items()
        ]
        temporary = self.folder / f".{checkpoint.FILE}"
        healthy = {
            resource: [name for name, well in devices.items() if well]
            for resource, devices in self.devices.items()
        }
        temporary.write_bytes(checkpoint.encode(entries, healthy))
        temporary.replace(self.folder / checkpoint.FILE)

    async def _changed(self) -> None:
        self._on_change()
        async with self._condition:
            self._condition.notify_all()
