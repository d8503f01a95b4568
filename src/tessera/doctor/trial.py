"""The pod that is tried with a dry run: a GPU without a limit, which Kubernetes refuses unless the webhook adds the limit."""

from typing import Any, Final

from tessera.core.admission.outcome import OBSERVE_MODE
from tessera.doctor.observations import TRIED, Trial
from tessera.kube.errors import ApiError
from tessera.kube.rest.client import Client
from tessera.kube.rest.paths import path_of
from tessera.protocol.kubernetes.objects import decoder

# as restricted as any namespace may want it
_RESTRICTED: Final = {
    "allowPrivilegeEscalation": False,
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
_CONTAINER: Final = {
    "name": "trial",
    "image": "tessera-doctor",
    "resources": {"requests": {TRIED: "1"}},
    "securityContext": _RESTRICTED,
}
_POD: Final = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"generateName": "tessera-doctor-"},
    "spec": {"containers": [_CONTAINER], "automountServiceAccountToken": False},
}
_document: Final = decoder(dict[str, Any])


async def tried(client: Client, namespace: str) -> Trial:
    """Create the pod in a namespace, with a dry run."""
    try:
        answer = await client.create(path_of("v1", "pods", namespace=namespace), _POD, {"dryRun": "All"})
    except ApiError as error:
        return Trial(error.message, observed=OBSERVE_MODE in error.warnings)
    containers = _document(answer).get("spec", {}).get("containers") or [{}]
    limits = containers[0].get("resources", {}).get("limits") or {}
    return Trial(limits={str(name): str(amount) for name, amount in limits.items()})
