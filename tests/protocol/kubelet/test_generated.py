"""Generated code is what the compiler makes of the contracts."""

import importlib.resources
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[3] / "src"
CONTRACTS = sorted(SRC.glob("tessera/protocol/*/*.proto"))


def test_generated_messages_are_up_to_date(tmp_path: Path) -> None:
    """What is committed equals what the pinned compiler generates now (`make proto` repairs it)."""
    import grpc_tools

    includes = importlib.resources.files(grpc_tools) / "_proto"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{SRC}", f"-I{includes}"]
    subprocess.run(
        [*command, f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", *map(str, CONTRACTS)], check=True
    )
    generated = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*_pb2.py*"))
    assert len(generated) == 2 * len(CONTRACTS) == 12
    for path in generated:
        assert (SRC / path).read_text() == (tmp_path / path).read_text(), f"{path} is not up to date"


DRA = "k8s.io.kubelet.pkg.apis.dra.v1"

# (message, field) → number, as the kubelet's own api.proto of Kubernetes 1.36 has them
KUBELET = {
    "v1beta1.DevicePluginOptions": {"pre_start_required": 1, "get_preferred_allocation_available": 2},
    "v1beta1.RegisterRequest": {"version": 1, "endpoint": 2, "resource_name": 3, "options": 4},
    "v1beta1.ListAndWatchResponse": {"devices": 1},
    "v1beta1.TopologyInfo": {"nodes": 1},
    "v1beta1.NUMANode": {"ID": 1},
    "v1beta1.Device": {"ID": 1, "health": 2, "topology": 3},
    "v1beta1.PreStartContainerRequest": {"devices_ids": 1},
    "v1beta1.PreferredAllocationRequest": {"container_requests": 1},
    "v1beta1.ContainerPreferredAllocationRequest": {
        "available_deviceIDs": 1,
        "must_include_deviceIDs": 2,
        "allocation_size": 3,
    },
    "v1beta1.PreferredAllocationResponse": {"container_responses": 1},
    "v1beta1.ContainerPreferredAllocationResponse": {"deviceIDs": 1},
    "v1beta1.AllocateRequest": {"container_requests": 1},
    "v1beta1.ContainerAllocateRequest": {"devices_ids": 1},
    "v1beta1.CDIDevice": {"name": 1},
    "v1beta1.AllocateResponse": {"container_responses": 1},
    "v1beta1.ContainerAllocateResponse": {
        "envs": 1,
        "mounts": 2,
        "devices": 3,
        "annotations": 4,
        "cdi_devices": 5,
    },
    "v1beta1.Mount": {"container_path": 1, "host_path": 2, "read_only": 3},
    "v1beta1.DeviceSpec": {"container_path": 1, "host_path": 2, "permissions": 3},
    "v1.ListPodResourcesResponse": {"pod_resources": 1},
    "v1.PodResources": {"name": 1, "namespace": 2, "containers": 3},
    "v1.ContainerResources": {"name": 1, "devices": 2},
    "v1.ContainerDevices": {"resource_name": 1, "device_ids": 2},
    "pluginregistration.InfoRequest": {},
    "pluginregistration.PluginInfo": {"type": 1, "name": 2, "endpoint": 3, "supported_versions": 4},
    "pluginregistration.RegistrationStatus": {"plugin_registered": 1, "error": 2},
    f"{DRA}.Claim": {"namespace": 1, "uid": 2, "name": 3},
    f"{DRA}.NodePrepareResourcesRequest": {"claims": 1},
    f"{DRA}.NodePrepareResourcesResponse": {"claims": 1},
    f"{DRA}.NodePrepareResourceResponse": {"devices": 1, "error": 2},
    f"{DRA}.Device": {
        "request_names": 1,
        "pool_name": 2,
        "device_name": 3,
        "cdi_device_ids": 4,
        "share_id": 5,
    },
    f"{DRA}.NodeUnprepareResourcesRequest": {"claims": 1},
    f"{DRA}.NodeUnprepareResourcesResponse": {"claims": 1},
    f"{DRA}.NodeUnprepareResourceResponse": {"error": 1},
    "v1alpha1.DeviceIdentifier": {"pool_name": 1, "device_name": 2},
    "v1alpha1.DeviceHealth": {
        "device": 1,
        "health": 2,
        "last_updated_time": 3,
        "health_check_timeout_seconds": 4,
        "message": 5,
    },
    "v1alpha1.NodeWatchResourcesResponse": {"devices": 1},
}


@pytest.mark.parametrize("message", KUBELET)
def test_field_numbers_are_the_kubelets(message: str) -> None:
    """Names may differ between implementations; numbers may not."""
    from google.protobuf import descriptor_pool

    from tessera.protocol.kubelet import (  # noqa: F401 # they fill the pool
        dra_pb2,
        health_pb2,
        podresources_pb2,
        registration_pb2,
        v1beta1_pb2,
    )

    fields = descriptor_pool.Default().FindMessageTypeByName(message).fields
    assert {field.name: field.number for field in fields} == KUBELET[message]
