"""Which devices are in use, and by whom.

The kubelet knows: its PodResources service lists every pod's devices. What was handed out a moment ago may not be in
that list yet, so recent answers to Allocate count too. Where PodResources cannot be asked, every device that was
handed out counts as used: it cannot be known when it came back.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import grpc

from tessera.node.rpc import CallFailed, call
from tessera.protocol.kubelet import messages
from tessera.protocol.kubelet.podresources_pb2 import ListPodResourcesRequest

log = logging.getLogger(__name__)

Key = tuple[str, str]  # resource, device id

_TIMEOUT: Final = 1.0  # seconds; the kubelet waits for us meanwhile
_RECENT: Final = 10.0  # seconds from Allocate's answer until the pod is in the kubelet's list for certain
_SOMEBODY: Final = "a pod"


class Usage:
    """What the kubelet says about devices in use, and what we remember."""

    def __init__(self, socket: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._socket = socket
        self._clock = clock
        self._listed: dict[Key, str] | None = None  # None: the kubelet has never said
        self._granted: dict[Key, float] = {}
        self._complained = False

    def grant(self, keys: Iterable[Key]) -> None:
        """Remember what was handed out."""
        now = self._clock()
        self._granted.update((key, now) for key in keys)

    async def refresh(self) -> bool:
        """Ask the kubelet; False when it cannot be asked."""
        try:
            answer = await call(self._socket, messages.LIST_PODS, ListPodResourcesRequest(), _TIMEOUT)
        except CallFailed as error:
            if error.status is grpc.StatusCode.UNIMPLEMENTED:
                self._listed = {}  # it never will say
            if not self._complained:
                log.warning(
                    "cannot ask which devices are in use, what was handed out counts as used: %s", error
                )
                self._complained = True
            return False
        if self._complained:
            log.info("the kubelet says again which devices are in use")
            self._complained = False
        self._listed = messages.holders(answer)
        # what has been in the list once is the list's from then on
        forget = self._clock() - _RECENT
        self._granted = {
            key: at for key, at in self._granted.items() if at > forget and key not in self._listed
        }
        return True

    @property
    def listed(self) -> Mapping[Key, str]:
        """Who uses what, as the kubelet said last."""
        return self._listed or {}

    def held(self, keys: Iterable[Key]) -> dict[Key, str]:
        """Those of these devices that are, or may be, in use, and who uses them."""
        if self._listed is None and self._socket.exists():
            return dict.fromkeys(
                keys, _SOMEBODY
            )  # the kubelet is about to say: until then, take nothing away
        held = {**dict.fromkeys(self._granted, _SOMEBODY), **self.listed}
        return {key: held[key] for key in keys if key in held}
