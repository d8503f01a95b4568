"""Short ways to write nodes, pods and reviews in tests: as values of the core, and as documents of the API server."""

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tessera.core.admission.policy import Policy
from tessera.core.admission.view.offers import Offers
from tessera.core.kubernetes.node import Namespace, Node
from tessera.core.kubernetes.pod import Container, Pod
from tessera.core.kubernetes.quantity import Quantity
from tessera.core.requests.alternatives import ALTERNATIVES_ANNOTATION, CLAIM, template_name
from tessera.protocol.configuration import webhook as config
from tessera.webhook.endpoint import Admission

Document = dict[str, Any]
MIG = "nvidia.com/mig-"
GPU = "nvidia.com/gpu"


def resource(name: str) -> str:
    """`2g.20gb` and `gpu` are short for their resources; other names stand for themselves."""
    if name == "gpu":
        return GPU
    return MIG + name if name[:1].isdigit() else name


def amounts(given: Mapping[str, Any]) -> dict[str, Quantity]:
    return {resource(name): Quantity.parse(value) for name, value in given.items()}


def encode_amounts(given: Mapping[str, Any]) -> dict[str, str]:
    """`{"2g.20gb": 3}` as a document has it."""
    return {resource(name): str(value) for name, value in given.items()}


def named_amounts(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Amounts that a test wrote as keywords: `p2g_20gb=1` is one 2g.20gb."""
    return {
        key[1:].replace("_", ".") if key[1:2].isdigit() else key: value for key, value in keywords.items()
    }


def node(name: str, *, labels: Any = None, taints: Any = (), **has: Any) -> Node:
    """`node("a", **{"2g.20gb": 3})`."""
    return Node(name, labels or {}, taints, amounts(has))


def container(name: Any = "main", *, limits: Any = None, restartable: Any = False, **asks: Any) -> Container:
    """A container with requests and, unless told otherwise, the same limits."""
    return Container(name, amounts(asks), amounts(asks if limits is None else limits), restartable)


def pod(*containers: Container, init: tuple[Container, ...] = (), **more: Any) -> Pod:
    return Pod(
        namespace=more.pop("namespace", "default"),
        name="p",
        containers=containers,
        init_containers=init,
        **more,
    )


def offers(*nodes: Node, namespaces: tuple[Namespace, ...] = ()) -> Offers:
    return Offers(nodes, namespaces)


def policy(text: str = "") -> Policy:
    return config.parse(text).policy


def review(document: Any, *, namespace: str = "default", **request: Any) -> bytes:
    """The bytes of a review, as the API server would send it."""
    body = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "operation": "CREATE",
            "namespace": namespace,
            "object": document,
            **request,
        },
    }
    return json.dumps(body).encode()


def respond(body: bytes, cluster: Offers, rules: Policy | None = None) -> dict[str, Any]:
    """The response to a review, its patch decoded."""
    answer = json.loads(Admission(cluster, rules or Policy()).answer(body))
    response: dict[str, Any] = answer["response"]
    if "patch" in response:
        response["patch"] = json.loads(base64.b64decode(response["patch"]))
    return response


def object_of(
    name: str, *, namespace: str = "", labels: Any = None, annotations: Any = None, **parts: Any
) -> Document:
    """Any object: `parts` are its spec, its status and what else stands next to its metadata."""
    metadata = {"name": name, "labels": labels or {}, "annotations": annotations or {}}
    return {"metadata": metadata | ({"namespace": namespace} if namespace else {}), **parts}


def node_document(
    name: str,
    has: Mapping[str, Any],
    *,
    capacity: Mapping[str, Any] | None = None,
    labels: Any = None,
    annotations: Any = None,
    spec: Any = None,
    **status: Any,
) -> Document:
    """A node with these allocatable amounts. It reports a capacity only where the test gives one."""
    reported = {} if capacity is None else {"capacity": encode_amounts(capacity)}
    status = {"allocatable": encode_amounts(has), **reported, **status}
    document = object_of(name, labels=labels, annotations=annotations, spec=spec or {}, status=status)
    return {"apiVersion": "v1", "kind": "Node", **document}


def asking_pod(
    name: str,
    asks: Mapping[str, Any],
    *,
    requests: Mapping[str, Any] | None = None,
    node: str = "",
    namespace: str = "default",
    metadata: Any = None,
    spec: Any = None,
    status: Any = None,
) -> Document:
    """A pod whose container requests these amounts and has them as its limits. It runs on its node, or waits for one.

    `requests` are what the container requests without a limit.
    """
    limits = encode_amounts(asks)
    resources = {"requests": {**encode_amounts(requests or {}), **limits}, "limits": limits}
    on_node = {"nodeName": node} if node else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, **(metadata or {})},
        "spec": {"containers": [{"name": "main", "resources": resources}], **on_node, **(spec or {})},
        "status": {"phase": "Running" if node else "Pending", **(status or {})},
    }


def claim_document(
    name: str, *results: Mapping[str, Any], namespace: str = "default", pods: Sequence[str] = (), **parts: Any
) -> Document:
    """A claim that was allocated these devices, and is reserved for pods with these names, which are their uids too."""
    status: Document = {}
    if results:
        status["allocation"] = {"devices": {"results": [{"request": "gpu", **one} for one in results]}}
    if pods:
        status["reservedFor"] = [{"resource": "pods", "name": pod, "uid": pod} for pod in pods]
    document = object_of(name, namespace=namespace, status=status, **parts)
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", **document}


def mig_layout_document(
    name: str = "inference",
    conditions: Iterable[tuple[str, str, str, str]] = (),
    *,
    at: str = "2026-01-01T00:00:00Z",
    spec: Any = None,
    **said: Any,
) -> Document:
    """A MigLayout that its controller has looked at, with these conditions: type, status, reason and message."""
    stated = (dict(zip(("type", "status", "reason", "message"), one, strict=True)) for one in conditions)
    return {
        "apiVersion": "tessera.dev/v1alpha1",
        "kind": "MigLayout",
        "metadata": {"name": name, "uid": "u1", "generation": 2},
        "spec": {"nodeSelector": {"pool": "inference"}, **(spec or {})},
        "status": {
            "observedGeneration": 2,
            "conditions": [{**one, "lastTransitionTime": at} for one in stated],
            **said,
        },
    }


def pod_document(
    *resources: Mapping[str, Any], init: tuple[Mapping[str, Any], ...] = (), **metadata: Any
) -> dict[str, Any]:
    """A pod as JSON, a container for each `resources`."""
    spec: dict[str, Any] = {
        "containers": [{"name": f"c{i}", "image": "x", "resources": r} for i, r in enumerate(resources)]
    }
    if init:
        spec["initContainers"] = [{"name": f"i{i}", "image": "x", **r} for i, r in enumerate(init)]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", **metadata}, "spec": spec}


def bridged(document: dict[str, Any], text: str) -> dict[str, Any]:
    """A pod's document as the bridge leaves it: the alternatives in its annotation, and the claim by their name."""
    annotations = {**(document["metadata"].get("annotations") or {}), ALTERNATIVES_ANNOTATION: text}
    claims = [{"name": CLAIM, "resourceClaimTemplateName": template_name(text)}]
    return {
        **document,
        "metadata": {**document["metadata"], "annotations": annotations},
        "spec": {**document["spec"], "resourceClaims": claims},
    }


def running_pod(record=None, resources=None, **spec):
    """A pod as a cluster has it."""
    annotations = {"other": "x", **({"gpu-webhook.k8s.io/fallback": record} if record else {})}
    document = pod_document(resources or {"limits": {MIG + "1g.10gb": "1"}}, annotations=annotations)
    document["metadata"].update(namespace="team", uid="u")
    document["spec"].update(nodeName="small", **spec)
    return {**document, "status": {"phase": "Running"}}
