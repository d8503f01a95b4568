"""One admission, from bytes to bytes."""

import json
import tracemalloc

import pytest

from tessera.core.admission.policy import Policy
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.node import Namespace
from tessera.core.requests.record import ASKED_ANNOTATION, RECORD_ANNOTATION
from tessera.protocol.admission.review import decode
from tessera.webhook.endpoint import Admission
from tests.build import MIG, node, offers, pod_document, policy, respond, review

SMALL = node("small", **{"1g.10gb": 28})
ASKS = {"requests": {MIG + "2g.20gb": "1"}, "limits": {MIG + "2g.20gb": "1"}}
RECORD = {
    "op": "add",
    "path": "/metadata/annotations/gpu-webhook.k8s.io~1fallback",
    "value": "2g.20gb->1g.10gb",
}
ASKED = {
    "op": "add",
    "path": "/metadata/annotations/gpu-webhook.k8s.io~1asked",
    "value": '{"c0":{"nvidia.com/mig-2g.20gb":"1"}}',
}


def replaced(path, *, value="1"):
    return [
        {"op": "remove", "path": f"{path}/nvidia.com~1mig-2g.20gb"},
        {"op": "add", "path": f"{path}/nvidia.com~1mig-1g.10gb", "value": value},
    ]


def test_answer():
    """The whole answer, to the letter."""
    answer = Admission(offers(SMALL), Policy()).answer(review(pod_document(ASKS, annotations={"a": "b"})))
    assert json.loads(answer) == {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "allowed": True,
            "patchType": "JSONPatch",
            "patch": json.loads(answer)["response"]["patch"],
            "warnings": [
                "GPU fallback 2g.20gb->1g.10gb: no node that this pod can use offers 2g.20gb as asked"
            ],
            "auditAnnotations": {"fallback": "2g.20gb->1g.10gb"},
        },
    }
    response = respond(review(pod_document(ASKS, annotations={"a": "b"})), offers(SMALL))
    path = "/spec/containers/0/resources"
    assert response["patch"] == [*replaced(path + "/requests"), *replaced(path + "/limits"), RECORD, ASKED]


def test_rejection():
    """A rejection carries a status, which kubectl prints."""
    response = respond(review(pod_document(ASKS)), offers())
    assert response["allowed"] is False
    assert response["status"]["code"] == 403
    assert response["status"]["message"].startswith("asked for nvidia.com/mig-2g.20gb: 1, and no node")


@pytest.mark.parametrize(
    ("resources", "made"),
    [
        ({"requests": {MIG + "2g.20gb": 1}}, ["/spec/containers/0/resources/limits"]),
        ({"requests": {MIG + "2g.20gb": 1}, "limits": None}, ["/spec/containers/0/resources/limits"]),
        ({"limits": {MIG + "2g.20gb": 1}}, []),
    ],
)
def test_fault_07_missing_maps_are_made_once(resources, made):
    """No limits, no requests, no annotations: what is missing is made, once."""
    response = respond(review(pod_document(resources)), offers(SMALL))
    empty = [operation["path"] for operation in response["patch"] if operation.get("value") == {}]
    assert empty == [*made, "/metadata/annotations"]


def test_two_containers_without_annotations():
    """Two containers, two profiles, no annotations: one annotations map, one record."""
    document = pod_document(ASKS, {"limits": {MIG + "3g.30gb": "2"}})
    response = respond(review(document), offers(SMALL))
    paths = [operation["path"] for operation in response["patch"]]
    assert paths.count("/metadata/annotations") == 1
    assert [one["value"] for one in response["patch"][-2:]] == [
        "2g.20gb->1g.10gb,3g.30gb->1g.10gb",
        '{"c0":{"nvidia.com/mig-2g.20gb":"1"},"c1":{"nvidia.com/mig-3g.30gb":"2"}}',
    ]
    assert response["auditAnnotations"] == {"fallback": "2g.20gb->1g.10gb,3g.30gb->1g.10gb"}


def test_init_containers_and_sidecars():
    """Init containers and sidecars are rewritten in their own list."""
    document = pod_document({}, init=({"resources": ASKS}, {"resources": ASKS, "restartPolicy": "Always"}))
    response = respond(review(document), offers(SMALL))
    touched = {operation["path"].split("/resources")[0] for operation in response["patch"]}
    assert {"/spec/initContainers/0", "/spec/initContainers/1"} <= touched


def test_fault_05_own_output_again():
    """What the webhook made passes without a patch."""
    done = pod_document({"requests": {MIG + "1g.10gb": "1"}, "limits": {MIG + "1g.10gb": "1"}}, annotations={"gpu-webhook.k8s.io/fallback": "2g.20gb->1g.10gb"})  # fmt: skip
    assert respond(review(done), offers(SMALL)) == {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "allowed": True,
    }


