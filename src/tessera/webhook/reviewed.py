"""A decision about a pod, or about each pod template of an object, with the patch that carries it out.

A template is put into an AdmissionReview and takes the very same path as the API server's pods.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

import msgspec

from tessera.core.admission.constraints import Mode, mode_in
from tessera.core.admission.decision import decide
from tessera.core.admission.outcome import Decision, Observed, Patched, observed
from tessera.core.admission.policy import Policy
from tessera.core.admission.view.view import ClusterView
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.pod import Pod
from tessera.core.values import value
from tessera.protocol.admission import patch, review
from tessera.protocol.admission.patch import Operation
from tessera.protocol.admission.review import Request
from tessera.protocol.kubernetes.workloads import Place, templates_of, title_of

Decide = Callable[[Pod, ClusterView, Policy], Decision]

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

    def review_pod(self, request: Request, view: ClusterView, policy: Policy, decide: Decide) -> Reviewed:
        """As the function `review_pod`."""
        used = (tuple(one.used.items()) for one in view.quotas.get(request.namespace, ()))
        key = (request.key(policy.annotations), *used)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            found = self._known[key] = review_pod(request, view, policy, decide)
        return found


def review_pod(request: Request, view: ClusterView, policy: Policy, decide: Decide = decide) -> Reviewed:
    """Decide about a request's pod, and prove that the patch applies to it."""
    pod = request.read()
    decision = decide(pod, view, policy)
    operations: tuple[Operation, ...] = ()
    if isinstance(decision, Patched):
        document = review.patchable_of(request)
        operations = tuple(patch.build(decision.edits, document))
        patch.carry_out(document, operations)
    if mode_in(view.namespaces.get(pod.namespace), policy.mode) is Mode.OBSERVE:
        return Reviewed(pod, observed(decision), withheld=operations)
    return Reviewed(pod, decision, operations)


def review_templates(
    one: dict[str, Any],
    view: ClusterView,
    policy: Policy,
    namespace: str,
    decide: Decide = decide,
    known: KnownReviews | None = None,
) -> dict[Place, Reviewed]:
    """Review each pod template of an object, by its place; an object that makes no pods has none."""
    templates = templates_of(one)
    if not templates:
        return {}
    metadata = one.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise InvalidInput(f"{one.get('kind')}: metadata: expected an object")
    space = metadata.get("namespace") or namespace
    review_one = review_pod if known is None else known.review_pod
    try:
        return {
            place: _below(place, review_one(_request(pod, space), view, policy, decide))
            for place, pod in templates
        }
    except InvalidInput as error:
        raise InvalidInput(f"{title_of(one)}: {str(error).removeprefix('request.object.')}") from error


def _request(pod: dict[str, Any], namespace: str) -> Request:
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


def _below(place: Place, reviewed: Reviewed) -> Reviewed:
    """A reviewed pod, with operations on the object that the pod is a template of."""
    root = "".join(f"/{patch.escape(str(step))}" for step in place)

    def moved(operations: Iterable[Operation]) -> tuple[Operation, ...]:
        copies = tuple(operation.copy() for operation in operations)
        for operation in copies:
            operation["path"] = root + operation["path"]
        return copies

    return replace(reviewed, operations=moved(reviewed.operations), withheld=moved(reviewed.withheld))
