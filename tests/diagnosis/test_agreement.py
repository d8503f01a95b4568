"""`why`, `doctor`, `admit`, the dashboard and the scheduler agree about every pod, on clusters of all kinds; and what `why` says would help does."""

import asyncio
import copy
import json
from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tessera.core.admission.outcome import Denied, Patched
from tessera.core.admission.policy import Policy
from tessera.core.requests.alternatives import CLAIM, read, request_name, template_name
from tessera.dashboard.reasons import asking
from tessera.diagnosis.diagnosis import Diagnosis, diagnose
from tessera.diagnosis.gather import Gatherer
from tessera.diagnosis.nodes import Lack
from tessera.diagnosis.remedy import (
    Change,
    CreatedAgain,
    NodeFreed,
    NodeOffers,
    NodeOpened,
    PodAsks,
    PodsEnd,
    Remedy,
)
from tessera.doctor.examination import examine
from tessera.doctor.findings import short
from tessera.doctor.gather import Observer
from tessera.doctor.observations import Names, Observations
from tessera.kube.view.policy import PolicySource, UsedPolicy
from tessera.kube.watch.table import Key
from tessera.protocol.admission.created import as_created
from tessera.protocol.dra.objects import template_spec
from tessera.simulation.control_plane import kinds
from tessera.simulation.control_plane.apiserver import ApiServer
from tessera.simulation.control_plane.claims import ClaimController
from tessera.simulation.control_plane.events import Events
from tessera.simulation.control_plane.scheduler import Scheduler
from tessera.simulation.control_plane.store import Document, Store
from tessera.solver import highs
from tessera.webhook.offline import admit, admit_again
from tests.build import MIG, bridged
from tests.diagnosis.clusters import CLASSES, QUOTAS, REPLICA_SETS, node, pod
from tests.diagnosis.in_process import client_of
from tests.diagnosis.test_devices import device_class
from tests.inventory.objects import config_map, policy

PROFILES = ("1g.10gb", "2g.20gb", "3g.30gb")
POLICY = "gpu-webhook.k8s.io/fallback-policy"
RECORD = "gpu-webhook.k8s.io/fallback"
WHEN = "gpu-webhook.k8s.io/fallback-when"
CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
OTHERS = {"key": "team", "value": "other", "effect": "NoSchedule"}
H200 = {
    "nvidia.com/gpu.product": "NVIDIA-H200",
    "nvidia.com/gpu.memory": "71680",
    "nvidia.com/gpu.count": "1",
}
# what requests are converted to: one alternative, or the smaller one where the larger is not free
ALTERNATIVES = ["1*2g.20gb=2g.20gb/of-2g-20gb,1g.10gb/of-1g-10gb", "1*1g.10gb=1g.10gb/of-1g-10gb"]
LAYOUTS = [{"1g.10gb": 3, "3g.30gb": 1}, {"2g.20gb": 2, "3g.30gb": 1}, {"7g.70gb": 1}, {"1g.10gb": 7}]
MANAGED = "nvidia.com/gpu.deploy.mig-manager"
POLICIES = kinds.ResourceType("nvidia.com/v1", "clusterpolicies", "ClusterPolicy", namespaced=False)
# what mig-manager has: these layouts
CONFIGURATIONS = "version: v1\nmig-configs:\n" + "".join(
    f"  layout-{number}:\n  - devices: all\n    mig-enabled: true\n    mig-devices: {json.dumps(counts)}\n"
    for number, counts in enumerate(LAYOUTS)
)
OPERATOR = {POLICIES: [policy()], kinds.CONFIG_MAPS: [config_map(CONFIGURATIONS)]}
Counts = dict[str, int]
Cluster = dict[kinds.ResourceType, list[Document]]


# Clusters


def layout_text(counts: Counts) -> str:
    devices = ", ".join(name for name, number in counts.items() for _ in range(number))
    return f"version: v1\nmig-configs:\n  selected:\n  - devices: all\n    mig-enabled: true\n    mig-devices: [{devices}]\n"


