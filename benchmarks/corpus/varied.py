"""A cluster whose nodes are nearly all different, of any size: what the growth of the tools is measured with.

No two nodes have the same labels and amounts, and hardly two of those with layouts are cut alike. Of twelve nodes six have
annotations with layouts, two are cut by NVIDIA's mig-manager, three have devices that DRA hands out, one has whole GPUs. A node has twelve pods: its device plugin's, ten that run, and
one that waits. The number of nodes alone decides everything.

What does not grow with the nodes: 40 namespaces, and some 240 kinds of pods. A cluster's pods come from templates.
"""

import random
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Final

from benchmarks.corpus.documents import Document
from tessera.core.dra.slices import API_VERSION, DRIVER
from tessera.core.mig.geometry import product_named
from tessera.core.mig.layout import CardLayout, LayoutEntry, NodeLayout, entries_of
from tessera.core.mig.placement import Wish
from tessera.core.mig.profile import MigProfile
from tessera.core.requests.alternatives import (
    ALTERNATIVES_ANNOTATION,
    GENERAL_CLASS,
    own_expression,
    template_name,
)
from tessera.core.requests.tickets import TICKET_ANNOTATION, TicketKey, TicketMaker
from tessera.core.resources import MIG_PREFIX
from tessera.protocol.mig import documents as mig
from tessera.protocol.mig.nodes import MAPPING, encode_mapping, mapping_of
from tessera.protocol.mig.operator import CONFIG_KEY, DEFAULT_CONFIG

PODS: Final = 12  # of a node, one of which waits
CARDS: Final = 8
WAITS: Final = "queued-0"  # a pod that waits, in the first namespace
LAYOUT: Final = "all"  # a MigLayout of all nodes
_KINDS_OF_NODES: Final = 12
_NAMESPACES: Final = 40
_CLASSES: Final = 60  # of devices, that claims ask for
_QUEUES: Final = 120  # kinds of pods that wait
_INSTALLED: Final = "gpu-webhook"
_OPERATOR: Final = "gpu-operator"
_RECORD: Final = "gpu-webhook.k8s.io/fallback"
_TICKETS: Final = TicketMaker(TicketKey(b"0" * 32), 498_536)
_CUTS: Final = {  # product → ways to cut a card
    "H200": (
        ("7g.141gb",),
        ("3g.71gb", "3g.71gb"),
        ("4g.71gb", "3g.71gb"),
        ("3g.71gb", "2g.35gb", "1g.18gb"),
        ("2g.35gb", "2g.35gb", "2g.35gb"),
        ("1g.18gb",) * 4,
    ),
    "A100-80GB": (
        ("7g.80gb",),
        ("3g.40gb", "3g.40gb"),
        ("4g.40gb", "2g.20gb", "1g.10gb"),
        ("2g.20gb", "2g.20gb", "3g.40gb"),
        ("2g.20gb",) * 3,
        ("1g.10gb",) * 5,
    ),
}
_PROFILES: Final = tuple(sorted({name for cuts in _CUTS.values() for cut in cuts for name in cut}))
_DEDICATED: Final = {"key": "dedicated", "value": "research", "effect": "NoSchedule"}


def cluster(nodes: int) -> Iterator[Document]:
    """Nodes, namespaces, quotas, and what DRA offers."""
    for profile in _PROFILES:
        yield _device_class(f"tessera-{profile.replace('.', '-')}", MIG_PREFIX + profile)
    yield _device_class(GENERAL_CLASS)
    for number in range(_NAMESPACES):
        yield object_named("v1", "Namespace", namespace_of(number))
        if number % 4 == 0:
            hard = {f"requests.{MIG_PREFIX}{profile}": str(1000 * nodes) for profile in _PROFILES}
            used = {name: str(nodes) for name in hard}
            yield object_named(
                "v1",
                "ResourceQuota",
                "gpus",
                namespace_of(number),
                spec={"hard": hard},
                status={"used": used},
            )
    for number in range(nodes):
        yield node(number)
        if has_dra(number):
            yield _slice(number)


