"""Events of the Node object: what an operator ought to know, where `kubectl describe node` shows it."""

import logging
from collections.abc import Callable
from datetime import UTC, datetime

from tessera.kube.errors import KubeError
from tessera.kube.rest.client import Client
from tessera.kube.rest.paths import path_of
from tessera.node.dra.names import DRIVER

log = logging.getLogger(__name__)


def _now() -> datetime:
    return datetime.now(UTC)


class NodeEvents:
    """Warnings about one node. One that cannot be written is no trouble: the log has it."""

    def __init__(self, client: Client, node: str, now: Callable[[], datetime] = _now) -> None:
        self._client = client
        self._node = node
        self._now = now

    async def warn(self, reason: str, message: str) -> None:
        """Write one; the caller sees to it that the same thing is not told again and again."""
        time = self._now().strftime("%Y-%m-%dT%H:%M:%SZ")
        event = {
            "metadata": {"generateName": f"{self._node}-", "namespace": "default"},
            # as the kubelet writes them: by name, and the name again for the uid
            "involvedObject": {"kind": "Node", "name": self._node, "uid": self._node, "apiVersion": "v1"},
            "type": "Warning",
            "reason": reason,
            "message": message[:1024],  # the API server refuses longer ones
            "source": {"component": DRIVER, "host": self._node},
            "reportingComponent": DRIVER,
            "reportingInstance": self._node,
            "firstTimestamp": time,
            "lastTimestamp": time,
            "count": 1,
        }
        try:
            await self._client.create(path_of("v1", "events", namespace="default"), event)
        except KubeError as error:
            log.debug("an event could not be written: %s", error)
