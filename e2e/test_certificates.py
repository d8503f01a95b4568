"""The webhook's own certificates, with a real API server calling replicas through a Service.

Every process has the rights that the chart gives it, and no others: `tessera certs run` keeps the authority and the
caBundle, replicas read them.
"""

import base64
import json
import re
import socket
import ssl
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from e2e.chart import Helm
from e2e.cluster import ApiError, Client, Cluster, pods_path
from e2e.cluster.api import Object
from e2e.cluster.pki import Authority, KeyPair
from e2e.command import Running, tessera

SERVICE = "gpu-webhook"
ONLY = "may change only the caBundle"  # what the chart's policy says
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
# minutes and days become seconds; an API server hears of a new bundle within some milliseconds. A process of a busy machine may stand
# still for ten seconds: a certificate outlives that
QUICK = {"interval": 0.5, "settle": 3.0, "lag": 1.0, "leaf_life": 25.0, "renew_after": 2.0, "skew": 0.5}


_RIGHTS = (
    "ServiceAccount",
    "Secret",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
)


class Process(Running):
    """A process with quick certificates, and a port for metrics and probes."""

    def __init__(self, *options: str, log: Path) -> None:
        quick = (
            f"--certificate-policy={json.dumps(QUICK)}",
            "--metrics-listen=127.0.0.1:0",
            "--log-format=json",
        )
        super().__init__(*options, *quick, log=log, module="e2e.quick_certificates")
        self.until(self.ports, what="an address in the log")

    def lines(self) -> list[Object]:
        """What it logged."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.endswith("}")]

    def ports(self) -> list[int]:
        """Those it listens on: metrics first."""
        return [int(line["address"].rpartition(":")[2]) for line in self.lines() if "address" in line]

    def fetch(self, path: str) -> str:
        """GET from the port of metrics and probes."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports()[0]}{path}", timeout=5) as answer:
                text: str = answer.read().decode()
                return text
        except urllib.error.HTTPError as error:
            with error:
                return error.read().decode()

    def metric(self, name: str) -> float | None:
        """The value of a metric without labels."""
        found = re.search(rf"^{name} (\S+)$", self.fetch("/metrics"), re.MULTILINE)
        return float(found[1]) if found else None

    def until_ready(self) -> None:
        """Wait for /readyz."""
        self.until(lambda: self.fetch("/readyz") == "ok\n", what="ready")

    def until_trusted(self) -> None:
        """Wait until it has seen so; a busy machine may miss looks, which come twice a second here."""
        self.until(lambda: self.metric("gpu_webhook_certificate_trusted") == 1, what="trust seen")


