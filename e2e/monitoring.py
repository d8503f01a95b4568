"""A real Prometheus, and the programs around it."""

import contextlib
import json
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from e2e.cluster import program
from e2e.cluster.ports import free_port
from e2e.cluster.processes import until
from tessera.protocol import yaml

FILES = Path(__file__).parents[1] / "charts" / "tessera" / "files"
ALERTS = FILES / "alerts.yaml"


def promtool(*arguments: str | Path, stdin: str | None = None) -> str:
    """Run promtool; what it says, or an error with it."""
    done = subprocess.run(
        [program("promtool"), *map(str, arguments)], input=stdin, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


class Prometheus:
    """A Prometheus that runs."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **query: str) -> Any:
        """Ask its API."""
        address = f"{self.url}{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(address, timeout=10) as answer:  # noqa: S310 # on loopback
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Evaluate an expression, now."""
        found: list[dict[str, Any]] = self.get("/api/v1/query", query=expression)["result"]
        return found

    def firing(self) -> dict[str, str]:
        """The alerts that fire now, and what each says."""
        return {
            alert["labels"]["alertname"]: alert["annotations"]["summary"]
            for alert in self.get("/api/v1/alerts")["alerts"]
            if alert["state"] == "firing"
        }

    def all_up(self) -> bool:
        """Whether every target was scraped."""
        targets = self.get("/api/v1/targets")["activeTargets"]
        return bool(targets) and all(target["health"] == "up" for target in targets)


def quick_alerts(folder: Path) -> Path:
    """The chart's alerts, with the same expressions and words; but what must last for minutes must last for a second."""
    document = yaml.load(ALERTS.read_bytes(), str(ALERTS))
    for group in document["groups"]:
        for rule in group["rules"]:
            rule["for"] = "1s"
    path = folder / "alerts.json"
    path.write_text(json.dumps(document))
    return path


@contextlib.contextmanager
def prometheus(
    folder: Path, jobs: Mapping[str, Sequence[str]], *, alerts: Path = ALERTS, node: str = "n"
) -> Iterator[Prometheus]:
    """Scrape these addresses every second, and evaluate the chart's alerts; `node` is the label that a PodMonitor would add."""
    labels = {"node": node} if node else {}
    scraped = [
        {"job_name": job, "static_configs": [{"targets": list(targets), "labels": labels}]}
        for job, targets in jobs.items()
    ]
    document = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(alerts)],
        "scrape_configs": scraped,
    }
    config = folder / "prometheus.json"  # JSON is YAML
    config.write_text(json.dumps(document))
    address = f"127.0.0.1:{free_port()}"
    arguments = [
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    ]
    with running("prometheus", *arguments, folder=folder):
        server = Prometheus(f"http://{address}")
        until(lambda: _answers(f"http://{address}/-/ready"), timeout=120, what="Prometheus is ready")
        yield server


@contextlib.contextmanager
def kube_state_metrics(folder: Path, kubeconfig: Path) -> Iterator[str]:
    """kube-state-metrics for nodes and pods; its address."""
    port, other = free_port(), free_port()
    arguments = [
        f"--kubeconfig={kubeconfig}",
        "--host=127.0.0.1",
        f"--port={port}",
        "--telemetry-host=127.0.0.1",
        f"--telemetry-port={other}",
        "--resources=nodes,pods",
    ]
    with running("kube-state-metrics", *arguments, folder=folder):
        until(
            lambda: _answers(f"http://127.0.0.1:{port}/healthz"), timeout=120, what="kube-state-metrics is up"
        )
        yield f"127.0.0.1:{port}"


@contextlib.contextmanager
def running(name: str, *arguments: str, folder: Path) -> Iterator[None]:
    """One of the cache's programs, for as long as it is needed; its log is shown when something fails."""
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen([program(name), *arguments], stdout=output, stderr=subprocess.STDOUT)
        try:
            yield
        except BaseException:
            print(f"--- {log.name}\n{log.read_text()[-4000:]}")
            raise
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):  # noqa: S310 # on loopback
            return True
    except OSError:
        return False
