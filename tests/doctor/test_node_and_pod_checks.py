"""Faults of nodes, plugins and pods, planted one by one."""

from datetime import UTC, datetime
from typing import Any

import pytest

from tessera.doctor.checks.nodes import cdi
from tessera.doctor.observations import Observations
from tessera.simulation.control_plane import kinds
from tessera.simulation.control_plane.store import Document
from tests.build import bridged, node_document, object_of
from tests.doctor.authorities import NOW, authority
from tests.doctor.clusters import (
    DAEMON_SETS,
    NAMESPACE,
    REPLICA_SETS,
    examined,
    gpu_pod,
    healthy,
    webhook_pod,
)

LAYOUT = """
version: v1
mig-configs:
  selected:
    - devices: [0, 1, 2, 3]
      mig-enabled: true
      mig-devices: {2g.20gb: 2, 3g.30gb: 1}
"""
MIG_2G, MIG_3G = "nvidia.com/mig-2g.20gb", "nvidia.com/mig-3g.30gb"
PLUGIN_LABELS = {"app": "tessera-device-plugin", "app.kubernetes.io/component": "device-plugin"}
DEVICES = "static: [{resource: device.example.com/gpu, devices: 'd{0..7}', env: {X: y}}]"


def _cut_node(allocatable: dict[str, str], state: str | None, reason: str = "") -> Document:
    labels = {"nvidia.com/gpu.count": "4", **({"nvidia.com/mig.config.state": state} if state else {})}
    annotations = {
        "run.ai/mig.config": LAYOUT,
        **({"nvidia.com/mig.config.reason": reason} if reason else {}),
    }
    return node_document("cut", allocatable, labels=labels, annotations=annotations)


@pytest.mark.parametrize(
    ("allocatable", "state", "reason", "severity", "text"),
    [
        ({MIG_2G: "8", MIG_3G: "4"}, "success", "", None, ""),
        ({MIG_2G: "8", MIG_3G: "3"}, "success", "", "problem", "makes 8 × nvidia.com/mig-2g.20gb, 4 × nvidia.com/mig-3g.30gb, and its allocatable has 8 × nvidia.com/mig-2g.20gb, 3 × nvidia.com/mig-3g.30gb"),
        ({}, "success", "", "problem", "allocatable has no MIG device"),
        ({}, "failed", "3g.30gb does not fit", "problem", "was refused, the last good one holds: 3g.30gb does not fit"),
        ({MIG_2G: "8"}, "pending", "pod a/b", "warning", "waits for devices in use: pod a/b"),
        ({}, None, "", "problem", "no device plugin says what became of it"),
    ],
)  # fmt: skip
async def test_allocatable_is_compared_with_the_annotation(allocatable, state, reason, severity, text):
    """A node's allocatable is what its layout makes; else it is said what became of the layout."""
    objects = healthy(authority())
    objects[kinds.NODES].append(_cut_node(allocatable, state, reason))
    found = await examined(objects, now=NOW)
    if severity is None:
        assert found.findings == []
    else:
        assert found.findings == [("layouts", severity)]
        assert text in found.one("layouts").text


async def test_a_refused_layout_can_be_looked_at():
    """The recommended command reads that node's layout, and is one that there is."""
    objects = healthy(authority())
    cut = _cut_node({}, "failed", "3g.30gb does not fit")
    objects[kinds.NODES].append(cut)
    command = (await examined(objects, now=NOW)).one("layouts").commands[0]
    assert command == f"tessera mig validate --cluster {cut['metadata']['name']}"


async def test_node_with_gpus_that_offers_none_is_named():
    """A node that says it has GPUs and offers none has no registered plugin."""
    objects = healthy(authority())
    objects[kinds.NODES].append(
        node_document("dark", {"cpu": "8"}, labels={"nvidia.com/gpu.present": "true"})
    )
    found = await examined(objects, now=NOW)
    assert found.findings == [("silent", "warning")]
    assert "node dark" in found.one("silent").text


