"""Alert rules, judged by Prometheus' own tool, and each provoked by its cause on a real cluster.

(Metrics and dashboard are tried on an installation: test_installed.) What an alert waits for is as the chart has it; only
how long it must last is a second instead of minutes.
"""

import base64
import contextlib
import datetime as dt
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from e2e import bridge, dra, layouts
from e2e.chart import Helm
from e2e.cluster import ApiError, Client, ClusterWithNode, Object, cgroups, pods_path, program
from e2e.cluster.pki import Authority, make_certificate
from e2e.cluster.ports import free_port
from e2e.cluster.processes import until
from e2e.command import Running, account_kubeconfig
from e2e.monitoring import ALERTS, Prometheus, prometheus, promtool, quick_alerts
from e2e.test_device_plugin import EXAMPLES, GPU, MIG, annotate, plugin, pod, runai, wait_allocatable
from e2e.webhook import CONFIGURATION, CONFIGURATIONS, Webhook, registered
from tessera.node.dra.prepared_claims import PreparedClaims
from tessera.protocol import yaml

_TESTS = Path(__file__).parents[1] / "tests" / "monitoring" / "alerts_test.yaml"
_DURATION = "gpu_webhook_request_duration_seconds"
_ROLES = "/apis/rbac.authorization.k8s.io/v1"
_provoked: set[str] = set()


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    program("promtool")


def test_rules_are_well_formed() -> None:
    """`promtool check rules` accepts every rule, with all its lints."""
    assert "SUCCESS: 26 rules found" in promtool("check", "rules", "--lint=all", ALERTS)


def test_alerts_fire_when_they_should() -> None:
    """Each alert fires on the series that it is for, with the words that it should say, and not otherwise."""
    assert "SUCCESS" in promtool("test", "rules", _TESTS)


def test_runbooks_lead_where_the_operator_publishes_them(tmp_path: Path) -> None:
    """`prometheusRule.runbookBase` is in front of every alert's anchor; without it the path in this repository is."""
    for values, base in (
        ({}, "docs/monitoring.md"),
        ({"runbookBase": "https://x.test/a.md"}, "https://x.test/a.md"),
    ):
        rendered = Helm(tmp_path).render({"prometheusRule": {"enabled": True, **values}})
        (made,) = [one for one in rendered if one["kind"] == "PrometheusRule"]
        rules = [rule for group in made["spec"]["groups"] for rule in group["rules"]]
        urls = {rule["alert"]: rule["annotations"]["runbook_url"] for rule in rules}
        assert len(urls) == 26
        assert urls == {alert: f"{base}#{alert.lower()}" for alert in urls}


@contextlib.contextmanager
def watched(folder: Path, **jobs: str) -> Iterator[Prometheus]:
    """A Prometheus with the chart's alerts, without the label `node`."""
    targets = {job: [target] for job, target in jobs.items()}
    with prometheus(folder, targets, alerts=quick_alerts(folder), node="") as server:
        until(server.all_up, timeout=120, what="every target scraped")
        yield server


def fires(server: Prometheus, alert: str, timeout: float = 120.0) -> str:
    """Wait until an alert fires; what it says."""
    until(lambda: alert in server.firing(), timeout=timeout, what=f"{alert} fires")
    _provoked.add(alert)
    return server.firing()[alert]


def ask(cluster: Client, resource: str, count: int = 1, containers: int = 1) -> None:
    """Create a GPU pod with a dry run, and take whatever is answered."""
    parts = [
        {"name": f"c{n}", "image": "x", "resources": {"limits": {resource: str(count)}}}
        for n in range(containers)
    ]
    body = {"metadata": {"name": "asks"}, "spec": {"containers": parts}}
    with contextlib.suppress(ApiError):
        cluster.api.create(pods_path("default"), body, dryRun="All")


@pytest.fixture
def gpu_node(cluster_with_node: ClusterWithNode) -> Iterator[None]:
    """A node, only an object, that offers eight slices of 2g.20gb."""
    cluster_with_node.forget_devices()
    cluster_with_node.add_node("sliced", allocatable={MIG + "2g.20gb": 8})
    yield
    cluster_with_node.remove_node("sliced")


