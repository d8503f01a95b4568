"""One context of a kubeconfig, turned into a cluster that can be called."""

import base64
from collections.abc import Mapping
from typing import Any, Final, Literal, cast

from tessera.kube.access.cluster import (
    Anonymous,
    Cluster,
    Credentials,
    Proxy,
    ServerAddress,
    Tls,
    impersonation,
    is_host,
)
from tessera.kube.access.credentials import StoredCredentials
from tessera.kube.access.exec import API_VERSIONS, INTERACTIVE_MODES, ExecCredentials, ExecSpec
from tessera.kube.access.kubeconfig import ClusterIn, ExecIn, Kubeconfig, Section, UserIn
from tessera.kube.access.proxy import proxy_from_environment
from tessera.kube.access.tls import read_material
from tessera.kube.errors import InvalidKubeconfig

# where a cluster keeps what its plugin wants to know
_EXEC_EXTENSION: Final = "client.authentication.k8s.io/exec"


def cluster_of(config: Kubeconfig, context: str | None, environ: Mapping[str, str]) -> Cluster:
    """The cluster of a context, or of the current one."""
    name = context or config.current_context
    files = ", ".join(map(str, config.files))
    if not name:
        raise InvalidKubeconfig(f"{files}: current-context is not set; {_choice(config)}")
    chosen = config.contexts.get(name)
    if chosen is None:
        raise InvalidKubeconfig(f'{files}: there is no context "{name}"; {_choice(config)}')
    cluster = config.clusters.get(chosen.value.cluster)
    if cluster is None:
        raise InvalidKubeconfig(f'{chosen.where("cluster")}: there is no cluster "{chosen.value.cluster}"')
    user = config.users.get(chosen.value.user)
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


def _choice(config: Kubeconfig) -> str:
    if not config.contexts:
        return "it has no contexts"
    return f"choose one with --context: {', '.join(sorted(config.contexts))}"


def _endpoint_and_tls(cluster: Section[ClusterIn], user: Section[UserIn] | None) -> tuple[ServerAddress, Tls]:
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
    if value.tls_server_name and not is_host(value.tls_server_name):
        raise InvalidKubeconfig(
            f'{cluster.where("tls-server-name")}: "{value.tls_server_name}" is not a host name'
        )
    endpoint = ServerAddress.parse(
        value.server, where=cluster.where("server"), default_scheme="https" if with_tls else "http"
    )
    return endpoint, Tls(ca, value.insecure_skip_tls_verify, value.tls_server_name or None)


def credentials_of(user: Section[UserIn], cluster: Section[ClusterIn]) -> Credentials:
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
        raise InvalidKubeconfig(f"{user.where(missing)}: missing; a certificate needs its key")
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


def _exec_spec(user: Section[UserIn], given: ExecIn, cluster: Section[ClusterIn]) -> ExecSpec:
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


def _cluster_info(cluster: Section[ClusterIn]) -> dict[str, Any]:
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


def _impersonation(user: Section[UserIn]) -> tuple[tuple[str, str], ...]:
    value = user.value
    groups, extra = value.impersonate_groups, value.impersonate_extra
    return impersonation(value.impersonate, groups, user.where("as"), value.impersonate_uid, extra)