def _with_plugin(ready: int, allocatable: dict[str, str], config: str = DEVICES) -> Any:
    objects = healthy(authority())
    template = {"spec": {"volumes": [{"name": "config", "configMap": {"name": "tessera-device-plugin"}}]}}
    metadata = {"name": "tessera-device-plugin", "labels": PLUGIN_LABELS}
    spec = {"selector": {"matchLabels": {"app": "tessera-device-plugin"}}, "template": template}
    status = {"desiredNumberScheduled": 1, "numberReady": ready}
    objects[DAEMON_SETS] = [{"metadata": metadata, "spec": spec, "status": status}]
    objects[kinds.CONFIG_MAPS].append(
        {"metadata": {"name": "tessera-device-plugin"}, "data": {"devices.yaml": config}}
    )
    pod = webhook_pod("plugin-x", ready=bool(ready))
    pod["metadata"]["labels"] = PLUGIN_LABELS
    pod["spec"]["nodeName"] = "mock"
    objects[kinds.PODS].append(pod)
    objects[kinds.NODES].append(node_document("mock", allocatable))
    return objects


@pytest.mark.parametrize(
    ("objects", "severity", "text"),
    [
        (_with_plugin(1, {"device.example.com/gpu": "8"}), None, ""),
        (_with_plugin(1, {"device.example.com/gpu": "7"}), "warning", "7 of 8 device.example.com/gpu are healthy"),
        (_with_plugin(1, {}), "problem", "node mock has no device.example.com/gpu"),
        (_with_plugin(0, {}), "problem", "0 of 1 are registered with their kubelet; on node mock: running, not ready"),
        (_with_plugin(1, {}, "static: [{resource: x}]"), "problem", "its configuration has a mistake"),
    ],
)  # fmt: skip
async def test_plugin_is_registered(objects, severity, text):
    """The device plugin runs, the kubelet knows its resources, and its devices are healthy; else it is said."""
    found = await examined(objects, now=NOW)
    if severity is None:
        assert found.findings == []
    else:
        assert found.findings == [("plugin", severity)]
        assert text in found.one("plugin").text


async def test_plugin_without_a_node_is_named():
    """A plugin that runs nowhere is a mistake in its selectors."""
    objects = _with_plugin(0, {})
    objects[DAEMON_SETS][0]["status"] = {}
    del objects[kinds.PODS][-1]
    found = await examined(objects, now=NOW)
    assert found.findings == [("plugin", "warning")]
    assert "has no node to run on: its nodeSelector and tolerations fit none" in found.one("plugin").text


async def test_plugin_whose_nodes_moved_to_dra_is_no_mistake():
    """After the last node has moved to DRA, the plugin's empty DaemonSet is only noted, with the label that did it."""
    objects = _with_plugin(0, {})
    objects[DAEMON_SETS][0]["status"] = {}
    del objects[kinds.PODS][-1]
    objects[kinds.NODES][-1]["metadata"].setdefault("labels", {})["tessera.dev/devices"] = "dra"
    found = await examined(objects, now=NOW)
    assert ("plugin", "warning") not in found.findings
    assert "1 node with tessera.dev/devices=dra left to the DRA driver" in found.one("plugin").text


async def test_profile_that_no_node_offers_is_named():
    """A pod that waits for what no node has will wait for ever: who, what, and what there is."""
    objects = healthy(authority())
    objects[kinds.PODS] += [gpu_pod(name, {"nvidia.com/mig-3g.40gb": "1"}) for name in ("a", "b")]
    objects[kinds.PODS].append(gpu_pod("c", {MIG_2G: "4"}))
    found = await examined(objects, now=NOW)
    assert found.findings == [("offers", "problem"), ("offers", "problem")]
    first, second = found.of("offers")
    assert first.text == "2 pods wait (default/a, default/b): no node offers 1 × 3g.40gb"
    assert first.commands == ("tessera why a -n default",)
    assert second.text == (
        "pod default/c waits: no node has 4 × 2g.20gb together "
        "(2g.20gb: it has 2, the pod needs 4 on one node on node gpu-1)"
    )
    assert not any("delete" in command for one in (first, second) for command in one.commands)


