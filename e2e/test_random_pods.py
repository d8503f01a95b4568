"""A patch always applies: thousands of random GPU pods through the real API server, compared with the pure decision."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import ApiError, Client, pods_path
from e2e.cluster.api import Object
from e2e.webhook import Webhook, registered
from tessera.core.admission.outcome import Denied
from tessera.core.admission.policy import Policy
from tessera.core.admission.view.offers import Offers
from tessera.core.kubernetes.quantity import Quantity
from tessera.protocol.configuration import webhook as config
from tessera.protocol.kubernetes.nodes import decode_node, node_of
from tessera.webhook.offline import admit

PODS = 2000
PROFILES = ["1g.10gb", "1g.10gb.me", "1g.20gb", "2g.20gb", "3g.30gb", "7g.80gb"]
GPUS = [*(f"nvidia.com/mig-{profile}" for profile in PROFILES), "nvidia.com/gpu"]
CONFIG = """
fallback: {chains: {7g.80gb: [gpu, 1g.10gb]}, minMemoryFraction: 0.3, maxWholeGPUs: 2, passingTaints: [example.com/*]}
injection:
  resourceMap:
    V100:
      nvidia.com/gpu: {resourceList: [{name: cpu, coefficient: 3.7}, {name: memory, coefficient: 7, unit: Gi}, {name: nvidia.com/shm, coefficient: 2}], annotations: {a.b/c: d}}
      nvidia.com/mig-1g.10gb: {resourceList: [{name: cpu, coefficient: 1}, {name: ephemeral-storage, coefficient: 10, unit: G}]}
"""  # fmt: skip
NODES: dict[str, tuple[dict[str, int], str, str]] = {  # what it has, its zone, its taint
    "random-a": ({"nvidia.com/mig-1g.10gb": 4, "nvidia.com/mig-2g.20gb": 2}, "a", ""),
    "random-b": ({"nvidia.com/mig-1g.20gb": 3, "nvidia.com/gpu": 2}, "b", "karpenter.sh/disrupted"),
    "random-c": ({"nvidia.com/mig-3g.30gb": 1, "nvidia.com/mig-1g.10gb.me": 1}, "c", "example.com/upgrading"),
    "random-d": ({"nvidia.com/mig-7g.80gb": 1, "nvidia.com/mig-1g.10gb.shared": 8}, "c", "dedicated"),
}


def random_pod(dice: random.Random, name: str) -> Object:
    """A pod that Kubernetes itself would accept, with GPUs in all sorts of places."""

    def container(kind: str) -> Object:
        gpus = {
            resource: str(dice.randint(1, 3)) for resource in dice.sample(GPUS, dice.choice([0, 1, 1, 1, 2]))
        }
        plain = {
            resource: amount
            for resource, amount in (("cpu", "500m"), ("memory", "1Gi"))
            if dice.random() < 0.4
        }
        one: Object = {"name": kind, "image": "busybox"}
        match dice.randint(0, 3):
            case 0:
                one["resources"] = {"limits": {**gpus, **plain}}
            case 1:
                one["resources"] = {"requests": {**gpus, **plain}}
            case 2:
                one["resources"] = {"requests": {**gpus, **plain}, "limits": gpus}
            case _:
                pass
        return one

    spec: Object = {"containers": [container(f"c{i}") for i in range(dice.randint(1, 3))]}
    if dice.random() < 0.3:
        spec["initContainers"] = [
            container("i0") | ({"restartPolicy": "Always"} if dice.random() < 0.5 else {})
        ]
    if dice.random() < 0.3:
        spec["nodeSelector"] = {"zone": dice.choice("abc")}
    if dice.random() < 0.4:  # four containers at most, each with 500m and 1Gi: enough for them as they come
        least = {"cpu": dice.choice(["2", "8", "40"]), "memory": dice.choice(["4Gi", "14Gi", "64Gi"])}
        sections: Object = {"limits": dict(least), "requests": dict(least)}
        for section in sections.values():
            section.pop(dice.choice(["cpu", "memory", "neither"]), None)
        spec["resources"] = {
            section: sections[section] for section in dice.sample(["limits", "requests"], dice.randint(1, 2))
        }
    spec |= random_place(dice)
    annotations = {}
    if dice.random() < 0.4:
        annotations["task.bkbcs.tencent.com/gpu-type"] = dice.choice(["V100", "T4"])
    if dice.random() < 0.3:
        annotations["gpu-webhook.k8s.io/fallback-policy"] = dice.choice(["never", "smaller", "larger", "any"])
    if dice.random() < 0.2:
        annotations["gpu-webhook.k8s.io/min-memory"] = dice.choice(["10Gi", "20Gi", "40Gi"])
    metadata: Object = {"name": name} | ({"annotations": annotations} if annotations else {})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def random_place(dice: random.Random) -> Object:
    """Where a pod may go, beside its selector: taints that it tolerates, and the one node of a DaemonSet's pod."""
    place: Object = {}
    if dice.random() < 0.2:
        place["tolerations"] = [{"key": "dedicated", "operator": "Exists"}]
    match dice.randint(0, 9):
        case 0:
            field = {"key": "metadata.name", "operator": "In", "values": [dice.choice([*NODES, "none"])]}
            required = {"nodeSelectorTerms": [{"matchFields": [field]}]}
            place["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
        case 1:
            place["nodeName"] = dice.choice([*NODES, "none"])
        case _:
            pass
    return place


def as_sent(document: Object) -> Object:
    """As the API server writes it: the keys of every map in order."""
    sent: Object = json.loads(json.dumps(document, sort_keys=True))
    return sent


def defaulted(document: Object) -> Object:
    """As the API server defaults it before webhooks are called: a limit without a request is a request."""
    for one in every_container(document):
        resources = one.get("resources")
        if resources and "limits" in resources:
            resources["requests"] = dict(
                sorted({**resources["limits"], **resources.get("requests", {})}.items())
            )
    return document


def every_container(document: Object) -> list[Any]:
    return [*document["spec"].get("initContainers", []), *document["spec"]["containers"]]


def amounts(document: Object) -> list[dict[str, dict[str, Quantity]]]:
    """Each container's resources, by value."""
    return [
        {
            section: {name: Quantity.parse(text) for name, text in found.items()}
            for section, found in (one.get("resources") or {}).items()
            if found and section != "claims"
        }
        for one in every_container(document)
    ]


def test_a_patch_always_applies(own_control_plane: Client, namespace: str, tmp_path: Path) -> None:
    """None is refused because of our patch, and every pod comes out as `tessera admit` says."""
    cluster, policy = own_control_plane, config.parse(CONFIG).policy
    for name, (has, zone, taint) in NODES.items():
        taints = [{"key": taint, "effect": "NoSchedule"}] if taint else []
        cluster.add_node(name, allocatable=has, labels={"zone": zone}, taints=taints)
    try:
        with (
            Webhook(cluster, tmp_path, config=CONFIG) as webhook,
            registered(cluster, webhook, failurePolicy="Fail"),
        ):
            listed = cluster.api.get("/api/v1/nodes")["items"]
            offers = Offers(node_of(decode_node(json.dumps(one).encode())) for one in listed)
            counted = {"admitted": 0, "changed": 0, "rejected": 0}
            dice = random.Random(20)
            for i in range(PODS):
                document = random_pod(dice, f"p{i}")
                check(cluster, namespace, document, offers, policy, counted)
            assert min(counted.values()) > PODS / 20, counted
            faults = [line for line in webhook.lines() if line["level"] == "error"]
            assert faults == []
    finally:
        for name in NODES:
            cluster.remove_node(name)


def check(
    cluster: Client, namespace: str, document: Object, offers: Offers, policy: Policy, counted: dict[str, int]
) -> None:
    """One pod: what the API server says to it is what the pure decision says."""
    ours = admit(defaulted(as_sent(document)), offers, policy, namespace)
    (reviewed,) = ours.reviewed.values()
    decision = reviewed.decision
    if isinstance(decision, Denied):
        with pytest.raises(ApiError) as refused:
            cluster.api.create(pods_path(namespace), document, dryRun="All")
        assert decision.message in refused.value.message
        counted["rejected"] += 1
        return
    answer = cluster.api.create(pods_path(namespace), document, dryRun="All")
    assert amounts(answer) == amounts(ours.after), document
    annotations = answer["metadata"].get("annotations", {})
    assert annotations == (ours.after["metadata"].get("annotations") or {})
    counted["changed" if "gpu-webhook.k8s.io/fallback" in annotations else "admitted"] += 1
