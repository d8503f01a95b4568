"""Pods as capacity sees them, from their JSON."""

import json
from typing import Any

import pytest

from tessera.core.resources import is_any_gpu
from tessera.protocol.kubernetes.objects import InvalidObject
from tessera.protocol.kubernetes.pod import decode_pod_use
from tests.build import GPU, MIG, bridged, pod_document


def everything(_: str) -> bool:
    return True


def use(document, keep=everything):
    return decode_pod_use(json.dumps(document).encode(), keep)


def texts(found):
    return {resource: str(amount) for resource, amount in found.amounts.items()}


def running(*resources, status=None, spec=None, **metadata):
    document = pod_document(*resources, namespace="ml", **metadata)
    document["spec"] |= {"nodeName": "a", **(spec or {})}
    document["status"] = {"phase": "Running", **(status or {})}
    return document


def test_whole_pod():
    """Where it is, what it holds, when it was made, what it fell back from: all of it, and nothing else."""
    document = running(
        {"requests": {"cpu": "500m", GPU: "1"}, "limits": {GPU: "1"}},
        {"limits": {MIG + "2g.20gb": 1}},
        creationTimestamp="2026-11-15T09:00:00Z",
        annotations={"gpu-webhook.k8s.io/fallback": "3g.30gb->2g.20gb", "other": "x"},
        spec={"overhead": {"cpu": "100m"}, "tolerations": "not looked at"},
    )
    found = use(document)
    assert texts(found) == {"cpu": "600m", GPU: "1", MIG + "2g.20gb": "1", "pods": "1"}
    assert (found.namespace, found.name, found.node, found.ending) == ("ml", "p", "a", False)
    assert (found.created, found.record) == ("2026-11-15T09:00:00Z", "3g.30gb->2g.20gb")
    assert texts(use(document, is_any_gpu)) == {GPU: "1", MIG + "2g.20gb": "1"}


def test_pods_of_one_template():
    """They share their amounts; whatever changes the amounts of one of them leaves the others as they are."""
    asked = {"requests": {"cpu": "2", GPU: 1}}
    first, second = use(running(asked)), use(running(asked, name="q", spec={"nodeName": "b"}))
    assert first.amounts is second.amounts
    assert (second.name, second.node, texts(second)) == ("q", "b", {"cpu": "2", GPU: "1", "pods": "1"})
    assert texts(use(running(asked), is_any_gpu)) == {GPU: "1"}
    resized = {"containerStatuses": [{"name": "c0", "resources": {"requests": {"cpu": "3"}}}]}
    changes: list[tuple[dict[str, Any], str | None]] = [
        ({"status": {"phase": "Succeeded"}}, None),
        ({"status": resized}, "3"),
        ({"spec": {"overhead": {"cpu": "1"}}}, "3"),
        ({"spec": {"resources": {"requests": {"cpu": "4"}}}}, "4"),
        ({"spec": {"initContainers": [{"name": "i", "resources": {"requests": {"cpu": "5"}}}]}}, "5"),
    ]
    for change, cpu in changes:
        assert texts(use(running(asked, **change))).get("cpu") == cpu
        assert use(running(asked)).amounts == first.amounts


def test_deleted_and_ended():
    """A pod being deleted holds on until it is gone; one that has ended holds nothing."""
    deleted = use(running({"requests": {GPU: 1}}, deletionTimestamp="2026-11-15T09:00:00Z"))
    assert (deleted.ending, texts(deleted)) == (True, {GPU: "1", "pods": "1"})
    assert texts(use(running({"requests": {GPU: 1}}, status={"phase": "Failed"}))) == {}


