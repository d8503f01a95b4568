"""A decision about a pod, or about each pod template of an object, with the patch that carries it out.

A template is put into an AdmissionReview and takes the very same path as the API server's pods.

An operator has workloads (Jobs, JobSets, …) sent here where something counts a workload by its templates before there are
pods, as Kueue does: then it counts what will run. The templates are marked, and pods made from them keep the decision.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from tessera.core.admission.decision import decide, decide_template
from tessera.core.admission.limits import MOST_CONTAINERS, MOST_TEMPLATES, at_most
from tessera.core.admission.outcome import Allowed, Decision, Denied, Observed, Patched, observed
from tessera.core.admission.policy import Mode, Policy, mode_in
from tessera.core.admission.view.view import ClusterView
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.pod import Edit, Pod
from tessera.core.requests import record
from tessera.core.requests.record import Mark, mark_of
from tessera.core.values import value
from tessera.protocol.admission import patch, review
from tessera.protocol.admission.patch import Operation
from tessera.protocol.admission.review import AdmissionRequest
from tessera.protocol.kubernetes.workloads import FieldPath, templates_of, title_of, written

Decide = Callable[[Pod, ClusterView, Policy], Decision]
Review = Callable[[AdmissionRequest, ClusterView, Policy, Decide], "Reviewed"]

_MOST_KNOWN: Final = 4096  # pods: more than most clusters have templates, some 16 MiB


@value
class Reviewed:
    """A pod, the decision about it, and the patch that carries it out."""

    pod: Pod
    decision: Decision | Observed
    operations: tuple[Operation, ...] = ()
    withheld: tuple[Operation, ...] = ()  # what observe mode does not do

    @property
    def would(self) -> Decision:
        """What is decided, carried out or not."""
        return self.decision.would if isinstance(self.decision, Observed) else self.decision


class KnownReviews:
    """Reviewed pods by all that their decisions depend on, while nodes, namespaces and policy stay the same.

    The pods of one template are decided once. The pod that is kept is the first that asked the same; it has the same namespace, and may have another name.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Reviewed] = {}

    def review_pod(
        self, request: AdmissionRequest, view: ClusterView, policy: Policy, decide: Decide = decide
    ) -> Reviewed:
        used = (tuple(one.used.items()) for one in view.quotas.get(request.namespace, ()))
        key = (request.key(policy.annotations), *used)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            found = review_pod(request, view, policy, decide)
            if found.would.by != "full":  # that holds for this moment
                self._known[key] = found
        return found


def review_pod(
    request: AdmissionRequest, view: ClusterView, policy: Policy, decide: Decide = decide
) -> Reviewed:
    """Decide about a request's pod, and prove that the patch applies to it."""
    pod = request.read()
    decision = decide(pod, view, policy)
    operations: tuple[Operation, ...] = ()
    if edits := _edits(decision):
        document = review.patchable_of(request)
        operations = tuple(patch.build(edits, document))
        patch.carry_out(document, operations)
    if mode_in(view.namespaces.get(pod.namespace), policy.mode) is Mode.OBSERVE:
        return Reviewed(pod, observed(decision), withheld=operations)
    return Reviewed(pod, decision, operations)


def review_new_pod(
    request: AdmissionRequest, view: ClusterView, policy: Policy, clock: Callable[[], float]
) -> Reviewed:
    """The same for a pod that is created with this: room is kept for one that was decided about by what is free, until it is seen."""
    free = view.free
    if free is None or request.dry_run:
        return review_pod(request, view, policy)

    def decide_again(pod: Pod, view: ClusterView, policy: Policy) -> Decision:
        if mark_of(pod) is Mark.EARLIER:  # with its later containers it needs other room
            free.release(request.origin())
        return decide(pod, view, policy)

    reviewed = review_pod(request, view, policy, decide_again)
    given = reviewed.decision
    if isinstance(given, (Allowed, Patched)) and given.momentary is not None:
        free.reserve(given.momentary.pod, request.origin(), clock())
    return reviewed


def _edits(decision: Decision) -> tuple[Edit, ...]:
    """What is changed in a pod, and its mark."""
    edits = decision.edits if isinstance(decision, Patched) else ()
    momentary = None if isinstance(decision, Denied) else decision.momentary
    return edits if momentary is None else (*edits, momentary.mark)


def decide_first_pod(pod: Pod, view: ClusterView, policy: Policy) -> Decision:
    """Decide about a template's next pod. It alone would have the mark: the template's other pods are decided about by what is free then."""
    decision = decide(pod, view, policy)
    return decision if isinstance(decision, Denied) else replace(decision, momentary=None)


def review_templates(
    one: dict[str, Any],
    view: ClusterView,
    policy: Policy,
    namespace: str,
    review_one: Review = review_pod,
    decide_one: Decide | None = None,
) -> dict[FieldPath, Reviewed]:
    """Review each pod template of an object, by its place, as its next pod; an object that makes no pods has none."""
    templates = templates_of(one)
    if not templates:
        return {}
    metadata = one.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise InvalidInput(f"{one.get('kind')}: metadata: expected an object")
    space = metadata.get("namespace") or namespace
    try:
        return {
            place: _below(
                place,
                review_one(
                    _request(pod, space), view, policy, decide_one or (decide_first_pod if place else decide)
                ),
            )
            for place, pod in templates
        }
    except InvalidInput as error:
        raise InvalidInput(f"{title_of(one)}: {str(error).removeprefix('request.object.')}") from error


def _request(pod: dict[str, Any], namespace: str) -> AdmissionRequest:
    """The request that the API server would send."""
    request = {
        "uid": "template",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "namespace": namespace,
        "operation": "CREATE",
        "object": pod,
    }
    return review.decode(
        msgspec.json.encode({"apiVersion": review.API_VERSION, "kind": review.KIND, "request": request})
    )


def _below(place: FieldPath, reviewed: Reviewed) -> Reviewed:
    """A reviewed pod, with operations on the object that the pod is a template of."""
    root = "".join(f"/{patch.escape(str(step))}" for step in place)

    def moved(operations: Iterable[Operation]) -> tuple[Operation, ...]:
        copies = tuple(operation.copy() for operation in operations)
        for operation in copies:
            operation["path"] = root + operation["path"]
        return copies

    return replace(reviewed, operations=moved(reviewed.operations), withheld=moved(reviewed.withheld))


@value
class DecidedWorkload:
    """What is decided about all templates of a workload."""

    title: str
    decision: Decision | Observed
    operations: tuple[Operation, ...]


def decide_workload(request: AdmissionRequest, view: ClusterView, policy: Policy) -> DecidedWorkload | None:
    """Decide about a new object; None for one that has no pod templates, or none that can be read.

    Raises `BeyondLimits` for one that is too large to be decided about.
    """
    try:
        document = request.read_workload()
        templates = templates_of(document)
        at_most(len(templates), MOST_TEMPLATES, "pod templates", "the workload")
        at_most(sum(_containers(one) for _, one in templates), MOST_CONTAINERS, "containers", "the workload")
        found = review_templates(document, view, policy, request.namespace, decide_one=decide_template)
    except InvalidInput:  # the API server, or its own controller, reports this error
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


def _together(every: Mapping[FieldPath, Decision]) -> Decision:
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
