"""What is measured with: reviews as an API server sends them, nodes as a large cluster has them.

Sizes are those of real objects: a pod of a Deployment with two containers is about 4 KB once it is defaulted and
wrapped in a review, one of a platform that adds sidecars and fills in environments about 40 KB, a node about 7 KB.
Everything is made from its number alone, so that two runs, and every program in a run, see the same bytes.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from tessera.core.admission import RECORD_ANNOTATION
from tessera.core.node import is_gpu_resource
from tessera.core.offers import Offers
from tessera.protocol import objects

Document = dict[str, Any]

UID: Final = (
    "00000000-0000-4000-8000-000000000000"  # a load generator writes its own over it, as long as this
)
NONCE: Final = "nonce-0000000000"  # and over this, where every pod is to be different
NODES: Final = 5000
SIZES: Final = {"4 KB": 1, "40 KB": 236}  # name → environment variables of each container

_PRODUCTS: Final = (  # product, memory of a card in MiB, share of a hundred nodes, what a node offers
    ("NVIDIA-A100-SXM4-80GB", "81920", 12, {"nvidia.com/mig-2g.20gb": "8", "nvidia.com/mig-3g.40gb": "8"}),
    ("NVIDIA-A100-SXM4-40GB", "40960", 8, {"nvidia.com/mig-1g.5gb": "28", "nvidia.com/mig-2g.10gb": "0"}),
    ("NVIDIA-H100-80GB-HBM3", "81559", 10, {"nvidia.com/mig-1g.10gb": "28", "nvidia.com/gpu": "4"}),
    ("Tesla-V100-SXM2-32GB", "32768", 10, {"nvidia.com/gpu": "8"}),
)


@dataclass(frozen=True, slots=True)
class Template:
    """What a workload's pods have in common, as far as a decision looks."""

    asks: tuple[dict[str, str], ...]  # GPU resources by container
    selector: dict[str, str]
    limits: bool = True  # written beside the requests, as most people do
    tolerations: tuple[dict[str, str], ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()


def _mig(profile: str) -> str:
    return f"nvidia.com/mig-{profile}"


_A100: Final = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
_A100_40: Final = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}
_H100: Final = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
_V100: Final = {"nvidia.com/gpu.product": "Tesla-V100-SXM2-32GB"}

TEMPLATES: Final = (
    Template(({_mig("3g.30gb"): "1"}, {}), {}),
    Template(({_mig("3g.30gb"): "1"}, {}), _V100),
    Template(({_mig("2g.20gb"): "2"}, {}), {}),
    Template(({_mig("1g.10gb"): "1"}, {}), _A100),
    Template(({_mig("7g.80gb"): "1"}, {}), _A100),
    Template(({_mig("1g.10gb"): "1"}, {_mig("1g.10gb"): "1"}), {}, limits=False),
    Template(({_mig("3g.30gb"): "1"}, {_mig("1g.5gb"): "1"}), _A100),
    Template(({"nvidia.com/gpu": "1"}, {}), {"topology.kubernetes.io/zone": "zone-b"}),
    Template(({_mig("2g.10gb"): "1"}, {}), _A100_40),
    Template(({_mig("4g.40gb"): "1"}, {}), {**_H100, "topology.kubernetes.io/zone": "zone-a"}),
    Template(({_mig("1g.20gb"): "4"}, {}), {"team": "nobody"}),  # no such node: rejected
    Template(({_mig("3g.40gb"): "9"}, {}), _A100),  # more than a node has
    Template(({_mig("2g.20gb"): "1"}, {}), {"pool": "reserved"}),  # tainted, not tolerated: rejected
    Template(
        ({_mig("2g.20gb"): "1"}, {}),
        {"pool": "reserved"},
        tolerations=({"key": "dedicated", "operator": "Equal", "value": "research", "effect": "NoSchedule"},),
    ),
    Template(({_mig("3g.30gb"): "1"}, {}), {}, annotations=(("gpu-webhook.k8s.io/fallback-policy", "larger"),)),
    Template(({}, {}), {}),
)  # fmt: skip


# What pods of one template have of their own, besides their uid, as a load generator makes it:
Kind = Literal[
    "same bytes",  # nothing
    "own annotation",  # an annotation that no decision reads
    "new question",  # one that decisions read: no earlier answer will do
]


def review(template: Template, number: int, size: str = "4 KB", kind: Kind = "own annotation") -> bytes:
    """A review of a template's pod."""
    pods = {"group": "", "version": "v1", "kind": "Pod"}
    resource = {"group": "", "version": "v1", "resource": "pods"}
    document = {
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": UID,
            "kind": pods,
            "resource": resource,
            "requestKind": pods,
            "requestResource": resource,
            "namespace": f"team-{number % 7}",
            "operation": "CREATE",
            "userInfo": {
                "username": "system:serviceaccount:kube-system:replicaset-controller",
                "uid": "6d2f9a4e-9d44-4f43-a1b1-30a7c0a64fd5",
                "groups": [
                    "system:serviceaccounts",
                    "system:serviceaccounts:kube-system",
                    "system:authenticated",
                ],
            },
            "object": pod(template, number, SIZES[size], kind),
            "oldObject": None,
            "dryRun": False,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        },
    }
    return _bytes(document)


def reviews(size: str = "4 KB", kind: Kind = "own annotation") -> list[bytes]:
    """One review of every template."""
    return [review(template, number, size, kind) for number, template in enumerate(TEMPLATES)]


