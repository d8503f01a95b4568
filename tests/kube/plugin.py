"""A credential plugin for tests."""

import json
import sys
from pathlib import Path
from typing import Any

from tessera.kube.access.cluster import Cluster
from tessera.kube.access.kubeconfig import find_cluster

PLUGIN = """\
#!{python}
import json, os, sys
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
runs = os.path.join(os.path.dirname(__file__), "runs")
with open(runs, "a") as file:
    file.write(json.dumps([sys.argv[1:], os.environ.get("COLOUR"), info]) + "\\n")
count = sum(1 for _ in open(runs))
print(json.dumps({{"apiVersion": info["apiVersion"], "kind": "ExecCredential", "status": {status}}}))
"""


class Plugin:
    """A real little plugin, and a kubeconfig that uses it."""

    def __init__(self, folder: Path, server_url: str, status: str, **fields: object) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        script = folder / "bin" / "plugin"
        script.write_text(PLUGIN.format(python=sys.executable, status=status))
        script.chmod(0o755)
        self.exec = {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "./bin/plugin",
            "args": ["--region", "x y"],
            "env": [{"name": "COLOUR", "value": "blue"}],
            "interactiveMode": "Never",
            **fields,
        }
        extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}
        self.config: dict[str, Any] = {
            "kind": "Config",
            "current-context": "x",
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            "clusters": [{"name": "x", "cluster": {"server": server_url, "extensions": [extension]}}],
            "users": [{"name": "x", "user": {"exec": self.exec}}],
        }

    def cluster(self) -> Cluster:
        (self.folder / "config").write_text(json.dumps(self.config))
        return find_cluster(self.folder / "config", environ={})

    def runs(self) -> list[list[object]]:
        lines = (self.folder / "bin" / "runs").read_text().splitlines()
        return [json.loads(line) for line in lines]
