"""Which GPUs pods ask for, get and are refused, as the webhook counts it."""

import pytest

from tessera.core.requests.asking import DemandResult
from tessera.webhook.metrics import DemandCounters
from tests.build import GPU, MIG, node, pod_document
from tests.webhook.test_metrics import scrape
from tests.webhook.test_observe_and_quota import SMALL, Watched, asks, quota

NAME = "gpu_webhook_demand_total"


def demand(watched, name=NAME, **labels):
    """By the profile, or by profile and namespace: asked, got, rejected."""
    found: dict[tuple[str, ...], dict[str, float]] = {}
    for (sample, *pairs), value in scrape(watched.metrics).items():
        given: dict[str, str] = dict(pairs)  # type: ignore[arg-type]
        if sample == name and given.get("mode") == labels.get("mode"):
            key = tuple(given[one] for one in ("profile", "namespace") if one in given)
            found.setdefault(key, {})[given["result"]] = value
    return {key: tuple(one[result] for result in ("asked", "got", "rejected")) for key, one in found.items()}


@pytest.mark.parametrize(
    ("document", "counted"),
    [
        (asks("1g.10gb", 2), {("1g.10gb",): (2, 2, 0)}),
        (asks("2g.20gb", 2), {("2g.20gb",): (2, 0, 0)}),  # becomes 1g.10gb
        (asks("1g.10gb", 9), {("1g.10gb",): (9, 0, 9)}),
        (asks("2g.20gb", annotations={"gpu-webhook.k8s.io/fallback-policy": "never"}), {("2g.20gb",): (1, 0, 0)}),  # waits
        (asks("9g.99gb"), {("other",): (1, 0, 0)}),
        (pod_document({"limits": {GPU: 3}}), {("gpu",): (3, 3, 0)}),
        (pod_document({"limits": {MIG + "1g.10gb": 1, GPU + ".shared": 1}}), {("1g.10gb",): (1, 0, 1), ("other",): (1, 0, 1)}),
        (pod_document({"limits": {"cpu": 1}}), {}),
        (asks("1g.10gb", "1500m"), {}),
        # the webhook's own work that comes again, because another webhook changed the pod since
        (asks("1g.10gb", annotations={"gpu-webhook.k8s.io/fallback": "2g.20gb->1g.10gb"}), {}),
        # a pod whose workload was decided: this is the first that is seen of it
        (asks("1g.10gb", annotations={"gpu-webhook.k8s.io/fallback": "2g.20gb->1g.10gb", "gpu-webhook.k8s.io/decided": "template"}), {("2g.20gb",): (1, 0, 0)}),
    ],
)  # fmt: skip
def test_what_one_pod_asks_for(document, counted):
    """By the profile asked for, as often as it is asked for: got as asked, rejected, or neither."""
    watched = Watched("", SMALL)
    watched.send(document)
    watched.lines()
    assert demand(watched) == counted


def test_decisions_that_are_remembered_count_too():
    """The second pod of a template counts as the first; observe mode counts what would be, apart."""
    watched = Watched("mode: observe", SMALL)
    for _ in range(3):
        watched.send(asks("1g.10gb", 9))
    watched.lines()
    assert demand(watched, mode="observe") == {("1g.10gb",): (27, 0, 27)}
    assert demand(watched) == {}


def test_by_namespace_where_an_operator_wants_it():
    """`server.demandByNamespace` counts by namespace beside; by default no namespace is a label."""
    by_namespace = "gpu_webhook_namespace_demand_total"
    for text, counted in (
        ("", {}),
        (
            "server: {demandByNamespace: true}",
            {("2g.20gb", "team"): (1, 0, 0), ("2g.20gb", "other-team"): (2, 0, 0)},
        ),
    ):
        watched = Watched(text, SMALL)
        for namespace in ("team", "other-team", "other-team"):
            watched.send(asks("2g.20gb"), namespace)
        watched.lines()
        assert demand(watched) == {("2g.20gb",): (3, 0, 0)}
        assert demand(watched, by_namespace) == counted


def test_namespaces_are_bounded():
    """Thousands of namespaces: the first thousand have their series, all others are one."""
    counters = DemandCounters("profile", "namespace")
    for number in range(3000):
        counters.add(("2g.20gb", f"n{number}"), DemandResult.REJECTED, 2)
    samples = list(counters.samples())
    assert len(samples) == 3 * 1001
    assert ({"profile": "other", "namespace": "other", "result": "rejected"}, 4000) in samples


def test_a_quota_rejects_by_its_own_name():
    """`quota` where a quota alone keeps the pod from what nodes offer; `not_offered` where nothing would do anyway."""
    for document, reason in ((asks("3g.30gb"), "quota"), (asks("3g.30gb", 9), "not_offered")):
        watched = Watched("", SMALL)
        watched.cluster.put_quota(quota(2))
        assert watched.send(document)["allowed"] is False
        watched.lines()
        seen = scrape(watched.metrics)
        for one in ("quota", "not_offered"):
            assert seen["gpu_webhook_rejections_total", ("reason", one)] == (one == reason)
    whole = Watched("", node("n", gpu=8))
    whole.cluster.put_quota(quota(0))
    assert whole.send(asks("2g.20gb"))["allowed"] is False
    whole.lines()
    assert scrape(whole.metrics)["gpu_webhook_rejections_total", ("reason", "quota")] == 1
