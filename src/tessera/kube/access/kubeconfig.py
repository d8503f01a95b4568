"""Kubeconfig files: read, merged as kubectl merges them, and one context of them turned into a cluster that can be called.

Of several files the first one that says something wins, entry by entry. Relative paths count from the folder of the
file that they stand in.

Which cluster: what kubectl would answer.

`--kubeconfig`, else the files in `KUBECONFIG`, else `~/.kube/config`; when there is none of these, the cluster that
this very pod runs in.
"""

import base64
import binascii
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from tessera.core.errors import of_system
from tessera.kube.access.cluster import (
    Cluster,
    Credentials,
    Material,
    Proxy,
    ServerAddress,
    StoredCredentials,
    Tls,
    impersonation,
    is_host,
    read_material,
)
from tessera.kube.access.exec import ExecCredentials, ExecIn
from tessera.kube.clock import SYSTEM_CLOCK, Clock
from tessera.kube.errors import InvalidKubeconfig, NoCluster
from tessera.kube.files import signature_of
from tessera.protocol import yaml
from tessera.protocol.kubernetes.objects import InvalidObject, decoder

# where a cluster keeps what its plugin wants to know
_EXEC_EXTENSION: Final = "client.authentication.k8s.io/exec"


class _Extension(msgspec.Struct):
    name: str
    extension: Any = None


class _ClusterIn(msgspec.Struct, rename="kebab"):
    server: str = ""
    tls_server_name: str = ""
    insecure_skip_tls_verify: bool = False
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    proxy_url: str = ""
    extensions: list[_Extension] = []


class _UserIn(msgspec.Struct, rename="kebab"):
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    impersonate: str = msgspec.field(default="", name="as")
    impersonate_uid: str = msgspec.field(default="", name="as-uid")
    impersonate_groups: list[str] = msgspec.field(default_factory=list, name="as-groups")
    impersonate_extra: dict[str, list[str]] = msgspec.field(default_factory=dict, name="as-user-extra")
    username: str = ""
    password: str = ""
    auth_provider: dict[str, Any] | None = None
    exec: ExecIn | None = None


class _ContextIn(msgspec.Struct):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


class _Entry(msgspec.Struct):
    """An entry of one of a file's lists: it has the section that the list is of."""

    name: str
    cluster: _ClusterIn = msgspec.field(default_factory=_ClusterIn)
    user: _UserIn = msgspec.field(default_factory=_UserIn)
    context: _ContextIn = msgspec.field(default_factory=_ContextIn)


class _File(msgspec.Struct):
    kind: str = "Config"
    clusters: list[_Entry] = []
    users: list[_Entry] = []
    contexts: list[_Entry] = []
    current_context: str = msgspec.field(default="", name="current-context")


