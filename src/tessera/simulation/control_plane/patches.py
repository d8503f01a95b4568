"""The four kinds of patches that an API server takes."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Final

from tessera.simulation.control_plane.store import Document, StatusError

# lists that a strategic merge patch merges, and by which field; every other list is replaced
_MERGE_KEYS: Final = {
    "webhooks": "name", "containers": "name", "initContainers": "name", "ephemeralContainers": "name",
    "volumes": "name", "env": "name", "conditions": "type", "taints": "key", "ownerReferences": "uid",
    "volumeMounts": "mountPath", "imagePullSecrets": "name",
}  # fmt: skip


def apply_patch(content_type: str, document: Document, patch: Any) -> Document:
    """The patched document; the given one stays as it is."""
    match content_type.partition(";")[0].strip():
        case "application/json-patch+json":
            return json_patch(document, patch)
        case "application/merge-patch+json":
            return _object(_merged(document, patch, {}))
        case "application/strategic-merge-patch+json" | "application/apply-patch+yaml":
            return _object(_merged(document, patch, _MERGE_KEYS))
        case other:
            raise StatusError(415, "UnsupportedMediaType", f"{other or 'no content type'} is not a patch")


def _merged(target: Any, patch: Any, keys: Mapping[str, str], field: str = "") -> Any:
    """RFC 7396; lists that have a key in `keys` are merged by it, and may have items with `$patch: delete`."""
    if isinstance(patch, dict):
        result = dict(target) if isinstance(target, dict) else {}
        for name, value in patch.items():
            if value is None:
                result.pop(name, None)
            elif name != "$patch":
                result[name] = _merged(result.get(name), value, keys, name)
        return result
    key = keys.get(field)
    if not isinstance(patch, list) or not isinstance(target, list) or key is None:
        return patch
    merged = {item.get(key): item for item in target}
    for item in patch:
        if item.get("$patch") == "delete":
            merged.pop(item.get(key), None)
        else:
            merged[item.get(key)] = _merged(merged.get(item.get(key)), item, keys)
    return list(merged.values())


def json_patch(document: Document, operations: Any) -> Document:
    """RFC 6902, without move and copy; an operation that does not apply fails the whole patch."""
    if not isinstance(operations, list):
        raise StatusError(400, "BadRequest", "a JSON patch is a list of operations")
    above = {"": deepcopy(document)}  # a path begins with `/`, so its first part is empty
    for operation in operations:
        try:
            *parents, last = (
                part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")
            )
            target: Any = above
            for part in parents:
                target = target[_step(target, part)]
            _carry_out(target, last, operation["op"], operation.get("value"))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise StatusError(
                422, "Invalid", f"the server rejected our request: {operation}: {error!r}"
            ) from error
    return _object(above[""])


def _step(target: Any, part: str) -> Any:
    """A part of a path, as an index where it points into a list."""
    if isinstance(target, list) and not part.isdigit():
        raise IndexError(part)
    return int(part) if isinstance(target, list) else part


def _carry_out(target: Any, last: str, op: str, value: Any) -> None:
    if op == "add" and isinstance(target, list):
        index = len(target) if last == "-" else _step(target, last)
        if index > len(target):
            raise IndexError(last)
        target.insert(index, value)
        return
    step = _step(target, last)
    match op:
        case "add":
            target[step] = value
        case "remove":
            del target[step]
        case "replace" | "test":
            found = target[step]  # what is not there can be neither replaced nor tested
            if op == "replace":
                target[step] = value
            elif found != value:
                raise ValueError("test failed")
        case _:
            raise ValueError(f"unknown op {op}")


def _object(value: Any) -> Document:
    if not isinstance(value, dict):
        raise StatusError(422, "Invalid", "the patched object is no object")
    return value