@pytest.mark.parametrize(
    ("owner", "deleted"),
    [("", False), ("Job", False), ("Workflow", False), ("ReplicaSet", True), ("StatefulSet", True)],
)
async def test_only_what_comes_back_is_to_be_deleted(owner, deleted):
    """To delete a pod is recommended only where its controller makes it again and loses nothing: neither alone nor of a Job."""
    objects = healthy(authority())
    objects[kinds.PODS].append(gpu_pod("a", {"nvidia.com/mig-3g.40gb": "1"}, owner=owner))
    commands = (await examined(objects, now=NOW)).one("offers").commands
    assert any("delete" in command for command in commands) == deleted
    if deleted:
        assert f"# it never ran; {owner} a-owner makes it again" in commands[-1]


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ("nvidia.com/mig-1g18gb", "pod default/a waits: no node has nvidia.com/mig-1g18gb; did you mean nvidia.com/mig-1g.18gb?"),
        ("nvidia.com/mig-2g20gb", "did you mean nvidia.com/mig-2g.20gb?"),
        ("nvidia.com/mig-2g.20g", "did you mean nvidia.com/mig-2g.20gb?"),
        ("nvidia.com/MIG-2G.20GB", "did you mean nvidia.com/mig-2g.20gb?"),
        ("nvida.com/gpu", "did you mean nvidia.com/gpu?"),
        ("nvidia.com/gpus", "did you mean nvidia.com/gpu?"),
        ("nvidia.com/turbine", "no node has nvidia.com/turbine, nor is it a GPU such as nvidia.com/gpu"),
        ("example.com/fpga", None),
    ],
)  # fmt: skip
async def test_misspelt_resource_is_mentioned(asked, text):
    """A pod that asks for what looks like a GPU and is none waits for ever: what was meant is said."""
    objects = healthy(authority())
    objects[kinds.PODS].append(gpu_pod("a", {asked: "1"}))
    found = await examined(objects, now=NOW)
    assert found.findings == ([("offers", "problem")] if text else [])
    if text:
        assert text in found.one("offers").text


ELSE = (
    "the scheduler refused it more than 30 s ago and has not placed it, so it waits for something else: look at its volumes, "
    "claims and affinity"
)


async def test_other_resources_of_the_vendor_are_left_alone():
    """A resource that a node has is none of the doctor's business."""
    objects = healthy(authority())
    objects[kinds.NODES].append(node_document("net", {"nvidia.com/hostdev": "8"}))
    objects[kinds.PODS].append(gpu_pod("a", {"nvidia.com/hostdev": "1"}))
    assert (await examined(objects, now=NOW)).findings == []


@pytest.mark.parametrize(
    ("spec", "taken", "message", "text"),
    [
        ({}, 2, "0/1 nodes", "1 × 2g.20gb is taken on node gpu-1 (2g.20gb: 2 of 2 in use)"),
        ({"nodeSelector": {"zone": "b"}}, 0, "0/1 nodes", "1 × 2g.20gb is only on node gpu-1, not for this pod (nodeSelector wants zone=b, the node has no such label)"),
        ({}, 0, "0/1 nodes are available", "node gpu-1 has room for it, and the scheduler says: 0/1 nodes are available; " + ELSE),
        ({}, 0, "", "node gpu-1 has room for it, and the scheduler has not said anything yet"),
    ],
)  # fmt: skip
async def test_pending_pod_is_explained(spec, taken, message, text):
    """A GPU pod without a node is reported with the reason: all is taken, its own selectors, or what the scheduler says."""
    objects = healthy(authority())
    objects[kinds.PODS] += [gpu_pod(f"t{n}", {MIG_2G: "1"}, node="gpu-1") for n in range(taken)]
    objects[kinds.PODS].append(gpu_pod("waits", {MIG_2G: "1"}, message=message, **spec))
    found = await examined(objects, now=NOW)
    assert found.findings == [("pending", "warning")]
    finding = found.one("pending")
    assert finding.text == f"pod default/waits waits: {text}"
    assert finding.commands == ("tessera why waits -n default", "tessera capacity")


async def test_gated_pods_are_noted():
    """A pod that a controller holds back with a gate is no fault of the cluster: it is noted, with the gate's name."""
    objects = healthy(authority())
    objects[kinds.PODS].append(gpu_pod("a", {MIG_2G: "1"}, schedulingGates=[{"name": "kueue"}]))
    finding = (await examined(objects, now=NOW)).one("pending")
    assert (str(finding.severity), finding.text) == (
        "note",
        "pod default/a waits: a controller must remove its scheduling gate kueue",
    )


async def test_pods_that_wait_for_the_same_are_one_finding():
    """However many pods wait for the same, they are one finding: how many, in how many namespaces, and some names."""
    objects = healthy(authority())
    objects[kinds.PODS] += [gpu_pod(f"t{n}", {MIG_2G: "1"}, node="gpu-1") for n in range(2)]
    for number in range(12):
        one = gpu_pod(f"train-{number:02}", {MIG_2G: "1"})
        one["metadata"]["namespace"] = f"team-{number % 3}"
        objects[kinds.PODS].append(one)
    (finding,) = (await examined(objects, now=NOW)).of("pending")
    assert finding.text == (
        "12 pods in 3 namespaces wait (team-0/train-00, team-0/train-03, team-0/train-06 and 9 more): "
        "1 × 2g.20gb is taken on node gpu-1 (2g.20gb: 2 of 2 in use)"
    )