_decode: Final = decoder(_File)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Section(Generic[_T]):
    """A named section, and where it stands."""

    value: _T
    file: Path
    title: str  # `user "admin"`

    def where(self, field: str) -> str:
        """The place, for a person: `/home/x/.kube/config: user "admin": client-key-data`."""
        return f"{self.file}: {self.title}: {field}"

    def wrong(self, field: str, what: str) -> InvalidKubeconfig:
        return InvalidKubeconfig(f"{self.where(field)}: {what}")

    def path(self, text: str) -> Path:
        return self.file.parent / text

    def material(self, data: str, path: str, field: str) -> Material | None:
        """PEM inline (`-data`, which wins) or by path."""
        if not data:
            return self.path(path) if path else None
        try:
            return base64.b64decode("".join(data.split()), validate=True)
        except (binascii.Error, ValueError) as error:
            raise self.wrong(f"{field}-data", "not base64") from error


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """Some kubeconfig files, merged."""

    files: Sequence[Path]
    current_context: str = ""
    clusters: dict[str, _Section[_ClusterIn]] = field(default_factory=dict)
    users: dict[str, _Section[_UserIn]] = field(default_factory=dict)
    contexts: dict[str, _Section[_ContextIn]] = field(default_factory=dict)

    @classmethod
    def read(cls, files: Sequence[Path]) -> "Kubeconfig":
        """Read and merge files; each must be there."""
        read = [(file, _read_file(file)) for file in files]
        merged = cls(files, next((one.current_context for _, one in read if one.current_context), ""))
        for file, one in read:
            for entry in one.clusters:
                section = _Section(entry.cluster, file, f'cluster "{entry.name}"')
                merged.clusters.setdefault(entry.name, section)
            for entry in one.users:
                merged.users.setdefault(entry.name, _Section(entry.user, file, f'user "{entry.name}"'))
            for entry in one.contexts:
                merged.contexts.setdefault(
                    entry.name, _Section(entry.context, file, f'context "{entry.name}"')
                )
        return merged

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing in it, as in a file that a tool has only just made."""
        return not (self.current_context or self.clusters or self.users or self.contexts)


def _read_file(file: Path) -> _File:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise InvalidKubeconfig(f"cannot read the kubeconfig {file}: {of_system(error)}") from error
    document = yaml.load(content, str(file)) or {}
    if not isinstance(document, dict):
        raise InvalidKubeconfig(
            f"{file}: expected a kubeconfig, which begins with apiVersion: v1, kind: Config"
        )
    try:
        one = _decode(msgspec.json.encode(document))
    except InvalidObject as error:
        raise InvalidKubeconfig(f"{file}: {error}") from error
    if one.kind != "Config":
        raise InvalidKubeconfig(f"{file}: kind: expected Config, got {one.kind}")
    return one


def cluster_of(config: Kubeconfig, context: str | None, environ: Mapping[str, str]) -> Cluster:
    """The cluster of a context, or of the current one."""
    name = context or config.current_context
    files = ", ".join(map(str, config.files))
    known = ", ".join(sorted(config.contexts))
    choice = f"choose one with --context: {known}" if known else "it has no contexts"
    if not name:
        raise InvalidKubeconfig(f"{files}: current-context is not set; {choice}")
    chosen = config.contexts.get(name)
    if chosen is None:
        raise InvalidKubeconfig(f'{files}: there is no context "{name}"; {choice}')
    cluster = config.clusters.get(chosen.value.cluster)
    if cluster is None:
        raise chosen.wrong("cluster", f'there is no cluster "{chosen.value.cluster}"')
    user = config.users.get(chosen.value.user)
    if user is None and chosen.value.user:
        raise chosen.wrong("user", f'there is no user "{chosen.value.user}"')
    user = user or _Section(
        _UserIn(), chosen.file, "user"
    )  # none at all: a server that asks for no credentials
    endpoint, tls = _endpoint_and_tls(cluster, user.value)
    proxy = Proxy.from_environment(endpoint, environ)
    if cluster.value.proxy_url:
        proxy = Proxy.parse(cluster.value.proxy_url, where=cluster.where("proxy-url"))
    return Cluster(
        endpoint,
        tls,
        _credentials(user, cluster),
        proxy,
        namespace=chosen.value.namespace or "default",
        headers=impersonation(
            user.value.impersonate,
            user.value.impersonate_groups,
            user.where("as"),
            user.value.impersonate_uid,
            user.value.impersonate_extra,
        ),
        source=f'context "{name}" of {files}',
    )


def _endpoint_and_tls(cluster: _Section[_ClusterIn], user: _UserIn) -> tuple[ServerAddress, Tls]:
    value, ca = cluster.value, _authority_of(cluster)
    if not value.server:
        raise cluster.wrong("server", "missing")
    if ca is not None and value.insecure_skip_tls_verify:
        raise cluster.wrong(
            "insecure-skip-tls-verify", "cannot be true together with a certificate-authority"
        )
    if value.tls_server_name and not is_host(value.tls_server_name):
        raise cluster.wrong("tls-server-name", f'"{value.tls_server_name}" is not a host name')
    by_certificate = user.client_certificate or user.client_certificate_data
    scheme = "https" if ca is not None or value.insecure_skip_tls_verify or by_certificate else "http"
    endpoint = ServerAddress.parse(value.server, where=cluster.where("server"), default_scheme=scheme)
    return endpoint, Tls(ca, value.insecure_skip_tls_verify, value.tls_server_name or None)


def _authority_of(cluster: _Section[_ClusterIn]) -> Material | None:
    value = cluster.value
    return cluster.material(
        value.certificate_authority_data, value.certificate_authority, "certificate-authority"
    )


def _credentials(user: _Section[_UserIn], cluster: _Section[_ClusterIn]) -> Credentials:
    """How a user proves itself: token before plugin, and a client certificate besides."""
    value, plugin = user.value, user.value.exec
    if value.username or value.password:
        text = "API servers no longer take passwords; use a token, a certificate or exec"
        raise user.wrong("username", text)
    if value.auth_provider:
        raise user.wrong("auth-provider", "replaced by exec plugins in Kubernetes 1.26")
    certificate = user.material(value.client_certificate_data, value.client_certificate, "client-certificate")
    key = user.material(value.client_key_data, value.client_key, "client-key")
    if (certificate is None) != (key is None):
        missing = "client-key" if key is None else "client-certificate"
        raise user.wrong(missing, "missing; a certificate needs its key")
    stored = StoredCredentials(
        token=value.token or None,
        token_file=user.path(value.token_file) if value.token_file else None,
        certificate=certificate,
        key=key,
        where=f"{user.file}: {user.title}",
    )
    if plugin is None or value.token or value.token_file:
        return stored
    plugin.check(user.where("exec"))
    if "/" in plugin.command:
        plugin = replace(plugin, command=str(user.path(plugin.command)))
    info = _cluster_info(cluster) if plugin.provide_cluster_info else None
    return ExecCredentials(plugin, stored, info, where=user.where("exec"))


def _cluster_info(cluster: _Section[_ClusterIn]) -> dict[str, Any]:
    """What a plugin gets to know of the cluster it gets credentials for."""
    value, ca = cluster.value, _authority_of(cluster)
    info = {
        "server": value.server,
        "tls-server-name": value.tls_server_name,
        "insecure-skip-tls-verify": value.insecure_skip_tls_verify,
        "certificate-authority-data": ca
        and base64.b64encode(read_material(ca, "certificate authority")).decode(),
        "proxy-url": value.proxy_url,
        "config": next((one.extension for one in value.extensions if one.name == _EXEC_EXTENSION), None),
    }
    return {name: one for name, one in info.items() if one}


# where every pod finds its service account
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_IN_CLUSTER: Final = "the cluster that this pod runs in"
_INSTALLED_IN: Final = "gpu-webhook"  # where the chart and the manifest put things by default


def find_cluster(
    kubeconfig: str | Path | None = None,
    context: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    service_account: Path = SERVICE_ACCOUNT,
) -> Cluster:
    """The cluster to talk to; `InvalidKubeconfig` says what is wrong with what was found, `NoCluster` that nothing was."""
    environ = os.environ if environ is None else environ
    files = [Path(kubeconfig)] if kubeconfig else _existing(environ)
    if files:
        from tessera.kube.access.kubeconfig import Kubeconfig, cluster_of  # YAML: small processes go without

        found = Kubeconfig.read(files)
        if not found.is_empty:
            return cluster_of(found, context, environ)
        if kubeconfig:
            raise InvalidKubeconfig(f"{kubeconfig}: it is empty")
    if environ.get("KUBERNETES_SERVICE_HOST") and environ.get("KUBERNETES_SERVICE_PORT") and not context:
        return in_cluster(environ, service_account)
    paths = ", ".join(map(str, _files(environ))) or "~/.kube/config"
    raise NoCluster(f"no cluster: no kubeconfig at {paths}, and this is not a pod; use --kubeconfig FILE")


def own_namespace(cluster: Cluster) -> str:
    """The namespace that Tessera's own objects are in: the pod's, or where it is installed by default."""
    return cluster.namespace if cluster.source == _IN_CLUSTER else _INSTALLED_IN


def known_contexts(kubeconfig: str | Path | None = None) -> list[str]:
    """The contexts that there are to choose from."""
    from tessera.kube.access.kubeconfig import Kubeconfig

    return list(Kubeconfig.read([Path(kubeconfig)] if kubeconfig else _existing(os.environ)).contexts)


def in_cluster(
    environ: Mapping[str, str], service_account: Path = SERVICE_ACCOUNT, clock: Clock = SYSTEM_CLOCK
) -> Cluster:
    """The cluster that this pod runs in, by its service account."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "")
    if not is_host(host) or not port.isdigit() or int(port) > 65535:
        raise NoCluster(
            "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT do not name a server: this is not a pod"
        )
    token, ca = service_account / "token", service_account / "ca.crt"
    for file in (token, ca):
        if not signature_of(file):
            raise NoCluster(f"{file} is missing: is automountServiceAccountToken switched off?")
    try:
        namespace = (service_account / "namespace").read_text(encoding="utf-8").strip()
    except OSError:
        namespace = ""
    endpoint = ServerAddress("https", host, int(port))
    return Cluster(
        endpoint,
        Tls(ca=ca),
        StoredCredentials(token_file=token, where="service account", clock=clock),
        Proxy.from_environment(endpoint, environ),
        namespace=namespace or "default",
        source=_IN_CLUSTER,
    )


def _files(environ: Mapping[str, str]) -> list[Path]:
    """The files that are read where none is named."""
    listed = [Path(name) for name in environ.get("KUBECONFIG", "").split(os.pathsep) if name]
    home = environ.get("HOME")
    return listed or ([Path(home) / ".kube" / "config"] if home else [])


def _existing(environ: Mapping[str, str]) -> list[Path]:
    """Those of them that are there, each once: of several files kubectl leaves out the missing ones."""
    return [file for file in dict.fromkeys(_files(environ)) if signature_of(file)]
