"""The API server takes every pod that is bridged, and every template: random pods, compared with the pure decision."""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from e2e import dra
from e2e.cluster import ApiError, Client, pods_path
from e2e.cluster.api import Object
from e2e.command import Running
from e2e.test_random_pods import amounts, as_sent, defaulted, every_container
from e2e.webhook import Webhook, registered
from tessera.core.admission.outcome import Denied
from tessera.core.admission.view.offers import Offers
from tessera.core.requests.alternatives import ALTERNATIVES_ANNOTATION, own_expression, read, template_name
from tessera.core.requests.tickets import TICKET_ANNOTATION
from tessera.kube.view.dra import DraObjects, put_served
from tessera.protocol.configuration import webhook as config
from tessera.protocol.dra.objects import template_spec
from tessera.protocol.kubernetes.nodes import decode_node, node_of
from tessera.webhook.offline import admit

PODS = 300
MIG = "nvidia.com/mig-"
HAS = {"1g.10gb": 24, "1g.10gb+me": 8, "2g.20gb": 12, "3g.30gb": 4, "4g.40gb": 4, "": 4}  # "": whole GPUs
ASKED = ["1g.10gb", "1g.10gb.me", "2g.20gb", "3g.30gb", "7g.80gb"]
NODE = "random-bridge"
CONFIG = """
fallback: {dra: first-available, chains: {7g.80gb: [gpu, 2g.20gb, 1g.10gb]}, maxWholeGPUs: 2}
injection:
  resourceMap:
    V100: {nvidia.com/mig-2g.20gb: {resourceList: [{name: cpu, coefficient: 1}, {name: memory, coefficient: 2, unit: Gi}], annotations: {a.b/c: d}}}
"""


