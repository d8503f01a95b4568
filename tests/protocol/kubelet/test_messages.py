"""Device plugin messages: exactly what the kubelet reads and writes."""

from tessera.core.devices.device import Assignment, Device, DeviceNode, Edits, Handover, Mount
from tessera.protocol.kubelet import messages
from tessera.protocol.kubelet import podresources_pb2 as podresources
from tessera.protocol.kubelet import v1beta1_pb2 as v1beta1

DEVICE = Device(
    "device_0",
    resource="device.example.com/gpu",
    cdi_kind="device.example.com/gpu",
    edits=Edits(
        env=(("DEVICE_0", "yes"),),
        nodes=(DeviceNode("/dev/in", "/dev/out", "rw"),),
        mounts=(Mount("/in.so", "/out.so"),),
    ),
    env_list="VISIBLE",
    numa=(1,),
)


def test_paths_are_grpc_paths() -> None:
    """A call's path is package.Service/Method."""
    assert messages.REGISTER.path == "/v1beta1.Registration/Register"
    assert messages.LIST_AND_WATCH.path == "/v1beta1.DevicePlugin/ListAndWatch"
    assert messages.LIST_PODS.path == "/v1.PodResourcesLister/List"


def test_a_device_list_has_health_and_numa() -> None:
    """Every device is in the list, with its health and its NUMA nodes."""
    ill = Device("x", resource="r", cdi_kind="v/c", problem="gone")
    assert messages.device_list([DEVICE, ill]) == v1beta1.ListAndWatchResponse(
        devices=[
            v1beta1.Device(
                ID="device_0", health="Healthy", topology=v1beta1.TopologyInfo(nodes=[v1beta1.NUMANode(ID=1)])
            ),
            v1beta1.Device(ID="x", health="Unhealthy"),
        ]
    )


def test_an_allocation_is_cdi_names_or_edits_or_both() -> None:
    """CDI names for runtimes that know them, the edits spelled out for the others; the list variable always."""
    assignment = Assignment((DEVICE,))
    name = v1beta1.CDIDevice(name="device.example.com/gpu=device_0")
    node = v1beta1.DeviceSpec(container_path="/dev/in", host_path="/dev/out", permissions="rw")
    mount = v1beta1.Mount(container_path="/in.so", host_path="/out.so", read_only=True)
    for handover, expected in (
        (Handover.CDI, v1beta1.ContainerAllocateResponse(envs={"VISIBLE": "device_0"}, cdi_devices=[name])),
        (
            Handover.INLINE,
            v1beta1.ContainerAllocateResponse(
                envs={"VISIBLE": "device_0", "DEVICE_0": "yes"}, devices=[node], mounts=[mount]
            ),
        ),
        (
            Handover.BOTH,
            v1beta1.ContainerAllocateResponse(
                envs={"VISIBLE": "device_0", "DEVICE_0": "yes"},
                devices=[node],
                mounts=[mount],
                cdi_devices=[name],
            ),
        ),
    ):
        answer = messages.allocate_response([assignment], handover)
        assert answer == v1beta1.AllocateResponse(container_responses=[expected])


def test_preferences_are_asked_per_container() -> None:
    """Each container's question gets its own answer."""
    request = v1beta1.PreferredAllocationRequest(
        container_requests=[
            v1beta1.ContainerPreferredAllocationRequest(
                available_deviceIDs=["a", "b"], must_include_deviceIDs=["b"], allocation_size=1
            )
        ]
    )
    asked: list[object] = []

    def choose(available: list[str], must_include: list[str], size: int) -> list[str]:
        asked.append((available, must_include, size))
        return must_include

    answer = messages.preferred_response(request, choose)
    assert asked == [(["a", "b"], ["b"], 1)]
    assert [list(each.deviceIDs) for each in answer.container_responses] == [["b"]]


def test_holders_of_devices() -> None:
    """PodResources says which pod has which device."""
    response = podresources.ListPodResourcesResponse(
        pod_resources=[
            podresources.PodResources(
                name="train",
                namespace="ml",
                containers=[
                    podresources.ContainerResources(
                        name="main",
                        devices=[podresources.ContainerDevices(resource_name="r", device_ids=["a", "b"])],
                    )
                ],
            ),
            podresources.PodResources(name="idle", namespace="ml"),
        ]
    )
    assert messages.holders(response) == {("r", "a"): "ml/train", ("r", "b"): "ml/train"}
