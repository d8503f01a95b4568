"""JSON Patch (RFC 6902): from edits to operations, and strict application.

A patch is built against the object as it came: which maps are there and which must be made first. `add` is used for
whatever is written, since it replaces what is there and `replace` fails where nothing is.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

from tessera.core.admission.decision import ContainerList, DropAmount, Edit, Section, SetAmount
from tessera.core.errors import TesseraError


class Operation(TypedDict):
    """One operation of a patch."""

    op: str
    path: str
    value: NotRequired[Any]


@dataclass(frozen=True, slots=True)
class Outline:
    """Which of the maps that a patch may write into the object has (null counts as not there)."""

    metadata: bool
    annotations: bool
    init_containers: tuple[frozenset[str], ...]  # of each container: "resources", "requests", "limits"
    containers: tuple[frozenset[str], ...]

    def of(self, containers: ContainerList, index: int) -> frozenset[str]:
        """What one container has."""
        return (self.containers if containers == "containers" else self.init_containers)[index]


class PatchDoesNotApply(TesseraError):
    """A patch and a document that do not go together."""


def build(edits: Iterable[Edit], outline: Outline, root: str = "") -> list[Operation]:
    """The operations that carry out the edits; `root` is where the pod stands in the document.

    Missing parents are made once; a map made for one resource serves all the others.
    """
    operations: list[Operation] = []
    made: set[str] = set()

    def make(path: str, *, there: bool) -> None:
        if not there and path not in made:
            made.add(path)
            operations.append({"op": "add", "path": path, "value": {}})

    def section(containers: ContainerList, index: int, name: Section) -> str:
        has = outline.of(containers, index)
        resources = f"{root}/spec/{containers}/{index}/resources"
        make(resources, there="resources" in has)
        make(f"{resources}/{name}", there=name in has)
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
            make(f"{root}/metadata", there=outline.metadata)
            make(f"{root}/metadata/annotations", there=outline.annotations)
            path = f"{root}/metadata/annotations/{escape(edit.key)}"
            operations.append({"op": "add", "path": path, "value": edit.value})
    return operations


def escape(key: str) -> str:
    """A key as a part of a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def apply(document: Any, operations: Sequence[Operation]) -> Any:
    """The document with `add` and `remove` carried out, strictly.

    The one given stays as it is: what lies on the way to a change is copied, and everything else is shared.
    """
    for operation in operations:
        parts = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        document = _applied(document, parts, 0, operation)
    return document


def _applied(target: Any, parts: list[str], at: int, operation: Operation) -> Any:
    part = parts[at]
    if at < len(parts) - 1:
        key = _key(target, part, operation)
        changed = target.copy()
        changed[key] = _applied(target[key], parts, at + 1, operation)
        return changed
    if not isinstance(target, dict):
        raise PatchDoesNotApply(f"{operation['op']} {operation['path']}: its parent is no object")
    changed = target.copy()
    if operation["op"] == "add":
        changed[part] = operation["value"]
    elif operation["op"] == "remove" and part in target:
        del changed[part]
    else:
        raise PatchDoesNotApply(f"{operation['op']} {operation['path']}: there is nothing of that name")
    return changed


def _key(target: Any, part: str, operation: Operation) -> str | int:
    if isinstance(target, dict) and part in target:
        return part
    if isinstance(target, list) and part.isdigit() and int(part) < len(target):
        return int(part)
    raise PatchDoesNotApply(f"{operation['op']} {operation['path']}: there is no {part}")
