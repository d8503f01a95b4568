"""Workloads whose templates are decided about when they are created: what is counted is what runs."""

import json

import pytest

from tessera.core.kubernetes.node import Namespace
from tessera.protocol.admission import patch
from tests.build import MIG, node, offers, pod_document, policy, respond, review

SMALL = node("small", **{"1g.10gb": 4})
DECIDED, RECORD = "gpu-webhook.k8s.io/decided", "gpu-webhook.k8s.io/fallback"


def template(profile, **annotations):
    found = pod_document({"limits": {MIG + profile: "1"}})
    return {"metadata": {"annotations": annotations} if annotations else {}, "spec": found["spec"]}


def job(profile="2g.20gb", **annotations):
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "j"},
        "spec": {"template": template(profile, **annotations)},
    }


def job_set(*profiles):
    jobs = [
        {"name": f"r{i}", "template": {"spec": {"template": template(p)}}} for i, p in enumerate(profiles)
    ]
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "s"},
        "spec": {"replicatedJobs": jobs},
    }


def sent(document, cluster=None, text="", **request):
    group, _, version = document["apiVersion"].rpartition("/")
    kind = {"group": group, "version": version, "kind": document["kind"]}
    body = review(document, **{"kind": kind, **request})
    return respond(body, cluster or offers(SMALL), policy(text))


def decided(document, **more):
    """The object as the API server would store it."""
    return patch.apply(document, sent(document, **more).get("patch", []))


def asks(pod):
    return pod["spec"]["containers"][0]["resources"]["limits"]


def test_a_jobs_template_is_decided_about():
    """What its pods will get is in the template before anything counts it; recorded, marked, warned of."""
    answer = sent(job())
    found = patch.apply(job(), answer["patch"])["spec"]["template"]
    assert asks(found) == {MIG + "1g.10gb": "1"}
    assert found["metadata"]["annotations"] == {RECORD: "2g.20gb->1g.10gb", DECIDED: "template"}
    assert answer["warnings"] == [
        "GPU fallback 2g.20gb->1g.10gb: no node that this pod can use offers 2g.20gb as asked"
    ]
    assert answer["auditAnnotations"] == {"fallback": "2g.20gb->1g.10gb"}


def test_what_is_offered_is_marked_too():
    """A template that is right as it is would otherwise be changed with its pods, later."""
    found = decided(job("1g.10gb"))["spec"]["template"]
    assert (asks(found), found["metadata"]["annotations"]) == ({MIG + "1g.10gb": "1"}, {DECIDED: "template"})


def test_its_own_output_passes_unchanged():
    """The same workload again: no patch."""
    assert "patch" not in sent(decided(job()))


@pytest.mark.parametrize("has", [{"1g.10gb": 4}, {"2g.20gb": 4}, {"gpu": 8}, {}])
def test_pods_of_a_decided_template_keep_the_decision(has):
    """Whatever the nodes offer by then: the pod is what was counted, and waits if it must."""
    made = decided(job())["spec"]["template"]
    answer = respond(
        review({"kind": "Pod", "metadata": {"name": "p", **made["metadata"]}, "spec": made["spec"]}),
        offers(node("n", **has)),
    )
    assert answer["allowed"]
    assert "patch" not in answer
    waits = any("waits (decided when its workload was cr" in one for one in answer.get("warnings", ()))
    assert waits is ("1g.10gb" not in has)


def test_every_template_of_a_workload():
    """Each at its place, one answer for all; what is the same is said once."""
    answer = sent(job_set("2g.20gb", "1g.10gb", "2g.20gb"))
    found = patch.apply(job_set("2g.20gb", "1g.10gb", "2g.20gb"), answer["patch"])
    assert [asks(one["template"]["spec"]["template"]) for one in found["spec"]["replicatedJobs"]] == [
        {MIG + "1g.10gb": "1"}
    ] * 3
    assert len(answer["warnings"]) == 1


def test_one_template_that_is_rejected():
    """The workload is refused; the message says where."""
    answer = sent(job_set("1g.10gb", "3g.30gb"), text="fallback: {downgrades: false}")
    assert answer["allowed"] is False
    where = (
        "spec.replicatedJobs[1].template.spec.template: asked for nvidia.com/mig-3g.30gb"
    )
    assert answer["status"]["message"].startswith(where)


@pytest.mark.parametrize(
    ("document", "request_"),
    [
        ({"apiVersion": "v1", "kind": "ConfigMap", "data": {}}, {}),
        ({"apiVersion": "batch/v1", "kind": "Job", "spec": {}}, {}),
        ({"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": {"containers": 7}}}}, {}),
        ({"apiVersion": "x/v1", "kind": "Odd", "spec": 7, "metadata": 7}, {}),
        (job(), {"operation": "UPDATE"}),
        (job(), {"subResource": "status"}),
        (pod_document({"limits": {"cpu": "1"}}) | {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": {"containers": []}}}}, {}),
    ],
    ids=["no template", "empty", "broken", "odd", "update", "subresource", "no container"],
)  # fmt: skip
def test_whatever_else_is_sent_passes(document, request_):
    """What has no template that can be read, and what is not new, is let through as it is."""
    assert sent(document, **request_) == {"uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "allowed": True}


def test_observe_and_exempt_namespaces():
    """As for pods: told and not done; not even looked at."""
    watched = sent(job(), offers(SMALL, namespaces=(Namespace("default", {"gpu-webhook": "observe"}),)))
    assert "patch" not in watched
    assert watched["warnings"][0].startswith("observe mode: would be changed to 1g.10gb")
    exempt = sent(job(), offers(SMALL, namespaces=(Namespace("default", {"gpu-webhook": "disabled"}),)))
    assert "patch" not in exempt
    assert json.dumps(exempt).count("warning") == 0
