"""Any object as a document: those in a List, what messages call it, and where pods stand in those that make pods.

Kubernetes' own kinds are known by name. In any other object, of whatever API group (Volcano, Kubeflow, JobSet,
LeaderWorkerSet, Ray, …), what looks like a pod template is one: a `spec` with a list of `containers`.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from tessera.core.errors import InvalidInput
from tessera.protocol.kubernetes.objects import InvalidObject

# Where a pod stands in the objects that make pods.
TEMPLATES: Final[dict[str, tuple[str, ...]]] = {
    "Pod": (),
    "PodTemplate": ("template",),
    **dict.fromkeys(
        ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "Job"),
        ("spec", "template"),
    ),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
}
_OWN_GROUPS: Final = (
    "",
    "apps",
    "batch",
    "extensions",
)  # of those kinds: a Job of batch.volcano.sh is another
_DEEPEST: Final = 16  # levels: a JobSet's templates are on the eighth
FieldPath = tuple[str | int, ...]  # the way to a value in a document


def items(documents: Iterable[object]) -> list[dict[str, Any]]:
    """The objects in some documents, those of Lists taken out."""
    found: list[dict[str, Any]] = []
    for document in documents:
        if not isinstance(document, dict):
            raise InvalidObject(f"expected a Kubernetes object, got {_kind_of(document)}")
        kind = document.get("kind")
        if not isinstance(kind, str) or not kind.endswith("List"):
            found.append(document)
            continue
        inner = document.get("items") or []
        if not isinstance(inner, list):
            raise InvalidObject(f"{kind}.items: expected a list, got {_kind_of(inner)}")
        for index, one in enumerate(inner):
            if not isinstance(one, dict):
                raise InvalidObject(f"{kind}.items[{index}]: expected an object, got {_kind_of(one)}")
            # a typed list leaves its items' kind out
            found.append({"kind": kind.removesuffix("List"), **one})
    return found


def title_of(document: dict[str, Any], kind: str = "", namespace: str = "") -> str:
    """An object as messages name it: `Pod train`, `Pod default/train`; `kind` is for items of a typed List."""
    metadata = document.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    name = metadata.get("name") or metadata.get("generateName") or "(no name)"
    return f"{kind or document.get('kind')} {f'{namespace}/' if namespace else ''}{name}"


def templates_of(document: dict[str, Any]) -> list[tuple[FieldPath, dict[str, Any]]]:
    """Every pod template of an object, and where it stands; none in objects that make no pods."""
    kind = document.get("kind")
    group, slash, _ = str(document.get("apiVersion") or "").partition("/")
    if kind in TEMPLATES and (group if slash else "") in _OWN_GROUPS:
        return [(TEMPLATES[kind], template_of(document))]
    spec = document.get("spec")
    return list(_found(document, ())) if _is_template(document) else list(_found(spec, ("spec",)))


def written(place: FieldPath) -> str:
    """A place as messages name it: `spec.tasks[0].template`."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place).removeprefix(".")


def _found(value: Any, place: FieldPath) -> Iterator[tuple[FieldPath, dict[str, Any]]]:
    if len(place) > _DEEPEST:
        return
    if isinstance(value, dict):
        if _is_template(value):
            yield place, value
            return
        for name, one in value.items():
            yield from _found(one, (*place, name))
    elif isinstance(value, list):
        for index, one in enumerate(value):
            yield from _found(one, (*place, index))


def _is_template(value: dict[str, Any]) -> bool:
    spec = value.get("spec")
    containers = spec.get("containers") if isinstance(spec, dict) else None
    return isinstance(containers, list) and all(isinstance(one, dict) for one in containers)


def template_of(document: dict[str, Any]) -> dict[str, Any]:
    """The pod, or pod template, of an object of one of these kinds."""
    steps = TEMPLATES[document["kind"]]
    template: Any = document
    for step in steps:
        template = template.get(step) if isinstance(template, dict) else None
    if not isinstance(template, dict):
        raise InvalidInput(f"{title_of(document)}: {'.'.join(steps)}: missing; expected a pod template")
    return template


def _kind_of(value: object) -> str:
    names = {
        dict: "an object",
        list: "a list",
        str: "a string",
        bool: "true or false",
        int: "a number",
        float: "a number",
    }
    return names.get(type(value), "nothing")
