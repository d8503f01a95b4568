"""Where objects live in the API: `/api/v1/namespaces/default/pods/x`."""

from urllib.parse import quote


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
