"""What an API server says about itself: its version, its health, and which kinds it knows."""

from collections.abc import Iterable
from typing import Any, Final

from tessera.simulation.control_plane.kinds import Kind

_VERSION: Final = {"major": "1", "minor": "36", "gitVersion": "v1.36.1+tessera", "platform": "linux/amd64"}
_VERBS: Final = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


def discover(path: str, kinds: Iterable[Kind]) -> dict[str, Any] | None:
    """The document at a discovery path; None for any other path."""
    path = path.rstrip("/")
    match path:
        case "/version":
            return dict(_VERSION)
        case "/livez" | "/readyz" | "/healthz":
            return {"status": "ok"}
        case "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        case "/apis":
            versions = sorted({kind.api_version for kind in kinds if kind.group})
            groups = [_group(api_version) for api_version in versions]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    found = [kind for kind in kinds if kind.prefix == path]
    if not found:
        return None
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": found[0].api_version,
        "resources": [_resource(kind) for kind in found],
    }


def _group(api_version: str) -> dict[str, Any]:
    group, _, version = api_version.rpartition("/")
    served = {"groupVersion": api_version, "version": version}
    return {"name": group, "versions": [served], "preferredVersion": served}


def _resource(kind: Kind) -> dict[str, Any]:
    resource: dict[str, Any] = {
        "name": kind.plural,
        "singularName": kind.kind.lower(),
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": _VERBS,
    }
    return resource | ({"shortNames": [kind.short]} if kind.short else {})
