"""Where objects live in the API: `/api/v1/namespaces/default/pods/x`."""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import quote

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)


def is_name(text: str) -> bool:
    """Whether a node, or another object, can have this name: what people have edited may name anything, `..` too."""
    return _NAME.fullmatch(text) is not None


def path_of(
    api_version: str,
    plural: str,
    *,
    namespace: str | None = None,
    name: str | None = None,
    subresource: str | None = None,
) -> str:
    """The path of a collection, or of one object in it; every part is quoted, so a name stays a name."""
    parts = ["", "api" if "/" not in api_version else "apis", *api_version.split("/")]
    if namespace is not None:
        parts += ["namespaces", quote(namespace, safe="")]
    parts.append(plural)
    if name is not None:
        parts.append(quote(name, safe=""))
        if subresource is not None:
            parts.append(subresource)
    return "/".join(parts)


class PodKind(NamedTuple):
    """Pods, or what makes pods."""

    kind: str  # as objects have it
    version: str
    plural: str
    short: tuple[str, ...] = ()  # what else kubectl calls it


_APPS: Final = "apps/v1"
POD_KINDS: Final[Mapping[str, PodKind]] = {
    one.kind.lower(): one
    for one in (
        PodKind("Pod", "v1", "pods", ("po",)),
        PodKind("Deployment", _APPS, "deployments", ("deploy",)),
        PodKind("ReplicaSet", _APPS, "replicasets", ("rs",)),
        PodKind("StatefulSet", _APPS, "statefulsets", ("sts",)),
        PodKind("DaemonSet", _APPS, "daemonsets", ("ds",)),
        PodKind("ReplicationController", "v1", "replicationcontrollers", ("rc",)),
        PodKind("Job", "batch/v1", "jobs"),
    )
}
CALLED: Final = {name: kind for kind, one in POD_KINDS.items() for name in (kind, one.plural, *one.short)}


def collection(kind: str, namespace: str, name: str | None = None) -> str:
    """Where the objects of such a kind are, by any of its names, or one of them; empty for a kind that is not known."""
    known = CALLED.get(kind.lower())
    if known is None:
        return ""
    return path_of(POD_KINDS[known].version, POD_KINDS[known].plural, namespace=namespace, name=name)