class Installation:
    """What the chart installs, as processes on this machine: their accounts and rights are the chart's."""

    def __init__(self, cluster: Client, namespace: str, folder: Path, stack: ExitStack) -> None:
        self.cluster, self.namespace, self._folder, self._stack = cluster, namespace, folder, stack
        self._address = _address()
        values = {"webhook": {"configurationName": namespace}, "tests": {"enabled": False}}
        rendered = Helm(folder).render(values, namespace=namespace)
        rights = "\n".join(json.dumps(one) for one in rendered if one["kind"] in _RIGHTS)
        cluster.apply(rights)
        stack.callback(cluster.kubectl, "delete", "--filename=-", "--ignore-not-found", stdin=rights)
        cluster.add_node("certified", allocatable={"nvidia.com/mig-1g.10gb": 7})
        stack.callback(cluster.remove_node, "certified")
        cluster.api.create(CONFIGURATIONS, _configuration(namespace))
        stack.callback(cluster.api.delete, f"{CONFIGURATIONS}/{namespace}")
        self.keeper_account = self._kubeconfig(f"{SERVICE}-certificates")
        self.replica_account = self._kubeconfig(SERVICE)
        self.keeper = stack.enter_context(
            Process("certs", "run", *self._names(self.keeper_account), log=folder / "keeper.log")
        )

    def _kubeconfig(self, account: str) -> Path:
        document = json.loads(self.cluster.kubeconfig.read_text())
        token = self.cluster.kubectl("create", "token", account, f"--namespace={self.namespace}").strip()
        document["users"] = [{"name": one["name"], "user": {"token": token}} for one in document["users"]]
        path = self._folder / f"{account}.kubeconfig"
        path.write_text(json.dumps(document))
        return path

    def _names(self, kubeconfig: Path) -> tuple[str, ...]:
        return (
            f"--kubeconfig={kubeconfig}",
            f"--tessera-namespace={self.namespace}",
            f"--webhook-configuration={self.namespace}",
        )

    def replica(self, name: str, *options: str) -> Process:
        """Start a webhook that only reads."""
        names = self._names(self.replica_account)
        listen = (f"--listen={self._address}:0", "--shutdown-delay=0s", "--read-only-certificates")
        log = self._folder / f"{name}.log"
        return self._stack.enter_context(Process("webhook", *listen, *names, *options, log=log))

    def serve(self, replicas: list[Process]) -> "Users":
        """Replicas that are ready and behind the Service, and people who create pods."""
        self.publish(replicas)
        users = Users(self.cluster, self.namespace)
        self.cluster.wait(users.reached, what="the first call")
        self._stack.callback(users.over.set)
        users.start()
        return users

    def publish(self, replicas: list[Process]) -> None:
        """Put replicas that are ready behind the Service."""
        for one in replicas:
            one.until_ready()
            one.until(lambda one=one: len(one.ports()) == 2, what="both addresses in the log")
        for each in _service([one.ports()[1] for one in replicas], self._address):
            self.cluster.apply(json.dumps(each), namespace=self.namespace)

    def refused(self, port: int, shown: KeyPair | None = None) -> bool:
        """Whether a replica refuses a client that shows this certificate and key, or none."""
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        if shown:
            tls.load_cert_chain(shown.certificate, shown.key)
        try:
            with (
                socket.create_connection((self._address, port), timeout=10) as plain,
                tls.wrap_socket(plain) as client,
            ):
                client.sendall(
                    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
                )  # with TLS 1.3 the refusal comes behind the handshake
                return not client.recv(100).startswith(b"HTTP/1.1 404 ")
        except (ssl.SSLError, ConnectionError):
            return True

    def certs(self, *words: str) -> str:
        """`tessera certs` as an administrator."""
        done = tessera("certs", *words, *self._names(self.cluster.kubeconfig))
        assert done.returncode == 0, done.stderr
        return done.stdout

    def authorities(self) -> list[Object]:
        """As `certs show` shows them."""
        found: list[Object] = json.loads(self.certs("show", "-o", "json"))
        return found

    def secret(self) -> dict[str, str]:
        """The data of the Secret."""
        found: dict[str, str] = self.cluster.api.get(self.secret_path).get("data") or {}
        return found

    @property
    def secret_path(self) -> str:
        """Where the authority is kept."""
        return f"/api/v1/namespaces/{self.namespace}/secrets/{SERVICE}-ca"

    def patch_configuration(self, account: Path, change: Object) -> str:
        """Try to change the webhook configuration's only webhook, as a dry run; what the API server has against it."""
        body = json.dumps({"webhooks": [{"name": "gpu-allocation.k8s.io", **change}]})
        done = self.cluster.try_kubectl(
            f"--kubeconfig={account}", "patch", "mutatingwebhookconfiguration", self.namespace,
            "--dry-run=server", f"--patch={body}",
        )  # fmt: skip
        return done.stderr if done.returncode else ""


