"""JSON Patch (RFC 6902): from edits to operations, and strict application.

A patch is built against the object as it came: which maps are there and which must be made first. `add` is used for
whatever is written, since it replaces what is there and `replace` fails where nothing is.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, NotRequired, TypedDict

from tessera.core.admission.edits import ContainerList, DropAmount, Edit, Section, SetAmount
from tessera.core.errors import TesseraError
from tessera.protocol.kubernetes.objects import present
from tessera.protocol.kubernetes.pod import PodIn, PodSpecIn, resources_of


class Operation(TypedDict):
    """One operation of a patch."""

    op: str
    path: str
    value: NotRequired[Any]


class PatchDoesNotApply(TesseraError):
    """A patch and a document that do not go together."""


def build(edits: Iterable[Edit], pod: PodIn, root: str = "") -> list[Operation]:
    """The operations that carry out the edits on a pod; `root` is where the pod stands in the document.

    Missing parents (null counts as missing) are made once; a map made for one resource serves all the others.
    """
    operations: list[Operation] = []
    made: set[str] = set()
    metadata, spec = pod.metadata, pod.spec or PodSpecIn()

    def make(path: str, *, there: bool) -> None:
        if not there and path not in made:
            made.add(path)
            operations.append({"op": "add", "path": path, "value": {}})

    @cache
    def section(containers: ContainerList, index: int, name: Section) -> str:
        given = (spec.containers if containers == "containers" else spec.initContainers) or []
        has = resources_of(given[index].resources, f"spec.{containers}[{index}]")
        resources = f"{root}/spec/{containers}/{index}/resources"
        make(resources, there=present(given[index].resources))
        make(f"{resources}/{name}", there=(has.requests if name == "requests" else has.limits) is not None)
        return f"{resources}/{name}"

    for edit in edits:
        if isinstance(edit, SetAmount):
            path = section(edit.containers, edit.index, edit.section)
            operations.append(
                {"op": "add", "path": f"{path}/{escape(edit.resource)}", "value": str(edit.amount)}
            )
        elif isinstance(edit, DropAmount):
            path = section(edit.containers, edit.index, edit.section)
            operations.append({"op": "remove", "path": f"{path}/{escape(edit.resource)}"})
        else:
            make(f"{root}/metadata", there=metadata is not None)
            make(f"{root}/metadata/annotations", there=metadata is not None and present(metadata.annotations))
            path = f"{root}/metadata/annotations/{escape(edit.key)}"
            operations.append({"op": "add", "path": path, "value": edit.value})
    return operations


def escape(key: str) -> str:
    """A key as a part of a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def apply(document: Any, operations: Sequence[Operation]) -> Any:
    """The document with `add` and `remove` carried out, strictly.

    The one given stays as it is: what lies on the way to a change is copied once, and everything else is shared.
    """
    top = {"": document}
    copies: dict[int, Any] = {}  # by identity; kept here, so that no identity comes twice
    parents: dict[str, Any] = {}  # by their path: operations come in groups with the same one
    for operation in operations:
        where, _, last = operation["path"].rpartition("/")
        target = parents.get(where)
        if target is None:
            target = parents[where] = _own(top, where, operation, copies)
        if not isinstance(target, dict):
            raise PatchDoesNotApply(f"{operation['op']} {operation['path']}: its parent is no object")
        name = _unescape(last)
        if isinstance(target.get(name), dict | list):
            parents.clear()  # one of them may be gone now
        if operation["op"] == "add":
            target[name] = operation["value"]
        elif operation["op"] == "remove" and name in target:
            del target[name]
        else:
            raise PatchDoesNotApply(f"{operation['op']} {operation['path']}: there is nothing of that name")
    return top[""]


def _own(top: Any, where: str, operation: Operation, copies: dict[int, Any]) -> Any:
    """What stands at a path, with everything on the way a copy that may be changed."""
    target = top
    for part in where.split("/"):
        key = _key(target, _unescape(part), operation)
        child = target[key]
        if id(child) not in copies and isinstance(child, dict | list):
            target[key] = child = child.copy()
            copies[id(child)] = child
        target = child
    return target


def _unescape(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~") if "~" in part else part


def _key(target: Any, part: str, operation: Operation) -> str | int:
    if isinstance(target, dict) and part in target:
        return part
    if isinstance(target, list) and part.isascii() and part.isdigit() and int(part) < len(target):
        return int(part)
    raise PatchDoesNotApply(f"{operation['op']} {operation['path']}: there is no {part}")