def pod(template: Template, number: int, settings: int, kind: Kind) -> Document:
    """A pod of a Deployment, as it reaches a mutating webhook: defaulted, not yet named."""
    name = f"trainer-{number}"
    annotations = {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": "9400",
        "checksum/config": f"{number:08x}e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852",
        **dict(template.annotations),
    }
    if kind == "own annotation":
        annotations["example.com/run"] = NONCE
    elif kind == "new question":
        annotations[RECORD_ANNOTATION] = NONCE  # no record that we know: dropped, and the answer is the same
    containers = [
        container(
            ("main", "helper")[index] if index < 2 else f"side-{index}",
            asks,
            settings,
            limits=template.limits,
        )
        for index, asks in enumerate(template.asks)
    ]
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "generateName": f"{name}-5d4f8c7b9-",
            "creationTimestamp": None,
            "labels": {"app": name, "pod-template-hash": "5d4f8c7b9", "app.kubernetes.io/part-of": "training"},
            "annotations": annotations,
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": f"{name}-5d4f8c7b9",
                    "uid": "3c1f6d7e-52a0-4c0e-8a55-0f6b0a1d2c3b",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
            "managedFields": [
                {
                    "manager": "kube-controller-manager",
                    "operation": "Update",
                    "apiVersion": "v1",
                    "time": "2026-11-15T08:00:00Z",
                    "fieldsType": "FieldsV1",
                    "fieldsV1": {
                        "f:metadata": {"f:generateName": {}, "f:labels": {".": {}, "f:app": {}}},
                        "f:spec": {"f:containers": {f'k:{{"name":"{c["name"]}"}}': {} for c in containers}},
                    },
                }
            ],
        },
        "spec": {
            "volumes": [
                {"name": "dataset", "persistentVolumeClaim": {"claimName": "imagenet"}},
                {"name": "dshm", "emptyDir": {"medium": "Memory"}},
                {
                    "name": "kube-api-access-x7k2p",
                    "projected": {
                        "sources": [
                            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                        ],
                        "defaultMode": 420,
                    },
                },
            ],
            "containers": containers,
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            **({"nodeSelector": template.selector} if template.selector else {}),
            "serviceAccountName": "default",
            "serviceAccount": "default",
            "securityContext": {"fsGroup": 2000},
            "schedulerName": "default-scheduler",
            "tolerations": [
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
                {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
                *template.tolerations,
            ],
            "priority": 0,
            "enableServiceLinks": True,
            "preemptionPolicy": "PreemptLowerPriority",
        },
        "status": {},
    }  # fmt: skip


def container(name: str, asks: dict[str, str], settings: int, *, limits: bool) -> Document:
    """A container with the usual things around its resources."""
    plain = {"cpu": "4", "memory": "16Gi"}
    resources: Document = {"requests": {**plain, **asks}}
    if limits:
        resources["limits"] = {"memory": "16Gi", **asks}
    environment: list[Document] = [
        {
            "name": f"SETTING_{number:03d}",
            "value": f'{{"path": "/data/{name}/{number}", "retries": {number % 5}}}',
        }
        for number in range(settings)
    ]
    environment.append(
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}}
    )
    return {
        "name": name,
        "image": f"registry.example.com/research/{name}:2026.11.3",
        "command": ["/bin/sh", "-c"],
        "args": [f"exec python -m {name} --epochs 90 --data /data"],
        "env": environment,
        "resources": resources,
        "volumeMounts": [
            {"name": "dataset", "mountPath": "/data"},
            {"name": "dshm", "mountPath": "/dev/shm"},
            {"name": "kube-api-access-x7k2p", "readOnly": True, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"},
        ],
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": 8080, "scheme": "HTTP"}, "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
    }  # fmt: skip


def nodes(count: int = NODES) -> Iterator[bytes]:
    """The nodes of a cluster: two in five have GPUs."""
    return (_bytes(node(number)) for number in range(count))


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
                {"type": kind, "status": "False", "lastHeartbeatTime": "2026-11-15T08:00:00Z",
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


def running_pods(count: int) -> Iterator[bytes]:
    """Pods on those nodes, every third with a GPU."""
    for number in range(count):
        template = TEMPLATES[number % 5 if number % 3 == 0 else -1]
        document = pod(template, number % 97, 4, "same bytes")
        document["metadata"] |= {
            "name": f"trainer-{number}",
            "namespace": f"team-{number % 7}",
            "uid": f"{number:08x}-0000-4000-8000-000000000001",
            "resourceVersion": str(1000 + number),
            "creationTimestamp": "2026-11-15T08:00:00Z",
        }
        document["spec"]["nodeName"] = f"node-{number % NODES:05d}"
        document["status"] = {
            "phase": "Running",
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
        yield _bytes(document)


def namespaces() -> Iterator[bytes]:
    """The namespaces that the pods are in."""
    for name in ["default", "kube-system", *(f"team-{number}" for number in range(7))]:
        yield _bytes({
            "kind": "Namespace", "apiVersion": "v1",
            "metadata": {"name": name, "resourceVersion": "1", "labels": {"kubernetes.io/metadata.name": name}},
        })  # fmt: skip


def offers(count: int = NODES) -> Offers:
    """The nodes as decisions see them."""
    return Offers(objects.node_of(objects.decode_node(one), is_gpu_resource) for one in nodes(count))


def _bytes(document: Document) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
