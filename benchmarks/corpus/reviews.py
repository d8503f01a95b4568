"""Reviews of pods that are about to be created."""

from collections.abc import Sequence
from typing import Final, Literal

from benchmarks.corpus.documents import Document, encoded
from benchmarks.corpus.templates import TEMPLATES, Template
from tessera.core.requests.record import RECORD_ANNOTATION

UID: Final = "00000000-0000-4000-8000-000000000000"  # a load generator writes its own over it
NONCE: Final = "nonce-0000000000"  # and over this, where every pod is to be different
SIZES: Final = {"4 KB": 1, "40 KB": 236}  # name → environment variables of each container

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
    return encoded(document)


def reviews(
    size: str = "4 KB", kind: Kind = "own annotation", templates: Sequence[Template] = TEMPLATES
) -> list[bytes]:
    """One review of every template."""
    return [review(template, number, size, kind) for number, template in enumerate(templates)]


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