def pods(nodes: int) -> Iterator[Document]:
    """The pods of the nodes, and those that wait."""
    for number in range(nodes):
        yield plugin_pod(number)
        held = devices_of(number)
        for place in range(PODS - 2):
            if place < len(held) and has_dra(number):
                yield claiming_pod(number, place)
            else:
                yield _running_pod(number, place, held[place][1] if place < len(held) else "")
        yield _waiting_pod(number)


def claims(nodes: int) -> Iterator[Document]:
    """The claims of the pods on nodes with DRA, and their templates."""
    texts: dict[tuple[str, str], None] = {}
    for number in range(nodes):
        if has_dra(number):
            for place, (device, profile) in enumerate(devices_of(number)[: PODS - 2]):
                yield claim_holding(number, place, [device], profile)
                texts[_claiming_space(number, place), _text(number, place)] = None
    for space, text in texts:
        yield object_named(
            API_VERSION, "ResourceClaimTemplate", template_name(text), space, spec={"spec": {}}
        )


def operator() -> Iterator[Document]:
    """What NVIDIA's operator has: which ConfigMap mig-manager reads, and its configurations."""
    yield object_named("nvidia.com/v1", "ClusterPolicy", "cluster-policy", status={"namespace": _OPERATOR})
    yield object_named("v1", "ConfigMap", DEFAULT_CONFIG, _OPERATOR, data={CONFIG_KEY: _configurations()})


def installation(nodes: int) -> Iterator[Document]:
    """What else an API server has: the workloads of Tessera, a MigLayout, and what NVIDIA's operator has."""
    yield from operator()
    labels = {"app.kubernetes.io/component": "device-plugin"}
    counts = dict.fromkeys(
        ("desiredNumberScheduled", "currentNumberScheduled", "numberReady", "numberAvailable"), nodes
    )
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "plugin", "image": "tessera"}]},
    }
    plugin = object_named("apps/v1", "DaemonSet", "device-plugin", _INSTALLED, labels=labels)
    yield {**plugin, "spec": {"template": template}, "status": counts}
    yield object_named("v1", "Namespace", _INSTALLED)
    yield _mig_layout(nodes)


def _mig_layout(nodes: int) -> Document:
    """A MigLayout of all nodes, with as much in its status as the controller writes at most."""
    recut: Document = {"node": node_name(0), "card": 0, "before": "1g.18gb ×7", "after": "3g.71gb ×2"}
    recut |= {"serves": {"3g.71gb": 2}, "reason": "2 pods wait for 3g.71gb"}
    worth = {"takes": {"1g.18gb": 7}, "gain": 9.0, "cost": 4.0, "waits": "dry run"}
    at = "2026-01-01T00:00:00Z"
    conditions = [
        {"type": name, "status": "False", "reason": "DryRun", "message": "dry run", "lastTransitionTime": at}
        for name in ("Ready", "Progressing", "Degraded", "Invalid")
    ]
    autopilot = {
        "dryRun": True,
        "summary": "Dry run: 20 cards would be re-cut.",
        "demand": [{"profile": profile, "waiting": nodes} for profile in _PROFILES],
        "recuts": [recut | worth] * 20,
        "refusals": [{"profile": "7g.141gb", "number": nodes, "why": "budget", "reason": "it is spent"}] * 10,
        "history": [recut | {"at": at, "result": "DryRun"}] * 30,
    }
    status = {
        "desired": nodes,
        "nodes": [
            {"name": node_name(number), "state": "Pending", "reason": "it is cordoned"}
            for number in range(20)
        ],
        "conditions": conditions,
        "autopilot": autopilot,
    }
    spec = {"nodeSelector": {"kubernetes.io/os": "linux"}, "mode": "Auto"}
    return {**object_named("tessera.dev/v1alpha1", "MigLayout", LAYOUT, spec=spec), "status": status}


def bridged(nodes: int) -> Iterator[Document]:
    """Only pods with claims, as many as `pods` has, with their claims: what the controller is measured with.

    One pod in ten was given less than it asked for and has no record of that yet; a tenth of the templates is missing.
    """
    texts: dict[tuple[str, str], None] = {}
    for number in range(nodes):
        for place in range(PODS):
            profile = _wanted(number, place)[(number + place) % 10 == 0]
            pod = claiming_pod(number, place)
            yield pod
            yield claim_holding(number, place, [f"device-{place}"], profile)
            texts[pod["metadata"]["namespace"], _text(number, place)] = None
    for at, (space, text) in enumerate(texts):
        if at % 10:
            template = object_named(
                API_VERSION, "ResourceClaimTemplate", template_name(text), space, spec={"spec": {}}
            )
            template["metadata"]["labels"] = {"app.kubernetes.io/managed-by": "tessera-controller"}
            yield template


