"""What makes a mutating webhook bearable, on a real API server: observe mode, quotas, policies that bind."""

import json
from collections.abc import Iterator

import pytest

from e2e.cluster import Client
from e2e.cluster.api import Object
from e2e.command import tessera
from e2e.test_admission import GPU, MIG, Nodes, apply, limits, pod, stored, told
from e2e.webhook import Webhook, registered

POLICY = "gpu-webhook.k8s.io/fallback-policy"
RECORD = "gpu-webhook.k8s.io/fallback"


@pytest.fixture(scope="module")
def webhook(own_control_plane: Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    """The webhook, registered as users register it."""
    folder = tmp_path_factory.mktemp("webhook")
    with (
        Webhook(own_control_plane, folder) as running,
        registered(own_control_plane, running, failurePolicy="Fail"),
    ):
        yield running


@pytest.fixture
def nodes(own_control_plane: Client, webhook: Webhook) -> Iterator[Nodes]:
    """A way to add nodes."""
    made = Nodes(own_control_plane, webhook)
    yield made
    made.clear()


def asked(document: Object) -> Object:
    """The limits of a pod's first container."""
    found: Object = document["spec"]["containers"][0]["resources"]["limits"]
    return found


def refused(cluster: Client, namespace: str, document: Object) -> str:
    """What kubectl says when it may not create a pod."""
    done = cluster.try_kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(document))
    assert done.returncode == 1, done.stdout
    return done.stderr


def test_observe(own_control_plane: Client, nodes: Nodes, webhook: Webhook) -> None:
    """In a namespace in observe nothing changes and no pod is refused; warnings, log and metrics tell what would have been."""
    nodes.add("small", {MIG + "1g.10gb": 28})
    counter = 'gpu_webhook_fallback_total{from="2g.20gb",to="1g.10gb"'
    refusals = 'gpu_webhook_rejections_total{reason="not_offered"'
    before = [webhook.metric(name + end) for name in (counter, refusals) for end in ("}", ',mode="observe"}')]
    with own_control_plane.namespace(labels={"gpu-webhook": "observe"}) as watched:
        printed = apply(own_control_plane, watched, pod("p", limits(MIG + "2g.20gb")))
        assert "Warning: observe mode: would be changed to 1g.10gb: no node that this pod can use" in printed
        printed = apply(own_control_plane, watched, pod("q", limits(MIG + "1g.10gb", 29)))
        assert "Warning: observe mode: would be rejected: asked for nvidia.com/mig-1g.10gb: 29" in printed
        found = stored(own_control_plane, watched, "p")
        assert asked(found) == {MIG + "2g.20gb": "1"}
        assert RECORD not in found["metadata"].get("annotations", {})
        assert asked(stored(own_control_plane, watched, "q")) == {MIG + "1g.10gb": "29"}
        after = [
            webhook.metric(name + end) for name in (counter, refusals) for end in ("}", ',mode="observe"}')
        ]
        assert [now - then for now, then in zip(after, before, strict=True)] == [0, 1, 0, 1]
        webhook.until(lambda: len(told(webhook, watched)) == 2, what="both pods in the log")
        assert [line["decision"] for line in told(webhook, watched)] == [
            "would be patched",
            "would be rejected",
        ]
        summary = tessera("admit", "-o", "summary", "--kubeconfig", own_control_plane.kubeconfig).stdout
        assert f"{watched}  2             1        1" in summary
        assert "2g.20gb  1g.10gb" in summary
        looks = ("doctor", f"--kubeconfig={own_control_plane.kubeconfig}", "--check=trial")
        examined = tessera(*looks, f"--try-namespace={watched}").stdout
        assert f"the webhook observes in namespace {watched}" in examined
        # the way in: the same namespace, enforced
        own_control_plane.kubectl("label", "namespace", watched, "gpu-webhook=enforce", "--overwrite")

        def changes() -> bool:
            return "GPU fallback 2g.20gb->1g.10gb" in own_control_plane.try_kubectl(
                "apply", "-n", watched, "--dry-run=server", "-f", "-", stdin=json.dumps(pod("r", limits(MIG + "2g.20gb")))
            ).stderr  # fmt: skip

        own_control_plane.wait(changes, what="the namespace enforced")


