"""Tessera's own commands, as processes beside a cluster."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from e2e.cluster import ClusterWithNode
from e2e.cluster.client import Client
from e2e.cluster.errors import ClusterError
from e2e.cluster.processes import until
from tessera.protocol import yaml

TESSERA = (sys.executable, "-m", "tessera")


def tessera(
    *arguments: str | Path,
    stdin: str | None = None,
    timeout: float = 120.0,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [*TESSERA, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env=environment,
    )


def account_kubeconfig(cluster: Client, namespace: str, folder: Path, account: str = "default") -> Path:
    """A kubeconfig of a namespace's service account."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    token = cluster.api.create(path, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
    document = yaml.load(cluster.kubeconfig.read_bytes(), "kubeconfig")
    for user in document["users"]:
        user["user"] = {"token": token}
    file = folder / "kubeconfig-of-an-account"
    file.write_text(json.dumps(document))
    return file


def node_options(cluster: ClusterWithNode, config: Path, folder: Path) -> Sequence[str]:
    """For what runs on the cluster's node, as a process on this machine; what it remembers is in the folder."""
    return (
        f"--config={config}",
        f"--node-name={cluster.node_name}",
        f"--kubelet-dir={cluster.kubelet_dir}",
        f"--cdi-dir={cluster.cdi_dir}",
        f"--state-dir={folder / 'state'}",
        f"--kubeconfig={cluster.kubeconfig}",
    )


class Running:
    """A command that runs until the test is done with it; what it logged is shown when it fails."""

    def __init__(
        self,
        *arguments: str | Path,
        log: Path,
        environment: Mapping[str, str] | None = None,
        module: str = "tessera",
        inside: Callable[..., Sequence[str | Path]] | None = None,
    ) -> None:
        """`inside`: makes the command one that runs it elsewhere, such as in a namespace."""
        self.log = log
        self._output = log.open("ab")
        command = (sys.executable, "-m", module, *arguments)
        self.process = subprocess.Popen(
            [*map(str, inside(*command) if inside else command)],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env=environment,
        )

    def wait_for_log(self, text: str, *, timeout: float = 120.0) -> None:
        """Wait until it says so."""
        self.until(lambda: text in self.log.read_text(), what=f"{text!r} in the log", timeout=timeout)

    def until(self, condition: object, *, what: str, timeout: float = 120.0) -> None:
        """Wait for a condition for as long as the process lives."""
        assert callable(condition)

        def alive_and_true() -> bool:
            if self.process.poll() is not None:
                raise ClusterError(
                    f"ended with {self.process.returncode}; its log:\n{self.log.read_text()[-4000:]}"
                )
            return bool(condition())

        until(alive_and_true, timeout=timeout, what=what)

    def stop(self, timeout: float = 120.0) -> int:
        """End it politely; its exit status."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(timeout)
        finally:
            self.kill()

    def kill(self) -> None:
        """End it at once."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._output.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        finally:
            if error is not None:
                print(
                    f"--- {self.log.name}\n{self.log.read_text()[-4000:]}"
                )  # pytest shows it with the failure
