"""A pod's claim: made from its template as soon as that is there, and gone with the pod."""

import pytest

from tessera.simulation.control_plane.kinds import (
    DEVICE_CLASSES,
    EVENTS,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from tests.simulation.control_plane.dra.samples import Cluster, exactly


def test_the_pod_comes_first():
    """Until its template is there, the pod has an event and no word of the scheduler; then it has its claim, and a node."""
    cluster = Cluster(a="1g")
    assert cluster.pod("p", template="late") is None
    [event] = [one.document for one in cluster.store.list(EVENTS)]
    assert event["reason"] == "FailedResourceClaimCreation"
    assert event["message"] == (
        'PodResourceClaim gpu: resource claim template "late": '
        'resourceclaimtemplates.resource.k8s.io "late" not found'
    )
    cluster.template("late", exactly("gpu", "1g"))
    assert cluster.settle("p") == "a"


def test_what_is_made():
    """A claim with the template's spec, owned by the pod, that says its name in the pod; the pod's status names it."""
    cluster = Cluster(a="1g")
    cluster.template("t", exactly("gpu", "1g"))
    cluster.pod("p", template="t")
    [claim] = cluster.claims()
    pod = cluster.store.get(PODS, "p", "default").document
    assert claim["spec"] == {"devices": {"requests": [exactly("gpu", "1g")]}}
    assert claim["metadata"]["name"].startswith("p-gpu-")
    assert claim["metadata"]["annotations"] == {"resource.kubernetes.io/pod-claim-name": "gpu"}
    assert claim["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": pod["metadata"]["uid"], "controller": True}
    ]
    assert pod["status"]["resourceClaimStatuses"] == [
        {"name": "gpu", "resourceClaimName": claim["metadata"]["name"]}
    ]
    cluster.settle()
    assert len(cluster.claims()) == 1, "one is enough"


@pytest.mark.parametrize("phase", ["Succeeded", "Failed", None])
def test_it_goes_with_the_pod(phase):
    """Whether the pod has ended or was deleted: the next pod has the device."""
    cluster = Cluster(a="1g")
    cluster.template("t", exactly("gpu", "1g"))
    cluster.pod("p", template="t")
    cluster.pod("q", template="t")
    if phase is None:
        cluster.delete("p")
    else:
        cluster.store.update(PODS, "p", {"status": {"phase": phase}}, "default", status=True)
    assert cluster.settle("q") == "a"
    assert list(cluster.given()) == ["q"]


def test_nonsense_is_survived():
    """Pods, claims, templates, classes and slices that make no sense stop nothing."""
    cluster = Cluster(a="1g")
    for kind, document in (
        (RESOURCE_SLICES, {"metadata": {"name": "odd"}, "spec": {"devices": 7}}),
        (DEVICE_CLASSES, {"metadata": {"name": "odd"}, "spec": []}),
        (RESOURCE_CLAIMS, {"metadata": {"name": "odd"}, "status": {"allocation": 1}}),
        (
            PODS,
            {"metadata": {"name": "odd"}, "spec": {"containers": [{"name": "c"}], "resourceClaims": [{}]}},
        ),
    ):
        cluster.store.create(kind, document)
    cluster.store.create(PODS, {"metadata": {"name": "none"}, "spec": None})
    cluster.claim("none")
    cluster.template("empty")
    cluster.pod("p", template="empty")
    cluster.template("t", exactly("gpu", "1g"))
    assert cluster.pod("q", template="t") == "a"
