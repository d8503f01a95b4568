"""JSON Patch (RFC 6902): from edits to operations, and strict application.

A patch is built against the object as it came: which maps are there and which must be made first. `add` is used for
whatever is written, since it replaces what is there and `replace` fails where nothing is.
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from functools import lru_cache
from typing import Any, Final, NotRequired, TypedDict

from tessera.core.errors import TesseraError
from tessera.core.kubernetes.pod import (
    ContainerList,
    DropAmount,
    Edit,
    Section,
    SetAmount,
    SetAnnotation,
    SetClaims,
    SetPodClaims,
)


class Operation(TypedDict):
    op: str
    path: str
    value: NotRequired[Any]


_NESTED: Final = (dict, list)
_AMOUNTS: Final = (SetAmount, DropAmount)  # not `|`, which would be put together for every edit
_ANNOTATIONS: Final = "/metadata/annotations"


class PatchDoesNotApply(TesseraError):
    """A patch and a document that do not go together."""


def build(edits: Iterable[Edit], pod: Mapping[str, Any]) -> list[Operation]:
    """The operations that carry out the edits on a pod.

    Missing parents (null counts as missing) are made once; a map made for one resource serves all the others.
    """
    operations: list[Operation] = []
    made: set[str] = set()
    sections: dict[tuple[str, int, str], str] = {}  # the paths of those that are there now
    has_annotations = False

    def make(path: str, value: object) -> None:
        if value is None and path not in made:
            made.add(path)
            operations.append({"op": "add", "path": path, "value": {}})

    def section(containers: ContainerList, index: int, name: Section) -> str:
        resources = pod["spec"][containers][index].get("resources")
        path = f"/spec/{containers}/{index}/resources"
        make(path, resources)
        make(f"{path}/{name}", (resources or {}).get(name))
        return f"{path}/{name}/"

    texts: dict[int, str] = {}  # of amounts: most containers are given the same
    for edit in edits:
        if isinstance(edit, _AMOUNTS):
            where = edit.containers, edit.index, edit.section
            path = sections.get(where)
            if path is None:
                path = sections[where] = section(*where)
            path += escape(edit.resource)
            if isinstance(edit, DropAmount):
                operations.append({"op": "remove", "path": path})
                continue
            text = texts.get(id(edit.amount))
            if text is None:
                text = texts[id(edit.amount)] = str(edit.amount)
            operations.append({"op": "add", "path": path, "value": text})
        elif isinstance(edit, SetAnnotation):
            if not has_annotations:
                metadata = pod.get("metadata")
                make("/metadata", metadata)
                make(_ANNOTATIONS, (metadata or {}).get("annotations"))
                has_annotations = True
            operations.append(
                {"op": "add", "path": f"{_ANNOTATIONS}/{escape(edit.key)}", "value": edit.value}
            )
        else:
            operations.append(_claims(edit))
    return operations


def _claims(edit: SetPodClaims | SetClaims) -> Operation:
    """Claims go to where none are. A container that gets one asks for something, so its resources are there."""
    if isinstance(edit, SetPodClaims):
        whole = [{"name": edit.claim, "resourceClaimTemplateName": edit.template}]
        return {"op": "add", "path": "/spec/resourceClaims", "value": whole}
    path = f"/spec/{edit.containers}/{edit.index}/resources/claims"
    return {
        "op": "add",
        "path": path,
        "value": [{"name": one.claim, "request": one.request} for one in edit.claims],
    }


@lru_cache(maxsize=256)  # pods are given the same few resources and annotations
def escape(key: str) -> str:
    """A key as a part of a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def apply(document: Any, operations: Sequence[Operation]) -> Any:
    """The document with `add` and `remove` carried out, strictly; the one given stays as it is."""
    changed = deepcopy(document)
    carry_out(changed, operations)
    return changed


def carry_out(document: Any, operations: Sequence[Operation]) -> None:
    """Change a document by `add` and `remove`, strictly."""
    parents: dict[str, Any] = {}  # by their path: operations come in groups with the same one
    for operation in operations:
        where, _, last = operation["path"].rpartition("/")
        target = parents.get(where)
        if target is None:
            target = _at(document, where, operation, parents)
        if not isinstance(target, dict):
            raise PatchDoesNotApply(f"{operation['op']} {operation['path']}: its parent is no object")
        name = _unescape(last) if "~" in last else last
        if isinstance(target.get(name), _NESTED):
            parents.clear()  # one of them may be gone now
        if operation["op"] == "add":
            value = operation["value"]  # which stays as it is in the patch
            target[name] = deepcopy(value) if isinstance(value, _NESTED) else value
        elif operation["op"] == "remove" and name in target:
            del target[name]
        else:
            raise PatchDoesNotApply(f"{operation['op']} {operation['path']}: there is nothing of that name")


def _at(document: Any, where: str, operation: Operation, known: dict[str, Any]) -> Any:
    """What is at a path. What is around it is `known` then, for the next path."""
    outer, _, last = where.rpartition("/")
    target, parts = (known[outer], [last]) if outer in known else (document, where.split("/")[1:])
    for part in parts:
        known[outer] = target  # at last
        name = _unescape(part) if "~" in part else part
        if isinstance(target, dict) and name in target:
            target = target[name]
        elif isinstance(target, list) and name.isascii() and name.isdigit() and int(name) < len(target):
            target = target[int(name)]
        else:
            raise PatchDoesNotApply(f"{operation['op']} {operation['path']}: there is no {name}")
    known[where] = target
    return target


@lru_cache(maxsize=256)
def _unescape(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~")
