"""The four kinds of patches that an API server takes."""

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
            return _object(merge_patch(document, patch))
        case "application/strategic-merge-patch+json" | "application/apply-patch+yaml":
            return _object(strategic_merge(document, patch))
        case other:
            raise StatusError(415, "UnsupportedMediaType", f"{other or 'no content type'} is not a patch")


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge_patch(result.get(name), value)
    return result


def strategic_merge(target: Any, patch: Any, field: str = "") -> Any:
    """A merge patch that merges some lists by key, and knows `$patch: delete`."""
    if isinstance(patch, dict):
        result = dict(target) if isinstance(target, dict) else {}
        for name, value in patch.items():
            if value is None:
                result.pop(name, None)
            elif not name.startswith("$"):
                result[name] = strategic_merge(result.get(name), value, name)
        return result
    key = _MERGE_KEYS.get(field)
    if not isinstance(patch, list) or not isinstance(target, list) or key is None:
        return patch
    merged = {item.get(key): item for item in target}
    for item in patch:
        if item.get("$patch") == "delete":
            merged.pop(item.get(key), None)
        else:
            merged[item.get(key)] = strategic_merge(merged.get(item.get(key)), item)
    return list(merged.values())


def json_patch(document: Document, operations: Any) -> Document:
    """RFC 6902, without move and copy; an operation that does not apply fails the whole patch."""
    if not isinstance(operations, list):
        raise StatusError(400, "BadRequest", "a JSON patch is a list of operations")
    root: Any = document
    for operation in operations:
        try:
            root = _operate(root, operation)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise StatusError(
                422, "Invalid", f"the server rejected our request: {operation}: {error!r}"
            ) from error
    return _object(root)


def _operate(root: Any, operation: Any) -> Any:
    tokens = [token.replace("~1", "/").replace("~0", "~") for token in operation["path"].split("/")[1:]]
    return _descend(root, tokens, operation["op"], operation.get("value"))


def _descend(node: Any, tokens: list[str], op: str, value: Any) -> Any:
    """A copy of `node` with the operation done below it."""
    if not tokens:
        if op == "test" and node != value:
            raise ValueError("test failed")
        return node if op == "test" else value
    step, rest = tokens[0], tokens[1:]
    copy = dict(node) if isinstance(node, dict) else list(node)
    index: Any = step
    if isinstance(copy, list):
        index = len(copy) if step == "-" and op == "add" and not rest else int(step)
        if not 0 <= index <= len(copy) - (op != "add" or bool(rest)):
            raise IndexError(step)
    if rest or op == "test":
        copy[index] = _descend(copy[index], rest, op, value)
    elif op == "remove":
        del copy[index]
    elif op == "add" and isinstance(copy, list):
        copy.insert(index, value)
    elif op == "add" or (op == "replace" and (isinstance(copy, list) or index in copy)):
        copy[index] = value
    elif op == "replace":
        raise KeyError(step)  # what is not there cannot be replaced
    else:
        raise ValueError(f"unknown op {op}")
    return copy


def _object(value: Any) -> Document:
    if not isinstance(value, dict):
        raise StatusError(422, "Invalid", "the patched object is no object")
    return value
