"""Observe mode and quotas from request to response, in the counters and in the log."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.admission.policy import Policy
from tessera.core.kubernetes.node import Namespace
from tessera.core.kubernetes.quota import Quota
from tessera.protocol.admission import review as reviews
from tessera.protocol.configuration import webhook as config
from tessera.serving.logs import Log
from tessera.webhook.endpoint import Admission, Endpoint
from tessera.webhook.metrics import Metrics
from tests.build import GPU, MIG, node, offers, pod_document, policy, respond, review
from tests.webhook.test_metrics import scrape

SMALL = node("small", **{"1g.10gb": 4, "cpu": 8})
OBSERVE = policy("mode: observe")
ONE_G = MIG + "1g.10gb"


def asks(profile, count=1, **metadata):
    return pod_document({"requests": {MIG + profile: count}, "limits": {MIG + profile: count}}, **metadata)


@given(
    st.sampled_from(["1g.10gb", "2g.20gb", "3g.30gb", "7g.80gb"]),
    st.integers(0, 9),
    st.sampled_from([{}, {"annotations": {"gpu-webhook.k8s.io/min-memory": "20"}}, {"annotations": {}}]),
    st.dictionaries(st.sampled_from(["1g.10gb", "2g.20gb", "gpu"]), st.integers(0, 4)),
    st.booleans(),
)
def test_observe_never_patches_and_never_rejects(profile, count, metadata, has, by_label):
    """Whatever would be decided: the pod is let in as it is; where it would be touched, a warning says so."""
    document = asks(profile, count, **metadata)
    cluster = offers(node("n", **has))
    enforced = respond(review(document), cluster)
    spaces = (Namespace("default", {"gpu-webhook": "observe"}),) if by_label else ()
    watched = offers(node("n", **has), namespaces=spaces)
    seen = respond(review(document), watched, Policy() if by_label else OBSERVE)
    assert seen["allowed"] is True
    assert "patch" not in seen
    assert "status" not in seen
    touched = "patch" in enforced or not enforced["allowed"]
    would = [one for one in seen.get("warnings", ()) if one.startswith("observe mode: would be ")]
    assert bool(would) is touched


class Watched:
    """An endpoint, what it counts and what it logs."""

    def __init__(self, text, *nodes, namespaces=(), missing=None):
        self.cluster = offers(*nodes, namespaces=namespaces)
        self.metrics = Metrics("1")
        self._read, self._write = os.pipe()
        self.log = Log("json", "info", self._write)
        self.endpoint = Endpoint(Admission(self.cluster, Policy()), lambda: missing, self.metrics, self.log)
        self.endpoint.configure(config.parse(text))

    def send(self, document, namespace="default"):
        return json.loads(self.endpoint.handle(review(document, namespace=namespace)).body)["response"]

    def lines(self):
        os.close(self._write)
        with os.fdopen(self._read, "rb") as reader:
            return [json.loads(line) for line in reader]


def test_observed_is_counted_and_logged_apart():
    """Counters get a label of their own, log lines say "would be"; the series of what was done stay as they were."""
    team = Namespace("team", {"gpu-webhook": "enforce"})
    watched = Watched("mode: observe", SMALL, namespaces=(team,))
    watched.send(asks("2g.20gb"))
    watched.send(asks("1g.10gb", 9))
    watched.send(asks("1g.10gb"))
    assert "patch" in watched.send(asks("2g.20gb"), "team")
    seen = scrape(watched.metrics)
    way, mode = (("from", "2g.20gb"), ("to", "1g.10gb")), ("mode", "observe")
    assert seen["gpu_webhook_fallback_total", way[0], mode, way[1]] == 1
    assert seen["gpu_webhook_fallback_total", *way] == 1
    for outcome, done in (("patched", 1), ("rejected", 0), ("unchanged", 0)):
        assert seen["gpu_webhook_requests_total", mode, ("outcome", outcome)] == 1
        assert seen["gpu_webhook_requests_total", ("outcome", outcome)] == done
    assert seen["gpu_webhook_rejections_total", mode, ("reason", "not_offered")] == 1
    assert seen["gpu_webhook_rejections_total", ("reason", "not_offered")] == 0
    lines = watched.lines()
    assert [(one["decision"], one.get("mode")) for one in lines] == [
        ("would be patched", "observe"),
        ("would be rejected", "observe"),
        ("unchanged", "observe"),
        ("patched", None),
    ]
    assert (lines[0]["asked"], lines[0]["chosen"]) == ("2g.20gb", "1g.10gb")


@pytest.mark.parametrize(("mode", "allowed"), [("enforce", False), ("observe", True)])
def test_observe_lets_in_what_cannot_be_decided(mode, allowed):
    """`server.onError: deny` holds only where decisions are carried out."""
    watched = Watched(f"mode: {mode}\nserver: {{onError: deny}}", SMALL, missing="nodes not listed yet")
    assert watched.send(asks("2g.20gb"))["allowed"] is allowed
    watched.lines()


def test_a_change_of_mode_is_followed_at_once():
    """By the label of the namespace, and by the configuration, though the same pod was decided before."""
    watched = Watched("", SMALL)
    assert "patch" in watched.send(asks("2g.20gb"))
    watched.cluster.put_namespace(Namespace("default", {"gpu-webhook": "observe"}))
    assert "patch" not in watched.send(asks("2g.20gb"))
    watched.cluster.put_namespace(Namespace("default", {}))
    assert "patch" in watched.send(asks("2g.20gb"))
    watched.endpoint.configure(config.parse("mode: observe"))
    assert "patch" not in watched.send(asks("2g.20gb"))
    watched.lines()


def quota(used, namespace="default"):
    return Quota(namespace, "gpus", {ONE_G: 2}, {ONE_G: used})


def test_a_quota_that_fills_up_is_followed():
    """The same pod again and again: replaced while there is room, rejected when there is none, and replaced again."""
    watched = Watched("", SMALL)
    found = []
    for used in (0, 1, 2, 1):
        watched.cluster.put_quota(quota(used))
        found.append(watched.send(asks("3g.30gb")))
    assert [one["allowed"] for one in found] == [True, True, False, True]
    assert '1g.10gb (over the quota "gpus": 2 used and 1 needed of 2)' in found[2]["status"]["message"]
    watched.lines()


def test_decisions_are_kept_while_quotas_stay(monkeypatch):
    """A quota makes only the decisions of its own namespace again, and keeps no more of them than before."""
    cluster = offers(SMALL)
    admission = Admission(cluster, Policy())
    made: list[str] = []
    monkeypatch.setattr("tessera.webhook.reviewed.review_pod", _counting(made))

    def ask(namespace):
        admission.response(reviews.decode(review(asks("3g.30gb"), namespace=namespace)))

    for _ in range(2):
        ask("default")
        ask("other")
    assert made == ["default", "other"]
    for used in range(20):
        cluster.put_quota(quota(used % 2))
        ask("default")
        ask("default")
        ask("other")
    assert made == ["default", "other", *["default"] * 20]
    assert len(admission.memory) == 2


def _counting(made):
    from tessera.webhook.reviewed import review_pod

    def counted(request, *rest):
        made.append(request.namespace)
        return review_pod(request, *rest)

    return counted


def test_a_whole_gpu_is_not_what_a_quota_for_slices_gives():
    """On a cluster with whole GPUs alone, a tenant with a quota for 1g gets none."""
    watched = Watched("", node("n", gpu=8))
    assert "patch" in watched.send(asks("2g.20gb"))
    watched.cluster.put_quota(quota(0))
    assert watched.send(asks("2g.20gb"))["allowed"] is False
    assert watched.send(pod_document({"limits": {GPU: 1}}))["allowed"] is True, "the API server's to judge"
    watched.lines()