def test_fault_06_reinvoked_with_a_sidecar():
    """After another webhook added a container, only that one is handled, and the record grows."""
    document = pod_document(
        {"requests": {MIG + "1g.10gb": "1"}, "limits": {MIG + "1g.10gb": "1"}},
        {"limits": {MIG + "3g.30gb": "1"}},
        annotations={"gpu-webhook.k8s.io/fallback": "2g.20gb->1g.10gb"},
    )
    response = respond(review(document), offers(SMALL))
    assert all(not operation["path"].startswith("/spec/containers/0") for operation in response["patch"])
    assert [one["value"] for one in response["patch"][-2:]] == [
        "2g.20gb->1g.10gb,3g.30gb->1g.10gb",
        '{"c0":{"nvidia.com/mig-2g.20gb":"1"},"c1":{"nvidia.com/mig-3g.30gb":"1"}}',
    ]


def test_asked_is_part_of_the_question():
    """Pods that differ in what they say was asked are different questions to the memory of answers."""
    cluster = Admission(offers(SMALL), Policy())
    for text in ('{"c0":{"nvidia.com/mig-3g.30gb":"1"}}', "junk"):
        cluster.answer(review(pod_document(ASKS, annotations={ASKED_ANNOTATION: text})))
    assert len(cluster.memory) == 2


def test_fault_08_dry_run():
    """A dry run gets the same answer."""
    assert respond(review(pod_document(ASKS), dryRun=True), offers(SMALL)) == respond(
        review(pod_document(ASKS)), offers(SMALL)
    )


@pytest.mark.parametrize(
    "body",
    [
        review(None, operation="DELETE"),
        review(None),
        review(pod_document(ASKS), operation="UPDATE"),
        review(pod_document(ASKS), operation="CREATE", subResource="binding"),
        review({"spec": "not a pod's"}, kind={"group": "", "version": "v1", "kind": "Binding"}),
        review({"spec": {"containers": 7}}, kind={"group": "example.com", "version": "v1", "kind": "Pod"}),
        review(pod_document(ASKS, annotations={"kubernetes.io/config.mirror": "x"})),
    ],
)
def test_fault_09_not_for_us(body):
    """DELETE, a null object, a mirror pod, no pod at all: allowed, no patch."""
    assert respond(body, offers()) == {"uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "allowed": True}


DEEP = (
    b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","object":'
    + b'{"a":' * 1_000_000
)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "empty body, expected an AdmissionReview"),
        (b"{", "not JSON: Input data was truncated"),
        (b"[]", "expected object, got array"),
        (b"null", "expected object, got null"),
        (b"{}", "kind: missing, it is not AdmissionReview"),
        (b'{"kind":"Pod"}', 'kind: "Pod" is not AdmissionReview'),
        (b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v2"}', 'apiVersion: "admission.k8s.io/v2" is not admission.k8s.io/v1'),
        (b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}', "request: missing"),
        (b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{}}', "request.uid: missing"),
        (b'\xef\xbb\xbf{"kind":"AdmissionReview"}', "not JSON: "),
        (b'{"kind":NaN}', "not JSON: "),
        (b'{"kind":"\\ud800"}', "not JSON: "),
        (b'{"kind":"\xff"}', "not JSON: "),
        (DEEP, "nested too deeply for a Kubernetes object"),
        (review({"spec": {"containers": 7}}), "request.object.spec.containers: expected array | null, got int"),
        (review(pod_document({"limits": {MIG + "2g.20gb": "two"}})), 'spec.containers[0].resources.limits[nvidia.com/mig-2g.20gb]: "two" is not a Kubernetes quantity such as 2, 500m or 8Gi'),
        (review(pod_document({"limits": [1]})), "spec.containers[0].resources.limits: expected object | null, got array"),
        (review(pod_document({}, annotations={"a": 1})), "metadata.annotations[...]: expected str, got int"),
        (review({"spec": {"affinity": []}}), "spec.affinity: expected object, got array"),
        (review({"metadata": {"labels": ["a"]}}), "request.object.metadata.labels: expected object | null, got array"),
        (review({"spec": {"tolerations": [{"key": 5}]}}), "spec.tolerations[0].key: expected str, got int"),
    ],
)  # fmt: skip
def test_faults_02_03_04_bad_reviews(body, message):
    """What is no review is refused in one sentence that says where, and the next request is served."""
    admission = Admission(offers(SMALL), Policy())
    with pytest.raises(InvalidInput) as caught:
        admission.answer(body)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
    assert json.loads(admission.answer(review(pod_document(ASKS))))["response"]["allowed"]