@st.composite
def nodes(draw: st.DrawFn, name: str) -> Document:
    """A node: cut by a layout or not, which it may not have taken; closed or not; with devices that are unhealthy or not offered at all.

    A layout is in its annotation, or mig-manager makes it and it has none.
    """
    taints = draw(st.sampled_from([[], [], [CORDON], [OTHERS], [CORDON, OTHERS]]))
    labels = {"zone": draw(st.sampled_from("ab"))}
    annotations = {}
    if draw(st.booleans()):
        counts = draw(st.sampled_from(LAYOUTS))
        state = draw(st.sampled_from(["success", "success", "pending", "failed"]))
        desired = counts if state == "success" else draw(st.sampled_from(LAYOUTS))
        if draw(st.booleans()):
            annotations["run.ai/mig.config"] = layout_text(desired)
        else:
            state = "rebooting" if state == "pending" and draw(st.booleans()) else state
            configured = draw(st.sampled_from([f"layout-{LAYOUTS.index(desired)}", "gone"]))
            labels |= {"nvidia.com/mig.config": configured, MANAGED: "true"}
        labels |= {**H200, "nvidia.com/mig.config.state": state}
    else:
        counts = draw(st.dictionaries(st.sampled_from(PROFILES), st.integers(0, 2), max_size=3))
    has = dict(counts)
    if draw(st.integers(0, 4)) == 0 and has:  # all of them, or one kind
        lost = draw(st.sampled_from([list(has), list(has)[:1]]))
        has = {key: 0 if key in lost else number for key, number in has.items()}
    one = node(
        name,
        has,
        capacity=counts,
        cpu=draw(st.sampled_from(["2", "8"])),
        taints=taints,
        labels=labels,
        annotations=annotations,
    )
    one["status"]["allocatable"]["pods"] = draw(st.sampled_from(["2", "110"]))
    return one


