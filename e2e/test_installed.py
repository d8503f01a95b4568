"""Installed as users install it: the chart, webhook and device plugin as pods, from the image that the project builds.

One installation for the whole file; the tests follow each other as an operator's days do, from the first look to uninstalling.
"""

import base64
import contextlib
import json
import os
import shlex
import shutil
import ssl
import stat
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from tools.image.errors import ImageError
from tools.image.layers import build_archive

from e2e.chart import CHART, Helm
from e2e.cluster import ClusterWithNode, KubectlError, Object, Unavailable, pods_path
from e2e.cluster.api import ApiError
from e2e.cluster.errors import ClusterError
from e2e.cluster.ports import free_port
from e2e.cluster.programs import programs
from e2e.command import Running, tessera
from e2e.monitoring import FILES, kube_state_metrics, prometheus, promtool
from e2e.pods import FOREVER, busybox_pod

IMAGE = "localhost/tessera:e2e"
GPU = "device.example.com/gpu"
MIG = "nvidia.com/mig-"
NAMESPACE, PLUGIN_NAMESPACE = "gpu-webhook", "tessera-plugin"
_LABELLED = "app.kubernetes.io/name=tessera"
_CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


@dataclass(frozen=True)
class Installation:
    """Two releases of the chart on the cluster with a node: the webhook, and the device plugin beside it."""

    cluster: ClusterWithNode
    helm: Helm
    devices: Path  # device nodes and libraries on the host

    def values(self, **webhook: Any) -> dict[str, Any]:
        """The values of the webhook's release."""
        return {"image": _IMAGE_VALUES, "webhook": {"replicaCount": 2, **webhook}}

    def plugin_values(self) -> dict[str, Any]:
        """The values of the device plugin's release."""
        static = {
            "resource": GPU,
            "devices": "device_{0..7}",
            "deviceNodes": [{"hostPath": f"{self.devices}/{{id}}", "containerPath": "/dev/mock/{id}"}],
            "mounts": [{"hostPath": f"{self.devices}/lib/{{id}}.so", "containerPath": "/mock/lib/{id}.so"}],
        }
        product = {
            "name": "Simulated H200-70GB",
            "label": "NVIDIA-H200-70GB",
            "memory": 70,
            "slices": 7,
            "profiles": ["1g.10gb", "2g.20gb", "3g.30gb", "7g.70gb"],
        }
        simulated = {"product": product, "cards": 4, "layout": "2g.20gb=2,3g.30gb=1"}
        return {
            "image": _IMAGE_VALUES,
            "webhook": {"enabled": False},
            "devicePlugin": {"enabled": True, "config": {"static": [static], "simulated": simulated}},
        }

    def wait_allocatable(self, **expected: str) -> Object:
        """Wait until the node shows this many of some MIG profiles (`_2g_20gb="8"`)."""
        wanted = {MIG + name[1:].replace("_", "."): count for name, count in expected.items()}

        def shows(node: Object) -> bool:
            return all(
                node["status"]["allocatable"].get(name, "0") == count for name, count in wanted.items()
            )

        return self.cluster.wait_for_node(self.cluster.node_name, shows)

    def webhook_pods(self) -> list[Object]:
        """The replicas."""
        listed = self.cluster.api.get(pods_path(NAMESPACE), labelSelector="app=gpu-webhook")
        return [pod for pod in listed["items"] if "deletionTimestamp" not in pod["metadata"]]


_IMAGE_VALUES = {"repository": IMAGE.rpartition(":")[0], "tag": "e2e", "pullPolicy": "Never"}


