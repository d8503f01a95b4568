"""What the webhook's replicas say of themselves in their metrics, and what their account may read."""

import asyncio
import re
from typing import Final

from tessera.diagnosis.reading import Reader
from tessera.doctor.observations import Served
from tessera.kube.rest.client import Client
from tessera.kube.rest.paths import path_of
from tessera.protocol.kubernetes.controllers import Workload
from tessera.protocol.kubernetes.objects import decoder
from tessera.protocol.kubernetes.pod import PodIn
from tessera.protocol.kubernetes.webhook import AccessReview

_MOST_SERVED: Final = 10  # replicas whose metrics are read
# for all of them: behind a network policy the API server itself would wait for half a minute
_PROXY_SECONDS: Final = 5.0
_METRICS_PORT: Final = 8080  # the chart's webhook.metricsPort
_ENDS: Final = re.compile(
    r'^gpu_webhook_certificate_expiry_timestamp_seconds\{certificate="serving"\} (\d{1,12}(?:\.\d+)?)$',
    re.MULTILINE,
)
_TRUSTED: Final = re.compile(r"^gpu_webhook_certificate_trusted ([01])$", re.MULTILINE)
_FOLLOWS: Final = re.compile(r"^gpu_webhook_free_view_known ([01])$", re.MULTILINE)
_REVIEWS: Final = path_of("authorization.k8s.io/v1", "subjectaccessreviews")


async def served(
    reader: Reader, namespace: str, deployment: Workload | None, pods: tuple[PodIn, ...]
) -> tuple[Served, ...]:
    """What the replicas say of the certificates that they serve, read by way of the API server."""
    port = (deployment.port("metrics") if deployment else None) or _METRICS_PORT
    found: list[Served] = []
    try:
        async with asyncio.timeout(_PROXY_SECONDS):
            for pod in pods[:_MOST_SERVED]:
                with reader.reading("served"):
                    found.append(await _served_by(reader.client, namespace, pod.metadata.name, port))
    except TimeoutError:
        reader.unseen["served"] = f"the webhook's pods do not answer the API server at port {port}"
    return tuple(found)


async def _served_by(client: Client, namespace: str, pod: str, port: int) -> Served:
    name = f"{pod}:{port}"
    path = path_of("v1", "pods", namespace=namespace, name=name, subresource="proxy")
    text = (await client.get(f"{path}/metrics")).decode("utf-8", "replace")
    ends, trusted, follows = _ENDS.search(text), _TRUSTED.search(text), _FOLLOWS.search(text)
    return Served(
        pod,
        float(ends[1]) if ends else None,
        trusted[1] == "1" if trusted else None,
        follows[1] == "1" if follows else None,
    )


async def may_follow_pods(reader: Reader, namespace: str, deployment: Workload | None) -> bool | None:
    """Whether the webhook's account may list and watch pods of all namespaces; asking changes nothing."""
    account = deployment and (deployment.spec.template.spec.service_account_name or "default")
    may = None
    with reader.reading("may_follow_pods"):
        for verb in ("list", "watch") if account else ():
            asked = {
                "user": f"system:serviceaccount:{namespace}:{account}",
                "resourceAttributes": {"resource": "pods", "verb": verb},
            }
            review = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SubjectAccessReview",
                "spec": asked,
            }
            may = decoder(AccessReview)(await reader.client.create(_REVIEWS, review)).status.allowed
            if not may:
                break
    return may
