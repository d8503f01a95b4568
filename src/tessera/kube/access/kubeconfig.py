"""Kubeconfig files: read, and merged as kubectl merges them.

Of several files the first one that says something wins, entry by entry. Relative paths count from the folder of the
file that they stand in.
"""

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from tessera.kube.access.cluster import Material, is_there
from tessera.kube.errors import InvalidKubeconfig
from tessera.protocol import yaml
from tessera.protocol.kubernetes.objects import error_text


class _Extension(msgspec.Struct):
    name: str
    extension: Any = None


class ClusterIn(msgspec.Struct, rename="kebab"):
    """A `cluster` section."""

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


class ExecIn(msgspec.Struct, rename="camel"):
    """The `exec` part of a user."""

    command: str = ""
    api_version: str = ""
    args: list[str] = []
    env: list[_EnvIn] = []
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = ""


class UserIn(msgspec.Struct, rename="kebab"):
    """A `user` section."""

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


class ContextIn(msgspec.Struct):
    """A `context` section."""

    cluster: str = ""
    user: str = ""
    namespace: str = ""


class _NamedCluster(msgspec.Struct):
    name: str
    cluster: ClusterIn = msgspec.field(default_factory=ClusterIn)


class _NamedUser(msgspec.Struct):
    name: str
    user: UserIn = msgspec.field(default_factory=UserIn)


class _NamedContext(msgspec.Struct):
    name: str
    context: ContextIn = msgspec.field(default_factory=ContextIn)


class _File(msgspec.Struct):
    kind: str = "Config"
    clusters: list[_NamedCluster] = []
    users: list[_NamedUser] = []
    contexts: list[_NamedContext] = []
    current_context: str = msgspec.field(default="", name="current-context")


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Section(Generic[_T]):
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
    clusters: Mapping[str, Section[ClusterIn]] = field(default_factory=dict)
    users: Mapping[str, Section[UserIn]] = field(default_factory=dict)
    contexts: Mapping[str, Section[ContextIn]] = field(default_factory=dict)

    @classmethod
    def read(cls, files: Sequence[Path]) -> "Kubeconfig":
        """Read and merge files; each must be there."""
        clusters: dict[str, Section[ClusterIn]] = {}
        users: dict[str, Section[UserIn]] = {}
        contexts: dict[str, Section[ContextIn]] = {}
        current = ""
        for file in files:
            one = _read_file(file)
            current = current or one.current_context
            for cluster in one.clusters:
                clusters.setdefault(cluster.name, Section(cluster.cluster, file, "cluster", cluster.name))
            for user in one.users:
                users.setdefault(user.name, Section(user.user, file, "user", user.name))
            for context in one.contexts:
                contexts.setdefault(context.name, Section(context.context, file, "context", context.name))
        return cls(tuple(files), current, clusters, users, contexts)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing in it, as in a file that a tool has only just made."""
        return not (self.current_context or self.clusters or self.users or self.contexts)


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
        raise InvalidKubeconfig(f"{file}: {error_text(error)}") from error
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


def existing(files: Iterable[Path]) -> list[Path]:
    """Those that are there, each once: of several files kubectl leaves out the missing ones."""
    return [file for file in dict.fromkeys(files) if is_there(file)]
