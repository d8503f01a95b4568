"""Device plugin messages on one side, core values on the other; and the methods of each service.

A method's table says its path and its types, so that server and client cannot disagree.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, Self, TypeVar

from tessera.core.devices.device import Assignment, Device, Edits, Handover
from tessera.protocol.kubelet import podresources_pb2 as podresources
from tessera.protocol.kubelet import v1beta1_pb2 as v1beta1

VERSION: Final = "v1beta1"
HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"


class _Message(Protocol):
    def SerializeToString(self) -> bytes: ...  # noqa: N802 # protobuf's name
    @classmethod
    def FromString(cls, s: bytes, /) -> Self: ...  # noqa: N802 # protobuf's name


Request = TypeVar("Request", bound=_Message)
Response = TypeVar("Response", bound=_Message)


@dataclass(frozen=True, slots=True)
class Method(Generic[Request, Response]):
    service: str
    name: str
    request: type[Request]
    response: type[Response]

    @property
    def path(self) -> str:
        return f"/{self.service}/{self.name}"

    @property
    def codec(self) -> Mapping[str, Any]:
        return {
            "request_serializer": self.request.SerializeToString,
            "response_deserializer": self.response.FromString,
        }


_PLUGIN: Final = "v1beta1.DevicePlugin"
REGISTER: Final = Method("v1beta1.Registration", "Register", v1beta1.RegisterRequest, v1beta1.Empty)
OPTIONS: Final = Method(_PLUGIN, "GetDevicePluginOptions", v1beta1.Empty, v1beta1.DevicePluginOptions)
LIST_AND_WATCH: Final = Method(_PLUGIN, "ListAndWatch", v1beta1.Empty, v1beta1.ListAndWatchResponse)
PREFERRED: Final = Method(
    _PLUGIN, "GetPreferredAllocation", v1beta1.PreferredAllocationRequest, v1beta1.PreferredAllocationResponse
)
ALLOCATE: Final = Method(_PLUGIN, "Allocate", v1beta1.AllocateRequest, v1beta1.AllocateResponse)
PRE_START: Final = Method(
    _PLUGIN, "PreStartContainer", v1beta1.PreStartContainerRequest, v1beta1.PreStartContainerResponse
)
LIST_PODS: Final = Method(
    "v1.PodResourcesLister",
    "List",
    podresources.ListPodResourcesRequest,
    podresources.ListPodResourcesResponse,
)


def options() -> v1beta1.DevicePluginOptions:
    """What this plugin wants to be called for: a preference, and a check before each container starts."""
    return v1beta1.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)


def register_request(resource: str, endpoint: str) -> v1beta1.RegisterRequest:
    """Register at the kubelet: `resource` is served on the socket of that base name."""
    return v1beta1.RegisterRequest(
        version=VERSION, endpoint=endpoint, resource_name=resource, options=options()
    )


def device_list(devices: Iterable[Device]) -> v1beta1.ListAndWatchResponse:
    """The whole list, as the kubelet always wants it."""
    return v1beta1.ListAndWatchResponse(devices=[_device(device) for device in devices])


def _device(device: Device) -> v1beta1.Device:
    topology = (
        v1beta1.TopologyInfo(nodes=[v1beta1.NUMANode(ID=node) for node in device.numa])
        if device.numa
        else None
    )
    return v1beta1.Device(ID=device.id, health=HEALTHY if device.healthy else UNHEALTHY, topology=topology)


def requested_ids(request: v1beta1.AllocateRequest) -> list[list[str]]:
    return [list(container.devices_ids) for container in request.container_requests]


def allocate_response(assignments: Sequence[Assignment], handover: Handover) -> v1beta1.AllocateResponse:
    return v1beta1.AllocateResponse(
        container_responses=[_granted(assignment, handover) for assignment in assignments]
    )


def _granted(assignment: Assignment, handover: Handover) -> v1beta1.ContainerAllocateResponse:
    edits = Edits() if handover is Handover.CDI else assignment.edits
    names = () if handover is Handover.INLINE else assignment.cdi_names
    return v1beta1.ContainerAllocateResponse(
        envs={**dict(edits.env), **assignment.environment},
        mounts=[
            v1beta1.Mount(
                container_path=mount.container_path, host_path=mount.host_path, read_only=mount.read_only
            )
            for mount in edits.mounts
        ],
        devices=[
            v1beta1.DeviceSpec(
                container_path=node.path, host_path=node.host_path, permissions=node.permissions
            )
            for node in edits.nodes
        ],
        cdi_devices=[v1beta1.CDIDevice(name=name) for name in names],
    )


def preferred_response(
    request: v1beta1.PreferredAllocationRequest, choose: Callable[[list[str], list[str], int], list[str]]
) -> v1beta1.PreferredAllocationResponse:
    """Answer each container's question with `choose(available, must_include, size)`."""
    return v1beta1.PreferredAllocationResponse(
        container_responses=[
            v1beta1.ContainerPreferredAllocationResponse(
                deviceIDs=choose(
                    list(container.available_deviceIDs),
                    list(container.must_include_deviceIDs),
                    container.allocation_size,
                )
            )
            for container in request.container_requests
        ]
    )


def pods(response: podresources.ListPodResourcesResponse) -> set[str]:
    """namespace/name of each pod."""
    return {f"{pod.namespace}/{pod.name}" for pod in response.pod_resources}


def holders(response: podresources.ListPodResourcesResponse) -> dict[tuple[str, str], str]:
    """(resource, device id) → namespace/pod of who has it."""
    return {
        (devices.resource_name, device_id): f"{pod.namespace}/{pod.name}"
        for pod in response.pod_resources
        for container in pod.containers
        for devices in container.devices
        for device_id in devices.device_ids
    }
