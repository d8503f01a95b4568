"""`tessera webhook` and `tessera certs` as people run them: a process, files, a cluster."""

import base64
import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from cryptography import x509
from e2e.cluster.pki import PemPair

from tessera.cli.app import run
from tessera.kube.rest.client import Client as KubeClient
from tessera.simulation.control_plane.apiserver import ApiServer
from tessera.simulation.control_plane.kinds import (
    DEPLOYMENTS,
    EVENTS,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    NODES,
    SECRETS,
)
from tests.webhook.support import PAIR, Client, LoopThread, make_pair
from tests.webhook.test_mutate import review

DEADLINE = 20.0
HURRIED = str(Path(__file__).with_name("hurried.py"))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
        return port


class Process:
    """A webhook, or what keeps its certificates, in a process of its own."""

    def __init__(self, *options: str, command: tuple[str, ...] = ("webhook",), **environment: str) -> None:
        self.port, self.metrics_port = free_port(), free_port()
        program: tuple[str, ...] = ("-m", "tessera")
        if command == ("webhook",):
            program, options = (HURRIED,), ("--shutdown-delay=0.2s", *options)
        else:
            options = (f"--metrics-listen=127.0.0.1:{self.metrics_port}", *options)
        self.process = subprocess.Popen(
            [sys.executable, *program, *command, "--log-format=json", *options],
            stderr=subprocess.PIPE,
            env={
                **os.environ,
                "TESSERA_LISTEN": f"127.0.0.1:{self.port}",
                "TESSERA_METRICS_LISTEN": f"127.0.0.1:{self.metrics_port}",
                **environment,
            },
        )
        self.lines: list[dict[str, object]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(json.loads(line))

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}{path}") as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + DEADLINE
        while not condition():
            assert time.monotonic() < end, self.lines
            assert self.process.poll() is None, self.lines
            time.sleep(0.02)

    def until_ready(self) -> None:
        self.until(lambda: self.get("/readyz")[0] == 200)

    def told(self, message: str) -> bool:
        return any(line["message"] == message for line in self.lines)

    def steps(self) -> set[object]:
        """What it has logged of its certificates so far."""
        return {line.get("step") for line in self.lines}

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(DEADLINE)
        self._reader.join(DEADLINE)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code


NODES_FILE = """
apiVersion: v1
kind: Node
metadata: {name: n1}
status: {allocatable: {nvidia.com/mig-1g.10gb: "7"}}
"""


def test_with_files(tmp_path):
    """Nodes, configuration and certificate from files, each followed; ends in good order under load."""
    for name, content in [
        ("nodes.yaml", NODES_FILE.encode()),
        ("config.yaml", b"{}"),
        ("tls.crt", PAIR.certificate),
        ("tls.key", PAIR.key),
    ]:
        (tmp_path / name).write_bytes(content)
    webhook = Process(
        *("--from", str(tmp_path / "nodes.yaml"), "--config", str(tmp_path / "config.yaml")),
        TESSERA_TLS_CERT=str(tmp_path / "tls.crt"),
        TESSERA_TLS_KEY=str(tmp_path / "tls.key"),
    )
    try:
        webhook.until_ready()
        with Client(webhook.port, trust=PAIR.certificate) as client:
            assert json.loads(client.post(review()).body)["response"]["allowed"] is True
        # faults 13 and 26: a broken configuration and a pair that does not match change nothing, and show
        other = make_pair()
        (tmp_path / "config.yaml").write_text("server: {onErr: deny}")
        (tmp_path / "tls.key").write_bytes(other.key)
        webhook.until(lambda: webhook.told("configuration not reloaded, the last good one stays in use"))
        webhook.until(lambda: webhook.told("certificate not reloaded, the last good one stays in use"))
        assert {line["error"] for line in webhook.lines if line["level"] == "error"} == {
            f'{tmp_path}/config.yaml: server.onErr: unknown field; did you mean "onError"?',
            f"{tmp_path}/tls.crt, {tmp_path}/tls.key: the certificate and the private key do not belong together",
        }
        assert "gpu_webhook_config_last_reload_successful 0\n" in webhook.get("/metrics")[1]
        with Client(webhook.port, trust=PAIR.certificate) as client:
            assert json.loads(client.post(review()).body)["response"]["allowed"] is True
        # the next good ones are taken
        (tmp_path / "config.yaml").write_text("fallback: {downgrades: false, wholeGPU: false}")
        (tmp_path / "tls.crt").write_bytes(other.certificate)
        webhook.until(lambda: webhook.told("configuration reloaded") and webhook.told("certificate reloaded"))
        with Client(webhook.port, trust=other.certificate) as client:
            assert json.loads(client.post(review()).body)["response"]["allowed"] is False
        metrics = webhook.get("/metrics")[1]
        assert "gpu_webhook_certificate_errors_total 1\n" in metrics
        assert 'gpu_webhook_fallback_total{from="2g.20gb",to="1g.10gb"} 2\n' in metrics
        # fault 17: told to stop, it answers what it accepted
        loaders = [Loader(webhook.port, other.certificate) for _ in range(4)]
        webhook.until(lambda: sum(one.answered for one in loaders) > 100)
        assert webhook.stop() == 0
        for one in loaders:
            one.join(DEADLINE)
        assert [one.lost for one in loaders if one.lost] == []
        assert webhook.told("ended")
    finally:
        webhook.process.kill()
        webhook.process.wait()


