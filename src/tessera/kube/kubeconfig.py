"""Kubeconfig files: read, merged as kubectl merges them, and one context of them turned into a cluster.

Of several files the first one that says something wins, entry by entry. Relative paths count from the folder of the
file that they stand in.
"""

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Generic, Literal, TypeVar, cast
from urllib.parse import quote

import msgspec

from tessera.kube.connection import Anonymous, Cluster, Credentials, Endpoint, Material, Proxy, Tls
from tessera.kube.credentials import StoredCredentials
from tessera.kube.errors import InvalidKubeconfig
from tessera.kube.execplugin import API_VERSIONS, INTERACTIVE_MODES, ExecCredentials, ExecSpec
from tessera.kube.proxies import proxy_from_environment
from tessera.kube.tls import read_material
from tessera.protocol import yaml
from tessera.protocol.objects import complaint

_EXEC_EXTENSION: Final = (
    "client.authentication.k8s.io/exec"  # where a cluster keeps what its plugin wants to know
)


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


class _EnvIn(msgspec.Struct):
    name: str
    value: str = ""


class _ExecIn(msgspec.Struct, rename="camel"):
    command: str = ""
    api_version: str = ""
    args: list[str] = []
    env: list[_EnvIn] = []
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = ""


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
    exec: _ExecIn | None = None


class _ContextIn(msgspec.Struct):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


class _NamedCluster(msgspec.Struct):
    name: str
    cluster: _ClusterIn = msgspec.field(default_factory=_ClusterIn)


class _NamedUser(msgspec.Struct):
    name: str
    user: _UserIn = msgspec.field(default_factory=_UserIn)


class _NamedContext(msgspec.Struct):
    name: str
    context: _ContextIn = msgspec.field(default_factory=_ContextIn)