async def test_many_answers_to_the_same_request_are_one_finding():
    """Pods that ask for the same and wait for many different nodes are one finding, with one of them as an example."""
    objects = healthy(authority())
    for number in range(6):
        name = f"n{number}"
        objects[kinds.NODES].append(node_document(name, {MIG_3G: "1"}, labels={"host": name}))
        objects[kinds.PODS].append(gpu_pod(f"holds-{number}", {MIG_3G: "1"}, node=name))
        objects[kinds.PODS].append(gpu_pod(f"p{number}", {MIG_3G: "1"}, nodeSelector={"host": name}))
    (finding,) = (await examined(objects, now=NOW)).of("pending")
    assert finding.text == (
        "6 pods wait (default/p0, default/p1, default/p2 and 3 more), such as default/p0: "
        "1 × 3g.30gb is taken on node n0 (3g.30gb: 1 of 1 in use)"
    )


async def test_nodes_with_the_same_fault_are_counted():
    """Three nodes are listed one by one, and beyond that they are counted."""
    objects = healthy(authority())
    objects[kinds.NODES] += [
        node_document(f"dark-{n}", {"cpu": "8"}, labels={"nvidia.com/gpu.present": "true"}) for n in range(9)
    ]
    found = (await examined(objects, now=NOW)).of("silent")
    assert len(found) == 4
    assert found[3].text == (
        "labelled as a GPU node, and offers no GPU: the same of 6 more nodes (dark-3, dark-4, dark-5 and 3 more)"
    )


DENIED = 'Error creating: admission webhook "gpu-allocation.k8s.io" denied the request: nothing fits'


def _refusals(*messages: str, kind: str = "ReplicaSet", wanted: int = 3, has: int = 0, **event: Any) -> Any:
    """Events of a controller that has so many pods of those that it wants."""
    objects = healthy(authority())
    about = {"kind": kind, "namespace": "default", "name": "web-1"}
    objects[kinds.EVENTS] = [
        {
            "metadata": {"name": f"e{n}"},
            "reason": "FailedCreate",
            "involvedObject": about,
            "message": one,
            **event,
        }
        for n, one in enumerate(messages)
    ]
    owner = object_of("web-1", namespace="default", spec={"replicas": wanted}, status={"replicas": has})
    objects[REPLICA_SETS] = [owner]
    return objects


async def test_rejected_workload_is_named_once():
    """A controller whose pods the webhook rejects shows nothing but events: they are found, one finding each."""
    found = await examined(_refusals(DENIED, DENIED, "Error creating: exceeded quota"), now=NOW)
    assert found.findings == [("refused", "problem")]
    assert found.one("refused").text == (
        "ReplicaSet default/web-1 cannot create pods, the webhook rejects them: nothing fits"
    )
    assert found.one("refused").commands[0] == "tessera why replicaset/web-1 -n default"


def _deleted(objects: Any) -> None:
    del objects[REPLICA_SETS]


def _made_again(objects: Any) -> None:
    objects[kinds.EVENTS][0]["involvedObject"]["uid"] = "of the one before"


