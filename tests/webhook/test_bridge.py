"""The bridge from request to response: the patch, what is remembered, what is counted."""

import base64
import json
import os

import pytest

from tessera.core.requests.alternatives import template_name
from tessera.core.requests.tickets import TICKET_ANNOTATION, TicketKey, TicketMaker
from tessera.protocol.admission.patch import apply
from tessera.protocol.configuration import webhook as config
from tessera.serving.logs import Log
from tessera.webhook.endpoint import Admission, Endpoint
from tessera.webhook.metrics import Metrics
from tests.build import MIG, pod_document, policy, respond, review
from tests.core.admission.test_bridge import FIRST, cluster
from tests.webhook.test_metrics import scrape

ASKS = {"requests": {MIG + "2g.20gb": "1"}, "limits": {MIG + "2g.20gb": "1"}}
TEXT = "1*2g.20gb=2g.20gb/tessera-any,1g.10gb/tessera-any"


def is_claim(admission, document):
    """Whether the answer makes a claim of the request."""
    response = json.loads(admission.answer(review(document)))["response"]
    assert response["allowed"]
    return any(
        one["path"] == "/spec/resourceClaims"
        for one in json.loads(base64.b64decode(response.get("patch", "W10=")))
    )


def test_the_patch():
    """To the letter: the resource goes, the annotation and the claim come."""
    response = respond(review(pod_document(ASKS)), cluster(), policy(FIRST))
    path = "/spec/containers/0/resources"
    assert response["patch"] == [
        {"op": "remove", "path": f"{path}/requests/nvidia.com~1mig-2g.20gb"},
        {"op": "remove", "path": f"{path}/limits/nvidia.com~1mig-2g.20gb"},
        {"op": "add", "path": "/metadata/annotations", "value": {}},
        {"op": "add", "path": "/metadata/annotations/gpu-webhook.k8s.io~1alternatives", "value": TEXT},
        {"op": "add", "path": f"{path}/claims", "value": [{"name": "tessera-gpu", "request": "gpu-0"}]},
        {
            "op": "add",
            "path": "/spec/resourceClaims",
            "value": [{"name": "tessera-gpu", "resourceClaimTemplateName": template_name(TEXT)}],
        },
    ]
    assert response["auditAnnotations"] == {"claim": TEXT}


@pytest.mark.parametrize(
    ("spec", "labels", "claim"),
    [
        ({"priority": 0, "schedulerName": "default-scheduler", "resourceClaims": None}, {"app": "x"}, True),
        ({}, {"kueue.x-k8s.io/podset": "main"}, True),  # of a Job that Kueue has admitted
        ({}, {"kueue.x-k8s.io/queue-name": "gpus"}, False),
        ({}, {"kueue.x-k8s.io/managed": "true"}, False),
        ({"priority": 1000}, {}, False),
        ({"schedulerName": "volcano"}, {}, False),
        ({"resourceClaims": [{"name": "own", "resourceClaimName": "shared"}]}, {}, False),
        ({"nodeName": "d"}, {}, False),
    ],
)
def test_what_is_remembered_tells_pods_apart(spec, labels, claim):
    """A pod that must not be bridged is not, although the same pod was just before."""
    admission = Admission(cluster(), policy(FIRST))
    assert is_claim(admission, pod_document(ASKS))
    document = pod_document(ASKS, labels=labels)
    document["spec"].update(spec)
    assert is_claim(admission, document) is claim
    assert is_claim(admission, pod_document(ASKS))


def test_the_controllers_lease():
    """From the moment that it is stale, requests stay what they are; from the moment that it is fresh, they do not."""
    offers = cluster()
    admission = Admission(offers, policy(FIRST))
    for at_work in (True, False, False, True):
        offers.put_controller(at_work=at_work)
        assert is_claim(admission, pod_document(ASKS)) is at_work


def test_decisions_end_with_their_hour_and_key():
    """A decision that is kept is made again when the hour or the key is another: its ticket would be too old."""
    offers = cluster()
    admission = Admission(offers, policy(FIRST))

    def ticket():
        response = json.loads(admission.answer(review(pod_document(ASKS), namespace="team")))["response"]
        operations = json.loads(base64.b64decode(response["patch"]))
        return next(one["value"] for one in operations if one["path"].endswith("gpu-webhook.k8s.io~1ticket"))

    keys = [TicketKey(b"1" * 32), TicketKey(b"2" * 32)]
    for maker in (TicketMaker(keys[0], 7), TicketMaker(keys[0], 8), TicketMaker(keys[1], 8)):
        offers.put_ticket_maker(maker)
        assert ticket() == ticket() == maker.ticket("team", TEXT)
    offers.put_ticket_maker(None)
    assert not is_claim(admission, pod_document(ASKS))


def test_a_ticket_that_is_there_already():
    """A pod that came with its right ticket leaves no gap in what is remembered for pods without one."""
    offers = cluster()
    maker = TicketMaker(TicketKey(b"1" * 32), 7)
    offers.put_ticket_maker(maker)
    admission = Admission(offers, policy(FIRST))
    carrying = pod_document(ASKS)
    carrying["metadata"]["annotations"] = {TICKET_ANNOTATION: maker.ticket("default", TEXT), "x": "y"}
    plain = pod_document(ASKS)
    plain["metadata"]["annotations"] = {"x": "y"}
    for document in (carrying, plain, carrying):
        response = json.loads(admission.answer(review(document)))["response"]
        after = apply(document, json.loads(base64.b64decode(response["patch"])))
        assert after["metadata"]["annotations"][TICKET_ANNOTATION] == maker.ticket("default", TEXT)


def test_classes_that_change():
    """A class that is no more makes no claim, from the next pod on."""
    offers = cluster()
    admission = Admission(offers, policy(FIRST))
    assert is_claim(admission, pod_document(ASKS))
    offers.put_classes({}, ())
    assert not is_claim(admission, pod_document(ASKS))


def test_counted_and_observed():
    """Each way is counted; in observe mode apart, with nothing done."""
    metrics, log = Metrics("1"), Log("json", "error", os.open(os.devnull, os.O_WRONLY))
    endpoint = Endpoint(Admission(cluster(), policy(FIRST)), lambda: None, metrics, log)
    endpoint.handle(review(pod_document(ASKS)))
    prioritized = pod_document(ASKS)
    prioritized["spec"]["priority"] = 5
    endpoint.handle(review(prioritized))
    endpoint.configure(config.parse(f"mode: observe\n{FIRST}"))
    answer = json.loads(endpoint.handle(review(pod_document(ASKS))).body)["response"]
    assert "patch" not in answer
    assert (
        answer["warnings"][0]
        == "observe mode: would be changed: 2g.20gb becomes a claim for 2g.20gb, else 1g.10gb"
    )
    assert answer["auditAnnotations"] == {"mode": "observe", "would-claim": TEXT}
    shown = scrape(metrics)
    name = "gpu_webhook_bridge_total"
    assert shown[name, ("way", "claim")] == 1
    assert shown[name, ("way", "priority")] == 1
    assert shown[name, ("mode", "observe"), ("way", "claim")] == 1
