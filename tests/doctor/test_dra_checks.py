"""Faults of dynamic resource allocation, planted one by one."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar

import pytest

from tessera.diagnosis.evidence import Evidence, SeenPod, diagnosis_inventory
from tessera.doctor.checks import dra, webhook
from tessera.doctor.observations import DynamicAllocation, Observations, SchedulerPod
from tessera.inventory.presence import Presences, drivers_of
from tessera.protocol.kubernetes.controllers import Workload
from tessera.protocol.kubernetes.dra import DeviceClassIn, SliceIn
from tessera.protocol.kubernetes.lean_pod import decode_lean_pod, pod_of
from tessera.protocol.kubernetes.objects import decoder
from tessera.protocol.kubernetes.pod import PodIn
from tessera.protocol.kubernetes.webhook import Version
from tessera.simulation.control_plane import kinds
from tessera.simulation.control_plane.store import Document
from tests.build import bridged, claim_document, node_document, object_of
from tests.doctor.authorities import NOW, authority
from tests.doctor.clusters import (
    CLAIM_TEMPLATES,
    CLAIMS,
    DAEMON_SETS,
    DEVICE_CLASSES,
    examined,
    gpu_pod,
    healthy,
)

T = TypeVar("T")

TWO = "nvidia.com/mig-2g.20gb"
YOUNG = datetime.fromtimestamp(NOW - 20, UTC).isoformat()
OURS, OTHER = "gpu.tessera.dev", "gpu.example.com"


def device_class(name: str, extended: str = "", age: int = 0) -> DeviceClassIn:
    created = datetime.fromtimestamp(NOW - age, UTC).isoformat()
    spec = {"extendedResourceName": extended} if extended else {}
    return _as({"metadata": {"name": name, "creationTimestamp": created}, "spec": spec}, DeviceClassIn)


def slice_document(
    name: str, on: str, *, driver: str = OURS, generation: int = 1, count: int = 1, **spec: Any
) -> Document:
    pool = {"name": f"{on}/{driver}", "generation": generation, "resourceSliceCount": count}
    return object_of(name, spec={"driver": driver, "nodeName": on, "pool": pool, **spec})


def resource_slice(name: str, on: str, **more: Any) -> SliceIn:
    return _as(slice_document(name, on, **more), SliceIn)


def _as(document: Document, kind: type[T]) -> T:
    return decoder(kind)(json.dumps(document).encode())


def seen(minor: str = "36", **parts: Any) -> Observations:
    version = Version("1", minor, f"v1.{minor}.3")
    cluster = cluster_of(*(node_document(name, {}) for name in parts.pop("nodes", ())))
    unseen = parts.pop("unseen", {})
    return Observations(version=version, cluster=cluster, unseen=unseen, dra=DynamicAllocation(**parts))


def cluster_of(*nodes: Document) -> Evidence:
    inventory = diagnosis_inventory()
    (entry,) = inventory.table(pods=False).values()
    entry.take_all([entry.decode(json.dumps(one).encode()) for one in nodes])
    return Evidence(inventory=inventory)


def told(findings: Any) -> list[tuple[str, str]]:
    return [(str(one.severity), one.text) for one in findings]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([], ("n/a", "no DeviceClass has an extendedResourceName")),
        ([device_class("a")], ("n/a", "no DeviceClass has an extendedResourceName")),
        ([device_class("a", TWO), device_class("b", "nvidia.com/gpu")], None),
        ([device_class("a", TWO, age=9), device_class("b", TWO, age=5)], ("warning", f"DeviceClass b wins over a for pods that ask for {TWO}")),
        ([device_class("a", TWO, age=5), device_class("b", TWO, age=9)], ("warning", "DeviceClass a wins over b for")),
        ([device_class("b", TWO), device_class("a", TWO), device_class("c", TWO)], ("warning", "DeviceClass a wins over b, c for")),
    ],
    ids=["none", "without a name", "two names", "the younger", "the younger first", "of the same age"],
)  # fmt: skip
def test_classes_that_have_one_name(found: list[DeviceClassIn], expected: tuple[str, str] | None) -> None:
    """Two classes with one extendedResourceName: it is said which the scheduler takes."""
    findings = list(dra.classes(seen(classes=tuple(found))))
    if expected is None:
        assert findings == []
        return
    [finding] = findings
    assert str(finding.severity) == expected[0]
    assert finding.text.startswith(expected[1])


@pytest.mark.parametrize(
    ("slices", "expected"),
    [
        ([], [("n/a", "there are no ResourceSlices")]),
        ([resource_slice("0", "n1")], []),
        ([resource_slice("0", "n1", count=2), resource_slice("1", "n1", count=2)], []),
        ([resource_slice("0", "n1", generation=3, count=2), resource_slice("1", "n1", generation=2, count=2)],
         [("problem", "pool n1/gpu.tessera.dev of gpu.tessera.dev: 1 of 2 ResourceSlices of generation 3 are there")]),
        ([resource_slice("0", "n1", generation=3), resource_slice("1", "n1", generation=2, count=2)], []),
        ([resource_slice("0", "n1", count=2), resource_slice("1", "n1", driver=OTHER)],
         [("problem", "pool n1/gpu.tessera.dev of gpu.tessera.dev: 1 of 2")]),
        ([resource_slice("0", "lost"), resource_slice("1", "lost", driver=OTHER)],
         [("problem", "node lost is gone, and ResourceSlices of gpu.example.com, gpu.tessera.dev still offer its devices")]),
        ([resource_slice("0", "")], []),
    ],
    ids=["none", "whole", "of two", "half written", "an older one is left", "of two drivers", "no such node", "of no node"],
)  # fmt: skip
def test_stale_pools(slices: list[SliceIn], expected: list[tuple[str, str]]) -> None:
    """A pool is used only when it is whole, and what a node that is gone offered is still given out."""
    found = told(dra.pools(seen(slices=tuple(slices), nodes=("n1", "n2"))))
    assert len(found) == len(expected)
    for (severity, text), (wanted, begins) in zip(found, expected, strict=True):
        assert (severity, text.startswith(begins)) == (wanted, True), text


def _driver_pod(on: str, ready: str = "True", **metadata: Any) -> PodIn:
    status = {"conditions": [{"type": "Ready", "status": ready}]}
    return _as(
        {"metadata": {"name": f"driver-{on}", **metadata}, "spec": {"nodeName": on}, "status": status}, PodIn
    )


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({}, []),
        ({"drivers": (Workload(),), "driver_pods": (_driver_pod("n1"), _driver_pod("n2"))}, []),
        ({"drivers": (Workload(),), "driver_pods": (_driver_pod("n1"),)},
         [("problem", "the DRA driver of node n2 is unavailable: no pod of it runs there; claims for the node's devices are")]),
        ({"drivers": (Workload(),), "driver_pods": (_driver_pod("n1"), _driver_pod("n2", deletionTimestamp="2026-01-01T00:00:00Z"))},
         [("problem", "the DRA driver of node n2 is unavailable: no pod of it runs there")]),
        ({"drivers": (Workload(),), "driver_pods": (_driver_pod("n1"), _driver_pod("n2", ready="False"))},
         [("problem", "the DRA driver of node n2 is unavailable: pod driver-n2: running, not ready: the log says what it waits for")]),
        ({"drivers": (Workload(),), "driver_pods": (*map(_driver_pod, ("n1", "n2")), _driver_pod("", ready="False"))},
         [("problem", "pod driver- of the DRA driver is not ready: running, not ready")]),
        ({"drivers": (Workload(),), "driver_pods": (_driver_pod("n1"), _driver_pod("n2", ready="False", creationTimestamp=YOUNG))},
         [("note", "the DRA driver of node n2 starts")]),
    ],
    ids=["without the chart", "running", "none there", "on its way out", "not ready", "without a node", "starting"],
)  # fmt: skip
def test_slices_without_their_driver(parts: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    """Where the chart installed the driver, slices of a node on which it does not run are reported; those of other drivers are not ours."""
    slices = (resource_slice("0", "n1"), resource_slice("1", "n2"), resource_slice("2", "n3", driver=OTHER))
    base = seen(slices=slices, nodes=("n1", "n2", "n3"), **parts)
    pods, installed = parts.get("driver_pods", ()), bool(parts)
    drivers = drivers_of(base.nodes, slices, (), pods, installed=installed, now=NOW)
    cluster = replace(base.cluster, presences=Presences(drivers=drivers))
    found = told(webhook.driver(replace(base, cluster=cluster, now=NOW)))
    assert [
        (severity, text[: len(begins)]) for (severity, text), (_, begins) in zip(found, expected, strict=True)
    ] == expected


@pytest.mark.parametrize(
    ("nodes", "minor", "expected"),
    [
        (0, "36", [("n/a", "no ResourceSlice has shared counters")]),
        (30, "36", []),
        (31, "36", [("warning", "31 nodes have devices with shared counters, and the API server is v1.36.3: before 1.37 each")]),
        (31, "36+", [("warning", "31 nodes have")]),
        (31, "37", []),
        (500, "38", []),
    ],
)  # fmt: skip
def test_counters_on_many_nodes(nodes: int, minor: str, expected: list[tuple[str, str]]) -> None:
    """Before 1.37 counters on more than 30 nodes make every claim slow to schedule."""
    counted = tuple(
        resource_slice(str(n), f"n{n}", sharedCounters=[{"name": "card-0"}]) for n in range(nodes)
    )
    found = told(dra.counters(seen(minor, slices=(*counted, resource_slice("plain", "m1")))))
    assert [
        (severity, text[: len(begins)]) for (severity, text), (_, begins) in zip(found, expected, strict=True)
    ] == expected


def _config(plugins: Any, profile: str = "s") -> SchedulerPod:
    text = json.dumps(
        {"kind": "KubeSchedulerConfiguration", "profiles": [{"schedulerName": profile, "plugins": plugins}]}
    )
    return SchedulerPod("s-0", "/etc/s/config.yaml", text)


_LOW = "scheduler s-0, profile s: DynamicResources has weight {}, so an emptier node"


@pytest.mark.parametrize(
    ("scheduler", "minor", "expected"),
    [
        (None, "36", ("unseen", "the scheduler's configuration is not seen: it is no pod in kube-system")),
        (SchedulerPod("s-0"), "36", ("note", "scheduler s-0, profile default-scheduler: DynamicResources has weight 2,")),
        (SchedulerPod("s-0"), "34", ("note", "scheduler s-0, profile default-scheduler: DynamicResources has weight 0,")),
        (SchedulerPod("s-0", "/etc/kubernetes/s.yaml"), "36", ("unseen", "the configuration of scheduler s-0 is not seen: /etc/kubernetes/s.yaml lies on its node")),
        (SchedulerPod("s-0", "/s.yaml", "profiles: 7"), "36", ("unseen", "the configuration of scheduler s-0 cannot be read: profiles: ")),
        (SchedulerPod("s-0", "/s.yaml", "["), "36", ("unseen", "the configuration of scheduler s-0 cannot be read: ")),
        (SchedulerPod("s-0", "/s.yaml", ""), "36", ("note", "scheduler s-0, profile default-scheduler: DynamicResources has weight 2,")),
        (_config({}), "36", ("note", _LOW.format(2))),
        (_config({"score": {"enabled": [{"name": "DynamicResources", "weight": 15}]}}), "36", ("note", _LOW.format(15))),
        (_config({"score": {"enabled": [{"name": "DynamicResources", "weight": 16}]}}), "36", None),
        (_config({"multiPoint": {"enabled": [{"name": "DynamicResources", "weight": 20}]}}), "36", None),
        (_config({"multiPoint": {"enabled": [{"name": "DynamicResources"}]}}), "36", ("note", _LOW.format(1))),
        (_config({"score": {"disabled": [{"name": "*"}]}, "multiPoint": {"enabled": [{"name": "DynamicResources", "weight": 20}]}}), "36", ("note", _LOW.format(0))),
    ],
)  # fmt: skip
def test_the_weight_of_alternatives(
    scheduler: SchedulerPod | None, minor: str, expected: tuple[str, str] | None
) -> None:
    """Where the scheduler's configuration can be read its weight is judged, where it cannot that is said."""
    slices = (resource_slice("0", "n1"), resource_slice("1", "n2"))
    evidence = seen(
        minor, slices=slices, alternatives=("ml/any",), schedulers=(scheduler,) if scheduler else ()
    )
    found = told(dra.score(evidence))
    assert len(found) == (expected is not None)
    if expected:
        assert (found[0][0], found[0][1][: len(expected[1])]) == expected