def as_written(pod: Document) -> Document:
    """A pod of a node as its owner wrote it."""
    metadata = {name: value for name, value in pod["metadata"].items() if name in ("name", "namespace")}
    spec = {name: value for name, value in pod["spec"].items() if name not in ("nodeName", "resourceClaims")}
    return {"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": spec}


def node_name(number: int) -> str:
    """The name of a node."""
    return f"gpu-{number:05d}"


def node(number: int) -> Document:
    """A node as it is listed."""
    name, kind = node_name(number), number % _KINDS_OF_NODES
    product = product_named(_product(number))
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "topology.kubernetes.io/zone": f"zone-{'abc'[number % 3]}",
        "example.com/pool": f"pool-{number % 17}",
        "example.com/rack": f"rack-{number // 20}",
        "nvidia.com/gpu.product": product.label,
        "nvidia.com/gpu.memory": str(product.memory_mib),
        "nvidia.com/gpu.count": str(CARDS),
        "nvidia.com/mig.strategy": "mixed",
        "nvidia.com/mig.config.state": "success",
    }
    allocatable = {"cpu": f"{180_000 + number}m", "memory": f"{2_000_000_000 + number}Ki", "pods": "110"}
    annotations: dict[str, str] = {}
    if kind == _KINDS_OF_NODES - 1:
        allocatable["nvidia.com/gpu"] = str(CARDS)
    elif has_operator(number):
        labels |= {
            "nvidia.com/gpu.deploy.mig-manager": "true",
            mig.PARTED_CONFIG: _configuration(_cuts(number)[0]),
        }
        allocatable |= {resource: str(count) for resource, count in layout_of(number).resources().items()}
    elif not has_dra(number):
        layout = layout_of(number)
        document = mig.MigDocument(mig.Format.RUNAI, {mig.SELECTED: entries_of(layout)})
        annotations[mig.RUNAI_CONFIG] = mig.write(document)
        if number % 48 == 0:  # operators differ in whether they tell what became of a layout
            annotations[MAPPING] = encode_mapping(mapping_of(layout, name))
        allocatable |= {resource: str(count) for resource, count in layout.resources().items()}
    taints = [_DEDICATED] if number % 20 == 4 else []
    if number % 53 == 7:
        taints.append({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"})
    return {
        **object_named("v1", "Node", name, labels=labels, annotations=annotations),
        "spec": {"taints": taints, "unschedulable": number % 53 == 7},
        "status": {
            "capacity": allocatable,
            "allocatable": allocatable,
            "conditions": [{"type": "Ready", "status": "False" if number % 211 == 3 else "True"}],
        },
    }


def has_dra(number: int) -> bool:
    return number % _KINDS_OF_NODES in (2, 6, 10)


def has_operator(number: int) -> bool:
    return number % _KINDS_OF_NODES in (4, 8)


def _configuration(cut: tuple[str, ...]) -> str:
    return "all-" + "-".join(cut)


@cache
def _configurations() -> str:
    """What mig-manager reads: every way to cut a card, on all cards; one of them is missing."""
    wishes = {
        _configuration(cut): tuple(Wish(MigProfile.parse(name)) for name in cut)
        for few in _CUTS.values()
        for cut in few[1:]
    }
    configs = {name: (LayoutEntry(None, mig_enabled=True, wishes=some),) for name, some in wishes.items()}
    return mig.write(mig.MigDocument(mig.Format.MIG_PARTED, configs))


def _product(number: int) -> str:
    return "H200" if number * 7 % 5 < 3 else "A100-80GB"


@cache
def _card(product: str, cut: tuple[str, ...]) -> CardLayout:
    return CardLayout.cut(product_named(product), [Wish(MigProfile.parse(name)) for name in cut])


@cache
def _cuts(number: int) -> tuple[tuple[str, ...], ...]:
    few = _CUTS[_product(number)]
    if has_operator(number):
        return (few[number // _KINDS_OF_NODES % len(few)],) * CARDS
    return (few[0],) * CARDS if number == 0 else tuple(random.Random(number).choices(few, k=CARDS))


def layout_of(number: int) -> NodeLayout:
    return NodeLayout(tuple(_card(_product(number), cut) for cut in _cuts(number)))


def devices_of(number: int) -> list[tuple[str, str]]:
    """The names and profiles of a node's devices; none of a node with whole GPUs."""
    if number % _KINDS_OF_NODES == _KINDS_OF_NODES - 1:
        return []
    return [
        (f"gpu-{card}-mig-{place}", profile)
        for card, cut in enumerate(_cuts(number))
        for place, profile in enumerate(cut)
    ]


# what DRA has


def _device_class(name: str, resource: str = "") -> Document:
    expression = own_expression(resource) if resource else f"device.driver == '{DRIVER}'"
    extended = {"extendedResourceName": resource} if resource else {}
    return object_named(
        API_VERSION,
        "DeviceClass",
        name,
        spec={"selectors": [{"cel": {"expression": expression}}], **extended},
    )


def _slice(number: int) -> Document:
    name = node_name(number)
    devices = [
        {"name": device, "attributes": {"type": {"string": "mig"}, "profile": {"string": profile}, "uuid": {"string": f"MIG-{name}-{device}"}}}
        for device, profile in devices_of(number)
    ]  # fmt: skip
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": devices}
    return object_named(API_VERSION, "ResourceSlice", f"{name}-gpus", spec=spec)


def claim_holding(
    number: int, place: int, devices: Iterable[str], profile: str, namespace: str = ""
) -> Document:
    """The claim of a pod on a node, with the devices that it was given."""
    results = [
        {
            "request": f"gpu-0/{profile.replace('.', '-')}",
            "driver": DRIVER,
            "pool": node_name(number),
            "device": device,
        }
        for device in devices
    ]
    pod, uid = pod_name(number, place), uid_of(number, place)
    space = namespace or _claiming_space(number, place)
    claim = object_named(API_VERSION, "ResourceClaim", f"{pod}-claim", space, spec={"devices": {}})
    claim["metadata"] |= {
        "annotations": {"resource.kubernetes.io/pod-claim-name": "tessera-gpu"},
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid, "controller": True}],
    }
    claim["status"] = {
        "allocation": {"devices": {"results": results}},
        "reservedFor": [{"resource": "pods", "name": pod, "uid": uid}],
    }
    return claim


def _wanted(number: int, place: int) -> tuple[str, str]:
    """What a pod with a claim asks for, and what would do in its place."""
    most, least = (("3g.71gb", "2g.35gb"), ("4g.40gb", "2g.20gb"), ("2g.20gb", "1g.10gb"))[
        (number + place) % 3
    ]
    return most, least


def _text(number: int, place: int) -> str:
    """The alternatives of a pod with a claim: some hundred different ones, as classes of several teams make them."""
    most, least = _wanted(number, place)
    return f"1*{most}={most}/team-{number % _CLASSES},{least}/{GENERAL_CLASS}"


# pods


def namespace_of(number: int) -> str:
    """One of the namespaces, again and again in turn."""
    return f"team-{number % _NAMESPACES}"


def _claiming_space(number: int, place: int) -> str:
    """Pods with the same alternatives are of one namespace."""
    return namespace_of((number + place) % 3 * _CLASSES + number % _CLASSES)


def pod_name(number: int, place: int) -> str:
    return f"trainer-{number}-{place}"


def uid_of(number: int, place: int) -> str:
    return f"{number:08x}-{place:04x}-4000-8000-000000000001"


def _running_pod(number: int, place: int, profile: str) -> Document:
    """One of five kinds for each profile, a third of them with a fallback; each kind is of one namespace."""
    whole = number % _KINDS_OF_NODES == _KINDS_OF_NODES - 1 and place < CARDS
    resource = MIG_PREFIX + profile if profile else "nvidia.com/gpu" if whole else ""
    kind = (number + place) % 5
    space = namespace_of(kind * len(_PROFILES) + (_PROFILES.index(profile) if profile else 0))
    uid, home = uid_of(number, place), node_name(number)
    found = pod_asking(pod_name(number, place), space, uid, resource, str(1 + kind), home)
    if profile in ("1g.10gb", "1g.18gb") and place % 3 == 0:
        asked = {"1g.10gb": "2g.20gb", "1g.18gb": "2g.35gb"}[profile]
        found["metadata"]["annotations"] = {_RECORD: f"{asked}->{profile}"}
    return found


def claiming_pod(number: int, place: int, text: str = "", namespace: str = "") -> Document:
    """A pod on a node whose request became a claim; by default for one of two profiles."""
    space, text = namespace or _claiming_space(number, place), text or _text(number, place)
    found = pod_asking(pod_name(number, place), space, uid_of(number, place), "", "2", node_name(number))
    ticket = _TICKETS.ticket(found["metadata"]["namespace"], text)
    found["metadata"]["annotations"] = {ALTERNATIVES_ANNOTATION: text, TICKET_ANNOTATION: ticket}
    found["spec"]["resourceClaims"] = [
        {"name": "tessera-gpu", "resourceClaimTemplateName": template_name(text)}
    ]
    found["spec"]["containers"][0]["resources"]["claims"] = [{"name": "tessera-gpu", "request": "gpu-0"}]
    return found


def _waiting_pod(number: int) -> Document:
    """A pod that no node has: for want of a device, or of a node that it may go to."""
    kind = number % _QUEUES
    profile = (*_PROFILES, "7g.141gb", "3g.71gb")[kind * 5 % (len(_PROFILES) + 2)]
    selector = (
        {},
        {"topology.kubernetes.io/zone": f"zone-{'abc'[kind % 3]}"},
        {"example.com/pool": f"pool-{kind % 17}"},
        {"example.com/team": "none"},
    )[kind % 4]
    cpu = "400" if kind % 10 == 9 else str(4 + kind % 4)
    name, uid = f"queued-{number}", uid_of(number, PODS - 1)
    return pod_asking(name, namespace_of(kind), uid, MIG_PREFIX + profile, cpu, "", selector)


def plugin_pod(number: int) -> Document:
    found = pod_asking(
        f"device-plugin-{number}", _INSTALLED, uid_of(number, PODS), "", "1", node_name(number)
    )
    found["metadata"]["labels"] = {"app.kubernetes.io/component": "device-plugin"}
    found["metadata"]["ownerReferences"] = [
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "name": "device-plugin",
            "uid": "d",
            "controller": True,
        }
    ]
    return found


def pod_asking(
    name: str,
    space: str,
    uid: str,
    resource: str,
    cpu: str,
    home: str,
    selector: Document | None = None,
    number: int = 1,
) -> Document:
    """A pod that asks for some devices of a resource, and runs on its home, or waits for one."""
    amounts = {"cpu": cpu, "memory": "16Gi", **({resource: str(number)} if resource else {})}
    waits = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": f"0 nodes are available: Insufficient {resource}.",
    }
    found = object_named("v1", "Pod", name, space, labels={"app": "trainer"})
    found["metadata"] |= {"uid": uid, "creationTimestamp": "2026-11-15T08:00:00Z"}
    found["spec"] = {
        **({"nodeName": home} if home else {}),
        **({"nodeSelector": selector} if selector else {}),
        "restartPolicy": "Never",
        "containers": [
            {"name": "main", "image": "registry.example.com/research/main:2026.11.3", "resources": {"requests": amounts, "limits": dict(amounts)}}
        ],
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    }  # fmt: skip
    found["status"] = {
        "phase": "Running" if home else "Pending",
        "conditions": [{"type": "PodScheduled", "status": "True"} if home else waits],
    }
    return found


def object_named(version: str, kind: str, name: str, namespace: str = "", *, labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None, **more: object) -> Document:  # fmt: skip
    metadata: Document = {"name": name, "uid": f"{kind}-{name}", "creationTimestamp": "2026-03-01T10:00:00Z"}
    metadata |= {"namespace": namespace} if namespace else {}
    metadata |= {"labels": labels} if labels else {}
    metadata |= {"annotations": annotations} if annotations else {}
    return {"kind": kind, "apiVersion": version, "metadata": metadata, **more}
