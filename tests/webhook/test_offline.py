"""The webhook's decision about objects that no API server sent."""

import copy
import re

import pytest

from tessera.core.admission.outcome import Patched
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.quota import Quota
from tessera.protocol.admission.created import as_created
from tessera.protocol.kubernetes.workloads import TEMPLATES, template_of
from tessera.webhook.offline import admit, admit_again
from tessera.webhook.reviewed import KnownReviews
from tests.build import MIG, node, offers, pod_document, policy, running_pod

SMALL = offers(node("small", **{"1g.10gb": 4}))
ASKS = {"limits": {MIG + "2g.20gb": "1"}}


def workload(kind, **metadata):
    """An object of that kind whose pod asks for what the cluster does not have."""
    document = pod_document(ASKS)
    pod = document if kind == "Pod" else {"spec": document["spec"]}
    for step in reversed(TEMPLATES[kind]):
        pod = {step: pod}
    return {**pod, "apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "w", **metadata}}


@pytest.mark.parametrize("kind", TEMPLATES)
def test_every_kind_that_makes_pods(kind):
    """Its pod is changed as the webhook would, at its place; nothing else moves, and the object that came stays as it was."""
    given = workload(kind)
    found = admit(given, SMALL, policy(), "ml")
    assert (found.title, found.rejected, found.before) == (f"{kind} ml/w", False, workload(kind))
    template = template_of(found.after)
    assert template["spec"]["containers"][0]["resources"] == {"limits": {MIG + "1g.10gb": "1"}}
    assert template["metadata"]["annotations"] == {
        "gpu-webhook.k8s.io/fallback": "2g.20gb->1g.10gb",
        "gpu-webhook.k8s.io/asked": f'{{"c0":{{"{MIG}2g.20gb":"1"}}}}',
    }
    before = copy.deepcopy(found.after)
    template_of(before).update(template_of(given))
    if kind != "Pod":
        del template_of(before)["metadata"]
    assert before == given


def test_the_namespace_of_the_object_goes_first():
    """The given one is for objects that name none."""
    assert admit(workload("Pod", namespace="own"), SMALL, policy(), "ml").title == "Pod own/w"


def test_rejected():
    """Where nothing fits the object stays as it was."""
    found = admit(workload("Job"), offers(node("none")), policy(), "default")
    assert found.rejected
    assert found.after == found.before


def test_other_kinds_pass():
    """An object without a pod is not reviewed."""
    service = {"kind": "Service", "metadata": {"name": "s"}}
    found = admit(service, SMALL, policy(), "default")
    assert (found.after, found.reviewed, found.title, found.rejected) == (service, {}, "Service s", False)


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        ({}, "kind: missing; expected a Kubernetes object"),
        ({"kind": 5}, "kind: not a text; expected a Kubernetes object"),
        ({"kind": "Pod", "metadata": 5}, "Pod: metadata: expected an object"),
        ({"kind": "Pod", "spec": 5}, "Pod (no name): spec: expected object | null, got int"),
    ],
)
def test_what_is_no_object(document, complaint):
    """It is said with the place, in one sentence."""
    with pytest.raises(InvalidInput) as caught:
        admit(document, SMALL, policy(), "default")
    assert str(caught.value) == complaint


def test_observe_mode():
    """The object stays as it came and is not rejected; what would be done can be looked at."""
    found = admit(workload("Job"), SMALL, policy("mode: observe"), "default")
    (reviewed,) = found.reviewed.values()
    assert (found.after, found.operations, found.rejected) == (workload("Job"), [], False)
    assert isinstance(reviewed.would, Patched)
    assert reviewed.would.replaced == (("2g.20gb", "1g.10gb"),)
    assert reviewed.withheld
    refused = admit(workload("Job"), offers(node("none")), policy("mode: observe"), "default")
    assert (refused.rejected, refused.after) == (False, workload("Job"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"metadata": {"namespace": "team", "annotations": 5}}, "metadata.annotations"),
        ({"spec": {"containers": ["main"]}}, "spec.containers[0]"),
        ({"spec": {"containers": [{"resources": []}]}}, "spec.containers[0].resources"),
        ({"spec": {"containers": [{}], "resourceClaims": [1]}}, "spec.resourceClaims"),
        ({"spec": 1.5}, "spec"),
    ],
)
def test_a_file_that_is_no_pod(change, words):
    """What cannot be read as a pod is named in one sentence."""
    with pytest.raises(InvalidInput, match=re.escape(words)):
        admit_again({**running_pod("2g.20gb->1g.10gb"), **change}, offers(), policy())


def test_a_pods_own_use_is_not_held_against_it():
    """A quota that is full of the pod itself lets it be created again; the offers are as before."""
    cluster = offers(node("small", **{"1g.10gb": 4}))
    full = Quota("team", "gpus", {MIG + "1g.10gb": 1}, {MIG + "1g.10gb": 1})
    cluster.put_quota(full)
    again = admit_again(running_pod("2g.20gb->1g.10gb"), cluster, policy())
    would = again.reviewed[()].would
    assert isinstance(would, Patched)
    assert would.replaced == (("2g.20gb", "1g.10gb"),)
    assert admit(as_created(running_pod("2g.20gb->1g.10gb")), cluster, policy(), "").rejected
    assert cluster.quotas == {"team": (full,)}


def test_pods_of_one_template_are_decided_once(monkeypatch):
    """However many pods ask the same, the nodes are searched once; another request, annotation or namespace is another question."""
    cluster = offers(node("small", **{"1g.10gb": 4}))
    searches = []
    search = cluster.for_pod

    def counted(*args, **more):
        searches.append(args)
        return search(*args, **more)

    monkeypatch.setattr(cluster, "for_pod", counted)
    known = KnownReviews()
    admit_again(running_pod("2g.20gb->1g.10gb"), cluster, policy(), known)
    first = len(searches)
    for number in range(50):
        again = running_pod("2g.20gb->1g.10gb")
        again["spec"]["nodeName"] = f"node-{number}"
        again["metadata"].update(name=f"pod-{number}", uid=f"u{number}")
        found = admit_again(again, cluster, policy(), known)
        assert found.title == f"Pod team/pod-{number}"
    assert len(searches) == first
    others = [
        running_pod("3g.30gb->1g.10gb"),
        running_pod("2g.20gb->1g.10gb"),
        running_pod("2g.20gb->1g.10gb"),
    ]
    others[1]["metadata"]["namespace"] = "other"
    others[2]["metadata"]["annotations"]["gpu-webhook.k8s.io/min-memory"] = "20Gi"
    for other in others:
        before = len(searches)
        admit_again(other, cluster, policy(), known)
        assert len(searches) > before


def test_known_judgements_respect_a_pods_own_use():
    """Two pods that asked the same, of which one counts in a full quota: it may be created again, the other may not."""
    cluster = offers(node("small", **{"1g.10gb": 4}))
    cluster.put_quota(Quota("team", "gpus", {MIG + "1g.10gb": 1}, {MIG + "1g.10gb": 1}))
    fell_back = running_pod("2g.20gb->1g.10gb")
    as_asked = running_pod(resources={"limits": {MIG + "2g.20gb": "1"}})
    for pods in ([fell_back, as_asked], [as_asked, fell_back]):
        known = KnownReviews()
        found = {id(pod): admit_again(pod, cluster, policy(), known).rejected for pod in pods}
        assert (found[id(fell_back)], found[id(as_asked)]) == (False, True)