def test_a_tenant_with_a_quota_for_two(own_control_plane: Client, namespace: str, nodes: Nodes) -> None:
    """A quota for two 1g, three pods that ask for 3g: two get 1g, the third is told by which quota it gets nothing.

    Neither a larger slice nor a whole GPU, although both are there; and when one ends, the third gets its place.
    """
    nodes.add("plenty", {MIG + "1g.10gb": 28, MIG + "2g.20gb": 8, GPU: 8})
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "slices"},
        "spec": {"hard": {f"requests.{MIG}1g.10gb": "2"}},
    }
    own_control_plane.kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(quota))

    def used() -> str:
        path = f"/api/v1/namespaces/{namespace}/resourcequotas/slices"
        status = own_control_plane.api.get(path).get("status", {})
        return str(status.get("used", {}).get(f"requests.{MIG}1g.10gb", ""))

    def says(text: str) -> bool:
        dry = own_control_plane.try_kubectl(
            "create", "-n", namespace, "--dry-run=server", "-f", "-", stdin=json.dumps(pod("dry", limits(MIG + "3g.30gb")))
        )  # fmt: skip
        return text in dry.stderr

    own_control_plane.wait(lambda: used() == "0", what="the quota counted")
    own_control_plane.wait(
        lambda: says("GPU fallback 3g.30gb->1g.10gb"), what="the webhook knowing the quota"
    )
    for number in range(2):
        apply(own_control_plane, namespace, pod(f"p{number}", limits(MIG + "3g.30gb")))
        assert asked(stored(own_control_plane, namespace, f"p{number}")) == {MIG + "1g.10gb": "1"}
    own_control_plane.wait(lambda: used() == "2", what="both counted")
    full = '1g.10gb (over the quota "slices": 2 used and 1 needed of 2)'
    own_control_plane.wait(lambda: says(full), what="the webhook knowing that the quota is full")
    said = refused(own_control_plane, namespace, pod("p2", limits(MIG + "3g.30gb")))
    assert full in said
    assert '2g.20gb (over the quota: "slices" does not name 2g.20gb)' in said
    assert 'gpu (over the quota: "slices" does not name gpu)' in said
    own_control_plane.kubectl("delete", "pod", "-n", namespace, "p0", "--grace-period=0", "--force")
    own_control_plane.wait(lambda: says("GPU fallback 3g.30gb->1g.10gb"), what="a place in the quota again")
    apply(own_control_plane, namespace, pod("p2", limits(MIG + "3g.30gb")))
    assert asked(stored(own_control_plane, namespace, "p2")) == {MIG + "1g.10gb": "1"}


def test_a_pod_cannot_allow_itself_what_its_namespace_forbids(
    own_control_plane: Client, namespace: str, nodes: Nodes
) -> None:
    """Namespace `never`, pod `any`: the pod stays as it is and waits, and is told why."""
    nodes.add("small", {MIG + "1g.10gb": 28})
    own_control_plane.kubectl("annotate", "namespace", namespace, f"{POLICY}=never")
    document = pod("p", limits(MIG + "2g.20gb"), annotations={POLICY: "any"})

    def waits() -> bool:
        done = own_control_plane.try_kubectl(
            "create", "-n", namespace, "--dry-run=server", "-f", "-", stdin=json.dumps(document)
        )
        return "the pod waits as it is" in done.stderr

    own_control_plane.wait(waits, what="the webhook knowing the namespace's policy")
    printed = apply(own_control_plane, namespace, document)
    assert f"waits as it is (namespace {namespace}'s fallback-policy is `never`)" in printed
    assert asked(stored(own_control_plane, namespace, "p")) == {MIG + "2g.20gb": "1"}
