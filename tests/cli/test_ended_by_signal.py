"""Every long-running part ends soon after SIGTERM, whatever its clients and the API server do meanwhile."""

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.test_webhook import HURRIED, Stage, free_port

EXAMPLES = Path(__file__).parents[2] / "examples"
DEADLINE = 30.0  # seconds: what the kubelet gives a pod, unless it says otherwise
START = 30.0  # seconds that a busy machine may need


@dataclass(frozen=True)
class Part:
    """A command that runs until it is told to stop: what to start, and its exit status then."""

    words: tuple[str, ...]
    code: int
    asked: bytes = b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n"  # a request that is never finished
    probed: bool = False  # it has /readyz, and is waited for
    program: tuple[str, ...] = ("-m", "tessera")


_FOLLOWED = b"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"  # an answer that never ends
WEBHOOK = Part(
    (
        "webhook",
        "--listen=127.0.0.1:0",
        "--metrics-listen={address}",
        "--kubeconfig={config}",
        "--shutdown-delay=0.2s",
    ),
    0,
    probed=True,
    program=(HURRIED,),
)
CERTIFICATES = Part(("certs", "run", "--metrics-listen={address}", "--kubeconfig={config}"), 0, probed=True)
_ON_A_NODE = (
    f"--config={EXAMPLES / 'simulated-h200.yaml'}", "--metrics-listen={address}", "--kubeconfig={config}",
    "--kubelet-dir={folder}", "--cdi-dir={folder}/cdi", "--state-dir={folder}/state", "--node-name=n1",
)  # fmt: skip
PLUGIN = Part(("device-plugin", *_ON_A_NODE), 0)
DRIVER = Part(("dra-driver", *_ON_A_NODE), 0)
CONTROLLER = Part(
    ("controller", "--metrics-listen={address}", "--kubeconfig={config}", "--tessera-namespace=default"),
    0,
    probed=True,
)
DASHBOARD = Part(("dashboard", "--port={port}", "--kubeconfig={config}"), 143, _FOLLOWED)
DEMO = Part(("demo", "--serve", "--port={port}", "--own-nodes={nodes}"), 143, _FOLLOWED)
NAMES = {
    WEBHOOK: "webhook", CERTIFICATES: "certs run", PLUGIN: "device-plugin", DRIVER: "dra-driver", DASHBOARD: "dashboard",
    DEMO: "demo --serve", CONTROLLER: "controller",
}  # fmt: skip


@contextlib.contextmanager
def started(part: Part, folder: Path, config: Path) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """The part in a process of its own, and its port."""
    nodes = folder / "nodes.yaml"
    nodes.write_text("mine:\n  layout: 1g.10gb=7\n  devices: {simulated: {product: H200-70GB, cards: 1}}\n")
    port = free_port()
    values = {
        "port": port,
        "address": f"127.0.0.1:{port}",
        "config": config,
        "folder": folder,
        "nodes": nodes,
    }
    process = subprocess.Popen(
        [sys.executable, *part.program, *(word.format(**values) for word in part.words)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        yield process, port
    finally:
        process.kill()
        process.wait()


def ended(process: "subprocess.Popen[bytes]", part: Part) -> None:
    """Tell it to stop; it does, in order."""
    process.send_signal(signal.SIGTERM)
    _, complaint = process.communicate(timeout=DEADLINE)
    assert process.returncode == part.code, complaint.decode()
    assert b"Traceback" not in complaint, complaint.decode()


def until(condition: Callable[[], bool], process: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + START
    while not condition():
        assert process.poll() is None, process.communicate()[1].decode()
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Path]:
    stage = Stage(tmp_path)
    yield stage.kubeconfig
    stage.close()


@pytest.mark.parametrize("part", NAMES, ids=NAMES.values())
def test_fault_44_ends_while_a_client_stays(part: Part, tmp_path: Path, config: Path) -> None:
    """A client that keeps its connection, in the middle of a request or of an answer, keeps nothing alive."""
    with started(part, tmp_path, config) as (process, port):
        clients: list[socket.socket] = []

        def connected() -> bool:
            with contextlib.suppress(OSError):
                clients.append(socket.create_connection(("127.0.0.1", port)))
                return True
            return False

        def ready() -> bool:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=START).close()
                return True
            return False

        if part.probed:
            until(ready, process)
        until(connected, process)
        with clients[0] as client:
            client.sendall(part.asked)
            if part.asked is _FOLLOWED:
                client.settimeout(START)
                assert client.recv(1).startswith(b"H")
            ended(process, part)


@pytest.mark.parametrize("part", [one for one in NAMES if one is not DEMO], ids=NAMES.get)
def test_fault_44_ends_while_the_api_server_is_silent(part: Part, tmp_path: Path) -> None:
    """An API server that takes connections and answers nothing is not waited for."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(0)
        config = tmp_path / "kubeconfig"
        config.write_text(json.dumps(_kubeconfig(silent.getsockname()[1])))
        with started(part, tmp_path, config) as (process, _):
            calls: list[socket.socket] = []

            def called() -> bool:
                with contextlib.suppress(BlockingIOError):
                    calls.append(silent.accept()[0])
                return bool(calls)

            until(called, process)
            with calls[0]:
                ended(process, part)


def _kubeconfig(port: int) -> dict[str, object]:
    context = {"cluster": "c", "user": "", "namespace": "gpu-webhook"}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": context}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [],
    }
