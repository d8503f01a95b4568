"""Which other programs cut the cards of a node: then we do not."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final

from tessera.core.dra.slices import API_VERSION
from tessera.kube.errors import ApiError, KubeError
from tessera.kube.rest.client import Client, path_of
from tessera.protocol.kubernetes.objects import InvalidObject, decode_list
from tessera.protocol.mig.nodes import BY_MIG_MANAGER

_NVIDIAS: Final = "gpu.nvidia.com"  # NVIDIA's DRA driver
_THEIRS: Final = (
    f"NVIDIA's DRA driver ({_NVIDIAS}) offers the cards of this node; take it off this node first"
)
_AGAIN: Final = 60.0  # seconds until it is asked again whether that serves the node
_SOON: Final = 5.0  # until it is asked again where there was no answer
_TIMEOUT: Final = 5.0  # the devices wait for the answer


class Neighbours:
    """Looks for NVIDIA's mig-manager and for slices of NVIDIA's DRA driver."""

    def __init__(self, client: Client | None, node: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._node = node
        self._clock = clock
        self._asked: float | None = None
        # what speaks against us; None: there was no answer yet
        self._driver: str | None = None if client else ""
        self._unknown = ""  # why not

    async def objection(self, labels: Mapping[str, str]) -> str:
        """Why the cards are not ours to cut; empty: they are."""
        if labels.get(BY_MIG_MANAGER) == "true":
            return (
                f"NVIDIA's mig-manager cuts the cards of this node (label {BY_MIG_MANAGER}=true); set nvidia.com/mig.config, "
                "or take mig-manager off this node"
            )
        every = _AGAIN if self._driver is not None else _SOON
        if self._client and (self._asked is None or self._clock() - self._asked >= every):
            self._asked = self._clock()
            await self._query(self._client)
        return self._unknown if self._driver is None else self._driver

    async def _query(self, client: Client) -> None:
        """Ask the API server; while it does not answer, its last answer holds."""
        query = {"fieldSelector": f"spec.nodeName={self._node},spec.driver={_NVIDIAS}", "limit": "1"}
        try:
            async with asyncio.timeout(_TIMEOUT):
                found = await client.get(path_of(API_VERSION, "resourceslices"), query)
            theirs = bool(decode_list(found).items)
        except (KubeError, InvalidObject, TimeoutError) as error:
            if not (isinstance(error, ApiError) and error.is_not_found):
                what = str(error) or "the API server does not answer"
                self._unknown = (
                    f"it cannot be learned whether NVIDIA's DRA driver offers the cards of this node: {what}"
                )
                return
            theirs = False  # a cluster without that API
        self._driver = _THEIRS if theirs else ""
