"""The webhook's decision about an object that no API server sent: `tessera admit`, and the page's form.

A workload's pod templates take the very same path as the API server's pods (`reviewed`). So does a pod that is in a cluster
already, as if it were created now.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import msgspec

from tessera.core.admission.limits import BeyondLimits
from tessera.core.admission.outcome import Denied, Patched
from tessera.core.admission.policy import Policy
from tessera.core.admission.view.view import ClusterView
from tessera.core.errors import InvalidInput
from tessera.protocol.admission import patch
from tessera.protocol.admission.created import as_created
from tessera.protocol.admission.patch import Operation
from tessera.protocol.kubernetes.lean_pod import decode_lean_pod, pod_of
from tessera.protocol.kubernetes.workloads import FieldPath, title_of, written
from tessera.webhook.reviewed import KnownReviews, Reviewed, review_pod, review_templates


@dataclass(frozen=True, slots=True)
class Admitted:
    """One object, and what became of it: a reviewed for each of its pod templates, by place."""

    before: dict[str, Any]
    reviewed: Mapping[FieldPath, Reviewed]

    @property
    def after(self) -> dict[str, Any]:
        after: dict[str, Any] = patch.apply(self.before, self.operations)
        return after

    @property
    def title(self) -> str:
        """The object as messages name it: `Pod default/train`."""
        namespace = next((one.pod.namespace for one in self.reviewed.values()), "")
        return title_of(self.before, namespace=namespace)

    def title_at(self, place: FieldPath) -> str:
        """The same, with the place of a template where there are several."""
        return f"{self.title}, {written(place)}" if len(self.reviewed) > 1 else self.title

    @property
    def rejected(self) -> bool:
        return any(isinstance(one.decision, Denied) for one in self.reviewed.values())

    @property
    def claims(self) -> bool:
        """Whether a request of some pod of it becomes a claim, or would."""
        every = (one.would for one in self.reviewed.values())
        return any(isinstance(would, Patched) and would.conversion == "claim" for would in every)

    @property
    def operations(self) -> list[Operation]:
        return [operation for one in self.reviewed.values() for operation in one.operations]


def admit(
    one: dict[str, Any], view: ClusterView, policy: Policy, namespace: str, known: KnownReviews | None = None
) -> Admitted:
    """Admit one object as the webhook would; `namespace` is that of objects that name none.

    `known` is for many objects: what asks the same is decided once.
    """
    kind = one.get("kind")
    if not isinstance(kind, str):
        raise InvalidInput(
            f"kind: {'missing' if kind is None else 'not a text'}; expected a Kubernetes object"
        )
    try:
        review_one = review_pod if known is None else known.review_pod
        with without_own_room(one, view, namespace):
            return Admitted(one, review_templates(one, view, policy, namespace, review_one))
    except BeyondLimits as error:
        raise InvalidInput(f"{title_of(one)}: the webhook would decide nothing: {error}") from error


def without_own_room(one: dict[str, Any], view: ClusterView, namespace: str) -> AbstractContextManager[None]:
    """What is free for a pod that may be in the cluster already: what it has itself does not count."""
    metadata = one.get("metadata")
    if view.free is None or one.get("kind") != "Pod" or not isinstance(metadata, dict):
        return nullcontext()
    return view.free.without_room(f"{metadata.get('namespace') or namespace}/{metadata.get('name')}")


def admit_again(
    pod: dict[str, Any], view: ClusterView, policy: Policy, known: KnownReviews | None = None
) -> Admitted:
    """Admit a pod of a cluster as if it were created now. Its own use does not count against its quotas, nor against what is free."""
    try:
        own = pod_of(decode_lean_pod(msgspec.json.encode(pod)), "")
    except InvalidInput as error:
        raise InvalidInput(f"{title_of(pod)}: {error}") from error
    return admit(as_created(pod), view.without(own), policy, own.namespace, known)