@st.composite
def waiting(draw: st.DrawFn, name: str) -> Document:
    """A pod without a node."""
    asks = draw(st.dictionaries(st.sampled_from(PROFILES), st.integers(1, 2), min_size=1, max_size=2))
    spec: Document = {}
    if draw(st.booleans()):
        spec["nodeSelector"] = {"zone": draw(st.sampled_from("ab"))}
    if draw(st.booleans()):
        spec["tolerations"] = [{"key": "team", "operator": "Exists"}]
    if draw(st.integers(0, 7)) == 0:
        spec["schedulingGates"] = [{"name": "kueue"}]
    annotations = draw(
        st.sampled_from(
            [
                {},
                {},
                {POLICY: "never"},
                {POLICY: "smaller"},
                {RECORD: "3g.30gb->1g.10gb,2g.20gb->1g.10gb"},
                {RECORD: "3g.30gb->2g.20gb"},
            ]
        )
    )
    cpu = draw(st.sampled_from(["1", "1", "3"]))
    return pod(name, asks, cpu=cpu, spec=spec, annotations=annotations)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Up to three nodes, some pods on them as far as they have room, and pods that wait."""
    every = [draw(nodes(f"n{number}")) for number in range(draw(st.integers(1, 3)))]
    pods = [draw(waiting(f"w{number}")) for number in range(draw(st.integers(1, 2)))]
    for number in range(draw(st.integers(0, 5))):
        on = draw(st.sampled_from(every))
        asks = draw(st.sampled_from([{name: 1} for name in PROFILES] + [{}]))
        one = pod(f"h{number}", asks, on=on["metadata"]["name"], cpu=draw(st.sampled_from(["500m", "1"])))
        if _fits(one, on, pods):
            pods.append(one)
    space = {
        "metadata": {
            "name": "team",
            "labels": draw(st.sampled_from([{}, {}, {"gpu-webhook": "observe"}])),
            "annotations": draw(st.sampled_from([{}, {}, {POLICY: "larger"}])),
        }
    }
    hard = f"requests.{MIG}1g.10gb"
    quota = {"metadata": {"name": "gpus"}, "status": {"hard": {hard: "2"}, "used": {hard: "2"}}}
    found = {kinds.NODES: every, kinds.PODS: pods, kinds.NAMESPACES: [space], **OPERATOR}
    return {**found, QUOTAS: [quota]} if draw(st.integers(0, 3)) == 0 else found


@st.composite
def served_by_dra(draw: st.DrawFn) -> Cluster:
    """Nodes whose devices DRA serves: some are held by pods that run, some are free; some requests were converted to claims."""
    every, slices = [], []
    for number in range(draw(st.integers(1, 2))):
        name = f"n{number}"
        taints = draw(st.sampled_from([[], [], [CORDON], [OTHERS]]))
        # a device plugin was there a moment ago: the kubelet remembers what it had
        remembered = draw(st.dictionaries(st.sampled_from(PROFILES), st.integers(1, 3), max_size=2))
        gone = dict.fromkeys(remembered, 0)
        labels = {"tessera.dev/devices": "dra"}
        every.append(node(name, gone, capacity=remembered, taints=taints, labels=labels))
        profiles = draw(st.lists(st.sampled_from(PROFILES[:2]), max_size=3))
        attributes = ({"profile": {"string": one}, "resource": {"string": MIG + one}} for one in profiles)
        devices = [{"name": f"d{at}", "attributes": one} for at, one in enumerate(attributes)]
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": "gpu.tessera.dev", "nodeName": name, "pool": pool, "devices": devices}
        slices.append({"metadata": {"name": name}, "spec": spec})
    classes = [
        device_class(f"of-{one.replace('.', '-')}", stands_for=MIG + one, profile=one) for one in PROFILES[:2]
    ]
    pods = []
    for number in range(3):
        if draw(st.booleans()):
            pods.append(pod(f"p{number}", {draw(st.sampled_from(PROFILES[:2])): 1}))
        else:
            pods.append(converted(f"p{number}", draw(st.sampled_from(ALTERNATIVES))))
    return {
        kinds.NODES: every,
        kinds.RESOURCE_SLICES: slices,
        kinds.DEVICE_CLASSES: classes,
        kinds.RESOURCE_CLAIM_TEMPLATES: [
            {"metadata": {"name": template_name(text)}, "spec": template_spec(read(text))}
            for text in ALTERNATIVES
        ],
        kinds.PODS: pods,
        kinds.NAMESPACES: [{"metadata": {"name": "team"}}],
    }


@st.composite
def full_cards(draw: st.DrawFn) -> Cluster:
    """One or two nodes that are cut as their layouts say, with a pod on every slice, or on all but one; and a pod that waits."""
    every, pods = [], [pod("w", {draw(st.sampled_from(PROFILES)): draw(st.integers(1, 2))})]
    for name in ("n0", "n1")[: draw(st.integers(1, 2))]:
        counts = draw(st.sampled_from(LAYOUTS))
        labels, annotations = {**H200, "nvidia.com/mig.config.state": "success"}, {}
        if draw(st.booleans()):
            annotations = {"run.ai/mig.config": layout_text(counts)}
        else:
            labels |= {"nvidia.com/mig.config": f"layout-{LAYOUTS.index(counts)}", MANAGED: "true"}
        every.append(node(name, counts, labels=labels, annotations=annotations))
        slices = [profile for profile, number in counts.items() for _ in range(number)]
        held = slices[draw(st.integers(0, 1)) :]
        pods += [pod(f"{name}-{number}", {profile: 1}, on=name) for number, profile in enumerate(held)]
    space = {kinds.NAMESPACES: [{"metadata": {"name": "team"}}]}
    return {kinds.NODES: every, kinds.PODS: pods, **space, **OPERATOR}


@st.composite
def siblings_under_a_quota(draw: st.DrawFn) -> Cluster:
    """A ReplicaSet that wants three pods and has one or two, in a namespace with a quota that counts them."""
    asked = draw(st.sampled_from(PROFILES[:2]))
    counts = draw(st.dictionaries(st.sampled_from(PROFILES), st.integers(1, 3), min_size=1))
    given = asked if asked in counts else PROFILES[0]
    record = {} if given == asked else {RECORD: f"{asked}->{given}"}
    owner = {"kind": "ReplicaSet", "name": "web", "controller": True}
    own = [
        pod(
            f"web-{number}",
            {given: 1},
            on=draw(st.sampled_from(["", "n0"])),
            annotations=record,
            metadata={"ownerReferences": [dict(owner)]},
        )
        for number in range(draw(st.integers(1, 2)))
    ]
    others = [pod(f"h{number}", {PROFILES[0]: 1}) for number in range(draw(st.integers(0, 1)))]
    used = Counter(name for one in (*own, *others) for name in _requests(one) if name.startswith(MIG))
    hard = {f"requests.{MIG}{name}": str(draw(st.integers(1, 3))) for name in PROFILES[:2]}
    status = {"hard": hard, "used": {name: str(used[name.removeprefix("requests.")]) for name in hard}}
    template = pod("x", {asked: 1}, annotations=draw(st.sampled_from([{}, {}, {POLICY: "smaller"}])))
    spec = {"replicas": 3, "template": {"metadata": template["metadata"], "spec": template["spec"]}}
    return {
        kinds.NODES: [node("n0", counts)],
        kinds.PODS: [*own, *others],
        kinds.NAMESPACES: [{"metadata": {"name": "team"}}],
        QUOTAS: [{"metadata": {"name": "gpus"}, "status": status}],
        REPLICA_SETS: [{"metadata": {"name": "web"}, "spec": spec}],
    }


def converted(name: str, text: str) -> Document:
    """A pod whose request the webhook converted to a claim with these alternatives."""
    one = bridged(pod(name), text)
    one["spec"]["containers"][0]["resources"]["claims"] = [{"name": CLAIM, "request": request_name(0)}]
    return one


def _fits(one: Document, on: Document, pods: list[Document]) -> bool:
    """Whether a node has room for a pod beside those that are there."""
    there = [other for other in (*pods, one) if other["spec"].get("nodeName") == on["metadata"]["name"]]
    allocatable = on["status"]["allocatable"]
    if len(there) > int(allocatable["pods"]):
        return False
    for resource in {name for each in there for name in _requests(each)}:
        used = sum(_number(_requests(each).get(resource, "0")) for each in there)
        if used > _number(allocatable.get(resource, "0")):
            return False
    return True


def _requests(one: Document) -> dict[str, str]:
    found: dict[str, str] = one["spec"]["containers"][0]["resources"]["requests"]
    return found


def _number(text: str) -> float:
    return float(text[:-1]) / 1000 if text.endswith("m") else float(text)


# What is said of them


def serving(objects: Cluster) -> ApiServer:
    """The cluster, once the scheduler has placed what it can."""
    server = ApiServer(Store())
    for kind in (QUOTAS, CLASSES, *objects):
        server.kinds[kind.prefix, kind.plural] = kind
    for kind, documents in objects.items():
        for document in documents:
            space = document["metadata"].get("namespace", "team") if kind.namespaced else ""
            server.store.create(kind, copy.deepcopy(document), space)
    schedule(server.store)
    return server


def schedule(store: Store) -> None:
    """Claims are made of templates, then the scheduler places what it can."""
    ClaimController(store, Events(store)).reconcile()
    Scheduler(store, Events(store)).schedule()


def unplaced(store: Store) -> list[str]:
    return [one.key[1] for one in store.list(kinds.PODS) if not one.document["spec"].get("nodeName")]


async def asked_why(server: ApiServer, name: str, by: PolicySource) -> Diagnosis:
    gatherer = Gatherer(client_of(server), "team", decides_by=by)
    return diagnose(*await gatherer.gather("pod", name), highs)


async def examined(server: ApiServer) -> Observations:
    return await Observer(client_of(server), Names()).gather()


DEFAULT = PolicySource(given=UsedPolicy())


def agree(objects: Cluster, never: tuple[Lack, ...] = (), by: PolicySource = DEFAULT) -> None:
    """Ask everybody about every pod that waits; `never`: what is not the reason there."""
    server = serving(objects)
    names = unplaced(server.store)
    seen = asyncio.run(examined(server))
    doctor = {one.pod.name: why for one, why in seen.waiting}
    told = [one.text for result in examine(seen, ("offers", "pending")) for one in result.findings]
    assert sorted(doctor) == sorted(names)
    ask = asking(client_of(server), by)
    on_the_page = asyncio.run(ask({Key("team", name) for name in names}))
    for name in names:
        found = asyncio.run(asked_why(server, name, by))
        assert found.cause not in ("room", *never), "the scheduler found none"
        answer = found.answer.removeprefix(f"pod team/{name} waits: ")
        assert (doctor[name].cause, doctor[name].answer) == (found.cause, answer)
        assert on_the_page[Key("team", name)] == answer
        if found.cause in list(Lack):
            assert found.nodes[0].lack == found.cause, "the nodes that come nearest are the first of all"
        assert any(f"team/{name}" in text and text.endswith(f": {short(answer)}") for text in told)
        _agrees_with_admit(server.store, name, seen, found)
        for remedy in found.remedies:
            if remedy.changes:
                assert _waiting_after(server.store, name, remedy.changes) == [], (found.answer, remedy)
            fewer = tuple(one for one in remedy.changes if not isinstance(one, NodeOffers))
            _spares(server.store, remedy)
            if remedy.kind == "layout" and fewer:
                assert _waiting_after(server.store, name, fewer) == [name], ("no cut is needed", remedy)


def _spares(store: Store, remedy: Remedy) -> None:
    """No remedy takes devices from pods that it does not name; where mig-manager cuts the cards, none is an annotation."""
    ended = {one for change in remedy.changes if isinstance(change, PodsEnd) for one in change.pods}
    for change in remedy.changes if remedy.kind == "layout" else ():
        if not isinstance(change, NodeOffers):
            continue
        labels = store.get(kinds.NODES, change.node).document["metadata"]["labels"]
        assert not (MANAGED in labels and any("-o runai" in command for command in remedy.commands))
        pods = [one for one in store.list(kinds.PODS) if one.document["spec"].get("nodeName") == change.node]
        held = Counter[str]()
        for one in pods:
            if f"team/{one.key[1]}" not in ended:
                held.update({r: int(n) for r, n in _requests(one.document).items() if r.startswith(MIG)})
        lost = [r for r, number in held.items() if change.counts.get(r, number) < number]
        assert not lost, (remedy, held)


def _waiting_after(store: Store, name: str, changes: Iterable[Change]) -> list[str]:
    """Whether a pod still waits when the cluster, or the pod, has changed so; no other pod waits then."""
    after = store.snapshot()
    for change in changes:
        _apply(change, after, name)
    for other in set(unplaced(after)) - {name}:
        after.delete(kinds.PODS, other, "team")
    schedule(after)
    return unplaced(after)


def _agrees_with_admit(store: Store, name: str, seen: Observations, found: Diagnosis) -> None:
    cluster = seen.cluster
    document = {"apiVersion": "v1", "kind": "Pod", **store.get(kinds.PODS, name, "team").document}
    (reviewed,) = admit_again(document, cluster.offers, cluster.policy).reviewed.values()
    words = found.admission[-1].removeprefix("created now it ").removeprefix("enforced, it ")
    match reviewed.would:
        case Denied(message=message):
            assert words == f"would be rejected: {message}"
        case Patched(reason=reason):
            assert words == f"would be changed: {reason}"
        case other:
            assert words == f"would stay as it is: {other.reason}"


# What would help


def _apply(change: Change, store: Store, name: str) -> None:
    """Change a cluster, or the pod, as a remedy says."""
    match change:
        case PodsEnd(pods):
            for one in pods:
                _end(store, one.partition("/")[2])
        case NodeFreed(node=on):
            for stored in store.list(kinds.PODS):
                if stored.document["spec"].get("nodeName") == on:
                    _end(store, stored.key[1])
        case NodeOpened(node=on):
            document = store.get(kinds.NODES, on).document
            document["spec"] = {}
            store.update(kinds.NODES, on, document)
            _change_pod(store, name, lambda one: one["spec"].pop("nodeSelector", None))
        case NodeOffers(on, counts):
            document = store.get(kinds.NODES, on).document
            document["status"]["allocatable"] |= {resource: str(n) for resource, n in counts.items()}
            store.update(kinds.NODES, on, document)
        case PodAsks(amounts):
            most = {resource: str(one) for resource, one in amounts.items()}
            _change_requests(store, name, lambda given: {**given, **{r: most[r] for r in most if r in given}})
        case CreatedAgain(replaced):
            document = as_created(store.get(kinds.PODS, name, "team").document)
            store.update(kinds.PODS, name, document, "team")
            _change_requests(store, name, lambda given: _renamed(given, replaced))
        case _:
            raise AssertionError(change)


def _renamed(given: dict[str, str], by: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    for resource, amount in given.items():
        to = by.get(resource, resource)
        found[to] = str(int(found[to]) + int(amount)) if to in found else amount
    return found


def _change_requests(store: Store, name: str, by: Any) -> None:
    def change(one: Document) -> None:
        resources = one["spec"]["containers"][0]["resources"]
        one["spec"]["containers"][0]["resources"] = {key: by(given) for key, given in resources.items()}

    _change_pod(store, name, change)


def _change_pod(store: Store, name: str, by: Any) -> None:
    document = store.get(kinds.PODS, name, "team").document
    by(document)
    store.update(kinds.PODS, name, document, "team")


def _end(store: Store, name: str) -> None:
    """A pod ends, and its claims with it."""
    if name not in {one.key[1] for one in store.list(kinds.PODS)}:
        return
    store.delete(kinds.PODS, name, "team")
    for claim in store.list(kinds.RESOURCE_CLAIMS):
        if json.dumps(name) in json.dumps(claim.document.get("status", {}).get("reservedFor", [])):
            store.delete(kinds.RESOURCE_CLAIMS, claim.key[1], "team")


@given(clusters())
def test_everybody_says_the_same(cluster: Cluster):
    """`doctor` and `admit` say what `why` says, the scheduler agrees, and each remedy of `why` makes the pod run."""
    agree(cluster)


@given(full_cards())
def test_everybody_says_the_same_of_full_cards(cluster: Cluster):
    """The same where pods hold all slices: no card is to be cut where their end is enough."""
    agree(cluster)


def _owned(uid: str, one: Document) -> None:
    for owner in one["metadata"].get("ownerReferences", ()):
        owner["uid"] = uid


def installed(config: str) -> Cluster:
    """A webhook that is at work with a configuration."""
    volumes = [{"name": "config", "configMap": {"name": "gpu-webhook"}}]
    meta = {"name": "gpu-webhook", "namespace": "gpu-webhook"}
    spec = {"replicas": 1, "template": {"spec": {"volumes": volumes}}}
    return {
        kinds.DEPLOYMENTS: [{"metadata": meta, "spec": spec, "status": {"readyReplicas": 1}}],
        kinds.CONFIG_MAPS: [
            *OPERATOR[kinds.CONFIG_MAPS],
            {"metadata": meta, "data": {"config.yaml": config}},
        ],
    }


@st.composite
def by_what_is_free(draw: st.DrawFn) -> Cluster:
    """Clusters where `full` holds for all, for some or for none; pods that fell back or not, with a mark or not, with a priority or a controller or not."""
    cluster = draw(st.one_of(clusters(), full_cards()))
    config = draw(
        st.sampled_from(["when: full", "when: full, patience: 1m", "full: {enabled: true}", "patience: 1m"])
    )
    owner = {"kind": "ReplicaSet", "apiVersion": "apps/v1", "name": "web", "uid": "u", "controller": True}
    for one in cluster[kinds.PODS]:
        if one["spec"].get("nodeName"):
            continue
        (main,), annotations = one["spec"]["containers"], one["metadata"]["annotations"]
        gpus = {name: text for name, text in main["resources"]["requests"].items() if name.startswith(MIG)}
        if draw(st.booleans()):
            annotations["gpu-webhook.k8s.io/decided-when"] = json.dumps(
                {"main": dict(sorted(gpus.items()))}, separators=(",", ":")
            )
        annotations |= draw(st.sampled_from([{}, {}, {WHEN: "full"}, {WHEN: "missing"}]))
        one["spec"] |= draw(
            st.sampled_from([{}, {}, {"priority": 7}, {"schedulerName": "default-scheduler"}])
        )
        one["metadata"] |= draw(st.sampled_from([{}, {"ownerReferences": [owner]}]))
    return {**cluster, **installed(f"fallback: {{{config}}}")}


@given(by_what_is_free())
def test_everybody_says_the_same_of_what_is_free(cluster: Cluster):
    """The same where what is free decides: nobody counts what is kept for the pod itself, and what it gets when it is created again is free."""
    agree(cluster, by=PolicySource())


@given(siblings_under_a_quota())
def test_a_workloads_next_pod_is_judged_as_admission_would(cluster: Cluster):
    """Of a workload that lacks pods `why` says what the webhook says of the next one, beside all that its pods use of a quota."""
    server = serving(cluster)
    (controller,) = server.store.list(REPLICA_SETS)
    for one in cluster[kinds.PODS]:
        _change_pod(
            server.store, one["metadata"]["name"], partial(_owned, controller.document["metadata"]["uid"])
        )
    document = {"apiVersion": "apps/v1", "kind": "ReplicaSet", **controller.document}
    cluster_seen = asyncio.run(examined(server)).cluster
    (reviewed,) = admit(document, cluster_seen.offers, Policy(), "team").reviewed.values()
    message = getattr(reviewed.would, "message", "it was full")
    denied = f'Error creating: admission webhook "gpu-allocation.k8s.io" denied the request: {message}'
    event = {
        "metadata": {"name": "web.1"},
        "involvedObject": {"kind": "ReplicaSet", "name": "web"},
        "reason": "FailedCreate",
        "type": "Warning",
        "message": denied,
    }
    server.store.create(kinds.EVENTS, event, "team")
    gatherer = Gatherer(client_of(server), "team", decides_by=PolicySource(given=UsedPolicy()))
    found = diagnose(*asyncio.run(gatherer.gather("replicaset", "web")), highs)
    assert found.cause == "rejected"
    rejected = isinstance(reviewed.would, Denied)
    assert ("wait" not in [one.kind for one in found.remedies]) is rejected
    last = found.admission[-1].removeprefix("created now it would ")
    assert last.startswith("be rejected for the same reason" if rejected else ("be changed", "stay as it is"))


@given(served_by_dra())
def test_everybody_says_the_same_of_what_dra_serves(cluster: Cluster):
    """The same where DRA serves the devices; what a device plugin had there before is neither unhealthy nor missed."""
    agree(cluster, never=(Lack.UNHEALTHY, Lack.PLUGIN_UNAVAILABLE))