def test_webhook_is_gone(cluster_with_node: ClusterWithNode, tmp_path: Path) -> None:
    """A webhook that is killed under failurePolicy Ignore: it is down, and API servers let pods in without it."""
    cluster = cluster_with_node
    with (
        Webhook(cluster, tmp_path) as webhook,
        registered(cluster, webhook, failurePolicy="Ignore", timeoutSeconds=2),
        api_server_metrics(cluster, tmp_path) as api_server,
        watched(tmp_path, webhook=f"127.0.0.1:{webhook.metrics_port}", apiserver=api_server) as server,
    ):
        until(lambda: not server.firing(), timeout=120, what="no alert fires where all is well")
        webhook.kill()
        assert fires(server, "GPUWebhookDown") == "Prometheus sees no replica of the GPU webhook."
        ask(cluster, MIG + "2g.20gb")  # the first one makes the series
        counted = 'apiserver_admission_webhook_fail_open_count{name="gpu-allocation.k8s.io"}'
        until(lambda: bool(server.query(counted)), timeout=120, what="the API server's counter scraped")
        ask(cluster, MIG + "2g.20gb")
        assert "admit pods as they are" in fires(server, "GPUWebhookFailOpen")


@contextlib.contextmanager
def api_server_metrics(cluster: Client, folder: Path) -> Iterator[str]:
    """The API server's metrics without its certificates: where `kubectl proxy` listens."""
    port = free_port()
    command: list[str | Path] = [
        program("kubectl"),
        f"--kubeconfig={cluster.kubeconfig}",
        "proxy",
        f"--port={port}",
    ]
    with (folder / "proxy.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(10)


def test_what_users_ask_for_is_not_there(
    cluster_with_node: ClusterWithNode, gpu_node: None, tmp_path: Path
) -> None:
    """A dozen pods that must be rewritten, and one that can only be rejected."""
    cluster = cluster_with_node
    with (
        Webhook(cluster, tmp_path) as webhook,
        registered(cluster, webhook),
        watched(tmp_path, webhook=f"127.0.0.1:{webhook.metrics_port}") as server,
    ):
        ask(cluster, MIG + "1g.10gb")  # the first one makes the series
        until(
            lambda: bool(server.query("gpu_webhook_fallback_total")), timeout=120, what="the counter scraped"
        )
        for _ in range(15):
            ask(cluster, MIG + "1g.10gb")
        assert "GPU requests in 10 minutes were rewritten" in fires(server, "HighGPUFallbackRate")
        ask(cluster, MIG + "2g.20gb", count=100)
        assert fires(server, "GPUPodsRejected").startswith("The webhook rejects GPU pods: ")


def test_webhook_is_misled(cluster_with_node: ClusterWithNode, tmp_path: Path) -> None:
    """A mistake in its configuration, a certificate that ends in two days or has ended, an API server that does not trust it."""
    cluster = cluster_with_node
    with (
        Webhook(cluster, tmp_path) as webhook,
        registered(cluster, webhook, failurePolicy="Ignore"),
        watched(tmp_path, webhook=f"127.0.0.1:{webhook.metrics_port}") as server,
    ):
        until(lambda: not server.firing(), timeout=120, what="no alert fires where all is well")
        webhook.config.write_text("fallback: [")
        assert "refuses its configuration" in fires(server, "GPUWebhookConfigurationInvalid")
        _write_certificate(tmp_path / "pki" / "webhook", ends_in=dt.timedelta(days=2))
        assert "expires in 1d 23h" in fires(server, "GPUWebhookCertificateExpiring")
        _write_certificate(tmp_path / "pki" / "webhook", ends_in=-dt.timedelta(hours=1))
        assert "is not valid now" in fires(server, "GPUWebhookCertificateInvalid")

        def refused() -> bool:
            ask(cluster, "nvidia.com/gpu")
            return "GPUWebhookTLSFailures" in server.firing()

        stranger = Authority(tmp_path / "stranger").files.certificate.read_bytes()
        trusts_another = base64.b64encode(stranger).decode()
        change = [{"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": trusts_another}]
        cluster.api.patch(f"{CONFIGURATIONS}/{CONFIGURATION}", change, kind="json")
        until(refused, timeout=120, what="GPUWebhookTLSFailures fires")
        fires(server, "GPUWebhookTLSFailures")


def _write_certificate(stem: Path, *, ends_in: dt.timedelta) -> None:
    """A certificate and its key, signed by itself, in place of those that are there."""
    now = dt.datetime.now(dt.UTC)
    make_certificate("webhook", begins=now - dt.timedelta(days=1), ends=now + ends_in).write(stem)


class Blind(Webhook):
    """A webhook that may not list anything, and so never calls itself ready."""

    def ready(self) -> bool:
        """Nothing is waited for."""
        return True


def test_webhook_may_not_look(
    cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path
) -> None:
    """A webhook without the right to list nodes is not ready, and reviews that reach it end in errors."""
    cluster = cluster_with_node
    powerless: Any = SimpleNamespace(kubeconfig=account_kubeconfig(cluster, node_namespace, tmp_path))
    with (
        Blind(powerless, tmp_path) as webhook,
        watched(tmp_path, webhook=f"127.0.0.1:{webhook.metrics_port}") as server,
        registered(cluster, webhook, failurePolicy="Ignore"),
    ):
        assert "is not ready" in fires(server, "GPUWebhookNotReady")

        def failed() -> bool:
            ask(cluster, MIG + "2g.20gb")
            return "GPUWebhookErrors" in server.firing()

        until(failed, timeout=120, what="GPUWebhookErrors fires")
        assert fires(server, "GPUWebhookErrors").startswith("100% of admission reviews")


def test_webhook_may_not_follow_pods(
    cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path
) -> None:
    """A webhook with `when: full` and without the right to read pods is ready, decides as with `missing`, and says so; once it may, the alert ends."""
    cluster = cluster_with_node
    account: Any = SimpleNamespace(kubeconfig=account_kubeconfig(cluster, node_namespace, tmp_path))
    rules = [
        {"apiGroups": ["", "resource.k8s.io"], "resources": [one], "verbs": ["list", "watch"]}
        for one in ("nodes", "namespaces", "resourcequotas", "deviceclasses", "resourceslices")
    ]
    with (
        granted(cluster, node_namespace, rules),
        Webhook(account, tmp_path, config="fallback: {when: full}") as webhook,
        watched(tmp_path, webhook=f"127.0.0.1:{webhook.metrics_port}") as server,
    ):
        said = fires(server, "GPUPodsNotFollowed")
        assert said == f"GPU webhook 127.0.0.1:{webhook.metrics_port} does not know what is free."
        path = f"{_ROLES}/clusterroles/{node_namespace}"
        rules.append({"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]})
        cluster.api.patch(path, [{"op": "replace", "path": "/rules", "value": rules}], kind="json")
        until(lambda: "GPUPodsNotFollowed" not in server.firing(), timeout=180, what="the alert ends")


def test_webhook_may_not_publish(
    cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path
) -> None:
    """A webhook with its own certificates that may not patch its configuration says that it is not trusted."""
    cluster = cluster_with_node
    with (
        reading_everything(cluster, node_namespace),
        configured_for_none(cluster, node_namespace),
        Running(
            "webhook",
            "--listen=127.0.0.1:0",
            f"--metrics-listen=127.0.0.1:{(port := free_port())}",
            f"--kubeconfig={account_kubeconfig(cluster, node_namespace, tmp_path)}",
            f"--tessera-namespace={node_namespace}",
            f"--webhook-configuration={node_namespace}",
            log=tmp_path / "webhook.log",
        ),
        watched(tmp_path, webhook=f"127.0.0.1:{port}") as server,
    ):
        assert "does not trust the certificate of 127.0.0.1" in fires(
            server, "GPUWebhookCertificateNotTrusted"
        )


def test_certificate_controller_is_gone(
    cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path
) -> None:
    """A controller that is killed leaves replicas that only read; one of these has a clock that is a day ahead."""
    cluster = cluster_with_node
    names = (
        f"--kubeconfig={cluster.kubeconfig}",
        f"--tessera-namespace={node_namespace}",
        f"--webhook-configuration={node_namespace}",
        "--certificate-policy={}",
    )
    ports = {job: free_port() for job in ("controller", "replica", "early")}

    def started(job: str, *options: str) -> Running:
        listen = f"--metrics-listen=127.0.0.1:{ports[job]}"
        log = tmp_path / f"{job}.log"
        return Running(*options, *names, listen, log=log, module="e2e.quick_certificates")

    reads = ("webhook", "--listen=127.0.0.1:0", "--read-only-certificates")
    with (
        configured_for_none(cluster, node_namespace),
        started("controller", "certs", "run") as controller,
        started("replica", *reads),
        started("early", *reads, "--certificate-clock=86400"),
        watched(tmp_path, **{job: f"127.0.0.1:{port}" for job, port in ports.items()}) as server,
    ):
        said = fires(server, "GPUWebhookClockWrong")
        assert said.startswith(f"The clock of 127.0.0.1:{ports['early']} is wrong by ")
        assert "GPUWebhookCertificateControllerDown" not in server.firing()
        controller.kill()
        assert (
            fires(server, "GPUWebhookCertificateControllerDown")
            == "Prometheus does not see the certificate controller."
        )


def reading_everything(cluster: Client, namespace: str) -> contextlib.AbstractContextManager[None]:
    """A namespace's account may read everything, and write Secrets; nothing else."""
    rules = [
        {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create", "update", "patch"]},
    ]
    return granted(cluster, namespace, rules)


@contextlib.contextmanager
def granted(cluster: Client, namespace: str, rules: list[dict[str, list[str]]]) -> Iterator[None]:
    """A namespace's account may do so much in all namespaces."""
    metadata = {"name": namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": namespace}
    subjects = [{"kind": "ServiceAccount", "name": "default", "namespace": namespace}]
    cluster.api.create(f"{_ROLES}/clusterroles", {"metadata": metadata, "rules": rules})
    binding = {"metadata": metadata, "roleRef": role, "subjects": subjects}
    cluster.api.create(f"{_ROLES}/clusterrolebindings", binding)
    try:
        yield
    finally:
        for plural in ("clusterrolebindings", "clusterroles"):
            cluster.api.delete(f"{_ROLES}/{plural}/{namespace}")


@contextlib.contextmanager
def configured_for_none(cluster: Client, namespace: str) -> Iterator[None]:
    """A webhook configuration that trusts no certificate yet, for no namespace."""
    webhook: Object = {
        "name": "gpu-allocation.k8s.io",
        "clientConfig": {"service": {"name": "gpu-webhook", "namespace": namespace, "path": "/mutate"}},
        "rules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
        ],
        "namespaceSelector": {"matchLabels": {"tessera": "for-none"}},
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Ignore",
    }
    cluster.api.create(CONFIGURATIONS, {"metadata": {"name": namespace}, "webhooks": [webhook]})
    try:
        yield
    finally:
        cluster.api.delete(f"{CONFIGURATIONS}/{namespace}")


def test_webhook_is_short_of_cpu(cluster_with_node: ClusterWithNode, gpu_node: None, tmp_path: Path) -> None:
    """A webhook that gets one of 200 milliseconds of CPU is slow: reviews wait for their next millisecond."""
    cluster, containers = cluster_with_node, itertools.count(150)
    with (
        Webhook(cluster, tmp_path) as webhook,
        registered(cluster, webhook, failurePolicy="Ignore"),
        watched(tmp_path, webhook=f"127.0.0.1:{webhook.metrics_port}") as server,
    ):

        def slow() -> bool:
            """Ask a few times, and see whether the webhook counted one review in twenty as slow.

            The kernel takes the CPU away at its next tick, which may fall between two reviews. So this is asked again.
            """
            with starved(webhook.process.pid):
                for number in itertools.islice(containers, 5):  # each is another one, so none is remembered
                    ask(cluster, MIG + "1g.10gb", containers=150 + number % 50)
            reviews = webhook.metric(_DURATION + "_count")
            return reviews - webhook.metric(_DURATION + '_bucket{le="0.1"}') > reviews / 20

        until(slow, timeout=240, what="reviews that take longer than 0.1 s")
        assert fires(server, "GPUWebhookSlow").startswith("One in a hundred admissions takes longer than ")


@contextlib.contextmanager
def starved(process: int) -> Iterator[None]:
    """A process that gets next to no CPU, as under a limit that is far too low."""
    name = f"tessera-starved-{os.getpid()}"
    cgroups.create(name)
    root = Path("/sys/fs/cgroup")
    own = root / name if (root / "cgroup.controllers").exists() else root / "cpu" / name
    try:
        if (own / "cpu.max").exists():
            (own / "cpu.max").write_text("1000 200000")
        else:
            (own / "cpu.cfs_period_us").write_text("200000")
            (own / "cpu.cfs_quota_us").write_text("1000")  # the least that the kernel takes
        (own / "cgroup.procs").write_text(str(process))
        yield
    finally:
        (own.parent / "cgroup.procs").write_text(str(process))
        cgroups.remove(name)


def test_devices_and_their_plugin(
    cluster_with_node: ClusterWithNode, tmp_path: Path, mock_devices: None
) -> None:
    """A device file is lost, the plugin's folder is lost, the kubelet is gone, the plugin is killed."""
    cluster, cdi, port = cluster_with_node, tmp_path / "cdi", free_port()
    cdi.mkdir()
    options = (f"--cdi-dir={cdi}", f"--metrics-listen=127.0.0.1:{port}")
    with (
        plugin(cluster, tmp_path, EXAMPLES / "mock-devices.yaml", *options) as process,
        watched(tmp_path, plugins=f"127.0.0.1:{port}") as server,
    ):
        wait_allocatable(cluster, {GPU: "8"})
        assert set(server.firing()) <= {"GPUWebhookDown"}
        Path("/dev/mock/device_0").unlink()
        said = fires(server, "GPUDevicesUnhealthy")
        assert said == f"1 × {GPU} on 127.0.0.1:{port} are unhealthy."
        shutil.rmtree(cdi)
        cdi.write_text("no folder")
        assert "fails (publish)" in fires(server, "GPUDevicePluginFailing", timeout=120)
        cluster.stop_kubelet()
        try:
            assert f"refuses {GPU}" in fires(server, "GPUDevicePluginNotRegistering", timeout=120)
        finally:
            cluster.start_kubelet()
        process.kill()
        assert fires(server, "GPUDevicePluginDown") == f"The device plugin of 127.0.0.1:{port} is down."


def test_layouts_are_refused_and_wait(
    cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path
) -> None:
    """A layout that does not fit fails; one that needs what a pod holds is pending."""
    cluster, port, two = cluster_with_node, free_port(), MIG + "2g.20gb"
    try:
        with (
            plugin(cluster, tmp_path, EXAMPLES / "simulated-h200.yaml", f"--metrics-listen=127.0.0.1:{port}"),
            watched(tmp_path, plugins=f"127.0.0.1:{port}") as server,
        ):
            annotate(cluster, runai("[2g.20gb, 2g.20gb, 3g.30gb]"))
            wait_allocatable(cluster, {two: "8"})
            cluster.apply(pod("holder", two, 1), namespace=node_namespace)
            cluster.wait_for_pod_phase("holder", "Running", namespace=node_namespace)
            annotate(cluster, runai("[7g.70gb, 7g.70gb]"))
            assert "keeps the last good one" in fires(server, "MIGLayoutFailed")
            annotate(cluster, runai("[7g.70gb]"))
            assert "has waited for hours" in fires(server, "MIGLayoutPending")
    finally:
        annotate(cluster, None)


def test_controller_is_gone(cluster_with_node: ClusterWithNode, tmp_path: Path) -> None:
    """A controller that is killed where requests become claims: the webhook sees it, and Prometheus need not scrape the controller."""
    cluster = cluster_with_node
    options = (f"--tessera-namespace={bridge.NAMESPACE}",)
    with (
        bridge.rights(cluster, tmp_path),
        Webhook(cluster, tmp_path / "webhook", *options, config=bridge.FIRST_AVAILABLE) as webhook,
        bridge.start_controller(cluster, tmp_path) as controller,
        watched(tmp_path, webhook=f"127.0.0.1:{webhook.metrics_port}") as server,
    ):
        at_work = "gpu_webhook_controller_at_work == 1"
        until(lambda: bool(server.query(at_work)), timeout=60, what="the webhook sees the controller")
        until(lambda: not server.firing(), timeout=120, what="no alert fires where all is well")
        controller.kill()
        assert fires(server, "GPUControllerDown") == "No tessera controller is at work."


def test_a_rollout_fails(cluster_with_node: ClusterWithNode, tmp_path: Path) -> None:
    """A node that does not take the layout of its MigLayout is counted until somebody changes the MigLayout."""
    cluster, address = cluster_with_node, f"127.0.0.1:{free_port()}"
    layouts.add_gpu_node(cluster, "refusing", "refusing")
    try:
        with (
            layouts.definitions(cluster, tmp_path),
            layouts.StandInCutter(cluster, "refusing") as cutter,
            layouts.start_controller(tmp_path, metrics=address) as controller,
        ):
            cutter.refuses = lambda node, text: "no room" if "1g.18gb" in text else ""
            controller.wait_for_log("leading as")
            cluster.api.create(layouts.LAYOUTS, layouts.mig_layout("refusing", "refusing"))
            with watched(tmp_path, controller=address) as server:
                said = fires(server, "MIGRolloutFailed")
                assert said == "1 nodes did not take the layout of their MigLayout, and got the old one back."
            cluster.api.delete(f"{layouts.LAYOUTS}/refusing")
    finally:
        cluster.remove_node("refusing")


def test_a_claims_record_cannot_be_read_and_the_driver_is_gone(
    cluster_with_node: ClusterWithNode, node_namespace: str, tmp_path: Path
) -> None:
    """A record of which neither the API server nor a CDI spec knows the claim holds new claims back, until it is gone; then the driver is killed."""
    cluster, port = cluster_with_node, free_port()
    record = tmp_path / "state" / "dra" / "claims" / "00000000-0000-0000-0000-000000000000.json"
    PreparedClaims(record.parent).begin()  # the driver has run in this boot
    record.write_text("{")
    config = dra.simulated(tmp_path, 'layout: "2g.20gb=1,1g.10gb=2"')
    with (
        dra.driver(cluster, node_namespace, tmp_path, config, f"--metrics-listen=127.0.0.1:{port}") as driver,
        watched(tmp_path, drivers=f"127.0.0.1:{port}") as server,
    ):
        said = fires(server, "GPUClaimStateUnreadable")
        assert said.endswith("cannot read which devices 1 of its claims hold.")
        record.unlink()
        until(lambda: "GPUClaimStateUnreadable" not in server.firing(), timeout=60, what="the alert ends")
        driver.kill()
        assert fires(server, "GPUDRADriverDown") == f"The DRA driver of 127.0.0.1:{port} is down."


@pytest.mark.timeout(420, func_only=True)
def test_webhook_hears_nothing(cluster_with_node: ClusterWithNode, tmp_path: Path) -> None:
    """An API server that is away for more than three minutes leaves the webhook with an old view."""
    cluster = cluster_with_node
    with (
        Webhook(cluster, tmp_path) as webhook,
        watched(tmp_path, webhook=f"127.0.0.1:{webhook.metrics_port}") as server,
    ):
        cluster.stop_apiserver()
        try:
            said = fires(server, "GPUWebhookViewStale", timeout=300)
        finally:
            cluster.start_apiserver()
        assert " has received nothing about " in said


def test_every_alert_was_provoked(request: pytest.FixtureRequest) -> None:
    """No alert is in the chart that the tests above have not seen fire."""
    chosen = {item.name for item in request.session.items if item.path == Path(__file__)}
    every = {name for name in globals() if name.startswith("test_")}
    if not every <= chosen:
        pytest.skip("only some of this file's tests were chosen")
    groups = yaml.load(ALERTS.read_bytes(), str(ALERTS))["groups"]
    assert {rule["alert"] for group in groups for rule in group["rules"]} == _provoked