def _being_deleted(objects: Any) -> None:
    objects[REPLICA_SETS][0]["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"


def _nothing(objects: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("objects", "change", "told"),
    [
        (_refusals(DENIED), _nothing, True),
        (_refusals(DENIED), _deleted, False),
        (_refusals(DENIED), _made_again, False),
        (_refusals(DENIED), _being_deleted, False),
        (_refusals(DENIED, wanted=0), _nothing, False),
        (_refusals(DENIED, has=3), _nothing, False),
        (_refusals(DENIED, has=2), _nothing, True),
        (_refusals(DENIED, lastTimestamp="2027-01-15T07:50:00Z"), _nothing, True),
        (_refusals(DENIED, lastTimestamp="2027-01-15T07:00:00Z"), _nothing, False),
        (_refusals(DENIED, eventTime="2027-01-15T07:00:00.000000Z"), _nothing, False),
        (_refusals(DENIED, eventTime="2027-01-15T07:00:00.000000Z", series={"lastObservedTime": "2027-01-15T07:59:00.000000Z"}), _nothing, True),
        (_refusals(DENIED, kind="Wonder"), _nothing, True),
    ],
    ids=["now", "deleted", "made again", "being deleted", "scaled to 0", "has its pods", "lacks one", "ten minutes ago",
         "an hour ago", "an hour ago, newer API", "again and again", "unknown kind"],
)  # fmt: skip
async def test_old_events_are_no_alarm(objects, change, told):
    """An event counts while its controller is there, lacks pods, and has tried lately."""
    change(objects)
    found = await examined(objects, now=NOW)
    assert found.findings == ([("refused", "problem")] if told else [])
    assert found.states["refused"] == "seen"


SPEC = b'{"cdiVersion": "0.5.0", "kind": "example.com/thing", "devices": [{"name": "a"}]}'


@pytest.mark.parametrize(
    ("files", "devices", "findings"),
    [
        ([("tessera-x.json", SPEC)], ["example.com/thing=a"], []),
        ([("tessera-x.json", SPEC)], [], [("warning", "is stale: it lists 1 devices")]),
        ([("other.json", SPEC)], [], []),
        ([("tessera-x.json", SPEC), ("other.yaml", SPEC)], ["example.com/thing=a"], [("problem", "stands in tessera-x.json and other.yaml")]),
        ([], ["example.com/thing=a"], [("problem", "in no CDI spec, such as example.com/thing=a")]),
        ([("tessera-x.json", b"{")], [], [("problem", "tessera-x.json cannot be read")]),
        ([("tessera-x.json", b"[]")], [], [("problem", "no CDI spec")]),
        ([(".tessera-x.tmp", b"{")], [], []),
    ],
)  # fmt: skip
def test_cdi_specs_are_judged(files, devices, findings):
    """Specs are readable, in no conflict, and say what the plugin published to the kubelet; other vendors' are left alone."""
    seen = Observations(cdi=dict(files), devices=tuple(devices))
    found = [(str(one.severity), one.text) for one in cdi(seen)]
    assert len(found) == len(findings)
    for (severity, text), (expected, part) in zip(found, findings, strict=True):
        assert severity == expected
        assert part in text


def test_conflict_of_specs_deletes_nothing():
    """Which of two files is the stale one is not known here: they are to be looked at."""
    files = {"other.yaml": SPEC, "tessera-x.json": SPEC}
    (finding,) = cdi(Observations(cdi=files, devices=("example.com/thing=a",)))
    assert finding.commands[0].startswith("ls -l --full-time other.yaml tessera-x.json ")


def test_own_namespace_is_the_charts():
    """The names that the doctor looks for by default are the chart's defaults."""
    assert Observations().names.namespace == NAMESPACE


@pytest.mark.parametrize(
    ("text", "check", "severity", "told"),
    [
        (
            "1*9g.90gb=9g.90gb/c,8g.80gb/c",
            "offers",
            "problem",
            "pod default/c waits: no node offers 1 × 9g.90gb, else 1 × 8g.80gb",
        ),
        (
            "1*9g.90gb=9g.90gb/c,2g.20gb/c",
            "pending",
            "warning",
            f"pod default/c waits: node gpu-1 has room for it, and the scheduler says: none; {ELSE}",
        ),
    ],
)
async def test_bridged_pods_that_wait(text, check, severity, told):
    """A pod with a claim is reported as any other that waits; none of its alternatives there, that is a problem."""
    objects = healthy(authority())
    one = bridged(gpu_pod("c", {}, message="none"), text)
    own = one["spec"]["resourceClaims"][0]["name"]
    one["status"]["resourceClaimStatuses"] = [{"name": own, "resourceClaimName": "c-gpu"}]
    objects[kinds.PODS].append(one)
    renewed = datetime.fromtimestamp(NOW, UTC).isoformat()
    lease = {"holderIdentity": "one", "leaseDurationSeconds": 15, "renewTime": renewed}
    objects[kinds.LEASES] = [object_of("tessera-controller", spec=lease)]
    found = await examined(objects, now=NOW, forbidden=frozenset({"resourceclaims"}))
    assert found.findings == [(check, severity)]
    assert found.one(check).text == told
    missing = await examined(objects, now=NOW)
    assert missing.findings == [("pending", "warning")]
    assert missing.one("pending").text == "pod default/c waits: its resource claim c-gpu is not there"