@pytest.fixture(scope="module")
def installed(
    cluster_with_node: ClusterWithNode, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    """The chart installed, twice; whatever happens, nothing of it stays."""
    cluster, folder = cluster_with_node, tmp_path_factory.mktemp("installed")
    try:
        build_archive(folder / "tessera.tar", IMAGE)
    except ImageError as error:
        raise Unavailable(str(error)) from error
    cluster.load_image(folder / "tessera.tar")
    devices = Path(f"/dev/tessera-e2e-{os.getpid()}")
    installation = Installation(cluster, Helm(folder, cluster), devices)
    cluster.forget_devices()
    enforced = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE, "labels": enforced}})
    try:
        (devices / "lib").mkdir(parents=True)
        for n in range(8):
            os.mknod(devices / f"device_{n}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
            (devices / "lib" / f"device_{n}.so").write_text(f"library {n}\n")
        helm, timeout = installation.helm, "--timeout=150s"
        plugin = installation.plugin_values()
        helm("install", "plugin", CHART, f"-n={PLUGIN_NAMESPACE}", "--create-namespace", values=plugin)
        helm("install", "tessera", CHART, f"-n={NAMESPACE}", "--wait", timeout, values=installation.values())
        plugin_set = "daemonset/tessera-device-plugin"
        cluster.kubectl("rollout", "status", "-n", PLUGIN_NAMESPACE, plugin_set, timeout, timeout=160)
        yield installation
    finally:
        with contextlib.suppress(Exception):
            _clean_up(installation)
        shutil.rmtree(devices, ignore_errors=True)


def _clean_up(installation: Installation) -> None:
    cluster = installation.cluster
    for name, namespace in (("tessera", NAMESPACE), ("plugin", PLUGIN_NAMESPACE)):
        installation.helm("uninstall", name, f"-n={namespace}", "--ignore-not-found", "--wait")
    for namespace in (NAMESPACE, PLUGIN_NAMESPACE):
        cluster.api.delete(f"/api/v1/namespaces/{namespace}")
    cluster.forget_devices()


def _pod(name: str, resources: dict[str, int], script: str = FOREVER) -> str:
    """A busybox pod that asks for devices, as people write it: requests alone."""
    section = "requests" if any(r.startswith("nvidia") for r in resources) else "limits"
    return busybox_pod(name, {section: resources}, script)


def _apply(installed: Installation, namespace: str, pod: str) -> str:
    """`kubectl apply`; the warnings that it prints."""
    done = installed.cluster.try_kubectl("apply", "-n", namespace, "-f", "-", stdin=pod)
    if done.returncode:
        raise KubectlError(["apply"], done)
    return done.stderr


def _said(installed: Installation, namespace: str, name: str) -> str:
    """What a pod printed until it ended."""
    installed.cluster.wait_for_pod_phase(name, "Succeeded", namespace=namespace)
    return installed.cluster.kubectl("logs", name, "-n", namespace)


def test_pods_run_as_little_as_they_need(installed: Installation) -> None:
    """Webhook and certificate controller in a namespace that enforces "restricted"; the plugin is root without a capability."""
    cluster = installed.cluster
    assert len(installed.webhook_pods()) == 2
    me = "import os; print(os.getuid(), open('/proc/self/status').read().split('CapEff:')[1].split()[0])"
    for target, namespace, expected in (
        ("deployment/gpu-webhook", NAMESPACE, "65532 0000000000000000\n"),
        ("deployment/gpu-webhook-certificates", NAMESPACE, "65532 0000000000000000\n"),
        ("daemonset/tessera-device-plugin", PLUGIN_NAMESPACE, "0 0000000000000000\n"),
    ):
        found = cluster.kubectl("exec", "-n", namespace, target, "--", "/usr/bin/python3", "-c", me)
        assert found == expected
    with pytest.raises(KubectlError, match="no such file or directory"):
        cluster.kubectl("exec", "-n", NAMESPACE, "deployment/gpu-webhook", "--", "/bin/sh", "-c", "true")


def test_fallback_story(installed: Installation, node_namespace: str) -> None:
    """A pod that asks for 1g.10gb where there is 2g.20gb is told so, and runs with the device that it was given."""
    installed.wait_allocatable(_2g_20gb="8", _3g_30gb="4")
    warning = _apply(installed, node_namespace, _pod("asks-1g", {MIG + "1g.10gb": 1}, "nvidia-smi -L"))
    assert "Warning: " in warning
    assert "1g.10gb" in warning
    stored = installed.cluster.api.get(f"{pods_path(node_namespace)}/asks-1g")
    assert stored["metadata"]["annotations"]["gpu-webhook.k8s.io/fallback"] == "1g.10gb->2g.20gb"
    assert stored["spec"]["containers"][0]["resources"] == {
        "requests": {MIG + "2g.20gb": "1"},
        "limits": {MIG + "2g.20gb": "1"},
    }
    assert _said(installed, node_namespace, "asks-1g").count("MIG 2g.20gb") == 1
    with pytest.raises(KubectlError, match="denied the request"):
        _apply(installed, node_namespace, _pod("asks-many", {MIG + "3g.30gb": 20}))


def test_layout_story(installed: Installation, node_namespace: str) -> None:
    """The node is annotated, and both halves follow: the plugin re-cuts, the webhook falls back to what there is now."""
    cluster = installed.cluster
    layout = "version: v1\nmig-configs:\n  selected:\n  - devices: all\n    mig-enabled: true\n    mig-devices: {1g.10gb: 7}\n"
    path = f"/api/v1/nodes/{cluster.node_name}"
    cluster.api.patch(path, {"metadata": {"annotations": {"run.ai/mig.config": layout}}})
    installed.wait_allocatable(_1g_10gb="28", _2g_20gb="0", _3g_30gb="0")
    node = cluster.wait_for_node(
        cluster.node_name,
        lambda one: one["metadata"]["labels"].get("nvidia.com/mig.config.state") == "success",
    )
    assert node["metadata"]["labels"]["nvidia.com/mig-1g.10gb.count"] == "28"

    def falls_back() -> str | None:  # the webhook hears of the node a moment after we do
        with contextlib.suppress(KubectlError):
            cluster.kubectl("delete", "pod", "asks-2g", "-n", node_namespace, "--ignore-not-found", "--now")
            _apply(installed, node_namespace, _pod("asks-2g", {MIG + "2g.20gb": 1}, "nvidia-smi -L"))
            stored = cluster.api.get(f"{pods_path(node_namespace)}/asks-2g")["metadata"]
            return str(stored.get("annotations", {}).get("gpu-webhook.k8s.io/fallback", "")) or None
        return None

    assert cluster.wait(falls_back, what="a fallback from 2g") == "2g.20gb->1g.10gb"
    assert _said(installed, node_namespace, "asks-2g").count("MIG 1g.10gb") == 1


def test_cdi_story(installed: Installation, node_namespace: str) -> None:
    """Two pods get 4 and 3 of eight devices, none twice; a pod that asks for 2 waits, and runs when there is room."""
    cluster = installed.cluster
    seen: list[str] = []
    for name, count in (("four", 4), ("three", 3)):
        script = "ls /dev/mock; cat /mock/lib/*; touch /done; exec sleep 1000"
        _apply(installed, node_namespace, _pod(name, {GPU: count}, script))
        cluster.wait_for_pod_phase(name, "Running", namespace=node_namespace)
        lines = cluster.wait(
            lambda name=name, count=count: (  # type: ignore[misc]
                found
                if len(found := cluster.kubectl("logs", name, "-n", node_namespace).splitlines()) == 2 * count
                else None
            ),
            what=f"what {name} sees",
        )
        devices, libraries = lines[:count], lines[count:]
        assert libraries == [f"library {device.removeprefix('device_')}" for device in devices]
        seen += devices
    assert len(set(seen)) == 7
    _apply(installed, node_namespace, _pod("two", {GPU: 2}))
    assert f"Insufficient {GPU}" in cluster.wait_for_pod_unschedulable("two", namespace=node_namespace)
    cluster.kubectl("delete", "pod", "three", "-n", node_namespace)
    cluster.wait_for_pod_phase("two", "Running", namespace=node_namespace)


def test_doctor_finds_nothing(installed: Installation) -> None:
    """`tessera doctor` has nothing to complain about, from outside and as `helm test` from inside; on the node too."""
    cluster = installed.cluster
    done = tessera("doctor", f"--kubeconfig={cluster.kubeconfig}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok       A GPU pod reaches it and is changed" in done.stdout
    assert "ok       Device plugins run and are registered" in done.stdout
    assert "ok       Nodes offer what their layouts say" in done.stdout
    said = installed.helm("test", "tessera", f"-n={NAMESPACE}", "--logs", "--timeout=60s")
    assert "Nothing is wrong." in said
    looks = ("tessera", "doctor", "--check=cdi", "--cdi-dir=/var/run/cdi")
    plugin = ("-n", PLUGIN_NAMESPACE, "daemonset/tessera-device-plugin")
    on_node = cluster.kubectl("exec", *plugin, "--", *looks)
    assert on_node.startswith("ok       CDI specs are up to date")


def test_doctor_knows_the_way_out_of_a_damaged_authority(installed: Installation) -> None:
    """The Secret with the authority is damaged: the doctor sees it, and what it says to type works.

    (That a first damage is mended by itself takes minutes: test_certificates has it with quicker ones.)
    """
    cluster = installed.cluster
    secret = f"/api/v1/namespaces/{NAMESPACE}/secrets/gpu-webhook-ca"
    doctor = ("doctor", f"--kubeconfig={cluster.kubeconfig}", "--check=trust", "--check=trial")

    def put(**data: bytes) -> None:
        values = {name.replace("_", "."): base64.b64encode(value).decode() for name, value in data.items()}
        values = {name.replace("damaged.", "damaged-"): value for name, value in values.items()}
        cluster.api.patch(secret, {"data": values})

    def found(code: int) -> tuple[str, str]:
        """The one finding: its sentence, and what typing its command says."""
        done = tessera(*doctor, "--output=json")
        assert done.returncode == code, done.stdout + done.stderr
        (finding,) = json.loads(done.stdout)[0]["findings"]
        kubectl, *arguments = shlex.split(finding["commands"][-1])
        assert kubectl == "kubectl"
        return finding["text"], cluster.kubectl(*arguments)

    def until_well() -> None:
        done = tessera(*doctor, "--wait", "--timeout=100s", timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr

    put(ca_crt=b"rubbish")
    text, log = found(3)
    assert "gpu-webhook-ca: ca.crt: one CA certificate in PEM is expected" in text
    assert "after some minutes Tessera saves all of it as damaged-…" in text
    assert "step" in log
    put(damaged_ca_crt=b"of an earlier damage")
    assert "it was damaged before" in found(3)[0]
    until_well()
    cluster.wait(lambda: "ca.key" in (cluster.api.get(secret).get("data") or {}), what="a new authority")
    put(damaged_ca_crt=b"still there")
    assert "what was kept then is still there (damaged-ca.crt)" in found(0)[0]
    assert "damaged-ca.crt" not in cluster.api.get(secret)["data"]
    until_well()


@pytest.fixture(scope="module")
def monitoring_programs() -> None:
    """Built before the test's time begins to count."""
    programs(["prometheus", "promtool", "kube-state-metrics"])


def test_monitoring_story(
    installed: Installation, node_namespace: str, monitoring_programs: None, tmp_path: Path
) -> None:
    """A real Prometheus scrapes webhook and plugin: metrics well named, rules evaluated, every panel has something to show."""
    cluster = installed.cluster
    webhooks = [f"{pod['status']['podIP']}:8080" for pod in installed.webhook_pods()]
    plugin_pods = cluster.api.get(pods_path(PLUGIN_NAMESPACE))["items"]
    plugins = [f"{pod['status']['podIP']}:9400" for pod in plugin_pods]
    chosen = cluster.api.get(pods_path(NAMESPACE), labelSelector="app=gpu-webhook-certificates")["items"]
    controllers = [f"{pod['status']['podIP']}:8080" for pod in chosen]
    for target in (webhooks[0], controllers[0], plugins[0]):
        with urllib.request.urlopen(f"http://{target}/metrics", timeout=5) as answer:
            promtool("check", "metrics", stdin=answer.read().decode())
    usage = f"127.0.0.1:{free_port()}"
    page = Running(
        "dashboard",
        f"--kubeconfig={cluster.kubeconfig}",
        "--port=0",
        f"--metrics-listen={usage}",
        log=tmp_path / "dashboard.log",
    )
    (tmp_path / "config.yaml").write_text("fallback: {patience: 5m}")
    evicting = f"127.0.0.1:{free_port()}"
    controller = Running(
        "controller",
        f"--kubeconfig={cluster.kubeconfig}",
        f"--tessera-namespace={node_namespace}",  # where it leaves a Lease and a Secret
        f"--config={tmp_path / 'config.yaml'}",
        f"--metrics-listen={evicting}",
        log=tmp_path / "controller.log",
    )
    with (
        kube_state_metrics(tmp_path, cluster.kubeconfig) as state,
        page,
        controller,
        _passing_pod(cluster),
    ):
        jobs = {"webhook": [*webhooks, *controllers], "plugin": plugins, "state": [state], "usage": [usage]}
        jobs["controller"] = [evicting]
        with prometheus(tmp_path, jobs) as server:
            cluster.wait(server.all_up, what="every target scraped")
            waiting = {
                (panel["title"], target["refId"]): target["expr"]
                for panel in _panels()
                for target in panel["targets"]
            }

            def shown() -> bool:
                for panel, query in list(waiting.items()):
                    if server.query(query.replace("$__rate_interval", "15s")):
                        del waiting[panel]
                return not waiting

            with contextlib.suppress(ClusterError):
                cluster.wait(shown, 20, what="every panel")
            assert waiting == {}
            rules = [rule for group in server.get("/api/v1/rules")["groups"] for rule in group["rules"]]
            assert {rule["health"] for rule in rules} == {"ok"}
            assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []
            assert {one["value"][1] for one in server.query("gpu_webhook_certificate_keeper")} == {"0", "1"}


def test_the_page_behind_a_port_forward(installed: Installation) -> None:
    """`kubectl port-forward` brings the page, by the names of this machine; a request for another name is refused."""
    cluster, values = installed.cluster, installed.values()
    upgrade = ("upgrade", "tessera", CHART, f"-n={NAMESPACE}", "--wait", "--timeout=150s")
    installed.helm(*upgrade, values={**values, "dashboard": {"enabled": True}})
    try:
        with cluster.forwarded("service/tessera-dashboard", 80, namespace=NAMESPACE) as port:

            def answer(host: str) -> tuple[int, bool]:
                with contextlib.closing(HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
                    connection.request("GET", "/state", headers={"Host": host})
                    found = connection.getresponse()
                    return found.status, f'"node/{cluster.node_name}"'.encode() in found.read()

            here = f"127.0.0.1:{port}"
            cluster.wait(lambda: answer(here) == (200, True), what="the page knows the node")
            assert answer(f"localhost:{port}") == (200, True)
            assert answer("page.example") == (403, False)
    finally:
        installed.helm(*upgrade, values=values)


@contextlib.contextmanager
def _passing_pod(cluster: ClusterWithNode) -> Iterator[None]:
    """A pod with another slice than it asked for that never runs, since its image is not there: all that is counted, whatever the layout."""
    with cluster.namespace() as namespace:
        container = {
            "name": "main",
            "image": "none.invalid/none",
            "resources": {"limits": {f"{MIG}7g.70gb": "1"}},
        }
        body = {"metadata": {"name": "starts"}, "spec": {"containers": [container]}}

        def created() -> bool:  # the webhook rejects it until it knows what the node offers
            with contextlib.suppress(ApiError):
                return bool(cluster.api.create(pods_path(namespace), body))
            return False

        cluster.wait(created, what="a pod that falls back")
        cluster.wait_for_pod_bound("starts", namespace=namespace)
        yield


def _panels() -> list[dict[str, Any]]:
    document = json.loads((FILES / "dashboard.json").read_text())
    return [panel for panel in document["panels"] if panel["type"] != "row"]


def test_plugin_may_change_its_own_node_only(installed: Installation) -> None:
    """A plugin's token opens its own node's labels and annotations of NVIDIA and run.ai, and nothing else of any node."""
    cluster = installed.cluster
    plugins = cluster.api.get(pods_path(PLUGIN_NAMESPACE), labelSelector="app=tessera-device-plugin")
    pod = plugins["items"][0]["metadata"]
    account = ("create", "token", "tessera-device-plugin", f"-n={PLUGIN_NAMESPACE}")
    bound = (
        "--bound-object-kind=Pod",
        f"--bound-object-name={pod['name']}",
        f"--bound-object-uid={pod['uid']}",
    )
    own = cluster.kubectl(*account, *bound).strip()
    nobodys = cluster.kubectl(*account).strip()

    def refusal(token: str, body: dict[str, Any]) -> str:
        return _patch_node(cluster, token, body)

    ours = {"metadata": {"labels": {"nvidia.com/x": "y"}, "annotations": {"run.ai/x": "y"}}}
    assert refusal(own, ours) == ""
    assert "only its own node" in refusal(nobodys, ours)
    for labels in ({"node-role.kubernetes.io/x": ""}, {"kubernetes.io/os": None}):
        assert "only labels of nvidia.com/" in refusal(own, {"metadata": {"labels": labels}})
    for key in ("x", "tessera.dev/rollout"):
        foreign = {"metadata": {"annotations": {key: "y"}}}
        assert "only annotations of nvidia.com/ and run.ai/, and tessera.dev/devices" in refusal(own, foreign)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "gone", "uid": "gone"}  # would delete the node
    for body in (
        {"spec": {"unschedulable": True}},
        {"metadata": {"ownerReferences": [owner]}},
        {"metadata": {"finalizers": ["example.com/stay"]}},
    ):
        assert "only labels and annotations" in refusal(own, body)


def _patch_node(cluster: ClusterWithNode, token: str, body: dict[str, Any]) -> str:
    """Patch the node with a token, as a dry run; what the API server has against it."""
    cluster_entry = json.loads(cluster.kubeconfig.read_text())["clusters"][0]["cluster"]
    authority = base64.b64decode(cluster_entry["certificate-authority-data"]).decode()
    request = urllib.request.Request(  # noqa: S310 # the API server's address
        f"{cluster_entry['server']}/api/v1/nodes/{cluster.node_name}?dryRun=All",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/merge-patch+json"},
        method="PATCH",
    )
    try:
        with urllib.request.urlopen(request, context=ssl.create_default_context(cadata=authority)):  # noqa: S310
            return ""
    except urllib.error.HTTPError as error:
        return str(json.load(error)["message"])


def test_configuration_is_picked_up(installed: Installation, node_namespace: str) -> None:
    """A changed configuration is in use within the minute, by the very same pods."""
    before = {pod["metadata"]["uid"] for pod in installed.webhook_pods()}
    values = {**installed.values(), "config": {"fallback": {"downgrades": False, "wholeGPU": False}}}
    installed.helm("upgrade", "tessera", CHART, f"-n={NAMESPACE}", "--wait", values=values)

    def refused() -> str | None:
        done = installed.cluster.try_kubectl(
            "apply",
            "-n",
            node_namespace,
            "--dry-run=server",
            "-f",
            "-",
            stdin=_pod("x", {MIG + "2g.20gb": 1}),
        )
        return done.stderr if done.returncode else None

    assert "denied the request" in installed.cluster.wait(refused, 90, what="the new configuration")
    assert {pod["metadata"]["uid"] for pod in installed.webhook_pods()} == before


def test_tools_decide_with_the_installed_configuration(installed: Installation, node_namespace: str) -> None:
    """With a minimum installed, `tessera admit`, `tessera why` and the page reject with the webhook's own words."""
    cluster, used = installed.cluster, "decided with the configuration of ConfigMap gpu-webhook/gpu-webhook"
    config = {"fallback": {"minMemoryFraction": 0.5}}
    values = {**installed.values(), "config": config, "dashboard": {"enabled": True}}
    installed.helm("upgrade", "tessera", CHART, f"-n={NAMESPACE}", "--wait", "--timeout=150s", values=values)
    pod = _pod("x", {MIG + "7g.70gb": 1})  # by default values it would get a smaller profile

    def refused() -> str | None:
        done = cluster.try_kubectl("apply", "-n", node_namespace, "--dry-run=server", "-f", "-", stdin=pod)
        reason = done.stderr.partition("denied the request: ")[2].strip()
        return reason if "fallback.minMemoryFraction" in reason else None

    reason = cluster.wait(refused, 90, what="the new configuration")
    more = (f"--kubeconfig={cluster.kubeconfig}", "-n", node_namespace)
    done = tessera("admit", "-f", "-", *more, stdin=pod)
    assert done.returncode == 3
    assert done.stderr.splitlines() == [f"Pod {node_namespace}/x: rejected: {reason}", used]

    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": json.loads(pod)["spec"]}
    template["spec"].pop("restartPolicy")
    template["spec"]["containers"][0]["resources"] = {"limits": {MIG + "7g.70gb": "1"}}
    web = {"selector": {"matchLabels": labels}, "template": template}
    cluster.api.create(
        f"/apis/apps/v1/namespaces/{node_namespace}/deployments", {"metadata": {"name": "web"}, "spec": web}
    )
    events = f"/api/v1/namespaces/{node_namespace}/events"
    failed = {"fieldSelector": "reason=FailedCreate"}
    cluster.wait(lambda: cluster.api.get(events, **failed)["items"], what="a pod that is rejected")
    lines = tessera("why", "deploy/web", *more).stdout.splitlines()
    assert lines[0] == f"deployment {node_namespace}/web has 0 of 1 pods: the webhook rejects them: {reason}"
    assert lines[-1] == used

    headers = {"Content-Type": "application/yaml"}
    with (
        cluster.forwarded("service/tessera-dashboard", 80, namespace=NAMESPACE) as port,
        contextlib.closing(HTTPConnection("127.0.0.1", port, timeout=30)) as connection,
    ):
        connection.request("POST", "/explain", body=pod.encode(), headers=headers)
        lines = connection.getresponse().read().decode().splitlines()
    assert f"  decision    rejected: {reason}" in lines
    assert lines[-1] == used


def test_upgrade_loses_no_call(installed: Installation, node_namespace: str) -> None:
    """Every replica is replaced under failurePolicy Fail while pods are created without pause: none fails, each is changed."""
    cluster = installed.cluster
    path = pods_path(node_namespace)
    configuration = f"{_CONFIGURATIONS}/gpu-allocation-webhook"
    bundle = cluster.api.get(configuration)["webhooks"][0]["clientConfig"]["caBundle"]
    cluster.api.patch(
        configuration, [{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Fail"}], kind="json"
    )
    body = json.loads(_pod("load", {MIG + "1g.10gb": 1}))
    stop, answers, failures = threading.Event(), [0], list[str]()

    def create() -> None:
        while not stop.is_set():
            try:
                made = cluster.api.create(path, body, dryRun="All")
                answers[0] += MIG + "1g.10gb" in made["spec"]["containers"][0]["resources"]["limits"]
            except (ApiError, OSError) as error:
                failures.append(str(error))

    before = {pod["metadata"]["uid"] for pod in installed.webhook_pods()}
    threads = [threading.Thread(target=create) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        values = installed.values(failurePolicy="Fail", logLevel="warning")
        installed.helm(
            "upgrade", "tessera", CHART, f"-n={NAMESPACE}", "--wait", "--timeout=150s", values=values
        )
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    after = {pod["metadata"]["uid"] for pod in installed.webhook_pods()}
    assert not before & after
    assert failures == []
    assert answers[0] > 100
    found = cluster.api.get(configuration)["webhooks"][0]
    assert found["failurePolicy"] == "Fail"
    assert base64.b64decode(found["clientConfig"]["caBundle"]) == base64.b64decode(bundle)


def test_uninstall_leaves_nothing(installed: Installation, node_namespace: str) -> None:
    """Afterwards no object of the chart is there, the node offers no device, and GPU pods are created without the webhook."""
    cluster = installed.cluster
    installed.helm("uninstall", "tessera", f"-n={NAMESPACE}", "--wait")
    installed.helm("uninstall", "plugin", f"-n={PLUGIN_NAMESPACE}", "--wait")
    kinds = cluster.kubectl("api-resources", "--verbs=list", "-o=name").split()
    gone = [kind for kind in kinds if not kind.startswith(("events", "componentstatuses"))]

    def nothing() -> bool:
        return cluster.kubectl("get", ",".join(gone), "-A", "-l", _LABELLED, "-o=name") == ""

    cluster.wait(nothing, 60, what="every object of the chart gone")
    for namespace, secrets in ((NAMESPACE, ""), (PLUGIN_NAMESPACE, "")):
        assert cluster.kubectl("get", "secrets", "-n", namespace, "-o=name") == secrets
    limited = json.loads(_pod("plain", {}))
    limited["spec"]["containers"][0]["resources"] = {"limits": {MIG + "2g.20gb": "1"}}
    made = cluster.api.create(pods_path(node_namespace), limited, dryRun="All")
    assert made["spec"]["containers"][0]["resources"]["limits"] == {MIG + "2g.20gb": "1"}
    installed.wait_allocatable(_1g_10gb="0")