@pytest.mark.parametrize(
    ("status", "cpu"),
    [
        ({}, "2"),
        ({"containerStatuses": [{"name": "c0"}]}, "2"),
        ({"containerStatuses": [{"name": "c0", "resources": {"requests": {"cpu": "3"}}}]}, "3"),
        ({"containerStatuses": [{"name": "c0", "resources": {}, "allocatedResources": {"cpu": "4"}}]}, "4"),
        ({"containerStatuses": [{"name": "c0", "resources": {"requests": {"cpu": "1"}}}]}, "2"),
        ({"containerStatuses": [{"name": "other", "resources": {"requests": {"cpu": "9"}}}]}, "2"),
        (
            {
                "containerStatuses": [{"name": "c0", "resources": {"requests": {"cpu": "1"}}}],
                "conditions": [{"type": "PodResizePending", "reason": "Infeasible"}],
            },
            "1",
        ),
        (
            {
                "containerStatuses": [{"name": "c0", "resources": {"requests": {"cpu": "1"}}}],
                "conditions": [{"type": "Ready"}, {"type": "PodResizePending", "reason": "Deferred"}],
            },
            "2",
        ),
    ],
)
def test_resizing(status, cpu):
    """A container that is being resized counts as the scheduler counts it."""
    assert texts(use(running({"requests": {"cpu": "2"}}, status=status)))["cpu"] == cpu


def test_init_containers_are_not_resized():
    """Of the init containers only sidecars can be resized."""
    document = running({"requests": {"cpu": "1"}})
    resources = {"requests": {"cpu": "2"}}
    document["spec"]["initContainers"] = [{"name": "i", "resources": resources}]
    document["status"]["initContainerStatuses"] = [{"name": "i", "resources": {"requests": {"cpu": "8"}}}]
    assert texts(use(document))["cpu"] == "2"
    document["spec"]["initContainers"][0]["restartPolicy"] = "Always"
    assert texts(use(document))["cpu"] == "9"


def test_pod_level():
    """What the pod requests as a whole counts in place of the sum, and may be resized too."""
    document = running({"requests": {"cpu": "1", GPU: "1"}}, spec={"resources": {"requests": {"cpu": "4"}}})
    assert texts(use(document)) == {"cpu": "4", GPU: "1", "pods": "1"}
    document["status"] |= {"resources": {"requests": {"cpu": "6"}}, "allocatedResources": {"memory": "1Gi"}}
    assert texts(use(document)) == {"cpu": "6", GPU: "1", "pods": "1"}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"spec": {"containers": [{"resources": {"requests": {GPU: "x"}}}]}}, 'pod ml/p: spec.containers[0].resources.requests[nvidia.com/gpu]: "x" is not a Kubernetes quantity such as 2, 500m or 8Gi'),
        ({"spec": {"containers": 3}}, "spec.containers: expected array | null, got int"),
        ({"metadata": None}, "metadata: expected object, got null"),
    ],
)  # fmt: skip
def test_bad_pods(change, complaint):
    """A pod that is none is refused with the place and the reason."""
    with pytest.raises(InvalidObject) as error:
        use({**running({}), **change})
    assert str(error.value) == complaint


@pytest.mark.parametrize(
    ("where", "record", "amounts"),
    [
        ("", "", {MIG + "2g.20gb": "1"}),
        ("a", "", {MIG + "2g.20gb": "1"}),
        ("a", "2g.20gb->1g.10gb", {MIG + "1g.10gb": "1"}),
    ],
)
def test_bridged(where, record, amounts):
    """A pod whose request became a claim counts as any other: with what it asked for, then with what it was given."""
    text = "1*2g.20gb=2g.20gb/tessera-any,1g.10gb/tessera-any"
    annotations = {"gpu-webhook.k8s.io/fallback": record} if record else {}
    document = bridged(pod_document({"requests": {"cpu": "1"}}, annotations=annotations), text)
    document["spec"]["nodeName"] = where
    found = use(document)
    assert texts(found) == {"cpu": "1", **amounts, "pods": "1"}
    assert (str(found.alternatives), found.record) == (text, record)
    assert texts(use(document, is_any_gpu)) == amounts
