"""The pod that is tried with a dry run: a GPU without a limit, which Kubernetes refuses unless the webhook adds the limit."""

from typing import Any

from tessera.doctor.evidence import TRIED


def pod() -> dict[str, Any]:
    """The pod, as restricted as any namespace may want it."""
    restricted = {
        "allowPrivilegeEscalation": False,
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {
        "name": "trial",
        "image": "tessera-doctor",
        "resources": {"requests": {TRIED: "1"}},
        "securityContext": restricted,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "tessera-doctor-"},
        "spec": {"containers": [container], "automountServiceAccountToken": False},
    }


def limits_of(answer: dict[str, Any]) -> dict[str, str]:
    """The limits of a pod's first container, in the answer to a dry run."""
    containers = answer.get("spec", {}).get("containers") or [{}]
    limits = containers[0].get("resources", {}).get("limits") or {}
    return {str(name): str(amount) for name, amount in limits.items()}