@contextmanager
def served(cluster: Client) -> Iterator[Offers]:
    """A node whose devices DRA serves, with the chart's classes; as offers too. All of it goes at the end."""
    with ExitStack() as made:

        def create(path: str, body: Object) -> Object:
            found: Object = cluster.api.create(path, body)
            made.callback(cluster.api.delete, f"{path}/{body['metadata']['name']}")
            return found

        cluster.add_node(NODE, labels={"zone": "bridge"})
        made.callback(cluster.remove_node, NODE)
        attribute = {one: {"profile": {"string": one}, "type": {"string": "mig"}} for one in HAS}
        attribute[""] = {"type": {"string": "gpu"}}
        devices = [
            {"name": f"d{kind}-{number}", "attributes": attribute[one]}
            for kind, one in enumerate(HAS)
            for number in range(HAS[one])
        ]
        pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": dra.DRIVER, "nodeName": NODE, "pool": pool, "devices": devices}
        slices = [create(dra.SLICES, {"metadata": {"name": NODE}, "spec": spec})]
        names = [MIG + one.replace("+", ".") if one else "nvidia.com/gpu" for one in HAS]
        wanted = {
            f"random-{number}": (own_expression(name), {"extendedResourceName": name})
            for number, name in enumerate(names)
        }
        wanted["tessera-any"] = f"device.driver == '{dra.DRIVER}'", {}
        classes = [
            create(
                dra.CLASSES,
                {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": e}}], **more}},
            )
            for name, (e, more) in wanted.items()
        ]
        runtime = {
            "metadata": {"name": NODE},
            "handler": "x",
            "overhead": {"podFixed": {"cpu": "10m", "memory": "8Mi"}},
        }
        create("/apis/node.k8s.io/v1/runtimeclasses", runtime)
        nodes = cluster.api.get("/api/v1/nodes")["items"]
        offers = Offers(node_of(decode_node(json.dumps(one).encode())) for one in nodes)
        served = DraObjects()
        for entry, found in zip(served.table().values(), (classes, slices), strict=True):
            entry.take_all([entry.decode(json.dumps(one).encode()) for one in found])
        put_served(offers, served)
        yield offers


def random_pod(dice: random.Random, name: str) -> Object:
    """A pod that Kubernetes itself would accept, with profiles in all sorts of places and words."""
    several = dice.sample(
        ASKED, dice.choice([1, 1, 1, 2, 3])
    )  # else no init container has what a container has
    usual = dice.choice([1, 1, 1, 2])

    def container(number: int, kind: str) -> Object:
        text = dice.choice(["{}", "{}", "{}000m", "{}e0", "{}.0"])
        number_of = {MIG + one: usual for one in dice.sample(several, dice.choice([0, 1, 1, len(several)]))}
        gpus: dict[str, Any] = {one: text.format(count) for one, count in number_of.items()}
        if dice.random() < 0.1:
            gpus[MIG + dice.choice(ASKED)] = "0"
        plain = {one: "10m" if one == "cpu" else "8Mi" for one in ("cpu", "memory") if dice.random() < 0.4}
        long = "x" * (63 - len(f"{kind}{number}")) if dice.random() < 0.1 else ""
        shapes: list[Object] = [
            {"limits": {**gpus, **plain}},
            {"requests": {**gpus, **plain}},
            {"requests": {**gpus, **plain}, "limits": gpus},
            {},
        ]
        one: Object = {"name": f"{kind}{number}{long}", "image": "busybox"}
        return one | {"resources": dice.choice(shapes)}

    containers = dice.choice([1, 1, 2, 3, 12])
    spec: Object = {
        "containers": [container(number, "c") for number in range(containers)],
        "nodeSelector": {"zone": "bridge"},
    }
    if dice.random() < 0.4:
        spec["initContainers"] = [
            container(number, "i") | ({"restartPolicy": "Always"} if dice.random() < 0.4 else {})
            for number in range(dice.randint(1, 3))
        ]
    if dice.random() < 0.3:
        spec["resources"] = {"requests": {"cpu": "2", "memory": "8Gi"}}
        spec["resources"]["limits"] = {"cpu": "64", "memory": "64Gi"}
    extras: list[Object] = [
        {"hostNetwork": True},
        {"runtimeClassName": NODE},
        {"priority": 0},
        {"schedulerName": "other"},
        {"activeDeadlineSeconds": 5},
        {"priorityClassName": "system-node-critical"},
    ]
    if dice.random() < 0.4:
        spec |= dice.choice(extras)
    if dice.random() < 0.15:
        own = dice.choice(["tessera-gpu", "own"])
        spec["resourceClaims"] = [{"name": own, "resourceClaimTemplateName": "t"}]
        spec["containers"][0]["resources"] = {
            **spec["containers"][0]["resources"],
            "claims": [{"name": own}],
        }
    annotations = {}
    if dice.random() < 0.3:
        annotations["example.com/large"] = "~/" * dice.choice([1, 50_000])
    if dice.random() < 0.2:
        annotations["task.bkbcs.tencent.com/gpu-type"] = "V100"
    if dice.random() < 0.2:
        annotations["gpu-webhook.k8s.io/fallback-policy"] = dice.choice(["never", "smaller", "larger", "any"])
    if dice.random() < 0.2:
        annotations["gpu-webhook.k8s.io/fallback"] = dice.choice(["junk", "7g.80gb->gpu", "2g.20gb->1g.10gb"])
    if dice.random() < 0.1:
        annotations[ALTERNATIVES_ANNOTATION] = dice.choice(
            ["junk", "1*2g.20gb=2g.20gb/a,1g.10gb/a"]
        )  # of another pod
    metadata: Object = {"name": name} | ({"annotations": annotations} if annotations else {})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def claims_of(document: Object) -> list[Any]:
    """The pod's claims, and each container's."""
    return [
        document["spec"].get("resourceClaims"),
        [(one.get("resources") or {}).get("claims") for one in every_container(document)],
    ]


def sent(cluster: Client, namespace: str, document: Object) -> Object:
    """The pod as the API server would store it."""
    found: Object = cluster.api.create(pods_path(namespace), document, dryRun="All")
    return found


def again(answer: Object) -> Object:
    """A pod as it was stored, to be created once more."""
    metadata = {name: answer["metadata"][name] for name in ("name", "annotations")}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": answer["spec"]}


def in_scopes(cluster: Client, namespace: str, is_on: Callable[[], bool]) -> None:
    """Kubernetes charges no claim to a quota with scopes, however full it is: so a pod that it counts has none."""
    quotas = f"/api/v1/namespaces/{namespace}/resourcequotas"
    spec = {"hard": {f"requests.{MIG}2g.20gb": "1"}, "scopes": ["NotTerminating"]}
    cluster.api.create(quotas, {"metadata": {"name": "scoped"}, "spec": spec})
    cluster.wait(lambda: not is_on(), what="a request that stays what it is")
    four = {"name": "r", "exactly": {"deviceClassName": "random-2", "count": 4}}  # of 2g.20gb
    claim = {"metadata": {"name": "c"}, "spec": {"devices": {"requests": [four]}}}
    cluster.api.create(f"{dra.RESOURCES}/namespaces/{namespace}/resourceclaims", claim, dryRun="All")
    cluster.api.delete(f"{quotas}/scoped")


def test_bridged_pods_and_templates_are_accepted(
    own_control_plane: Client, namespace: str, tmp_path: Path
) -> None:
    """Each pod comes out as `tessera admit` says, admitted again it stays as it is, and its template is accepted."""
    cluster, policy, dice = own_control_plane, config.parse(CONFIG).policy, random.Random(18)
    options = (f"--kubeconfig={cluster.kubeconfig}", f"--tessera-namespace={namespace}", "--log-format=text")
    probe = {"metadata": {"name": "probe"}, "spec": {"nodeSelector": {"zone": "bridge"}, "containers": [
        {"name": "c", "image": "x", "resources": {"limits": {MIG + "2g.20gb": "1"}}}]}}  # fmt: skip

    def is_on() -> bool:
        try:
            return "resourceClaims" in sent(cluster, namespace, probe)["spec"]
        except ApiError:
            return False

    ways: Counter[str] = Counter()
    texts: set[str] = set()
    with (
        served(cluster) as offers,
        Webhook(cluster, tmp_path, f"--tessera-namespace={namespace}", config=CONFIG) as webhook,
        registered(cluster, webhook, failurePolicy="Fail"),
        Running("controller", *options, log=tmp_path / "controller.log"),
    ):
        cluster.wait(is_on, what="requests become claims")
        for number in range(PODS):
            document = random_pod(dice, f"p{number}")
            ours = admit(defaulted(as_sent(document)), offers, policy, namespace)
            (reviewed,) = ours.reviewed.values()
            decision = reviewed.would
            if isinstance(decision, Denied):
                ways["rejected"] += 1
                with pytest.raises(ApiError) as refused:
                    sent(cluster, namespace, document)
                assert decision.message in refused.value.message
                continue
            answer = sent(cluster, namespace, document)
            if claims_of(answer) != claims_of(ours.after):  # did a slow machine let the Lease run out?
                cluster.wait(is_on, what="requests become claims again")
                answer = sent(cluster, namespace, document)
            assert claims_of(answer) == claims_of(ours.after), document
            assert amounts(answer) == amounts(ours.after), document
            annotations = dict(answer["metadata"].get("annotations") or {})
            assert (annotations.pop(TICKET_ANNOTATION, None) is not None) == (decision.conversion == "claim")
            assert annotations == (ours.after["metadata"].get("annotations") or {})
            ways[decision.conversion] += 1
            if decision.conversion == "claim":
                texts.add(answer["metadata"]["annotations"][ALTERNATIVES_ANNOTATION])
                twice = sent(cluster, namespace, again(answer))
                assert (claims_of(twice), amounts(twice)) == (claims_of(answer), amounts(answer)), document
                assert twice["metadata"]["annotations"] == answer["metadata"]["annotations"]
        for text in texts:
            body = {"metadata": {"name": template_name(text)}, "spec": template_spec(read(text))}
            path = f"{dra.RESOURCES}/namespaces/{namespace}/resourceclaimtemplates"
            stored = cluster.api.create(path, body, dryRun="All")
            assert stored["spec"]["spec"] == body["spec"]["spec"], "the API server adds nothing to it"
        in_scopes(cluster, namespace, is_on)
        assert [line for line in webhook.lines() if line["level"] == "error"] == []
    assert ways["claim"] > PODS / 4, ways
    assert len(texts) > 10
    print(ways)
