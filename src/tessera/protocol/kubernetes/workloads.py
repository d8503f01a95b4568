"""Any object as a document: what messages call it, and where the pod stands in those that make pods."""

from typing import Any, Final

from tessera.core.errors import InvalidInput

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


def title_of(document: dict[str, Any], kind: str = "", namespace: str = "") -> str:
    """An object as messages name it: `Pod train`, `Pod default/train`; `kind` is for items of a typed List."""
    metadata = document.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    name = metadata.get("name") or metadata.get("generateName") or "(no name)"
    return f"{kind or document.get('kind')} {f'{namespace}/' if namespace else ''}{name}"


def template_of(document: dict[str, Any]) -> dict[str, Any]:
    """The pod, or pod template, of an object of one of these kinds."""
    steps = TEMPLATES[document["kind"]]
    template: Any = document
    for step in steps:
        template = template.get(step) if isinstance(template, dict) else None
    if not isinstance(template, dict):
        raise InvalidInput(f"{title_of(document)}: {'.'.join(steps)}: missing; expected a pod template")
    return template
