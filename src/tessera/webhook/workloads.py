"""Workloads (Jobs, JobSets, …) whose pod templates are decided about when they are created.

An operator has them sent here where something counts a workload by its templates before there are pods, as Kueue does: then it
counts what will run. The templates are marked, and pods made from them keep the decision.
"""

from collections.abc import Mapping
from typing import Any

from tessera.core.admission.decision import decide_template
from tessera.core.admission.limits import MOST_CONTAINERS, MOST_TEMPLATES, at_most
from tessera.core.admission.outcome import Allowed, Decision, Denied, Observed, Patched, observed
from tessera.core.admission.policy import Policy
from tessera.core.admission.view.view import ClusterView
from tessera.core.errors import InvalidInput
from tessera.core.requests import record
from tessera.core.values import value
from tessera.protocol.admission.patch import Operation
from tessera.protocol.admission.review import Request
from tessera.protocol.kubernetes.workloads import Place, templates_of, title_of, written
from tessera.webhook.reviewed import review_templates


@value
class DecidedWorkload:
    """What is decided about all templates of a workload."""

    title: str
    decision: Decision | Observed
    operations: tuple[Operation, ...]


def decide_workload(request: Request, view: ClusterView, policy: Policy) -> DecidedWorkload | None:
    """Decide about a new object; None for one that has no pod templates, or none that can be read.

    Raises `BeyondLimits` for one that is too large to be decided about.
    """
    try:
        document = request.read_workload()
        templates = templates_of(document)
        at_most(len(templates), MOST_TEMPLATES, "pod templates", "the workload")
        at_most(sum(_containers(one) for _, one in templates), MOST_CONTAINERS, "containers", "the workload")
        found = review_templates(document, view, policy, request.namespace, decide_template)
    except InvalidInput:  # the API server's, or its own controller's, to complain about
        return None
    if not found:
        return None
    decision = _together({place: one.would for place, one in found.items()})
    watched = any(isinstance(one.decision, Observed) for one in found.values())
    operations = tuple(operation for one in found.values() for operation in one.operations)
    return DecidedWorkload(title_of(document), observed(decision) if watched else decision, operations)


def _containers(template: dict[str, Any]) -> int:
    spec = template.get("spec")
    lists = [spec.get(name) for name in ("initContainers", "containers")] if isinstance(spec, dict) else []
    return sum(len(one) for one in lists if isinstance(one, list))


def _together(every: Mapping[Place, Decision]) -> Decision:
    """One decision for several templates: rejected if one is, changed if one is."""
    for place, one in every.items():
        if isinstance(one, Denied):
            return Denied(one.code, f"{written(place)}: {one.message}") if len(every) > 1 else one
    admitted = [one for one in every.values() if not isinstance(one, Denied)]
    changed = [one for one in admitted if isinstance(one, Patched)]
    reason = "; ".join(dict.fromkeys(one.reason for one in admitted))
    replaced = tuple(dict.fromkeys(pair for one in changed for pair in one.replaced))
    gpu_type = next((one.gpu_type for one in changed if one.gpu_type is not None), None)
    # first those about what was replaced, one for each, as in any rewrite
    about = [words for one in changed for words in one.warnings[: len(one.replaced)]]
    rest = [words for one in changed for words in one.warnings[len(one.replaced) :]]
    rest += [words for one in admitted if isinstance(one, Allowed) for words in one.warnings]
    warnings = (*dict.fromkeys(about), *dict.fromkeys(rest))
    audit = {name: text for one in admitted for name, text in one.audit.items()}
    if replaced:
        audit["fallback"] = record.written(replaced)
    if not changed:
        return Allowed(reason, warnings, audit)
    edits = tuple(edit for one in changed for edit in one.edits)
    return Patched(edits, reason, replaced, gpu_type, warnings, audit)
