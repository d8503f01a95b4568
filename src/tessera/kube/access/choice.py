"""Which cluster: what kubectl would answer.

`--kubeconfig`, else the files in `KUBECONFIG`, else `~/.kube/config`; when there is none of these, the cluster that
this very pod runs in.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tessera.kube.access.cluster import Cluster, Proxy, ServerAddress, Tls, is_host
from tessera.kube.access.credentials import StoredCredentials
from tessera.kube.clock import SYSTEM_CLOCK, Clock
from tessera.kube.errors import InvalidKubeconfig
from tessera.kube.files import signature_of

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
    """The cluster to talk to; `InvalidKubeconfig` says what is wrong with what was found."""
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
    raise InvalidKubeconfig(
        f"no cluster: no kubeconfig at {paths}, and this is not a pod; use --kubeconfig FILE"
    )


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
        raise InvalidKubeconfig(
            "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT do not name a server: this is not a pod"
        )
    token, ca = service_account / "token", service_account / "ca.crt"
    for file in (token, ca):
        if not signature_of(file):
            raise InvalidKubeconfig(f"{file} is missing: is automountServiceAccountToken switched off?")
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
