"""The webhook's decision about objects that no API server sent."""

import copy

import pytest

from tessera.core.errors import InvalidInput
from tessera.protocol.kubernetes.workloads import TEMPLATES, template_of
from tessera.webhook.offline import admit
from tests.build import MIG, node, offers, pod_document, policy

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
    assert template["metadata"]["annotations"] == {"gpu-webhook.k8s.io/fallback": "2g.20gb->1g.10gb"}
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
    """An object without a pod is not judged."""
    service = {"kind": "Service", "metadata": {"name": "s"}}
    found = admit(service, SMALL, policy(), "default")
    assert (found.after, found.judgements, found.title, found.rejected) == (service, {}, "Service s", False)


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
