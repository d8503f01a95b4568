"""Evictions: the API server deletes a pod where its PodDisruptionBudget allows it."""

from tessera.kube.errors import ApiError
from tessera.kube.rest.client import Client
from tessera.kube.rest.paths import path_of


async def evict(client: Client, namespace: str, name: str, preconditions: dict[str, str]) -> bool:
    """Evict a pod that still is as it was seen; False where it is not. `ApiError.is_too_many`: its budget allows no eviction now.

    Asked once: a moment later the pod may have started, or another process may lead.
    """
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
        "deleteOptions": {"preconditions": preconditions},
    }
    path = path_of("v1", "pods", namespace=namespace, name=name, subresource="eviction")
    try:
        await client.request("POST", path, body=body, again=False)
    except ApiError as error:
        if error.is_conflict or error.is_not_found:
            return False
        raise
    return True