class _File(msgspec.Struct):
    kind: str = "Config"
    clusters: list[_NamedCluster] = []
    users: list[_NamedUser] = []
    contexts: list[_NamedContext] = []
    current_context: str = msgspec.field(default="", name="current-context")


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Entry(Generic[_T]):
    """A named section, and where it stands."""

    value: _T
    file: Path
    section: str
    name: str

    def where(self, field: str = "") -> str:
        """The place, for a person: `/home/x/.kube/config: user "admin": client-key-data`."""
        place = f'{self.file}: {self.section} "{self.name}"'
        return f"{place}: {field}" if field else place

    def path(self, text: str) -> Path:
        """A path in this file."""
        return self.file.parent / text

    def material(self, data: str, path: str, field: str) -> Material | None:
        """PEM inline (`-data`, which wins) or by path."""
        if data:
            return self.decoded(data, f"{field}-data")
        return self.path(path) if path else None

    def decoded(self, data: str, field: str) -> bytes:
        """What `-data` fields hold."""
        try:
            return base64.b64decode("".join(data.split()), validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidKubeconfig(f"{self.where(field)}: not base64") from error


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """Some kubeconfig files, merged."""

    files: tuple[Path, ...] = ()
    current_context: str = ""
    clusters: Mapping[str, _Entry[_ClusterIn]] = field(default_factory=dict)
    users: Mapping[str, _Entry[_UserIn]] = field(default_factory=dict)
    contexts: Mapping[str, _Entry[_ContextIn]] = field(default_factory=dict)

    @classmethod
    def read(cls, files: Sequence[Path]) -> "Kubeconfig":
        """Read and merge files; each must be there."""
        clusters: dict[str, _Entry[_ClusterIn]] = {}
        users: dict[str, _Entry[_UserIn]] = {}
        contexts: dict[str, _Entry[_ContextIn]] = {}
        current = ""
        for file in files:
            one = _read_file(file)
            current = current or one.current_context
            for cluster in one.clusters:
                clusters.setdefault(cluster.name, _Entry(cluster.cluster, file, "cluster", cluster.name))
            for user in one.users:
                users.setdefault(user.name, _Entry(user.user, file, "user", user.name))
            for context in one.contexts:
                contexts.setdefault(context.name, _Entry(context.context, file, "context", context.name))
        return cls(tuple(files), current, clusters, users, contexts)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing in it, as in a file that a tool has only just made."""
        return not (self.current_context or self.clusters or self.users or self.contexts)

    def cluster(self, context: str | None, environ: Mapping[str, str]) -> Cluster:
        """The cluster of a context, or of the current one."""
        name = context or self.current_context
        files = ", ".join(map(str, self.files))
        if not name:
            raise InvalidKubeconfig(f"{files}: current-context is not set; {self._choice()}")
        chosen = self.contexts.get(name)
        if chosen is None:
            raise InvalidKubeconfig(f'{files}: there is no context "{name}"; {self._choice()}')
        cluster = self.clusters.get(chosen.value.cluster)
        if cluster is None:
            raise InvalidKubeconfig(
                f'{chosen.where("cluster")}: there is no cluster "{chosen.value.cluster}"'
            )
        user = self.users.get(chosen.value.user)
        if user is None and chosen.value.user:
            raise InvalidKubeconfig(f'{chosen.where("user")}: there is no user "{chosen.value.user}"')
        endpoint, tls = _endpoint_and_tls(cluster, user)
        proxy = proxy_from_environment(endpoint, environ)
        if cluster.value.proxy_url:
            proxy = Proxy.parse(cluster.value.proxy_url, where=cluster.where("proxy-url"))
        return Cluster(
            endpoint,
            tls,
            credentials_of(user, cluster) if user is not None else Anonymous(),
            proxy,
            namespace=chosen.value.namespace or "default",
            headers=_impersonation(user) if user is not None else (),
            source=f'context "{name}" of {files}',
        )

    def _choice(self) -> str:
        if not self.contexts:
            return "it has no contexts at all"
        return f"choose one with --context: {', '.join(sorted(self.contexts))}"


def _read_file(file: Path) -> _File:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise InvalidKubeconfig(f"cannot read the kubeconfig {file}: {error.strerror}") from error
    document = _without_nulls(yaml.load(content, str(file))) or {}
    if not isinstance(document, dict):
        raise InvalidKubeconfig(
            f"{file}: expected a kubeconfig, which begins with apiVersion: v1, kind: Config"
        )
    try:
        one = msgspec.convert(document, _File)
    except msgspec.ValidationError as error:
        raise InvalidKubeconfig(f"{file}: {complaint(error)}") from error
    if one.kind != "Config":
        raise InvalidKubeconfig(f"{file}: kind: expected Config, got {one.kind}")
    return one


def _without_nulls(value: Any) -> Any:
    """A null is what is not there, as for kubectl."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _endpoint_and_tls(cluster: _Entry[_ClusterIn], user: _Entry[_UserIn] | None) -> tuple[Endpoint, Tls]:
    value = cluster.value
    if not value.server:
        raise InvalidKubeconfig(f"{cluster.where('server')}: missing")
    ca = cluster.material(
        value.certificate_authority_data, value.certificate_authority, "certificate-authority"
    )
    if ca is not None and value.insecure_skip_tls_verify:
        raise InvalidKubeconfig(
            f"{cluster.where('insecure-skip-tls-verify')}: cannot be true together with a certificate-authority"
        )
    by_certificate = user is not None and bool(
        user.value.client_certificate or user.value.client_certificate_data
    )
    with_tls = ca is not None or value.insecure_skip_tls_verify or by_certificate
    endpoint = Endpoint.parse(
        value.server, where=cluster.where("server"), default_scheme="https" if with_tls else "http"
    )
    return endpoint, Tls(ca, value.insecure_skip_tls_verify, value.tls_server_name or None)


def credentials_of(user: _Entry[_UserIn], cluster: _Entry[_ClusterIn]) -> Credentials:
    """How a user proves itself: token before plugin, and a client certificate besides."""
    value = user.value
    if value.username or value.password:
        raise InvalidKubeconfig(
            f"{user.where('username')}: API servers no longer take passwords; use a token, a certificate or exec"
        )
    if value.auth_provider:
        raise InvalidKubeconfig(f"{user.where('auth-provider')}: replaced by exec plugins in Kubernetes 1.26")
    certificate = user.material(value.client_certificate_data, value.client_certificate, "client-certificate")
    key = user.material(value.client_key_data, value.client_key, "client-key")
    if (certificate is None) != (key is None):
        missing = "client-key" if key is None else "client-certificate"
        raise InvalidKubeconfig(f"{user.where(missing)}: missing; a certificate and its key come together")
    stored = StoredCredentials(
        token=value.token or None,
        token_file=user.path(value.token_file) if value.token_file else None,
        certificate=certificate,
        key=key,
        where=user.where(),
    )
    if value.exec is None or value.token or value.token_file:
        return stored
    return ExecCredentials(_exec_spec(user, value.exec, cluster), stored)


def _exec_spec(user: _Entry[_UserIn], given: _ExecIn, cluster: _Entry[_ClusterIn]) -> ExecSpec:
    if not given.command:
        raise InvalidKubeconfig(f"{user.where('exec.command')}: missing")
    if given.api_version not in API_VERSIONS:
        got = given.api_version or "nothing"
        raise InvalidKubeconfig(
            f"{user.where('exec.apiVersion')}: expected {' or '.join(API_VERSIONS)}, got {got}"
        )
    mode = given.interactive_mode or ("IfAvailable" if given.api_version.endswith("v1beta1") else "")
    if mode not in INTERACTIVE_MODES:
        got = mode or "nothing"
        raise InvalidKubeconfig(
            f"{user.where('exec.interactiveMode')}: expected {', '.join(INTERACTIVE_MODES)}, got {got}"
        )
    return ExecSpec(
        given.api_version,
        str(user.path(given.command)) if "/" in given.command else given.command,
        tuple(given.args),
        tuple((variable.name, variable.value) for variable in given.env),
        cast('Literal["Never", "IfAvailable", "Always"]', mode),
        given.install_hint,
        _cluster_info(cluster) if given.provide_cluster_info else None,
        where=user.where("exec"),
    )


def _cluster_info(cluster: _Entry[_ClusterIn]) -> dict[str, Any]:
    """What a plugin is told of the cluster it gets credentials for."""
    value = cluster.value
    ca = cluster.material(
        value.certificate_authority_data, value.certificate_authority, "certificate-authority"
    )
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


def _impersonation(user: _Entry[_UserIn]) -> tuple[tuple[str, str], ...]:
    value = user.value
    headers = [("Impersonate-User", value.impersonate)] if value.impersonate else []
    headers += [("Impersonate-Uid", value.impersonate_uid)] if value.impersonate_uid else []
    headers += [("Impersonate-Group", group) for group in value.impersonate_groups]
    for key, values in value.impersonate_extra.items():
        headers += [(f"Impersonate-Extra-{quote(key, safe='')}", one) for one in values]
    if headers and not value.impersonate:
        raise InvalidKubeconfig(f"{user.where('as')}: missing; groups and the like need a user to go with")
    if not all(text.isascii() and text.isprintable() for header in headers for text in header):
        raise InvalidKubeconfig(f"{user.where('as')}: printable ASCII characters only")
    return tuple(headers)


def existing(files: Iterable[Path]) -> list[Path]:
    """Those that are there, each once: of several files kubectl leaves out the missing ones."""
    return [file for file in dict.fromkeys(files) if file.exists()]
