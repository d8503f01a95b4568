"""JSON Patch (RFC 6902): from edits to operations, and strict application.

A patch is built against the object as it came: which maps are there and which must be made first. `add` is used for
whatever is written, since it replaces what is there and `replace` fails where nothing is.
"""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

from tessera.core.admission import ContainerList, DropAmount, Edit, Section, SetAmount
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
    """The document with `add` and `remove` carried out, strictly; the one given stays as it is."""
    document = copy.deepcopy(document)
    for operation in operations:
        *parents, last = (
            part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]
        )
        target = document
        for part in parents:
            target = _child(target, part, operation)
        if not isinstance(target, dict):
            raise PatchDoesNotApply(f"{operation['op']} {operation['path']}: its parent is no object")
        if operation["op"] == "add":
            target[last] = copy.deepcopy(operation["value"])
        elif operation["op"] == "remove" and last in target:
            del target[last]
        else:
            raise PatchDoesNotApply(f"{operation['op']} {operation['path']}: there is nothing of that name")
    return document


def _child(target: Any, part: str, operation: Operation) -> Any:
    if isinstance(target, dict) and part in target:
        return target[part]
    if isinstance(target, list) and part.isdigit() and int(part) < len(target):
        return target[int(part)]
    raise PatchDoesNotApply(f"{operation['op']} {operation['path']}: there is no {part}")