def test_the_namespace_comes_from_the_request():
    """A pod made by a controller has none in its metadata."""
    cluster = offers(namespaces=(Namespace("team", labels={"gpu-webhook": "disabled"}),))
    assert respond(review(pod_document(ASKS), namespace="team"), cluster)["allowed"]
    assert not respond(review(pod_document(ASKS), namespace="other"), cluster)["allowed"]


def test_annotations_that_nobody_reads_cost_nothing():
    """Pods of one template with an annotation of their own each are one question, and it is answered once."""
    admission = Admission(offers(SMALL), Policy())
    bodies = [review(pod_document(ASKS, annotations={"example.com/run": run})) for run in "12"]
    one, other = (admission.response(decode(body)) for body in bodies)
    assert other is one, "the very same verdict, remembered"


def test_answers_are_remembered_no_longer_than_they_hold():
    """The same pod is answered again when a node, a namespace or the configuration changes."""
    cluster = offers(SMALL)
    admission = Admission(cluster, Policy())

    def allowed_and_patched():
        response = json.loads(admission.answer(review(pod_document(ASKS), uid="x" * 5)))["response"]
        assert response["uid"] == "xxxxx"
        return response["allowed"], "patch" in response

    assert allowed_and_patched() == (True, True)
    assert allowed_and_patched() == (True, True)
    cluster.put(node("medium", **{"2g.20gb": 1}))
    assert allowed_and_patched() == (True, False)
    cluster.remove("medium")
    assert allowed_and_patched() == (True, True)
    admission.configure(policy("fallback: {downgrades: false}"))
    assert allowed_and_patched() == (False, False)
    cluster.put_namespace(Namespace("default", labels={"gpu-webhook": "disabled"}))
    assert allowed_and_patched() == (True, False)


def test_remembered_answers_are_bounded(monkeypatch):
    """Thousands of different pods, or huge ones, do not fill the memory."""
    monkeypatch.setattr("tessera.webhook.endpoint._MOST_REMEMBERED", 200_000)
    admission = Admission(offers(SMALL), Policy())
    for i in range(100):
        admission.answer(review(pod_document(ASKS, annotations={RECORD_ANNOTATION: str(i)})))
    assert 0 < len(admission.memory) < 100
    many = len(admission.memory)
    admission.answer(review(pod_document(ASKS, annotations={RECORD_ANNOTATION: "x" * 100_000})))
    assert len(admission.memory) == many  # too large to be kept
    assert 100_000 < admission.memory.bytes <= 200_000
    admission.configure(admission.policy)
    assert (len(admission.memory), admission.memory.bytes) == (0, 0)


def test_what_is_remembered_is_as_large_as_it_says():
    """The bytes that a memory reports are those that it takes, whatever the pods have most of."""
    for containers, annotation in ((1, ""), (40, ""), (1, "\U0001f600" * 2000)):
        admission = Admission(offers(SMALL), Policy())
        bodies = [
            review(pod_document(*[ASKS] * containers, annotations={RECORD_ANNOTATION: f"{i}{annotation}"}))
            for i in range(60)
        ]
        admission.answer(bodies.pop())
        tracemalloc.start()
        before, told = tracemalloc.get_traced_memory()[0], admission.memory.bytes
        for body in bodies:
            admission.answer(body)
        taken, told = tracemalloc.get_traced_memory()[0] - before, admission.memory.bytes - told
        tracemalloc.stop()
        assert 0.7 * taken < told < 1.5 * taken


def test_what_is_remembered_tells_pods_apart():
    """Pods that differ in one thing that matters get their own answers."""
    cluster = offers(
        node("a", labels={"zone": "a"}, **{"1g.10gb": 1}), node("b", labels={"zone": "b"}, gpu=1)
    )
    admission = Admission(cluster, Policy())

    def patched(**spec):
        document = pod_document(ASKS)
        document["spec"].update(spec)
        body = review(document)
        answer = json.loads(admission.answer(body))["response"]
        assert answer == json.loads(Admission(cluster, Policy()).answer(body))["response"]
        return answer.get("auditAnnotations", {}).get("fallback")

    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}]}}}  # fmt: skip
    assert patched() == "2g.20gb->1g.10gb"
    assert patched(nodeSelector={"zone": "b"}) == "2g.20gb->gpu"
    assert patched(affinity=affinity) == "2g.20gb->gpu"
    assert patched(nodeName="b") == "2g.20gb->gpu"
    assert patched(nodeName="a") == "2g.20gb->1g.10gb"
    assert patched(initContainers=[{"name": "i", "resources": {"limits": {MIG + "2g.20gb": "2"}}}]) is None
