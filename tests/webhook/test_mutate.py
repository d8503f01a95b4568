"""`POST /mutate` on a real socket: what is no review, what cannot be decided, what is counted and reported."""

import json
import os
from typing import Any

import pytest

from tessera.core.admission.outcome import REJECTIONS
from tessera.core.admission.policy import Policy
from tessera.core.admission.view.offers import Offers
from tessera.core.kubernetes.node import Node
from tessera.protocol.admission.review import AdmissionRequest
from tessera.protocol.configuration import webhook as config
from tessera.protocol.kubernetes.nodes import decode_node, node_of
from tessera.serving.logs import Log
from tessera.webhook.endpoint import Admission, CachedResponse, Endpoint
from tessera.webhook.metrics import Metrics
from tests.webhook.support import Client, Live
from tests.webhook.test_metrics import scrape


class Broken(Admission):
    """A decision with a bug."""

    def response(self, request: AdmissionRequest) -> CachedResponse:
        if "unlucky" in request.name:
            raise ZeroDivisionError("division by zero")
        return super().response(request)


class Webhook:
    """A server with one node, and everything that it says."""

    def __init__(self) -> None:
        offers = Offers()
        offers.put(node("n1", {"nvidia.com/mig-1g.10gb": "7"}))
        self.missing: str | None = None
        self.metrics = Metrics("1")
        self._read, self._write = os.pipe()
        self.log = Log("json", "info", self._write)
        self.endpoint = Endpoint(Broken(offers, Policy()), lambda: self.missing, self.metrics, self.log)
        self.live = Live({b"/mutate": self.endpoint.route()})

    def close(self) -> list[dict[str, object]]:
        """The log's lines."""
        self.live.__exit__()
        os.close(self._write)
        with os.fdopen(self._read, "rb") as reader:
            return [json.loads(line) for line in reader.read().splitlines()]


def node(name: str, allocatable: dict[str, str]) -> Node:
    document = {"metadata": {"name": name}, "status": {"allocatable": allocatable}}
    return node_of(decode_node(json.dumps(document).encode()), None)


def review(profile: str = "2g.20gb", name: str = "train", **request: object) -> bytes:
    resources = {"requests": {f"nvidia.com/mig-{profile}": "1"}, "limits": {f"nvidia.com/mig-{profile}": "1"}}
    pod = {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "resources": resources}]}}
    asked = {"uid": "u-1", "kind": {"group": "", "version": "v1", "kind": "Pod"}, "namespace": "team",
             "operation": "CREATE", "object": pod, **request}  # fmt: skip
    return json.dumps(
        {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}
    ).encode()


@pytest.fixture
def webhook():
    one = Webhook()
    yield one
    if one.live.listener._socket is not None:
        one.close()


@pytest.fixture
def client(webhook):
    with webhook.live.connect() as one:
        yield one


def answered(client: Client, body: bytes) -> dict[str, Any]:
    reply = client.post(body)
    assert reply.status == 200
    response: dict[str, Any] = json.loads(reply.body)["response"]
    return response


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"[" * 1_000_000, b"expected object, got array"),
        (b'{"unknown":' + b"[" * 1_000_000, b"nested too deeply"),
        (b'{"request":{"object":{"spec":{"nodeSelector":' + b'{"a":' * 1_000_000, b"nested too deeply"),
        (b'{"apiVersion": NaN}', b"not JSON"),
        (b'{"kind": "\\ud800"}', b"not JSON"),
        (b"\xef\xbb\xbf{}", b"not JSON"),
        (b'{"kind": "AdmissionRev', b"not JSON"),
        (b"\xff\xfe", b"not JSON"),
        (b"", b"empty body, expected an AdmissionReview"),
        (b"{}", b"kind: missing"),
        (b'{"kind":"AdmissionReview","apiVersion":"v9"}', b'apiVersion: "v9" is not admission.k8s.io/v1'),
        (b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}', b"request: missing"),
    ],
    ids=["fault-2", "fault-2-unknown", "fault-2-objects", "nan", "surrogate", "bom", "cut", "bytes", "empty", "no-kind", "version", "no-request"],
)  # fmt: skip
def test_fault_2_3_4_not_a_review(webhook, client, body, complaint):
    """What is no review gets 400 and one sentence, is counted, and the connection serves on."""
    reply = client.post(body)
    assert reply.status == 400
    assert complaint in reply.body
    assert reply.body.count(b"\n") == 1
    assert b"Traceback" not in reply.body
    assert answered(client, review())["allowed"] is True
    seen = scrape(webhook.metrics)
    assert seen["gpu_webhook_requests_total", ("outcome", "invalid")] == 1
    assert seen["gpu_webhook_requests_total", ("outcome", "patched")] == 1


