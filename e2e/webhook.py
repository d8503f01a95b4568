"""Tessera's webhook as processes beside a cluster, registered with its API server."""

import base64
import contextlib
import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from e2e.cluster import ApiError, Client, pods_path
from e2e.cluster.api import Object
from e2e.cluster.pki import Authority
from e2e.command import Running
from tessera.protocol import yaml

CONFIGURATION = "gpu-allocation-webhook"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
_DEPLOYED = Path(__file__).parents[1] / "deploy" / "tessera.yaml"


def configuration(client: Mapping[str, Any], **changes: Any) -> Object:
    """The configuration that users install, with another way to reach the webhook."""
    documents = yaml.load_all(_DEPLOYED.read_bytes(), str(_DEPLOYED))
    found: Object = next(one for one in documents if one["kind"] == "MutatingWebhookConfiguration")
    found["webhooks"][0].update({"clientConfig": dict(client), **changes})
    return found


class Registered(Protocol):
    """What the API server can be told to call: a webhook, or several behind one address."""

    @property
    def client(self) -> dict[str, Any]: ...

    @property
    def process(self) -> subprocess.Popen[bytes]: ...

    def requests(self) -> float: ...


@contextlib.contextmanager
def registered(cluster: Client, webhook: Registered, **changes: Any) -> Iterator[None]:
    """Register a webhook with the API server, and take it away again; both times until the API server knows."""
    cluster.api.create(CONFIGURATIONS, configuration(webhook.client, **changes))
    try:
        cluster.wait(lambda: _is_called(cluster, webhook), what="the API server calling the webhook")
        yield
    finally:
        cluster.api.delete(f"{CONFIGURATIONS}/{CONFIGURATION}")
        if webhook.process.poll() is None:
            cluster.wait(
                lambda: not _is_called(cluster, webhook), what="the API server forgetting the webhook"
            )


def _is_called(cluster: Client, webhook: Registered) -> bool:
    """Whether the API server sends GPU pods to the webhook, seen by the webhook's own counter."""
    before = webhook.requests()
    container = {"name": "c", "image": "x", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    with contextlib.suppress(ApiError):
        cluster.api.create(
            pods_path("default"),
            {"metadata": {"name": "probe"}, "spec": {"containers": [container]}},
            dryRun="All",
        )
    return webhook.requests() > before


class Webhook(Running):
    """One `tessera webhook` with a certificate from files, on loopback."""

    def __init__(
        self,
        cluster: Client,
        folder: Path,
        *options: str,
        config: str = "",
        name: str = "webhook",
        authority: Authority | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.authority = authority or Authority(folder / "pki")
        pair = self.authority.issue(name, "webhook", hosts=["127.0.0.1"])
        self.config = folder / "config.yaml"
        self.config.write_text(config)
        super().__init__(
            "webhook",
            "--listen=127.0.0.1:0",
            "--metrics-listen=127.0.0.1:0",
            f"--tls-cert={pair.certificate}",
            f"--tls-key={pair.key}",
            f"--kubeconfig={cluster.kubeconfig}",
            f"--config={self.config}",
            "--log-format=json",
            "--shutdown-delay=0s",
            *options,
            log=folder / f"{name}.log",
            environment=environment,
        )
        self.until(lambda: len(self._addresses()) == 2, what="both addresses in the log")
        self.metrics_port, self.port = self._addresses()
        self.until(self.ready, what="the webhook ready")

    @property
    def client(self) -> dict[str, Any]:
        """How the API server reaches it: a clientConfig."""
        bundle = base64.b64encode(self.authority.files.certificate.read_bytes()).decode()
        return {"url": f"https://127.0.0.1:{self.port}/mutate", "caBundle": bundle}

    def ready(self) -> bool:
        """Whether /readyz says so."""
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            return self.fetch("/readyz").startswith("ok")
        return False

    def fetch(self, path: str) -> str:
        """GET from the port of metrics and probes."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}{path}", timeout=5) as answer:
            text: str = answer.read().decode()
        return text

    def metrics(self) -> list[str]:
        """What is counted now: the webhook writes the text once a second, so an older one is waited out."""
        time.sleep(1.05)
        return self.fetch("/metrics").splitlines()

    def metric(self, line: str) -> float:
        """The value of a metric, named with its labels as it is printed."""
        for one in self.metrics():
            if one.startswith(line + " "):
                return float(one.rpartition(" ")[2])
        return 0.0

    def requests(self) -> float:
        """How many reviews it has answered."""
        counted = [line for line in self.metrics() if line.startswith("gpu_webhook_requests_total{")]
        return sum(float(line.rpartition(" ")[2]) for line in counted)

    def lines(self) -> list[dict[str, Any]]:
        """What it logged, line by line."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.endswith("}")]

    def _addresses(self) -> list[int]:
        """The ports it says it listens on: metrics first, then HTTPS."""
        return [int(line["address"].rpartition(":")[2]) for line in self.lines() if "address" in line]