def _address() -> str:
    """An address of this machine that is not loopback, which Services may not lead to. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.connect(("203.0.113.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        address: str = one.getsockname()[0]
        return address


def _configuration(namespace: str) -> Object:
    """A configuration named after the namespace, for its pods alone, that trusts no certificate yet."""
    webhook = {
        "name": "gpu-allocation.k8s.io",
        "clientConfig": {"service": {"name": SERVICE, "namespace": namespace, "path": "/mutate"}},
        "rules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
        ],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "timeoutSeconds": 5,
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": namespace},
        "webhooks": [webhook],
    }


def _service(ports: list[int], address: str) -> Iterator[Object]:
    yield {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": SERVICE},
        "spec": {"ports": [{"name": "https", "port": 443}]},
    }
    for port in ports:  # a slice has one port for all its addresses
        yield {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": f"{SERVICE}-{port}", "labels": {"kubernetes.io/service-name": SERVICE}},
            "addressType": "IPv4",
            "ports": [{"name": "https", "port": port}],
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        }


class Users(threading.Thread):
    """People who create pods all the while; a webhook that cannot be called fails them."""

    def __init__(self, cluster: Client, namespace: str) -> None:
        super().__init__(daemon=True)
        self._cluster, self._namespace = cluster, namespace
        self.created = 0
        self.failures: list[str] = []
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.is_set():
            try:
                self.create()
                self.created += 1
            except ApiError as error:
                self.failures.append(str(error))

    def stop(self) -> None:
        """No more pods."""
        self.over.set()
        self.join(10)

    def create(self) -> Object:
        """Create a pod, as far as admission goes; the webhook gives it what the one node has."""
        container = {"name": "c", "image": "x", "resources": {"limits": {"nvidia.com/mig-2g.20gb": "1"}}}
        pod = {"metadata": {"generateName": "p-"}, "spec": {"containers": [container]}}
        made = self._cluster.api.create(pods_path(self._namespace), pod, dryRun="All")
        assert made["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/mig-1g.10gb": "1"}
        return made

    def reached(self) -> bool:
        """Whether the API server has heard of the Service and of the bundle."""
        return not self.complaint()

    def complaint(self) -> str:
        """What the API server says when a pod is created; nothing when it is well."""
        try:
            self.create()
        except ApiError as error:
            return str(error)
        return ""


@pytest.fixture
def installation(own_control_plane: Client, namespace: str, tmp_path: Path) -> Iterator[Installation]:
    """The rights of the chart, and `tessera certs run`."""
    with ExitStack() as stack:
        yield Installation(own_control_plane, namespace, tmp_path, stack)


def test_fault_14_rotation(installation: Installation) -> None:
    """Three replicas that only read change from one authority to another without one failed call."""
    replicas = [installation.replica(f"replica-{n}") for n in range(3)]
    users = installation.serve(replicas)
    (first,) = installation.authorities()
    assert "follows" in installation.certs("rotate")

    def over() -> bool:
        found = installation.authorities()
        return len(found) == 1 and found[0]["sha256"] != first["sha256"]

    installation.cluster.wait(over, what="the end of the rotation", timeout=120)
    users.stop()
    assert users.failures == []
    assert users.created > 50
    for replica in replicas:
        assert replica.metric("gpu_webhook_certificate_errors_total") == 0
        replica.until_trusted()
    assert installation.keeper.metric("gpu_webhook_certificate_errors_total") == 0


def test_only_the_controller_may_change_the_bundle_and_nothing_else(installation: Installation) -> None:
    """The webhook's account changes nothing of its configuration; the controller's changes the caBundle, and no rule."""
    installation.keeper.until_ready()
    rules: Object = {
        "rules": [{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]}]
    }
    bundle: Object = {"clientConfig": {"caBundle": base64.b64encode(b"x").decode()}}
    for change in (rules, bundle):
        assert "forbidden" in installation.patch_configuration(installation.replica_account, change).lower()
    installation.cluster.wait(
        # another refusal, of a write at the same time, does not mean that the policy is known already
        lambda: ONLY in installation.patch_configuration(installation.keeper_account, rules),
        what="the policy in force",
    )
    changes: list[Object] = [
        rules,
        {"failurePolicy": "Ignore"},
        {"namespaceSelector": {"matchLabels": None}},
        {"timeoutSeconds": 30},
        {"clientConfig": {"service": {"name": "other", "namespace": "default"}}},
    ]
    for change in changes:
        refusal = installation.patch_configuration(installation.keeper_account, change)
        assert ONLY in refusal, change
    certificate = installation.certs("export")
    trusted = {"clientConfig": {"caBundle": base64.b64encode(certificate.encode() * 2).decode()}}
    assert installation.patch_configuration(installation.keeper_account, trusted) == ""


@pytest.mark.parametrize("years", [-8, 8])
def test_fault_41_clock_of_one_replica_is_wrong(installation: Installation, years: int) -> None:
    """A replica whose clock is wrong by years is not ready and says why; nothing is written, and the others go on."""
    good = installation.replica("good")
    users = installation.serve([good])
    before = installation.secret()
    wrong = installation.replica("wrong", f"--certificate-clock={years * 365 * 86400}")
    side = "ahead of" if years > 0 else "behind"
    wrong.until(
        lambda: f"this machine's clock is 2920 days {side} the API server's" in wrong.fetch("/readyz"),
        what="a word on the clock",
    )
    offset = wrong.metric("gpu_webhook_clock_offset_seconds")
    assert offset is not None
    assert abs(offset + years * 365 * 86400) < 60
    wrong.until(lambda: (wrong.metric("gpu_webhook_certificate_errors_total") or 0) > 3, what="some looks")
    assert any(side in str(line.get("error")) for line in wrong.lines())
    assert installation.secret() == before
    users.stop()
    assert users.failures == []
    good.until_trusted()


def test_fault_31_bundle_emptied_and_rights_gone(installation: Installation) -> None:
    """The caBundle is emptied and no account may read it any more: the metric says so, and the log says why."""
    replica = installation.replica("replica")
    replica.until_ready()
    replica.until_trusted()
    for name in (SERVICE, f"{SERVICE}-certificates"):
        installation.cluster.kubectl("delete", "clusterrolebinding", name)
    path = f"{CONFIGURATIONS}/{installation.namespace}"
    empty = [{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]
    installation.cluster.api.patch(path, empty, kind="json")
    replica.until(lambda: replica.metric("gpu_webhook_certificate_trusted") == 0, what="the metric at 0")
    replica.until(
        lambda: any("forbidden" in str(line.get("error")).lower() for line in replica.lines()), what="why"
    )
    keeper = installation.keeper
    keeper.until(
        lambda: any("forbidden" in str(line.get("error")).lower() for line in keeper.lines()),
        what="the controller saying why",
    )


def test_deleted_secret_is_made_by_hand(installation: Installation) -> None:
    """A Secret that was deleted cannot be created with the chart's rights: the log says what to type, and that works."""
    installation.serve([installation.replica("replica")])
    installation.cluster.api.delete(installation.secret_path)
    said = f"kubectl create secret generic {SERVICE}-ca -n {installation.namespace}"
    keeper = installation.keeper
    keeper.until(lambda: any(said in str(line.get("error")) for line in keeper.lines()), what="what to type")
    installation.cluster.kubectl(*said.split()[1:])
    installation.cluster.wait(lambda: "ca.key" in installation.secret(), what="a new authority")


