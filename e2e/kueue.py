"""A real Kueue beside a cluster: its definitions, its webhooks for Jobs, pods and its own kinds, its controllers.

It wants a certificate for its metrics in a folder that no option moves, metrics served or not. So it sees an `/etc` of its own,
in a mount namespace of its own.
"""

import base64
import contextlib
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from e2e.chart import go_module
from e2e.cluster import Client, program
from e2e.cluster.api import Object
from e2e.cluster.pki import Authority
from e2e.cluster.ports import free_port
from e2e.cluster.processes import until
from e2e.cluster.versions import module_of
from tessera.protocol import yaml

GROUP = "/apis/kueue.x-k8s.io/v1beta2"
_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_REGISTRATIONS = "/apis/admissionregistration.k8s.io/v1"
# as its own manifests name them: after ours in the order of names, which is the order of calls
_NAMES = {
    "MutatingWebhookConfiguration": ("mutatingwebhookconfigurations", "kueue-mutating-webhook-configuration"),
    "ValidatingWebhookConfiguration": ("validatingwebhookconfigurations", "kueue-validating-webhook-configuration"),
}  # fmt: skip
_SERVED = {"jobs", "pods", "workloads", "workloads/status", "clusterqueues", "localqueues", "resourceflavors"}
_METRICS_CERTIFICATES = "/etc/kueue/metrics/certs"  # cmd/kueue/main.go
_WITH_ITS_OWN_ETC = f"""\
mount -t tmpfs etc /etc
mkdir -p {_METRICS_CERTIFICATES}
cp "$0"/tls.* {_METRICS_CERTIFICATES}
exec "$@"
"""
_OWN_KINDS = (
    "workloads",
    "localqueues",
    "clusterqueues",
    "resourceflavors",
)  # in the order in which they can go
_CONFIGURATION = """\
apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
namespace: kueue-system
health: {{healthProbeBindAddress: "127.0.0.1:{health}"}}
metrics: {{bindAddress: "0"}}
webhook: {{host: 127.0.0.1, port: {webhook}, certDir: {certificates}}}
leaderElection: {{leaderElect: false}}
internalCertManagement: {{enable: false}}
integrations: {{frameworks: [batch/job, pod]}}
featureGates: {{VisibilityOnDemand: false}}  # a second server, at a fixed port and with certificates of its own
"""


def _sources() -> Path:
    """The module's files, which Go's cache has once Kueue was built."""
    module = module_of("kueue")
    return go_module(module.path, module.version) / "config" / "components"


@contextlib.contextmanager
def kueue(cluster: Client, folder: Path) -> Iterator[None]:
    """Kueue, running."""
    path = program("kueue")
    authority = Authority(folder / "pki")
    pair = authority.issue("kueue", "kueue", hosts=["127.0.0.1"])
    certificates = folder / "certificates"
    certificates.mkdir()
    shutil.copy(pair.certificate, certificates / "tls.crt")
    shutil.copy(pair.key, certificates / "tls.key")
    health, webhook = free_port(), free_port()
    configuration = folder / "kueue.yaml"
    configuration.write_text(_CONFIGURATION.format(health=health, webhook=webhook, certificates=certificates))
    with contextlib.ExitStack() as undo:
        for one in _documents("crd/bases"):
            cluster.api.create(_DEFINITIONS, one)
            undo.callback(cluster.api.delete, f"{_DEFINITIONS}/{one['metadata']['name']}")
        cluster.wait(
            lambda: all(map(_established, cluster.api.get(_DEFINITIONS)["items"])), what="Kueue's definitions"
        )
        cluster.api.create("/api/v1/namespaces", {"metadata": {"name": "kueue-system"}})
        undo.callback(cluster.api.delete, "/api/v1/namespaces/kueue-system")
        log = undo.enter_context((folder / "kueue.log").open("wb"))
        process = subprocess.Popen(
            [
                *("unshare", "--mount", *(() if os.geteuid() == 0 else ("--map-root-user",))),
                *("sh", "-ec", _WITH_ITS_OWN_ETC, certificates),
                *(path, f"--config={configuration}", f"--kubeconfig={cluster.kubeconfig}"),
            ],
            stdout=log,
            stderr=log,
            env={**os.environ, "POD_NAMESPACE": "kueue-system"},
        )
        undo.callback(_end, process)
        bundle = base64.b64encode(authority.files.certificate.read_bytes()).decode()

        def listens() -> bool:
            assert process.poll() is None, (folder / "kueue.log").read_text()[-4000:]
            with socket.socket() as one:
                return one.connect_ex(("127.0.0.1", webhook)) == 0

        until(listens, timeout=120, what="Kueue's webhooks listen")
        undo.callback(_empty, cluster)  # while it runs: each of its objects waits for it when it is deleted
        for one in _documents("webhook"):
            if one["kind"] not in _NAMES:
                continue
            plural, name = _NAMES[one["kind"]]
            served = [_called(each, webhook, bundle) for each in one["webhooks"] if _is_served(each)]
            cluster.api.create(
                f"{_REGISTRATIONS}/{plural}", {**one, "metadata": {"name": name}, "webhooks": served}
            )
            undo.callback(cluster.api.delete, f"{_REGISTRATIONS}/{plural}/{name}")
        try:
            yield
        except BaseException:
            print((folder / "kueue.log").read_text()[-6000:])  # pytest shows it with the failure
            raise


def _documents(folder: str) -> Iterator[Object]:
    for file in sorted((_sources() / folder).glob("*.yaml")):
        if file.name not in ("kustomization.yaml", "kustomizeconfig.yaml"):
            yield from json.loads(json.dumps(yaml.load_all(file.read_bytes(), str(file))))


def _established(definition: Object) -> bool:
    conditions = definition.get("status", {}).get("conditions") or []  # null, at first
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)


def _is_served(webhook: Object) -> bool:
    return all({*rule["resources"]} <= _SERVED for rule in webhook["rules"])


def _called(webhook: Object, port: int, bundle: str) -> Object:
    path = webhook["clientConfig"]["service"]["path"]
    return {**webhook, "clientConfig": {"url": f"https://127.0.0.1:{port}{path}", "caBundle": bundle}}


def _empty(cluster: Client) -> None:
    for kind in _OWN_KINDS:
        for one in cluster.api.get(f"{GROUP}/{kind}")["items"]:
            cluster.try_kubectl(
                "delete",
                "--wait=false",
                f"{kind}.kueue.x-k8s.io",
                one["metadata"]["name"],
                *(("-n", one["metadata"]["namespace"]) if "namespace" in one["metadata"] else ()),
            )
        cluster.wait(lambda kind=kind: not cluster.api.get(f"{GROUP}/{kind}")["items"], what=f"no {kind}")  # type: ignore[misc]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
