"""The cluster as files describe it: `--nodes FILE` in place of an API server, followed for changes.

Reading and parsing happen in a thread; a broken file changes nothing.
"""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from tessera.core.admission.policy import FallbackPolicy
from tessera.core.admission.view.offers import Offers
from tessera.core.errors import InvalidInput
from tessera.kube.clock import SYSTEM_CLOCK, Clock
from tessera.kube.files import WatchedFiles
from tessera.kube.object_files import (
    ClusterObjects,
    cluster_objects,
    objects_in_text,
    read_file,
    viewed_pods,
)
from tessera.kube.view.dra import put_served
from tessera.kube.view.live import Keep, replace_namespaces, replace_quotas

if TYPE_CHECKING:
    from tessera.core.admission.view.pods import ViewedPod

    _Pods = list[tuple[str, ViewedPod]] | None

_log: Final = logging.getLogger("tessera.kube")
_INTERVAL: Final = 2.0  # seconds between two looks


class FileView:
    """Nodes, namespaces, quotas and what DRA serves, from files; the last good ones when a file is broken."""

    def __init__(
        self, files: Sequence[Path], *, keep: Keep | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """Read the files for the first time; here a broken one is the caller's (`InvalidInput`)."""
        self.offers = Offers()
        self.reloads = 0
        self.failures = 0
        self.last_error = ""  # empty while what is in use is what is in the files
        self._files = WatchedFiles(*files)
        self._keep = keep
        self._clock = clock
        self._transient: tuple[str, ...] | None = None  # None: what is free is not asked for
        self._files.changed()
        self._use(*self._read())

    async def run(self) -> NoReturn:
        while True:
            await self._clock.sleep(_INTERVAL)
            if self.offers.free is not None:
                self.offers.free.expire(self._clock.now())
            await self.check()

    async def check(self) -> None:
        """Look once, and use what is new and good."""
        if not self._files.changed():
            return
        try:
            described = await asyncio.to_thread(self._read)
        except InvalidInput as error:
            self._refuse(error)
            return
        self._use(*described)
        self.reloads += 1
        self.last_error = ""
        _log.info("%d nodes read again", len(described[0].nodes))

    def configure(self, policy: FallbackPolicy) -> None:
        """Know what is free where it matters, by the pods in the files."""
        transient = policy.transient_taints if policy.full_enabled else None
        if transient != self._transient:
            self._transient = transient
            self.offers.forget_pods()
            try:
                self._use(*self._read())
            except InvalidInput as error:
                self._refuse(error)

    @property
    def follows_pods(self) -> bool:
        return self._transient is not None

    def missing(self) -> str | None:
        """Nothing, ever: there is a view from the beginning."""
        return None

    def _refuse(self, error: InvalidInput) -> None:
        self.failures += 1
        self.last_error = str(error)
        _log.error("%s; what was read before stays in use", error)  # a person's mistake

    def _read(self) -> tuple[ClusterObjects, "_Pods"]:
        files = map(str, self._files.paths)
        found = (one for file in files for one in objects_in_text(read_file(file), file))
        described = cluster_objects(found, self._keep)
        return described, None if self._transient is None else _pods_in(described)

    def _use(self, described: ClusterObjects, pods: "_Pods") -> None:
        _put(self.offers, described)
        _put_pods(self.offers, pods, self._transient or (), self._clock.now())


def offers_of(described: ClusterObjects, policy: FallbackPolicy) -> Offers:
    """What decisions by a policy read of a cluster, as files describe it."""
    offers = Offers()
    _put(offers, described)
    put_pods(offers, described, policy)
    return offers


def put_pods(offers: Offers, described: ClusterObjects, policy: FallbackPolicy) -> None:
    """Say what is free by the pods in files, where decisions by a policy may go by that."""
    if policy.full_enabled:
        _put_pods(offers, _pods_in(described), policy.transient_taints)


def _pods_in(described: ClusterObjects) -> "_Pods":
    """The pods in files; None: there are none, so that the files do not say what is free."""
    return list(viewed_pods(described.pods)) if described.pods else None


def _put_pods(offers: Offers, pods: "_Pods", transient: tuple[str, ...], now: float = 0.0) -> None:
    if pods is None:
        offers.forget_pods()
    else:
        (offers.free or offers.follow_pods(transient)).replace_pods(pods, now)


def _put(offers: Offers, described: ClusterObjects) -> None:
    offers.replace(described.nodes)
    replace_namespaces(offers, described.namespaces)
    replace_quotas(offers, described.quotas)
    put_served(offers, described.classes, described.slices).log_class_errors()
