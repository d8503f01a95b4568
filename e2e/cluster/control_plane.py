"""The control plane's programs: how each is started, and nothing else."""

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from e2e.cluster.pki import Authority, KeyPair
from e2e.cluster.ports import free_port

#: Nodes that are only objects send no heartbeats: the node controller must not give them up.
_NODE_GRACE = "24h"


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the control plane listens."""

    api_host: str
    api_port: int
    etcd_port: int
    etcd_peer_port: int
    controller_manager_port: int
    scheduler_port: int
    #: The API server's own Service gets the first address of this range.
    service_range: str

    @classmethod
    def choose(cls, service_range: str, *, api: tuple[str, int] | None = None) -> Self:
        """Free ports of this machine, which stay ours; the API server may have an address of its own."""
        api_host, api_port = api or ("127.0.0.1", free_port())
        return cls(api_host, api_port, free_port(), free_port(), free_port(), free_port(), service_range)

    @property
    def url(self) -> str:
        """The API server's address."""
        return f"https://{self.api_host}:{self.api_port}"


class ControlPlane:
    """Writes certificates and kubeconfigs into the cluster's folder, and knows every program's command line."""

    def __init__(self, folder: Path, addresses: Addresses) -> None:
        self._folder = folder
        self.addresses = addresses
        self.authority = Authority(folder / "pki")
        first_service_address = addresses.service_range.rsplit(".", 1)[0] + ".1"
        names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "127.0.0.1"]
        hosts = dict.fromkeys([*names, addresses.api_host, first_service_address])
        self._serving = self.authority.issue("apiserver", "kube-apiserver", hosts=hosts)
        self._to_kubelet = self.authority.issue("apiserver-to-kubelet", "apiserver", group="system:masters")
        self._front_proxy = self.authority.issue("front-proxy", "front-proxy")
        self._token_key = self.authority.signing_key("service-accounts")
        self.admin = self.authority.issue("admin", "admin", group="system:masters")
        self.kubeconfig = self.write_kubeconfig("kubeconfig", self.admin)
        self._controller_manager = self._component("kube-controller-manager")
        self._scheduler = self._component("kube-scheduler")

    @property
    def etcd_data(self) -> Path:
        """The folder in which etcd keeps everything."""
        return self._folder / "etcd"

    def etcd(self, program: Path) -> list[str | Path]:
        """The store; its data may be lost with the machine."""
        client = f"http://127.0.0.1:{self.addresses.etcd_port}"
        peer = f"http://127.0.0.1:{self.addresses.etcd_peer_port}"
        return [
            program,
            f"--data-dir={self.etcd_data}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        ]

    def api_server(self, program: Path) -> list[str | Path]:
        """The API server, with webhooks reached by their Services' endpoints: there is no kube-proxy."""
        on_loopback = self.addresses.api_host.startswith("127.")
        return [
            program,
            f"--etcd-servers=http://127.0.0.1:{self.addresses.etcd_port}",
            f"--bind-address={self.addresses.api_host}",
            f"--secure-port={self.addresses.api_port}",
            # A loopback address may not be an endpoint; then the `kubernetes` Service stays without one.
            *(["--endpoint-reconciler-type=none"] if on_loopback else []),
            f"--advertise-address={self.addresses.api_host}",
            f"--service-cluster-ip-range={self.addresses.service_range}",
            f"--tls-cert-file={self._serving.certificate}",
            f"--tls-private-key-file={self._serving.key}",
            f"--client-ca-file={self.authority.files.certificate}",
            f"--kubelet-client-certificate={self._to_kubelet.certificate}",
            f"--kubelet-client-key={self._to_kubelet.key}",
            f"--kubelet-certificate-authority={self.authority.files.certificate}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--proxy-client-cert-file={self._front_proxy.certificate}",
            f"--proxy-client-key-file={self._front_proxy.key}",
            f"--requestheader-client-ca-file={self.authority.files.certificate}",
            "--requestheader-allowed-names=front-proxy",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self._token_key}",
            f"--service-account-signing-key-file={self._token_key}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--enable-aggregator-routing",
            "--allow-privileged",
            "--profiling=false",
        ]

    def controller_manager(self, program: Path) -> list[str | Path]:
        """The controllers: service accounts and tokens, Deployments, Jobs, node taints …"""
        return [
            program,
            *self._serves(self._controller_manager, self.addresses.controller_manager_port),
            f"--service-account-private-key-file={self._token_key}",
            f"--root-ca-file={self.authority.files.certificate}",
            f"--cluster-signing-cert-file={self.authority.files.certificate}",
            f"--cluster-signing-key-file={self.authority.files.key}",
            "--use-service-account-credentials",
            f"--node-monitor-grace-period={_NODE_GRACE}",
            "--kube-api-qps=200",
            "--kube-api-burst=400",
        ]

    def scheduler(self, program: Path) -> list[str | Path]:
        """The scheduler, as it is by default."""
        return [
            program,
            *self._serves(self._scheduler, self.addresses.scheduler_port),
            "--kube-api-qps=200",
            "--kube-api-burst=400",
        ]

    def write_kubeconfig(self, file: str, user: KeyPair) -> Path:
        """A kubeconfig (JSON is YAML) with certificates inside it: it can be copied elsewhere."""
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "tessera",
                    "cluster": {
                        "server": self.addresses.url,
                        "certificate-authority-data": _base64(self.authority.files.certificate),
                    },
                }
            ],
            "users": [
                {
                    "name": "tessera",
                    "user": {
                        "client-certificate-data": _base64(user.certificate),
                        "client-key-data": _base64(user.key),
                    },
                }
            ],
            "contexts": [{"name": "tessera", "context": {"cluster": "tessera", "user": "tessera"}}],
            "current-context": "tessera",
        }
        path = self._folder / file
        path.write_text(json.dumps(document, indent=2) + "\n")
        path.chmod(0o600)
        return path

    def _component(self, name: str) -> tuple[KeyPair, Path]:
        pair = self.authority.issue(name, f"system:{name}", hosts=["localhost", "127.0.0.1"])
        return pair, self.write_kubeconfig(f"{name}.kubeconfig", pair)

    @staticmethod
    def _serves(component: tuple[KeyPair, Path], port: int) -> list[str]:
        pair, kubeconfig = component
        return [
            f"--kubeconfig={kubeconfig}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--tls-cert-file={pair.certificate}",
            f"--tls-private-key-file={pair.key}",
            "--leader-elect=false",
            "--profiling=false",
        ]


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
