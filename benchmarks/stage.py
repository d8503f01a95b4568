"""What the benchmarks need around them: certificates, files, servers on a core of their own, and load on them."""

import contextlib
import http.client
import importlib.util
import json
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from e2e.cluster.pki import Authority, KeyPair

from benchmarks import corpus
from benchmarks.processes import FOLDER, LOAD_CORE, PROGRAMS, SERVER_CORE, Running, Unavailable, on_core
from benchmarks.results import AIOHTTP, NAIVE, PARTIAL, USUAL, UVICORN

WEBHOOKS: Final = {USUAL: "usual", PARTIAL: "partial", NAIVE: "naive"}  # subject → Go program
PYTHON_WEBHOOKS: Final = {AIOHTTP: "aiohttp", UVICORN: "uvicorn"}  # subject → library
_PATIENCE: Final = 120.0  # seconds: a machine may be busy


@dataclass(frozen=True, slots=True)
class Effort:
    """How much time to take."""

    rounds: int
    seconds: float  # of one measurement under load

    @property
    def short(self) -> bool:
        """Whether to leave out what takes long."""
        return self.rounds < 4


QUICK: Final = Effort(rounds=3, seconds=0.4)
FULL: Final = Effort(rounds=5, seconds=1.2)


@dataclass(frozen=True, slots=True)
class Server:
    """A webhook that is ready."""

    subject: str
    process: Running
    address: str
    seconds: float  # from its start until it called itself ready


class Stage:
    """Certificates and files, made once for a run of the tool."""

    def __init__(self, effort: Effort) -> None:
        self.effort = effort
        FOLDER.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(FOLDER / "tls", ignore_errors=True)
        self.authority = Authority(FOLDER / "tls")
        self.identity: KeyPair = self.authority.issue("server", "benchmark", hosts=["127.0.0.1", "localhost"])
        self.tls = ssl.create_default_context(cafile=self.authority.files.certificate)
        self._files: dict[str, Path] = {}

    def file(self, name: str, lines: Iterable[bytes]) -> Path:
        """A file of lines, written once."""
        if name not in self._files:
            path = FOLDER / name
            with path.open("wb") as out:
                out.writelines(line + b"\n" for line in lines)
            self._files[name] = path
        return self._files[name]

    def nodes(self, count: int = corpus.NODES) -> Path:
        """The nodes of the corpus."""
        return self.file(f"nodes-{count}.jsonl", corpus.nodes(count))

    def pods(self, count: int, waiting: int = 0) -> Path:
        """Pods that run on them, and others that wait."""
        return self.file(f"pods-{count}-{waiting}.jsonl", corpus.running_pods(count, waiting))

    def reviews(self, size: str, kind: corpus.Kind = "own annotation") -> Path:
        """Reviews of the corpus."""
        name = f"reviews-{size}-{kind}.jsonl".replace(" ", "-")
        return self.file(name, corpus.reviews(size, kind))

    @contextlib.contextmanager
    def apiserver(self, nodes: int = corpus.NODES, pods: int = 0, waiting: int = 0) -> Iterator["ApiServer"]:
        """A stand-in for an API server, holding so many objects."""
        command: list[str | Path] = [
            PROGRAMS / "apiserver", "-tls-cert", self.identity.certificate, "-tls-key", self.identity.key,
            "-nodes", self.nodes(nodes),
            "-namespaces", self.file("namespaces.jsonl", corpus.namespaces()),
        ]  # fmt: skip
        if pods:
            command += ["-pods", self.pods(pods, waiting)]
        process = Running(on_core(LOAD_CORE, command))
        try:
            url = f"https://{process.line()}"
            yield ApiServer(url, self.kubeconfig(url, self.authority.files.certificate), self.tls)
        finally:
            process.stop()

    def kubeconfig(self, url: str, authority: Path) -> Path:
        """How the servers find the stand-in."""
        cluster = {"server": url, "certificate-authority": str(authority)}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "bench", "cluster": cluster}],
            "users": [{"name": "bench", "user": {"token": "benchmark"}}],
            "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
            "current-context": "bench",
        }
        path = FOLDER / "kubeconfig.json"
        path.write_text(json.dumps(document))
        return path

    def webhook(
        self, subject: str, kubeconfig: Path, *options: str | Path
    ) -> contextlib.AbstractContextManager[Server]:
        """One of the webhooks, on its core, once it is ready; `options` are ours."""
        program = PROGRAMS / WEBHOOKS[subject] if subject in WEBHOOKS else None

        def command(address: str, identity: KeyPair) -> list[str | Path]:
            if program is not None:
                return [
                    program, "-kubeconfig", kubeconfig, "-listen", address,
                    "-tls-cert", identity.certificate, "-tls-key", identity.key,
                ]  # fmt: skip
            return [
                Path(sys.executable).parent / "tessera", "webhook", "--kubeconfig", kubeconfig,
                "--listen", address, "--metrics-listen", "none",
                "--tls-cert", identity.certificate, "--tls-key", identity.key, *options,
            ]  # fmt: skip

        return self.server(subject, command)

    def python_webhook(self, subject: str) -> contextlib.AbstractContextManager[Server]:
        """One of the webhooks in Python that are not ours."""
        library = PYTHON_WEBHOOKS[subject]
        if importlib.util.find_spec(library) is None:
            raise Unavailable(f"{library} is not installed: `make bench` does that")

        def command(address: str, identity: KeyPair) -> list[str | Path]:
            module = "benchmarks.python_webhooks"
            return [Path(sys.executable), "-m", module, library, address, identity.certificate, identity.key]

        return self.server(subject, command)

    @contextlib.contextmanager
    def server(self, subject: str, command: Callable[[str, KeyPair], list[str | Path]]) -> Iterator[Server]:
        """A server, on its core, once it is ready."""
        address = f"127.0.0.1:{free_port()}"
        process = Running(on_core(SERVER_CORE, command(address, self.identity)))
        try:
            self._wait_until_ready(process, address)
            yield Server(subject, process, address, time.monotonic() - process.started)
        finally:
            process.stop()

    def _wait_until_ready(self, process: Running, address: str) -> None:
        """Ask until the server calls itself ready."""
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            process.check()
            with contextlib.suppress(OSError):
                if request(f"https://{address}", "GET", "/readyz", self.tls) == http.client.OK:
                    return
            time.sleep(0.01)
        raise Unavailable(f"{address} was not ready within {_PATIENCE:g} s")


