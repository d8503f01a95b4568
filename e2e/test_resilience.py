"""Nothing breaks: the webhook away, the API server restarted, its configuration and the cluster changing underneath."""

import json
import subprocess
import threading
from pathlib import Path

import pytest

from e2e.cluster import ApiError, Client, Cluster, pods_path
from e2e.cluster.api import Object
from e2e.webhook import Webhook, registered

MIG = "nvidia.com/mig-"


def pod(name: str, resource: str) -> Object:
    container = {"name": "c", "image": "busybox", "resources": {"limits": {resource: "1"}}}
    return {"metadata": {"name": name}, "spec": {"containers": [container]}}


def create(cluster: Client, namespace: str, name: str, resource: str = MIG + "2g.20gb") -> Object:
    """Create a pod for real, and return it as it was stored."""
    return cluster.api.create(pods_path(namespace), pod(name, resource))


def given(stored: Object) -> list[str]:
    return list(stored["spec"]["containers"][0]["resources"]["limits"])


@pytest.mark.parametrize("policy", ["Ignore", "Fail"])
def test_webhook_down(own_control_plane: Cluster, namespace: str, tmp_path: Path, policy: str) -> None:
    """A webhook that is gone lets pods pass unchanged under Ignore, and is named in the refusal under Fail."""
    with (
        Webhook(own_control_plane, tmp_path) as webhook,
        registered(own_control_plane, webhook, failurePolicy=policy, timeoutSeconds=2),
    ):
        webhook.kill()
        if policy == "Ignore":
            assert given(create(own_control_plane, namespace, "p")) == [MIG + "2g.20gb"]
        else:
            with pytest.raises(ApiError, match=r'failed calling webhook "gpu-allocation\.k8s\.io"'):
                create(own_control_plane, namespace, "p")
            create(own_control_plane, namespace, "plain", "cpu")
    # the API server may still hold the configuration for a moment: the next test must not meet it
    own_control_plane.wait(
        lambda: _accepted(own_control_plane, namespace), what="GPU pods accepted without the webhook"
    )


def _accepted(cluster: Client, namespace: str) -> bool:
    try:
        cluster.api.create(pods_path(namespace), pod("probe", "nvidia.com/gpu"), dryRun="All")
    except ApiError:
        return False
    return True


def test_api_server_restart(own_control_plane: Cluster, namespace: str, tmp_path: Path) -> None:
    """The webhook serves on through a restart of the API server, and sees what changes after it."""
    cluster = own_control_plane
    cluster.add_node("before", allocatable={MIG + "1g.10gb": 7})
    try:
        with Webhook(cluster, tmp_path) as webhook, registered(cluster, webhook, failurePolicy="Fail"):
            assert given(create(cluster, namespace, "one")) == [MIG + "1g.10gb"]
            cluster.restart_apiserver()
            assert given(create(cluster, namespace, "two")) == [MIG + "1g.10gb"]
            cluster.add_node("after", allocatable={MIG + "2g.20gb": 7})
            cluster.wait(
                lambda: (
                    given(cluster.api.create(pods_path(namespace), pod("x", MIG + "2g.20gb"), dryRun="All"))
                    == [MIG + "2g.20gb"]
                ),
                what="the webhook seeing the new node",
            )
            assert webhook.ready()
    finally:
        for name in ("before", "after"):
            cluster.remove_node(name)


def test_configuration_reload(own_control_plane: Cluster, namespace: str, tmp_path: Path) -> None:
    """A changed configuration is followed while pods come; a broken one changes nothing and is told."""
    cluster = own_control_plane
    cluster.add_node("small", allocatable={MIG + "1g.10gb": 7, "nvidia.com/gpu": 1})
    try:
        with Webhook(cluster, tmp_path) as webhook, registered(cluster, webhook, failurePolicy="Fail"):
            assert given(create(cluster, namespace, "smaller")) == [MIG + "1g.10gb"]
            loaded = webhook.metric("gpu_webhook_config_reloads_total")
            webhook.config.write_text("fallback: {downgrades: false}\n")
            webhook.until(
                lambda: webhook.metric("gpu_webhook_config_reloads_total") > loaded, what="the reload"
            )
            assert given(create(cluster, namespace, "whole")) == ["nvidia.com/gpu"]
            webhook.config.write_text("fallback: {downgrades: perhaps}\n")
            webhook.until(
                lambda: webhook.metric("gpu_webhook_config_reload_errors_total") >= 1, what="the error"
            )
            assert given(create(cluster, namespace, "whole-still")) == ["nvidia.com/gpu"]
            webhook.until(
                lambda: any("fallback.downgrades" in json.dumps(line) for line in webhook.lines()),
                what="the field's path in the log",
            )
    finally:
        cluster.remove_node("small")


def test_fault_17_sigterm_under_load(own_control_plane: Cluster, namespace: str, tmp_path: Path) -> None:
    """A webhook that is told to stop answers every request that it accepted; its successor takes over without a gap."""
    cluster = own_control_plane
    cluster.add_node("small", allocatable={MIG + "1g.10gb": 7})
    refused: list[str] = []
    done = threading.Event()
    created = [0]

    def keep_creating() -> None:
        while not done.is_set():
            try:
                cluster.api.create(pods_path(namespace), pod("p", MIG + "2g.20gb"), dryRun="All")
                created[0] += 1
            except (ApiError, OSError) as error:
                refused.append(str(error))

    try:
        with (
            Webhook(cluster, tmp_path / "a") as first,
            Webhook(cluster, tmp_path / "b") as second,
            registered(cluster, first, failurePolicy="Fail"),
        ):
            threads = [threading.Thread(target=keep_creating) for _ in range(4)]
            for thread in threads:
                thread.start()
            try:
                cluster.wait(lambda: created[0] > 50, what="fifty pods")
                # as a Service does it: new calls go to the second, then the first is told to stop
                path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/gpu-allocation-webhook"
                change = [{"op": "replace", "path": "/webhooks/0/clientConfig", "value": second.client}]
                cluster.api.patch(path, change, kind="json")
                before = second.requests()
                cluster.wait(lambda: second.requests() > before, what="the second being called")
                assert first.stop() == 0
                so_far = created[0]
                cluster.wait(lambda: created[0] > so_far + 50, what="fifty more pods")
            finally:
                done.set()
                for thread in threads:
                    thread.join()
    finally:
        cluster.remove_node("small")
    assert refused == []


def test_it_needs_no_more_than_it_says(own_control_plane: Cluster, tmp_path: Path) -> None:
    """One process, a few threads, and less than 60 MiB with a real cluster's nodes in view."""
    with Webhook(own_control_plane, tmp_path) as webhook:
        status = Path(f"/proc/{webhook.process.pid}/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines())
        assert int(fields["Threads"]) <= 8
        assert int(fields["VmRSS"].split()[0]) < 60 * 1024
        # certificates are looked at by a program of their own, which ends when it has
        webhook.until(lambda: not children(webhook.process.pid), what="no process beside it")


def children(process: int) -> str:
    """The processes that one has started and that have not ended."""
    return subprocess.run(["pgrep", "-P", str(process)], capture_output=True, text=True, check=False).stdout