def test_when_the_weight_does_not_matter() -> None:
    """Without alternatives, or with one node to choose, there is nothing to weigh."""
    slices = (resource_slice("0", "n1"), resource_slice("1", "n2"))
    assert [one[0] for one in told(dra.score(seen(slices=slices)))] == ["n/a"]
    assert [one[0] for one in told(dra.score(seen(slices=slices[:1], alternatives=("ml/any",))))] == ["n/a"]
    unseen = told(
        dra.score(seen(slices=slices, alternatives=("ml/any",), unseen={"schedulers": "you may not"}))
    )
    assert unseen[0] == ("unseen", "could not run: schedulers: you may not")


TEXT = "1*2g.20gb=2g.20gb/tessera-any,1g.10gb/tessera-any"
FELL = "2g.20gb->1g.10gb"
_TWENTY = {"score": {"enabled": [{"name": "DynamicResources", "weight": 20}]}}
WEIGHTS = {
    "low": SchedulerPod("s", ""),
    "enough": _config(_TWENTY, "default-scheduler"),
    "another's": _config(_TWENTY),
}


def _fell_back(name: str, on: str, record: str = FELL, **spec: Any) -> Document:
    document = bridged(gpu_pod(name, {}, node=on, **spec), TEXT)
    document["metadata"]["annotations"]["gpu-webhook.k8s.io/fallback"] = record
    return document