def test_nodes_without_certificates(tmp_path, capsys, monkeypatch):
    """An operator who gives nodes and no certificate is told why a cluster is wanted all the same."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    (tmp_path / "nodes.yaml").write_text(NODES_FILE)
    assert run(["webhook", "--from", str(tmp_path / "nodes.yaml")]) == 1
    assert capsys.readouterr().err == (
        "tessera: without --tls-cert and --tls-key the webhook keeps its certificates in a cluster: "
        f"no cluster: no kubeconfig at {tmp_path}/.kube/config, and this is not a pod; use --kubeconfig FILE\n"
    )


class Loader(threading.Thread):
    """An API server: it keeps its connection until told otherwise."""

    def __init__(self, port: int, trust: bytes) -> None:
        super().__init__(daemon=True)
        self.port, self.trust = port, trust
        self.answered = 0
        self.lost: list[str] = []
        self.start()

    def run(self) -> None:
        while True:
            try:
                client = Client(self.port, trust=self.trust)
            except OSError:
                return
            with client:
                while True:
                    try:
                        reply = client.post(review())
                    except OSError as error:
                        self.lost.append(repr(error))
                        return
                    self.answered += 1
                    if reply.headers.get("Connection") == "close":
                        break


class Stage:
    """An API server with a webhook configuration and a node."""

    def __init__(self, folder: Path) -> None:
        self.thread = LoopThread()
        self.server = self.thread.run(self._make())
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "c",
                    "contexts": [
                        {"name": "c", "context": {"cluster": "c", "user": "", "namespace": "gpu-webhook"}}
                    ],
                    "clusters": [{"name": "c", "cluster": {"server": self.server.url}}],
                    "users": [],
                }
            )
        )

    async def _make(self) -> ApiServer:
        server = await ApiServer().start()
        server.store.create(NAMESPACES, {"metadata": {"name": "gpu-webhook"}})
        server.store.create(
            NODES, {"metadata": {"name": "n1"}, "status": {"allocatable": {"nvidia.com/mig-1g.10gb": "7"}}}
        )
        server.store.create(
            MUTATING_WEBHOOKS,
            {
                "metadata": {"name": "gpu-allocation-webhook"},
                "webhooks": [{"name": "gpu-allocation.k8s.io", "clientConfig": {}}],
            },
        )
        return server

    def close(self) -> None:
        self.thread.run(self.server.stop())
        self.thread.stop()


@pytest.fixture
def stage(tmp_path):
    one = Stage(tmp_path)
    yield one
    one.close()


def certs(stage: Stage, *words: str) -> int:
    return run(["certs", *words, "--kubeconfig", str(stage.kubeconfig)])


def export(stage: Stage, bundle: Path) -> int:
    """`tessera certs export > bundle`."""
    with bundle.open("w") as stdout, contextlib.redirect_stdout(stdout):
        return certs(stage, "export")


def test_in_a_cluster(stage, capsys, tmp_path, monkeypatch):
    """Nodes by list and watch, certificates of its own; `certs` shows, exports and rotates them."""
    assert certs(stage, "show") == 1
    assert "Secret gpu-webhook/gpu-webhook-ca does not exist" in capsys.readouterr().err
    webhook = Process("--kubeconfig", str(stage.kubeconfig))
    try:
        webhook.until_ready()
        bundle = tmp_path / "bundle.pem"
        assert export(stage, bundle) == 0
        assert b"PRIVATE" not in bundle.read_bytes()
        assert _ask(webhook.port, bundle)["response"]["patchType"] == "JSONPatch"
        metrics = webhook.get("/metrics")[1]
        assert "gpu_webhook_node_view_nodes 1\n" in metrics
        assert 'gpu_webhook_node_view_age_seconds{resource="nodes"}' in metrics
        assert 'gpu_webhook_certificate_expiry_timestamp_seconds{certificate="authority"}' in metrics
        assert "gpu_webhook_certificate_trusted 1\n" in metrics
        capsys.readouterr()
        with monkeypatch.context() as elsewhere:  # a person's machine whose clock is wrong makes no authority
            elsewhere.setattr(KubeClient, "server_date", property(lambda _: time.time() + 86400))
            assert certs(stage, "rotate") == 1
            assert "this machine's clock is 24 hours behind the API server's" in capsys.readouterr().err
        assert certs(stage, "rotate") == 0
        assert "published by the replicas within seconds" in capsys.readouterr().out
        assert certs(stage, "rotate") == 0
        assert "a rotation is in progress" in capsys.readouterr().out
        assert certs(stage, "show") == 0
        shown = capsys.readouterr().out.splitlines()
        assert [line.split()[0] for line in shown] == ["ROLE", "current", "next"]
        assert certs(stage, "show", "-o", "json") == 0
        current, following = json.loads(capsys.readouterr().out)
        assert (current["role"], current["published"], following["role"]) == ("current", True, "next")
        assert webhook.stop() == 0
    finally:
        webhook.process.kill()
        webhook.process.wait()


def test_fault_46_anyone_may_ask_and_nothing_is_written(stage, tmp_path):
    """A pod with an invented owner is answered. Without `--client-ca` there is nothing that could write an Event on that owner."""
    webhook = Process("--kubeconfig", str(stage.kubeconfig))
    try:
        webhook.until_ready()
        bundle = tmp_path / "bundle.pem"
        assert export(stage, bundle) == 0
        owner = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "name": "coredns",
            "uid": "u",
            "controller": True,
        }
        answer = _ask(webhook.port, bundle, owners=[owner])["response"]
        assert answer["patchType"] == "JSONPatch"
        assert "gpu_webhook_events_total" not in webhook.get("/metrics")[1]
        assert webhook.stop() == 0
        assert stage.thread.run(_listed(stage.server)) == []
    finally:
        webhook.process.kill()
        webhook.process.wait()


def _owned(owners: Sequence[object]) -> bytes:
    """A review of a pod with these owners."""
    document = json.loads(review())
    document["request"]["object"]["metadata"]["ownerReferences"] = [*owners]
    return json.dumps(document).encode()


async def _listed(server: ApiServer) -> list[object]:
    return [*server.store.list(EVENTS)]


def test_certificates_kept_by_a_process_of_its_own(stage, capsys, tmp_path):
    """`tessera certs run` makes and publishes the authority; a webhook that only reads is ready with it, and goes on alone."""
    reader = ("--kubeconfig", str(stage.kubeconfig), "--read-only-certificates")
    keeper_options = ("--kubeconfig", str(stage.kubeconfig))
    webhook = Process(*reader)
    keeper = None
    try:
        webhook.until(lambda: "`tessera certs run` makes it" in webhook.get("/readyz")[1])
        keeper = Process(*keeper_options, command=("certs", "run"))
        keeper.until_ready()
        webhook.until_ready()
        bundle = tmp_path / "bundle.pem"
        assert export(stage, bundle) == 0
        assert _ask(webhook.port, bundle)["response"]["patchType"] == "JSONPatch"
        metrics = keeper.get("/metrics")[1]
        assert "gpu_webhook_certificate_errors_total 0\n" in metrics
        assert 'gpu_webhook_certificate_expiry_timestamp_seconds{certificate="authority"}' in metrics
        assert "gpu_webhook_build_info" not in metrics  # which would hide that no webhook is there
        assert keeper.get("/livez")[0] == 200
        assert keeper.get("/nowhere")[0] == 404
        webhook.until(lambda: "sign" in webhook.steps())
        assert not {"establish", "publish"} & webhook.steps()
        assert keeper.stop() == 0
        assert keeper.told("ended")
        assert webhook.get("/readyz")[0] == 200
        assert webhook.stop() == 0
    finally:
        for one in (webhook, keeper):
            if one is not None:
                one.process.kill()
                one.process.wait()


def test_fault_32_certs_show_a_given_certificate(stage, capsys):
    """With a certificate from files, `certs show` shows that one, whether it is trusted, and that it has ended."""
    mount = {"name": "tls", "mountPath": "/etc/tessera/tls"}
    container = {
        "name": "webhook",
        "args": ["webhook", "--tls-cert=/etc/tessera/tls/tls.crt"],
        "volumeMounts": [mount],
    }
    pod = {
        "containers": [container],
        "volumes": [{"name": "config"}, {"name": "tls", "secret": {"secretName": "mine"}}],
    }
    deployment = {"metadata": {"name": "gpu-webhook"}, "spec": {"template": {"spec": pod}}}
    store = stage.server.store
    store.create(DEPLOYMENTS, deployment, "gpu-webhook")
    assert certs(stage, "show") == 1
    assert capsys.readouterr().err == (
        "tessera: Deployment gpu-webhook has its certificate from /etc/tessera/tls/tls.crt, "
        "and Secret gpu-webhook/mine holds no certificate for it\n"
    )

    def given(pair: PemPair, bundle: bytes) -> tuple[int, str]:
        secret = {
            "metadata": {"name": "mine"},
            "data": {"tls.crt": base64.b64encode(pair.certificate).decode()},
        }
        store.create(SECRETS, secret, "gpu-webhook")
        client = {"caBundle": base64.b64encode(bundle).decode()}
        webhooks = [{"name": "gpu-allocation.k8s.io", "clientConfig": client}]
        store.update(
            MUTATING_WEBHOOKS, "gpu-allocation-webhook",
            {"metadata": {"name": "gpu-allocation-webhook"}, "webhooks": webhooks},
        )  # fmt: skip
        code = certs(stage, "show")
        store.delete(SECRETS, "mine", "gpu-webhook")
        return code, capsys.readouterr().out.splitlines()[1]

    ended = make_pair(days=0)
    code, line = given(ended, ended.certificate)
    assert (code, line.split()[0], line.split()[4]) == (3, "given", "yes")
    end = x509.load_pem_x509_certificate(ended.certificate).not_valid_after_utc
    assert line.split()[3].startswith(f"{end:%Y-%m-%dT}")
    assert line.endswith("has expired: API servers refuse it")
    code, line = given(PAIR, PAIR.certificate)
    assert (code, line.split()[4:]) == (0, ["yes"])
    code, line = given(PAIR, ended.certificate)
    assert (code, line.split()[4:]) == (3, ["no"])
    # next to the pair stands a certificate that is trusted, and signed nothing
    beside = PemPair(PAIR.certificate + ended.certificate, PAIR.key)
    code, line = given(beside, ended.certificate)
    assert (code, line.split()[4:]) == (3, ["no"])


def _ask(port: int, bundle: Path, owners: Sequence[object] = ()) -> dict[str, dict[str, object]]:
    """Call as the API server does: by the Service's name, trusting the bundle alone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(bundle)
    with (
        socket.create_connection(("127.0.0.1", port), timeout=DEADLINE) as raw,
        context.wrap_socket(raw, server_hostname="gpu-webhook.gpu-webhook.svc") as secure,
    ):
        client = Client.__new__(Client)
        client.socket, client._read = secure, b""
        document: dict[str, dict[str, object]] = json.loads(client.post(_owned(owners)).body)
        return document


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--tls-cert", "x"], "use --tls-cert and --tls-key together"),
        (["--listen", "8443"], '"8443" is not an address to listen on'),
        (["--from", "none.yaml", "--tls-cert", "x", "--tls-key", "y"], "none.yaml: no such file or directory"),
        (["--from", "nodes.yaml", "--tls-cert", "x", "--tls-key", "y"], "x: no such file or directory"),
        (["--from", "nodes.yaml", "--config", "bad.yaml", "--tls-cert", "x", "--tls-key", "y"], "bad.yaml: extra: unknown field"),
        (["--from", "nodes.yaml", "--client-ca", "none.pem", "--tls-cert", "x", "--tls-key", "y"], "--client-ca none.pem: no such file or directory"),
        (["--from", "nodes.yaml", "--client-ca", "bad.pem", "--tls-cert", "x", "--tls-key", "y"], "--client-ca bad.pem: no certificates in PEM"),
        (["--kubeconfig", "none"], "none"),
    ],
)  # fmt: skip
def test_bad_options(options, sentence, capsys, tmp_path, monkeypatch):
    """What is wrong at the start is one sentence and exit code 2."""
    monkeypatch.chdir(tmp_path)
    Path("nodes.yaml").write_text(NODES_FILE)
    Path("bad.yaml").write_text("extra: 1")
    Path("bad.pem").write_bytes(b"\xff")
    assert run(["webhook", "--metrics-listen", "none", *options]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert "Traceback" not in said


def test_api_server_away(tmp_path):
    """Without an API server it is alive, not ready, and says why; and it ends when told to."""
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{free_port()}"}}],
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    webhook = Process("--kubeconfig", str(tmp_path / "kubeconfig"))
    try:
        webhook.until(lambda: "refused" in webhook.get("/readyz")[1] and webhook.get("/readyz")[0] == 503)
        why = webhook.get("/readyz")[1]
        assert "not ready: cluster: nodes not listed yet" in why
        assert "not ready: certificate:" in why
        assert webhook.get("/livez")[0] == 200
        assert webhook.stop() == 0
    finally:
        webhook.process.kill()
        webhook.process.wait()
