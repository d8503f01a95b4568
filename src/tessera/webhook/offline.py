"""The webhook's decision about an object that no API server sent: `tessera admit`, and the page's form.

A workload's pod templates take the very same path as the API server's pods (`judgement`). So does a pod that is in a cluster
already, as if it were created now.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from tessera.core.admission import alternatives
from tessera.core.admission.alternatives import ALTERNATIVES_ANNOTATION, DeviceRequest
from tessera.core.admission.decision import RECORD_ANNOTATION, Policy, Reject, Rewrite, recorded
from tessera.core.admission.limits import BeyondLimits
from tessera.core.admission.offers import Offers
from tessera.core.admission.wishes import DECIDED_ANNOTATION
from tessera.core.errors import InvalidInput
from tessera.protocol.admission import patch
from tessera.protocol.admission.patch import Operation
from tessera.protocol.kubernetes.lean_pod import decode_lean_pod, pod_of
from tessera.protocol.kubernetes.workloads import Place, title_of, written
from tessera.webhook.judgement import Judgement, KnownJudgements, judge_templates


@dataclass(frozen=True, slots=True)
class Admitted:
    """One object, and what became of it: a judgement for each of its pod templates, by place."""

    before: dict[str, Any]
    judgements: Mapping[Place, Judgement]

    @property
    def after(self) -> dict[str, Any]:
        """The object with the patch applied."""
        after: dict[str, Any] = patch.apply(self.before, self.operations)
        return after

    @property
    def title(self) -> str:
        """The object as messages name it: `Pod default/train`."""
        namespace = next((one.pod.namespace for one in self.judgements.values()), "")
        return title_of(self.before, namespace=namespace)

    def title_at(self, place: Place) -> str:
        """The same, with the place of a template where there are several."""
        return f"{self.title}, {written(place)}" if len(self.judgements) > 1 else self.title

    @property
    def rejected(self) -> bool:
        """Whether some pod of it was rejected."""
        return any(isinstance(one.decision, Reject) for one in self.judgements.values())

    @property
    def claims(self) -> bool:
        """Whether a request of some pod of it becomes a claim, or would."""
        every = (one.would for one in self.judgements.values())
        return any(isinstance(would, Rewrite) and would.way == "claim" for would in every)

    @property
    def operations(self) -> list[Operation]:
        """The patch of the whole object."""
        return [operation for one in self.judgements.values() for operation in one.operations]


def admit(
    one: dict[str, Any],
    offers: Offers,
    policy: Policy,
    namespace: str,
    known: KnownJudgements | None = None,
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
        return Admitted(one, judge_templates(one, offers, policy, namespace, known=known))
    except BeyondLimits as error:
        raise InvalidInput(f"{title_of(one)}: the webhook would decide nothing: {error}") from error


def admit_again(
    pod: dict[str, Any], offers: Offers, policy: Policy, known: KnownJudgements | None = None
) -> Admitted:
    """Admit a pod of a cluster as if it were created now. Its own use does not count against its quotas."""
    try:
        own = pod_of(decode_lean_pod(msgspec.json.encode(pod)), "")
    except InvalidInput as error:
        raise InvalidInput(f"{title_of(pod)}: {error}") from error
    space = own.namespace
    quotas = offers.quotas.get(space)
    if quotas is None:
        return admit(as_created(pod), offers, policy, space, known)
    offers.quotas[space] = tuple(one.without(own) for one in quotas)
    try:
        return admit(as_created(pod), offers, policy, space, known)
    finally:
        offers.quotas[space] = quotas


def as_created(pod: dict[str, Any]) -> dict[str, Any]:
    """A pod of a cluster, which can be read as one, as its creator sent it, as far as that is known.

    Without the node that the scheduler chose, and with a claim of the bridge or a recorded fallback undone, unless it was made
    from a template that was decided about. Of a record in which several profiles became the same one, the last is taken.
    """
    metadata, spec = dict(pod.get("metadata") or {}), dict(pod.get("spec") or {})
    spec.pop("nodeName", None)
    annotations = dict(metadata.get("annotations") or {})
    if DECIDED_ANNOTATION in annotations:
        return {**pod, "spec": spec}
    if (text := annotations.pop(ALTERNATIVES_ANNOTATION, None)) is not None:
        annotations.pop(RECORD_ANNOTATION, None)  # of what the scheduler chose
        metadata["annotations"] = annotations
        _undo_claim(spec, text)
    if (record := annotations.pop(RECORD_ANNOTATION, None)) is not None:
        metadata["annotations"] = annotations
        for old, new in reversed(list(recorded(record))):
            for field in ("initContainers", "containers"):
                if field in spec:
                    spec[field] = [_renamed(one, new, old) for one in spec[field] or ()]
    return {**pod, "metadata": metadata, "spec": spec}


def _undo_claim(spec: dict[str, Any], text: str) -> None:
    """Give the containers their requests back, and take the claim away."""
    try:
        requests = alternatives.parse(text).requests
    except InvalidInput:  # not the webhook's words
        return
    asked = {alternatives.request_name(number): one for number, one in enumerate(requests)}
    spec["resourceClaims"] = [
        one for one in spec.get("resourceClaims") or () if one.get("name") != alternatives.CLAIM
    ]
    for field in ("initContainers", "containers"):
        if field in spec:
            spec[field] = [_asking(one, asked) for one in spec[field] or ()]


def _asking(container: dict[str, Any], asked: Mapping[str, DeviceRequest]) -> dict[str, Any]:
    """A container that asks for what its claim was made of."""
    resources = dict(container.get("resources") or {})
    claims = resources.pop("claims", None)
    claims = [one for one in claims if isinstance(one, dict)] if isinstance(claims, list) else []
    own = [one for one in claims if one.get("name") != alternatives.CLAIM]
    found = [asked[name] for one in claims if isinstance(name := one.get("request"), str) and name in asked]
    if not found:
        return container
    limits = {**(resources.get("limits") or {}), **{one.asked: str(one.count) for one in found}}
    return {**container, "resources": {**resources, "limits": limits, **({"claims": own} if own else {})}}


def _renamed(container: dict[str, Any], resource: str, to: str) -> dict[str, Any]:
    """A container that asks for something by another name."""
    resources = {
        section: {to if name == resource else name: amount for name, amount in amounts.items()}
        if isinstance(amounts, dict)
        else amounts
        for section, amounts in (container.get("resources") or {}).items()
    }
    return {**container, "resources": resources}
