"""Reading what patience goes by, beside the pod and the cluster: its own history, and the pod's Job."""

from tessera.diagnosis.patience.history import CONFIG_MAP, History
from tessera.diagnosis.patience.jobs import Job
from tessera.diagnosis.reading import Reader
from tessera.kube.rest.paths import path_of
from tessera.protocol.kubernetes.pod import PodIn


async def read_history(reader: Reader, namespace: str) -> History | None:
    """What the controller of a namespace has evicted; None where nothing is written, or it may not be read."""
    path = path_of("v1", "configmaps", namespace=namespace, name=CONFIG_MAP)
    return await reader.get(f"ConfigMap {namespace}/{CONFIG_MAP}", path, History.read)


async def read_job(reader: Reader, pod: PodIn) -> Job | None:
    """The Job of a pod; None where it is no Job's, or the Job is gone or may not be read."""
    owner, namespace = pod.metadata.controller, pod.metadata.namespace
    if owner is None or owner.kind != "Job":
        return None
    path = path_of("batch/v1", "jobs", namespace=namespace, name=owner.name)
    found = await reader.get(f"Job {namespace}/{owner.name}", path, Job.read)
    return found if found and found.uid == owner.uid else None
