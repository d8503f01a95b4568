"""Faults of nodes, plugins and pods, planted one by one."""

from typing import Any

import pytest

from tessera.doctor.cdi import cdi
from tessera.doctor.evidence import CdiFile, Evidence
from tessera.simulation.control_plane import kinds
from tessera.simulation.control_plane.store import Document
from tests.doctor.authorities import NOW, authority
from tests.doctor.clusters import DAEMON_SETS, NAMESPACE, examined, gpu_pod, healthy, node, webhook_pod

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
    return node("cut", allocatable, labels=labels, annotations=annotations)


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
    """The command that is told reads that node's layout, and is one that there is."""
    objects = healthy(authority())
    cut = _cut_node({}, "failed", "3g.30gb does not fit")
    objects[kinds.NODES].append(cut)
    command = (await examined(objects, now=NOW)).one("layouts").commands[0]
    assert command == f"tessera mig validate --cluster {cut['metadata']['name']}"


async def test_node_with_gpus_that_offers_none_is_named():
    """A node that says it has GPUs and offers none has no registered plugin."""
    objects = healthy(authority())
    objects[kinds.NODES].append(node("dark", {"cpu": "8"}, labels={"nvidia.com/gpu.present": "true"}))
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
    objects[kinds.NODES].append(node("mock", allocatable))
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
    assert "has no node to run on" in found.one("plugin").text


async def test_profile_that_no_node_offers_is_named():
    """A pod that waits for what no node has will wait for ever: who, what, and what there is."""
    objects = healthy(authority())
    objects[kinds.PODS] += [gpu_pod(name, {"nvidia.com/mig-3g.40gb": "1"}) for name in ("a", "b")]
    objects[kinds.PODS].append(gpu_pod("c", {MIG_2G: "4"}))
    found = await examined(objects, now=NOW)
    assert found.findings == [("offers", "problem"), ("offers", "problem")]
    first, second = found.of("offers")
    assert first.text.startswith("pod default/c asks for 4 × nvidia.com/mig-2g.20gb, which no node offers")
    assert second.text.startswith("2 pods ask (default/a, default/b) for 1 × nvidia.com/mig-3g.40gb")
    assert "2 × nvidia.com/mig-2g.20gb" in second.text
    assert second.commands[0].startswith("kubectl delete pod -n default a ")


@pytest.mark.parametrize(
    ("spec", "taken", "message", "text"),
    [
        ({}, 2, "0/1 nodes", "1 × nvidia.com/mig-2g.20gb is taken on gpu-1; it runs when something is freed"),
        ({"nodeSelector": {"zone": "b"}}, 0, "0/1 nodes", "are not for this pod; gpu-1: nodeSelector wants zone=b, the node has no such label"),
        ({}, 0, "0/1 nodes are available: 1 Insufficient cpu.", "the scheduler says: 0/1 nodes are available: 1 Insufficient cpu."),
        ({}, 0, "", "the scheduler has not said why yet"),
    ],
)  # fmt: skip
async def test_pending_pod_is_explained(spec, taken, message, text):
    """A GPU pod without a node is told why: all is taken, its own selectors, or what the scheduler says."""
    objects = healthy(authority())
    objects[kinds.PODS] += [gpu_pod(f"t{n}", {MIG_2G: "1"}, node="gpu-1") for n in range(taken)]
    objects[kinds.PODS].append(gpu_pod("waits", {MIG_2G: "1"}, message=message, **spec))
    found = await examined(objects, now=NOW)
    assert found.findings == [("pending", "warning")]
    finding = found.one("pending")
    assert finding.text == f"pod default/waits waits: {text}" or text in finding.text
    assert "kubectl describe pod -n default waits" in finding.commands


async def test_rejected_workload_is_named_once():
    """A controller whose pods the webhook rejects shows nothing but events: they are found, one finding each."""
    objects = healthy(authority())
    denied = 'Error creating: admission webhook "gpu-allocation.k8s.io" denied the request: nothing fits'
    about = {"kind": "ReplicaSet", "namespace": "default", "name": "web-1"}
    events = [("a", denied), ("b", denied), ("c", "Error creating: exceeded quota")]
    objects[kinds.EVENTS] = [
        {"metadata": {"name": name}, "reason": "FailedCreate", "involvedObject": about, "message": message}
        for name, message in events
    ]
    found = await examined(objects, now=NOW)
    assert found.findings == [("refused", "problem")]
    assert found.one("refused").text == (
        "ReplicaSet default/web-1 cannot create pods, the webhook rejects them: nothing fits"
    )


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
    """Specs are readable, in no conflict, and say what the plugin told the kubelet; other vendors' are left alone."""
    seen = Evidence(cdi=tuple(CdiFile(*file) for file in files), devices=tuple(devices))
    found = [(str(one.severity), one.text) for one in cdi(seen)]
    assert len(found) == len(findings)
    for (severity, text), (expected, part) in zip(found, findings, strict=True):
        assert severity == expected
        assert part in text


def test_own_namespace_is_the_charts():
    """The names that the doctor looks for without being told are the chart's defaults."""
    assert Evidence().names.namespace == NAMESPACE
