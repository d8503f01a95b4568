"""The chart as tests use it: rendered and installed by the real helm; other projects' CustomResourceDefinitions."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from e2e.cluster import Client, Object, Unavailable, program
from e2e.cluster.errors import ClusterError
from e2e.cluster.programs import cache_dir
from tessera.protocol import yaml

CHART = Path(__file__).parents[1] / "charts" / "tessera"

# Definitions of the objects that the chart makes for others: module, version, where they are in it.
_DEFINITIONS = {
    ("github.com/cert-manager/cert-manager", "v1.21.2"): (
        "deploy/crds/cert-manager.io_certificates.yaml",
        "deploy/crds/cert-manager.io_issuers.yaml",
    ),
    ("github.com/prometheus-operator/prometheus-operator", "v0.85.0"): (
        "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml",
        "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
        "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
    ),
}


class HelmError(ClusterError):
    """helm said no."""


class Helm:
    """helm, with folders of its own, and a cluster if it needs one."""

    def __init__(self, folder: Path, cluster: Client | None = None) -> None:
        self._program = program("helm")
        self._folder = folder
        self._kubeconfig = cluster.kubeconfig if cluster else Path(os.devnull)

    def __call__(
        self, *arguments: str | Path, values: Mapping[str, Any] | None = None, timeout: float = 120.0
    ) -> str:
        """Run a command and return what it prints."""
        with tempfile.NamedTemporaryFile("w", suffix=".json", dir=self._folder) as file:
            json.dump(values or {}, file)
            file.flush()
            chosen = [f"--values={file.name}"] if values is not None else []
            done = subprocess.run(
                [self._program, *map(str, arguments), *chosen],
                env={
                    "HOME": str(self._folder),
                    "PATH": os.environ["PATH"],
                    "KUBECONFIG": str(self._kubeconfig),
                },
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        if done.returncode:
            raise HelmError(f"helm {' '.join(map(str, arguments))}: {done.stderr.strip()}\n{done.stdout}")
        return done.stdout

    def render(self, values: Mapping[str, Any], *, namespace: str = "gpu-webhook") -> list[Object]:
        """The objects that the chart makes, its tests included; of an image somewhere unless the values name one."""
        image = {"repository": "registry.example/tessera", **values.get("image", {})}
        values = {**values, "image": image}
        text = self("template", "tessera", CHART, f"--namespace={namespace}", values=values)
        return [document for document in yaml.load_all(text, "chart") if document]


def definitions() -> Iterator[Object]:
    """CustomResourceDefinitions of cert-manager and of the Prometheus Operator, as they publish them."""
    for (module, version), files in _DEFINITIONS.items():
        folder = cache_dir() / "definitions" / f"{module.rpartition('/')[2]}-{version}"
        for file in files:
            path = folder / Path(file).name
            if not path.exists():
                source = go_module(module, version) / file
                folder.mkdir(parents=True, exist_ok=True)
                partial = path.with_suffix(".partial")
                shutil.copyfile(source, partial)
                partial.replace(path)
            yield from (one for one in yaml.load_all(path.read_bytes(), str(path)) if one)


def go_module(module: str, version: str) -> Path:
    """A Go module's files, fetched if they are not there."""
    go = shutil.which("go")
    if go is None:
        raise Unavailable(f"Go is needed to fetch {module}")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "go.mod").write_text("module tessera.invalid/e2e\n")
        done = subprocess.run(
            [go, "mod", "download", "-json", f"{module}@{version}"],
            cwd=folder,
            env={**os.environ, "GOFLAGS": "", "GOWORK": "off"},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise ClusterError(f"{module} {version} cannot be fetched: {done.stdout}{done.stderr}")
    return Path(json.loads(done.stdout)["Dir"])


class Kinds:
    """Where objects of each kind live, as the API server tells."""

    def __init__(self, cluster: Client) -> None:
        self._cluster = cluster
        self._known: dict[str, dict[str, tuple[str, bool]]] = {}

    def path(self, one: Object) -> str:
        """The collection of an object."""
        version = one["apiVersion"]
        if version not in self._known:
            prefix = f"/apis/{version}" if "/" in version else f"/api/{version}"
            self._known[version] = {
                each["kind"]: (f"{prefix}/{{}}{each['name']}", each["namespaced"])
                for each in self._cluster.api.get(prefix)["resources"]
                if "/" not in each["name"]
            }
        pattern, namespaced = self._known[version][one["kind"]]
        return pattern.format(f"namespaces/{one['metadata']['namespace']}/" if namespaced else "")