def test_damaged_authority_is_replaced(installation: Installation) -> None:
    """With the chart's rights a damaged Secret is set aside and a new authority made, without one failed call."""
    users = installation.serve([installation.replica(f"replica-{n}") for n in range(2)])
    (first,) = installation.authorities()
    damage = {"data": {"ca.key": base64.b64encode(b"nonsense").decode()}}
    installation.cluster.api.patch(installation.secret_path, damage)
    damaged = installation.secret()

    def replaced() -> bool:
        if "damaged-ca.key" not in installation.secret() or "ca.key" not in installation.secret():
            return False
        found = installation.authorities()
        return len(found) == 1 and found[0]["sha256"] != first["sha256"]

    installation.cluster.wait(replaced, what="a new authority", timeout=120)
    users.stop()
    assert users.failures == []
    kept = installation.secret()
    assert {name: kept[f"damaged-{name}"] for name in damaged} == damaged


def test_only_the_api_server_is_served(
    installation: Installation, own_control_plane: Cluster, tmp_path: Path
) -> None:
    """With `--client-ca` the API server gets in with the certificate that docs/webhook.md tells how to make, and no other client."""
    made = documented(tmp_path, f"{SERVICE}.{installation.namespace}.svc")
    replica = installation.replica("one", f"--client-ca={made / 'ca.crt'}")
    installation.publish([replica])
    users = Users(own_control_plane, installation.namespace)
    own_control_plane.wait(
        lambda: "tls: certificate required" in users.complaint(), what="a refused API server"
    )
    assert (replica.metric("gpu_webhook_tls_handshake_failures_total") or 0) > 0
    own_control_plane.restart_apiserver(f"--admission-control-config-file={made / 'admission.yaml'}")
    try:
        own_control_plane.wait(users.reached, what="a call with a certificate")
        port = replica.ports()[1]
        assert not installation.refused(
            port, KeyPair(made / "webhook-client.crt", made / "webhook-client.key")
        )
        assert installation.refused(port)
        stranger = Authority(tmp_path / "strangers").issue("kube-apiserver", "kube-apiserver")
        assert installation.refused(port, stranger)
        assert users.complaint() == ""
    finally:
        own_control_plane.restart_apiserver()


def documented(folder: Path, host: str) -> Path:
    """The files that docs/webhook.md says how to make, in a folder of their own, for a webhook with this host."""
    made = folder / "kubernetes"
    made.mkdir()
    page = (Path(__file__).parents[1] / "docs" / "webhook.md").read_text()
    section = page.partition("## Who may ask")[2].partition("\n## ")[0]
    commands, configuration, kubeconfig = re.findall(r"```(?:sh|yaml)\n(.*?)```", section, re.DOTALL)
    subprocess.run(["sh", "-ec", commands], cwd=made, check=True, capture_output=True, timeout=120)
    for name, text in (("admission.yaml", configuration), ("webhooks.kubeconfig", kubeconfig)):
        text = text.replace("/etc/kubernetes", str(made)).replace("gpu-webhook.gpu-webhook.svc", host)
        (made / name).write_text(text)
    return made
