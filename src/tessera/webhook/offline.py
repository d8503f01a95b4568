"""The webhook's decision about an object that no API server sent: `tessera admit`, and the page's form.

A workload's pod template is put into an AdmissionReview and takes the very same path as the API server's.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from tessera.core.admission.decision import Policy, Reject
from tessera.core.admission.offers import Offers
from tessera.core.errors import InvalidInput
from tessera.protocol.admission import patch, review
from tessera.protocol.kubernetes.workloads import TEMPLATES, template_of, title_of
from tessera.webhook.endpoint import Judgement, judge


@dataclass(frozen=True, slots=True)
class Admitted:
    """One object, and what became of it; `judgement` is None for objects without pods."""

    before: dict[str, Any]
    after: dict[str, Any]
    judgement: Judgement | None

    @property
    def title(self) -> str:
        """The object as messages name it: `Pod default/train`."""
        return title_of(self.before, namespace=self.judgement.pod.namespace if self.judgement else "")

    @property
    def rejected(self) -> bool:
        """Whether there is a pod, and it was rejected."""
        return self.judgement is not None and isinstance(self.judgement.decision, Reject)


def admit(one: dict[str, Any], offers: Offers, policy: Policy, namespace: str) -> Admitted:
    """Admit one object as the webhook would; `namespace` is that of objects that name none."""
    kind = one.get("kind")
    if not isinstance(kind, str):
        raise InvalidInput(
            f"kind: {'missing' if kind is None else 'not a text'}; expected a Kubernetes object"
        )
    if kind not in TEMPLATES:
        return Admitted(one, one, None)
    template = template_of(one)
    metadata = one.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise InvalidInput(f"{kind}: metadata: expected an object")
    request = {
        "uid": "offline",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "namespace": metadata.get("namespace") or namespace,
        "operation": "CREATE",
        "object": template,
    }
    body = msgspec.json.encode({"apiVersion": review.API_VERSION, "kind": review.KIND, "request": request})
    root = "".join(f"/{step}" for step in TEMPLATES[kind])
    try:
        judgement = judge(review.decode(body), offers, policy, lambda: one, root)
    except InvalidInput as error:
        raise InvalidInput(f"{title_of(one)}: {str(error).removeprefix('request.object.')}") from error
    return Admitted(one, patch.apply(one, judgement.operations), judgement)
