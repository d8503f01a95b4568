"""Who else cuts the cards of a node: then we do not."""

import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from tessera.core.dra.slices import API_VERSION
from tessera.kube.errors import ApiError, KubeError
from tessera.kube.rest.client import Client
from tessera.kube.rest.paths import path_of
from tessera.protocol.mig.nodes import BY_MIG_MANAGER

_NVIDIAS: Final = "gpu.nvidia.com"  # NVIDIA's DRA driver
_AGAIN: Final = 60.0  # seconds until it is asked again whether that serves the node


class _Slices(msgspec.Struct):
    items: list[msgspec.Raw] = []


class Neighbours:
    """Looks for NVIDIA's mig-manager and for slices of NVIDIA's DRA driver."""

    def __init__(self, client: Client | None, node: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._node = node
        self._clock = clock
        self._asked: float | None = None
        self._driver = ""

    async def objection(self, labels: Mapping[str, str]) -> str:
        """Why the cards are not ours to cut; empty: they are."""
        if labels.get(BY_MIG_MANAGER) == "true":
            return (
                f"NVIDIA's mig-manager cuts the cards of this node (label {BY_MIG_MANAGER}=true); set nvidia.com/mig.config, "
                "or take mig-manager off this node"
            )
        if self._client and (self._asked is None or self._clock() - self._asked >= _AGAIN):
            self._driver, self._asked = await self._look(self._client), self._clock()
        return self._driver

    async def _look(self, client: Client) -> str:
        query = {"fieldSelector": f"spec.nodeName={self._node},spec.driver={_NVIDIAS}", "limit": "1"}
        try:
            found = await client.get(path_of(API_VERSION, "resourceslices"), query)
            if msgspec.json.decode(found, type=_Slices).items:
                return f"NVIDIA's DRA driver ({_NVIDIAS}) offers the cards of this node; take it off this node first"
        except (KubeError, msgspec.DecodeError) as error:
            if not (isinstance(error, ApiError) and error.is_not_found):  # a cluster without that API
                return (
                    f"it cannot be learned whether NVIDIA's DRA driver offers the cards of this node: {error}"
                )
        return ""
