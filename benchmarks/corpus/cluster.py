"""A large cluster: two in five nodes have GPUs, of four kinds."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from benchmarks.corpus.documents import Document, encoded
from benchmarks.corpus.reviews import pod
from benchmarks.corpus.templates import TEMPLATES
from tessera.core.admission.view.offers import Offers
from tessera.core.dra.slices import DeviceClass
from tessera.core.kubernetes.node import Node
from tessera.core.kubernetes.quantity import Quantity
from tessera.core.requests.alternatives import GENERAL_CLASS, own_expression
from tessera.core.resources import is_any_gpu
from tessera.kube.view.live import read_node

NODES: Final = 5000

_PRODUCTS: Final = (  # product, memory of a card in MiB, share of a hundred nodes, what a node offers
    ("NVIDIA-A100-SXM4-80GB", "81920", 12, {"nvidia.com/mig-2g.20gb": "8", "nvidia.com/mig-3g.40gb": "8"}),
    ("NVIDIA-A100-SXM4-40GB", "40960", 8, {"nvidia.com/mig-1g.5gb": "28", "nvidia.com/mig-2g.10gb": "0"}),
    ("NVIDIA-H100-80GB-HBM3", "81559", 10, {"nvidia.com/mig-1g.10gb": "28", "nvidia.com/gpu": "4"}),
    ("Tesla-V100-SXM2-32GB", "32768", 10, {"nvidia.com/gpu": "8"}),
)
_TYPES: Final = tuple(f"nvidia.com/mig-{name}" for name in ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb"))
_CPU_FEATURES: Final = (
    "ADX",
    "AESNI",
    "AMXINT8",
    "AMXTILE",
    "AVX",
    "AVX2",
    "AVX512BW",
    "AVX512F",
    "FMA3",
    "SHA",
    "VAES",
    "VMX",
)


def nodes(count: int = NODES) -> Iterator[bytes]:
    """The nodes of a cluster: two in five have GPUs."""
    return (encoded(node(number)) for number in range(count))


def node(number: int) -> Document:
    """A node as it is listed: labels of feature discovery, images, conditions."""
    labels = {
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/hostname": f"node-{number:05d}",
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": "gpu.8xlarge",
        "topology.kubernetes.io/region": "region-1",
        "topology.kubernetes.io/zone": f"zone-{'abc'[number % 3]}",
        **{f"feature.node.kubernetes.io/cpu-cpuid.{name}": "true" for name in _CPU_FEATURES},
    }
    allocatable = {"cpu": "95500m", "ephemeral-storage": "1782Gi", "memory": "1028Gi", "pods": "110"}
    spec: Document = {
        "podCIDR": f"10.{number // 256 % 256}.{number % 256}.0/24",
        "providerID": f"example:///{number}",
    }
    place = number * 37 % 100  # spread over the list, not in blocks
    for product, memory, share, offers in _PRODUCTS:
        if 0 <= place < share:
            labels |= {
                "nvidia.com/gpu.product": product,
                "nvidia.com/gpu.memory": memory,
                "nvidia.com/gpu.count": "8",
                "nvidia.com/gpu.present": "true",
                "nvidia.com/mig.strategy": "mixed",
            }
            allocatable |= offers
            spec["taints"] = [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]
            if number % 10 == 4:
                labels["pool"] = "reserved"
                spec["taints"].append({"key": "dedicated", "value": "research", "effect": "NoSchedule"})
        place -= share
    name = labels["kubernetes.io/hostname"]
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {
            "name": name,
            "uid": f"{number:08x}-0000-4000-8000-000000000000",
            "resourceVersion": str(1000 + number),
            "creationTimestamp": "2026-03-01T10:00:00Z",
            "labels": labels,
            "annotations": {
                "node.alpha.kubernetes.io/ttl": "0",
                "volumes.kubernetes.io/controller-managed-attach-detach": "true",
                "csi.volume.kubernetes.io/nodeid": json.dumps({"csi.example.com": name}),
            },
            "managedFields": [
                {"manager": manager, "operation": "Update", "apiVersion": "v1", "time": "2026-11-15T08:00:00Z",
                 "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:labels": {f"f:{key}": {} for key in labels}}}}
                for manager in ("kubelet", "nfd-master")
            ],
        },
        "spec": spec,
        "status": {
            "capacity": allocatable,
            "allocatable": allocatable,
            "conditions": [
                {"type": kind, "status": "True" if kind == "Ready" else "False", "lastHeartbeatTime": "2026-11-15T08:00:00Z",
                 "lastTransitionTime": "2026-11-01T08:00:00Z", "reason": f"KubeletHas{kind}", "message": f"kubelet is fine: {kind}"}
                for kind in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
            ],
            "addresses": [
                {"type": "InternalIP", "address": f"10.200.{number // 250}.{number % 250}"},
                {"type": "Hostname", "address": name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": {
                "machineID": f"{number:032x}", "systemUUID": f"{number:032x}", "bootID": f"{number:032x}",
                "kernelVersion": "6.8.0-45-generic", "osImage": "Ubuntu 24.04.1 LTS", "operatingSystem": "linux",
                "containerRuntimeVersion": "containerd://2.3.7", "kubeletVersion": "v1.36.3", "kubeProxyVersion": "", "architecture": "amd64",
            },
            "images": [
                {"names": [f"registry.example.com/platform/image-{image}@sha256:{image * 7919:064x}",
                           f"registry.example.com/platform/image-{image}:v1.{image}"], "sizeBytes": 1000003 * (image + 1)}
                for image in range(12)
            ],
        },
    }  # fmt: skip


def running_pods(count: int, waiting: int = 0) -> Iterator[bytes]:
    """Pods on those nodes, every third with a GPU; and so many more that wait, each with a GPU."""
    for number in range(count + waiting):
        waits = number >= count
        template = TEMPLATES[number % 5 if waits or number % 3 == 0 else -1]
        document = pod(template, number % 97, 4, "same bytes")
        for one in document["spec"]["containers"]:
            one["resources"]["requests"] |= {
                "cpu": f"{100 + number % 40 * 25}m",
                "memory": f"{1024 + number % 16 * 128}Mi",
            }
        if number % 3 == 0 and not waits:
            _hold(document, number % NODES)
        document["metadata"] |= {
            "name": f"trainer-{number}",
            "namespace": f"team-{number % 7}",
            "uid": f"{number:08x}-0000-4000-8000-000000000001",
            "resourceVersion": str(1000 + number),
            "creationTimestamp": "2026-11-15T08:00:00Z",
        }
        if not waits:
            document["spec"]["nodeName"] = f"node-{number % NODES:05d}"
        document["status"] = {
            "phase": "Pending" if waits else "Running",
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": "2026-11-15T08:00:00Z"}
                for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
            ],
            "podIP": f"10.0.{number // 250 % 250}.{number % 250}",
            "containerStatuses": [
                {"name": one["name"], "ready": True, "restartCount": 0, "image": one["image"], "imageID": "sha256:" + "0" * 64}
                for one in document["spec"]["containers"]
            ],
            "qosClass": "Burstable",
        }  # fmt: skip
        yield encoded(document)


def _hold(document: Document, node: int) -> None:
    """Have a pod's first container hold a device of its node, if that has any."""
    resources = document["spec"]["containers"][0]["resources"]
    for resource in _devices(node):
        for section in ("requests", "limits"):
            kept = {key: n for key, n in resources.get(section, {}).items() if not is_any_gpu(key)}
            resources[section] = {**kept, resource: "1"}
        break