def _bridged(name: str, on: str, record: str = FELL, **spec: Any) -> SeenPod:
    document = _fell_back(name, on, record, **spec)
    raw = json.dumps(document).encode()
    return SeenPod(pod_of(decode_lean_pod(raw)), _as(document, PodIn))


@pytest.mark.parametrize(
    ("pods", "free", "weight", "text"),
    [
        ([_bridged("a", "n1")], {"n2": {TWO: 1}}, "low", "pod default/a on n1 has 1g.10gb by a claim, and 1 × 2g.20gb, an earlier alternative, is free now on node n2: "),
        ([_bridged("a", "n1"), _bridged("b", "n1")], {"n2": {TWO: 1}}, "", "2 pods have 1g.10gb by a claim (default/a on n1, default/b on n1), and 1 × 2g.20gb"),
        ([_bridged("a", "n1")], {"n2": {TWO: 1}}, "enough", ""),
        ([_bridged("a", "n1")], {"n2": {TWO: 1}}, "another's", "pod default/a on n1 has 1g.10gb by a claim"),
        ([_bridged("a", "n1")], {"n1": {TWO: 1}}, "low", ""),  # within a node the best that is free is taken: it became free later
        ([_bridged("a", "n1")], {"n2": {"nvidia.com/mig-1g.10gb": 1}}, "low", ""),
        ([_bridged("a", "n1", record="")], {"n2": {TWO: 1}}, "low", ""),  # it has what it asked for
        ([_bridged("a", "n1", record="2g.20gb->3g.30gb")], {"n2": {TWO: 1}}, "low", ""),  # no alternative of its claim
        ([_bridged("a", "n1", nodeSelector={"zone": "a"})], {"n2": {TWO: 1}}, "low", ""),  # not for this pod
        ([_bridged("a", "", record="")], {"n2": {TWO: 1}}, "low", ""),  # it waits: another check reports it
        ([_bridged("a", "n1")], {"cordoned": {TWO: 1}}, "low", ""),
    ],
)  # fmt: skip
def test_a_better_device_that_lost(pods: list[SeenPod], free: Any, weight: str, text: str) -> None:
    """A pod with a later alternative is reported while an earlier one is free elsewhere, unless the weight would have prevented it."""
    slices = (resource_slice("0", "n1"), resource_slice("1", "n2"))
    schedulers = (WEIGHTS[weight],) if weight else ()
    evidence = seen(slices=slices, alternatives=("default/c",), schedulers=schedulers, free=free)
    nodes = [node_document(name, {}) for name in ("n1", "n2", "cordoned")]
    nodes[2]["spec"] = {"taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]}
    evidence = replace(evidence, cluster=cluster_of(*nodes), pods=tuple(pods))
    found = [one for one in told(dra.score(evidence)) if one[0] == "warning"]
    assert [one[1][: len(text)] for one in found] == ([text] if text else [])


async def test_what_is_free_is_read_from_the_cluster() -> None:
    """Free is what classes serve and no claim holds; of cards that are cut on demand nothing is said."""
    objects = healthy(authority())
    objects[kinds.NODES] += [node_document("n1", {}), node_document("n2", {})]
    objects[DEVICE_CLASSES] = [object_of("two", spec={"extendedResourceName": TWO})]
    objects[kinds.RESOURCE_SLICES] = [
        slice_document("0", "n1", devices=[{"name": "a"}]),
        slice_document("1", "n2", devices=[{"name": "b"}]),
    ]
    objects[kinds.PODS].append(_fell_back("p", "n1"))
    request = {"name": "gpu-0", "firstAvailable": [{"name": "2g-20gb"}, {"name": "1g-10gb"}]}
    claim = object_of("c", namespace="default", spec={"devices": {"requests": [request]}})
    objects[CLAIMS] = [claim]
    found = await examined(objects, now=NOW)
    assert ("score", "warning") in found.findings
    results = [{"driver": OURS, "pool": f"n2/{OURS}", "device": "b"}]
    objects[CLAIMS][0]["status"] = {"allocation": {"devices": {"results": results}}}
    found = await examined(objects, now=NOW)
    assert ("score", "warning") not in found.findings


def _dra_objects() -> dict[Any, list[Document]]:
    """A cluster with a fault for each check."""
    objects = healthy(authority())
    objects[kinds.NODES] = [node_document(f"n{n}", {}) for n in range(2)]
    objects[kinds.RESOURCE_SLICES] = [
        slice_document("0", "n0", sharedCounters=[{"name": "card-0"}]),
        slice_document("1", "n1", count=2),
    ]
    objects[DEVICE_CLASSES] = [object_of(name, spec={"extendedResourceName": TWO}) for name in ("a", "b")]
    alternatives = {
        "devices": {"requests": [{"name": "gpu", "firstAvailable": [{"name": "a"}, {"name": "b"}]}]}
    }
    objects[CLAIM_TEMPLATES] = [object_of("any", namespace="default", spec={"spec": alternatives})]
    objects[CLAIMS] = [
        object_of("plain", namespace="default", spec={"devices": {"requests": [{"name": "gpu"}]}})
    ]
    objects[DAEMON_SETS] = [
        object_of("driver", labels={"app.kubernetes.io/component": "dra-driver"}, spec={}, status={})
    ]
    labels = {"app.kubernetes.io/component": "dra-driver"}
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    objects[kinds.PODS] += [
        object_of(f"driver-n{n}", labels=labels, spec={"nodeName": f"n{n}", "containers": []}, status=ready)
        for n in range(2)
    ]
    return objects


def _scheduler_pod(*words: str, **volume: Any) -> Document:
    container = {"name": "s", "command": list(words), "volumeMounts": [{"name": "c", "mountPath": "/etc/s"}]}
    return object_of(
        "kube-scheduler-cp", namespace="kube-system", labels={"component": "kube-scheduler"},
        spec={"containers": [container], "volumes": [{"name": "c", **volume}]},
    )  # fmt: skip


async def test_everything_is_looked_at() -> None:
    """Classes, slices, drivers, templates and schedulers come from the cluster."""
    objects = _dra_objects()
    objects[kinds.PODS].append(
        _scheduler_pod("kube-scheduler", "--config", "/etc/s/s.yaml", configMap={"name": "s"})
    )
    objects[kinds.CONFIG_MAPS].append(object_of("s", namespace="kube-system", data={"s.yaml": "{}"}))
    found = await examined(objects, now=NOW)
    assert found.findings == [("classes", "warning"), ("pools", "problem")]
    assert found.states["counters"] == "seen"
    assert "DynamicResources has weight 2" in found.one("score").text


@pytest.mark.parametrize(
    ("pod", "text"),
    [
        (_scheduler_pod("kube-scheduler", "--leader-elect=true", hostPath={"path": "/x"}), "has weight 2"),
        (_scheduler_pod("kube-scheduler", "--config=/etc/s/s.yaml", hostPath={"path": "/x"}), "/etc/s/s.yaml lies on its node"),
        (_scheduler_pod("kube-scheduler", "--config=/elsewhere.yaml", configMap={"name": "s"}), "/elsewhere.yaml lies on its node"),
    ],
    ids=["defaults", "on the node", "not in its volumes"],
)  # fmt: skip
async def test_schedulers_as_pods(pod: Document, text: str) -> None:
    """A static pod without --config runs with the defaults; a file on its node is not seen."""
    objects = _dra_objects()
    objects[kinds.PODS].append(pod)
    assert text in (await examined(objects, now=NOW)).one("score").text


async def test_what_may_not_be_read_of_dra_is_unseen() -> None:
    """Without the permission each check says so, and none is made from half of what it needs."""
    forbidden = frozenset({"resourceslices", "deviceclasses", "resourceclaimtemplates"})
    found = await examined(_dra_objects(), now=NOW, forbidden=forbidden)
    assert found.findings == []
    assert {name for name, state in found.states.items() if state == "not seen"} == {
        "classes",
        "driver",
        "pools",
        "counters",
        "score",
    }
    assert found.one("classes").text == "could not run: deviceclasses: deviceclasses is forbidden"


async def test_an_api_server_without_dra() -> None:
    """Nothing is served at resource.k8s.io/v1: there is nothing to look at."""
    found = await examined(healthy(authority()), now=NOW)
    assert {found.states[name] for name in ("classes", "driver", "pools", "counters", "score")} == {
        "not applicable"
    }


async def test_a_node_that_dra_serves_offers_its_gpus() -> None:
    """A node with ResourceSlices is not silent, and its layout is compared with them."""
    objects = healthy(authority())
    labels = {
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.count": "1",
        "nvidia.com/mig.config.state": "success",
    }
    layout = (
        "version: v1\nmig-configs: {selected: [{devices: [0], mig-enabled: true, mig-devices: {2g.20gb: 2}}]}"
    )
    objects[kinds.NODES].append(
        node_document("cut", {}, labels=labels, annotations={"run.ai/mig.config": layout})
    )
    device = {"name": "a", "attributes": {"resource": {"string": TWO}, "card": {"int": 0}}}
    leaving = {**device, "name": "c", "taints": [{"key": "gpu.tessera.dev/leaving", "effect": "NoSchedule"}]}
    objects[kinds.RESOURCE_SLICES] = [
        slice_document("0", "cut", devices=[device, {**device, "name": "b"}, leaving])
    ]
    assert (await examined(objects, now=NOW)).findings == []
    objects[kinds.RESOURCE_SLICES] = [slice_document("0", "cut", devices=[device])]
    assert (
        "allocatable has 1 × nvidia.com/mig-2g.20gb" in (await examined(objects, now=NOW)).one("layouts").text
    )


async def test_a_pod_that_waits_for_what_dra_serves() -> None:
    """What a class serves from a node's slices is offered: the pod waits for its turn, and nothing is wrong."""
    objects = healthy(authority())
    three = "nvidia.com/mig-3g.40gb"
    objects[kinds.PODS].append(gpu_pod("waits", {three: "1"}))
    assert (await examined(objects, now=NOW)).findings == [("offers", "problem")]
    objects[kinds.NODES].append(node_document("cut", {}))
    objects[kinds.RESOURCE_SLICES] = [slice_document("0", "cut", devices=[{"name": "a"}])]
    objects[DEVICE_CLASSES] = [object_of("all", spec={"extendedResourceName": three})]
    assert (await examined(objects, now=NOW)).findings == [("pending", "warning")]


async def test_a_pool_in_which_a_name_is_there_twice() -> None:
    """The scheduler allocates nothing from such a pool: that is a problem, and nothing of it counts as offered."""
    objects = healthy(authority())
    objects[kinds.NODES].append(node_document("cut", {}))
    objects[DEVICE_CLASSES] = [object_of("all", spec={"extendedResourceName": "nvidia.com/mig-3g.40gb"})]
    objects[kinds.RESOURCE_SLICES] = [
        slice_document("0", "cut", count=2, devices=[{"name": "a"}, {"name": "b"}]),
        slice_document("1", "cut", count=2, devices=[{"name": "b"}]),
    ]
    found = await examined(objects, now=NOW)
    assert found.findings == [("pools", "problem")]
    assert "the name b is there twice" in found.one("pools").text
    objects[kinds.RESOURCE_SLICES][1]["spec"]["devices"] = [{"name": "c"}]
    assert (await examined(objects, now=NOW)).findings == []


async def test_claims_that_are_held_without_a_driver() -> None:
    """The driver was uninstalled, or its pod is gone, while a claim holds a device: its pod neither starts nor ends, and that is a problem."""
    objects = healthy(authority())
    objects[kinds.NODES].append(node_document("cut", {}))
    results = [{"driver": OURS, "pool": "cut/tessera", "device": "b"}]
    objects[CLAIMS] = [claim_document("c", *results, spec={})]
    found = await examined(objects, now=NOW)
    assert found.findings == [("driver", "problem")]
    assert found.one("driver").text.startswith(
        "the DRA driver of node cut is unavailable: no pod of it runs there, and claims hold its devices; "
    )
    assert found.one("driver").commands[0] == (
        "kubectl get pods -A -l app.kubernetes.io/component=dra-driver --field-selector spec.nodeName=cut"
    )


def test_what_to_type_about_two_classes() -> None:
    """The name is taken from the class that loses; the other is touched, since schedulers forget it then."""
    [finding] = dra.classes(seen(classes=(device_class("a", TWO, age=9), device_class("b", TWO))))
    assert finding.commands == (
        """kubectl patch deviceclass a --type=json -p '[{"op":"remove","path":"/spec/extendedResourceName"}]'""",
        "kubectl annotate --overwrite deviceclass b tessera.dev/touched=$(date +%s)",
    )