def test_decided(webhook, client):
    """What was decided is in the answer, in the counters and in one line of the log."""
    assert "patch" in answered(client, review("2g.20gb"))
    assert "patch" not in answered(client, review("1g.10gb", name="as-asked"))
    assert (
        answered(client, review("2g.20gb", name="gone", operation="DELETE", object=None))["allowed"] is True
    )
    seen = scrape(webhook.metrics)
    assert seen["gpu_webhook_fallback_total", ("from", "2g.20gb"), ("to", "1g.10gb")] == 1
    assert seen["gpu_webhook_requests_total", ("outcome", "patched")] == 1
    assert seen["gpu_webhook_requests_total", ("outcome", "unchanged")] == 2
    first, second = webhook.close()
    assert (first["uid"], first["namespace"], first["pod"], first["decision"]) == (
        "u-1",
        "team",
        "train",
        "patched",
    )
    assert "2g.20gb" in str(first["reason"])
    assert (first["asked"], first["chosen"]) == ("2g.20gb", "1g.10gb")
    assert first["microseconds"] > 0
    assert (second["pod"], second["decision"]) == ("as-asked", "unchanged")


def test_rejected(webhook, client):
    """A rejection is counted by its reason, from 0 on: an alert on an increase would miss one that begins with 1."""
    for code in REJECTIONS:
        assert scrape(webhook.metrics)["gpu_webhook_rejections_total", ("reason", code)] == 0
    webhook.endpoint.configure(config.parse("fallback: {downgrades: false, wholeGPU: false}"))
    assert answered(client, review("2g.20gb"))["allowed"] is False
    assert scrape(webhook.metrics)["gpu_webhook_rejections_total", ("reason", "not_offered")] == 1


@pytest.mark.parametrize(
    ("configured", "allowed"),
    [("{}", True), ("server: {onError: allow}", True), ("server: {onError: deny}", False)],
)
def test_fault_11_view_not_complete(webhook, client, configured, allowed):
    """Before the view is complete the configured verdict is given, never a guess; then decisions begin."""
    webhook.endpoint.configure(config.parse(configured))
    webhook.missing = "nodes not listed yet"
    response = answered(client, review())
    assert response["allowed"] is allowed
    assert "patch" not in response
    told = response["warnings"] if allowed else [response["status"]["message"]]
    assert all("the view of the cluster is not complete yet" in one and len(one) <= 120 for one in told)
    webhook.missing = None
    assert "patch" in answered(client, review())
    webhook.missing = "never asked again"
    assert "patch" in answered(client, review())
    assert scrape(webhook.metrics)["gpu_webhook_requests_total", ("outcome", "error")] == 1


@pytest.mark.parametrize(("configured", "allowed"), [("{}", True), ("server: {onError: deny}", False)])
def test_fault_12_decision_fails(webhook, client, configured, allowed):
    """An exception in a decision: the configured verdict, a counter, a traceback in the log alone."""
    webhook.endpoint.configure(config.parse(configured))
    response = answered(client, review(name="unlucky"))
    assert response["allowed"] is allowed
    assert "ZeroDivisionError" not in json.dumps(response)
    assert "patch" in answered(client, review())
    assert scrape(webhook.metrics)["gpu_webhook_requests_total", ("outcome", "error")] == 1
    trouble, verdict, _ = webhook.close()
    assert "ZeroDivisionError" in trouble["traceback"]
    assert verdict["decision"] == f"{'allow' if allowed else 'deny'} (on error)"