def _devices(number: int) -> dict[str, str]:
    """What a node offers."""
    place = number * 37 % 100
    for _, _, share, offers in _PRODUCTS:
        if 0 <= place < share:
            return offers
        place -= share
    return {}


def namespaces() -> Iterator[bytes]:
    """The namespaces that the pods are in."""
    for name in ["default", "kube-system", *(f"team-{number}" for number in range(7))]:
        yield encoded({
            "kind": "Namespace", "apiVersion": "v1",
            "metadata": {"name": name, "resourceVersion": "1", "labels": {"kubernetes.io/metadata.name": name}},
        })  # fmt: skip


def offers(count: int = NODES, *, dra: bool = False, different: bool = False) -> Offers:
    """The nodes as decisions see them; `dra`: the same devices, but DRA serves them all; `different`: no two nodes are alike."""
    found = (read_node(one, is_any_gpu) for one in nodes(count))
    if different:
        found = (_different(number, one) for number, one in enumerate(found))
    if not dra:
        return Offers(found)
    served = Offers(map(_served, found))
    resources = {resource for *_, has in _PRODUCTS for resource in has} | {*_TYPES}
    classes = {
        one: DeviceClass(f"class-{number}", (own_expression(one),), one)
        for number, one in enumerate(sorted(resources))
    }
    served.put_classes(classes, (GENERAL_CLASS, *(one.name for one in classes.values())))
    return served


def _served(node: Node) -> Node:
    """A node whose devices a DRA driver has: nothing of them is allocatable."""
    gpus = {name: int(amount.value) for name, amount in node.allocatable.items() if is_any_gpu(name)}
    rest = {name: amount for name, amount in node.allocatable.items() if name not in gpus}
    return replace(node, allocatable=rest, dra=gpus)


def _different(number: int, node: Node) -> Node:
    """A node with GPUs, whatever it had, that offers something else than all others, and is of another size."""
    counts = {  # as digits of its number
        resource: str(1 + number // 16**place % 16) for place, resource in enumerate(_TYPES)
    }
    size = {"cpu": f"{95_500 + number}m", "memory": f"{1028 * 2**20 - number}Ki"}
    has = {name: Quantity.parse(amount) for name, amount in (counts | size).items()}
    labels = {
        **node.labels,
        "nvidia.com/gpu.product": f"product-{number % 4}",
        "nvidia.com/gpu.memory": "81920",
    }
    return replace(node, labels=labels, allocatable={**node.allocatable, **has})