@dataclass(frozen=True, slots=True)
class ApiServer:
    """The stand-in for an API server."""

    url: str
    kubeconfig: Path
    _tls: ssl.SSLContext

    def storm(self, query: str) -> None:
        """Begin to update nodes; an empty query ends it."""
        request(self.url, "POST" if query else "DELETE", f"/storm?{query}", self._tls)


def request(url: str, method: str, path: str, tls: ssl.SSLContext) -> int:
    """Ask a server for something, and return the status of its answer."""
    with contextlib.closing(
        http.client.HTTPSConnection(url.removeprefix("https://"), context=tls, timeout=5)
    ) as connection:
        connection.request(method, path)
        return connection.getresponse().status


def load(
    stage: Stage, server: Server, reviews: Path, connections: int, *, seconds: float, rate: float = 0
) -> dict[str, Any]:
    """Put a server under load, and return the load generator's report."""
    command = on_core(LOAD_CORE, [
        PROGRAMS / "load", "-address", server.address, "-pid", str(server.process.pid), "-ca", stage.authority.files.certificate, "-reviews", reviews,
        "-connections", str(connections), "-duration", f"{seconds}s", "-rate", str(rate),
    ])  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"the load generator failed: {done.stderr.strip()}")
    report: dict[str, Any] = json.loads(done.stdout)
    if report["errors"]:
        raise Unavailable(f"wrong answers: {report['errors'][0]}")
    return report


def free_port() -> int:
    """A port that no program listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
