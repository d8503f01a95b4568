"""Workloads whose templates are decided about when they are created: what is counted is what runs."""

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tessera.core.kubernetes.node import Namespace
from tessera.protocol.admission import patch
from tessera.serving.logs import Log
from tessera.webhook.endpoint import Admission, Endpoint
from tessera.webhook.metrics import Metrics
from tessera.webhook.process import report_to_owner
from tests.build import MIG, node, offers, pod_document, policy, respond, review
from tests.webhook.test_events import Told

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


def as_sent(document, **request):
    """The review of an object that is created."""
    group, _, version = document["apiVersion"].rpartition("/")
    kind = {"group": group, "version": version, "kind": document["kind"]}
    return review(document, **{"kind": kind, **request})


def sent(document, cluster=None, text="", **request):
    return respond(as_sent(document, **request), cluster or offers(SMALL), policy(text))


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
    assert found["metadata"]["annotations"] == {
        RECORD: "2g.20gb->1g.10gb",
        "gpu-webhook.k8s.io/asked": f'{{"c0":{{"{MIG}2g.20gb":"1"}}}}',
        DECIDED: "template",
    }
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
    waits = any(
        one.endswith("waits as it is (decided when its workload was created)")
        for one in answer.get("warnings", ())
    )
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
    where = "spec.replicatedJobs[1].template.spec.template: asked for nvidia.com/mig-3g.30gb"
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
    """As for pods: reported and not done; not even looked at."""
    watched = sent(job(), offers(SMALL, namespaces=(Namespace("default", {"gpu-webhook": "observe"}),)))
    assert "patch" not in watched
    assert watched["warnings"][0].startswith("observe mode: would be changed to 1g.10gb")
    exempt = sent(job(), offers(SMALL, namespaces=(Namespace("default", {"gpu-webhook": "disabled"}),)))
    assert "patch" not in exempt
    assert json.dumps(exempt).count("warning") == 0


def endpoint(recorded, missing=lambda: None):
    """The handler, and everything that it says."""
    cluster = offers(SMALL)
    return Endpoint(Admission(cluster, policy()), missing, Metrics("1"), Log("json", "info", recorded))


def test_it_is_logged_as_what_it_is(tmp_path):
    """The log names the workload, not a pod."""
    with (tmp_path / "log").open("w+b") as log:
        handler = endpoint(log.fileno())
        handler.handle(as_sent(job()))
        (line,) = map(json.loads, (tmp_path / "log").read_text().splitlines())
    shown = {name: line[name] for name in ("decision", "workload", "asked", "chosen", "pod")}
    assert shown == {
        "decision": "patched",
        "workload": "Job j",
        "asked": "2g.20gb",
        "chosen": "1g.10gb",
        "pod": "",
    }


def test_nothing_is_decided_before_the_view_is_complete():
    """As for pods: a template that is decided by half of the nodes would keep that."""
    with Path(os.devnull).open("wb") as log:
        handler = endpoint(log.fileno(), missing=lambda: "nodes")
        answer = json.loads(handler.handle(as_sent(job())).body)["response"]
    assert answer["warnings"] == [
        "GPU requests were not looked at: the view of the cluster is not complete yet"
    ]
    assert "patch" not in answer


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (
            job_set(*["2g.20gb"] * 11),
            "the workload has 11 pod templates, and the webhook looks at no more than 10",
        ),
        (job() | {"data": "x" * 2**18}, "the workload has 262,"),
    ],
    ids=["templates", "bytes"],
)
def test_workloads_beyond_limits(document, why):
    """What would take too long is let through with one sentence; its pods are decided about as they come."""
    with Path(os.devnull).open("wb") as log:
        answer = json.loads(endpoint(log.fileno()).handle(as_sent(document)).body)["response"]
    assert (answer["allowed"], "patch" in answer) == (True, False)
    assert answer["warnings"][0].startswith(f"GPU requests were not looked at: {why}")


def test_ten_templates_are_decided_about():
    """The largest number of templates."""
    assert len(sent(job_set(*["2g.20gb"] * 10))["patch"]) >= 10


def test_no_event_is_told():
    """A workload that is created has no uid yet, and nothing of it is written down: its warning must do."""
    told: Any = Told()
    cluster = offers(SMALL)
    handler = Endpoint(
        Admission(cluster, policy()),
        lambda: None,
        Metrics("1"),
        Log("json", "error"),
        partial(report_to_owner, told),
    )
    handler.handle(as_sent(job()))
    assert told == []
