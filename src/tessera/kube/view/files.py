"""The cluster as files describe it: `--from FILE` in place of an API server, followed for changes.

Reading and parsing happen in a thread; a broken file changes nothing.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from tessera.core.admission.policy import FallbackPolicy
from tessera.core.admission.view.offers import Offers
from tessera.core.errors import InvalidInput
from tessera.kube.clock import SYSTEM_CLOCK, Clock
from tessera.kube.files import WatchedFiles
from tessera.kube.object_files import FileObject, objects_in_text, read_file
from tessera.kube.view.dra import DraObjects, put_served
from tessera.kube.view.live import Keep, spaces_table
from tessera.kube.watch.file_feed import take_files
from tessera.kube.watch.table import (
    CONFIG_MAPS,
    LEASES,
    NAMESPACES,
    NODES,
    RESOURCE_QUOTAS,
    UNFINISHED_PODS,
    Resource,
    Table,
    TableEntry,
)
from tessera.protocol.kubernetes.nodes import decode_node, node_of

if TYPE_CHECKING:
    from tessera.core.admission.view.pods import ViewedPod
    from tessera.core.kubernetes.node import Node

    _Pods = list[tuple[str, ViewedPod]] | None

_log: Final = logging.getLogger("tessera.kube")
# kinds that decisions read; pods, too
_KINDS: Final = ("Node", "Namespace", "ResourceQuota", "DeviceClass", "ResourceSlice", "Lease", "ConfigMap")
_INTERVAL: Final = 2.0  # seconds between two looks


class DescribedCluster:
    """A cluster as files describe it."""

    def __init__(
        self, found: Iterable[FileObject], keep: Keep | None = None, *, others: bool = False
    ) -> None:
        """Read nodes (with the resources to keep), namespaces, quotas, what DRA has, Leases, ConfigMaps and pods.

        Any other kind is refused, or passed over with `others`.
        """
        self.nodes: list[Node] = []
        self.dra = DraObjects()
        self.leases: list[bytes] = []  # not decoded: one of them may be the controller's
        self.config_maps: list[bytes] = []  # not decoded: one of them may be the webhook's
        self._pods: list[FileObject] = []  # not decoded: read where it matters what is free
        self._spaces: dict[Resource, list[Any]] = {NAMESPACES: [], RESOURCE_QUOTAS: []}
        spaces = spaces_table(Offers(), "default")
        table: Table = {
            NODES: TableEntry(lambda raw: node_of(decode_node(raw), keep), self.nodes.append),
            **{
                resource: TableEntry(spaces[resource].decode, collected.append)
                for resource, collected in self._spaces.items()
            },
            **self.dra.table(),
            LEASES: TableEntry(bytes, self.leases.append),
            CONFIG_MAPS: TableEntry(bytes, self.config_maps.append),
        }
        take_files(self._without_pods(found, others=others), table, titles=True)

    def put_into(self, offers: Offers) -> None:
        """Put all but the pods into offers, in place of what they have."""
        offers.replace(self.nodes)
        for resource, entry in spaces_table(offers).items():
            entry.take_all(self._spaces[resource])
        put_served(offers, self.dra)

    def offers_for(self, policy: FallbackPolicy) -> Offers:
        """What decisions by a policy read: with the pods, where decisions may go by what is free."""
        offers = Offers()
        self.put_into(offers)
        if policy.full_enabled:
            put_pods(offers, self.pods(), policy.transient_taints)
        return offers

    def pods(self) -> "_Pods":
        """The pods in files; None: there are none, so that the files do not say what is free."""
        from tessera.protocol.admission.viewed_pod import read_viewed_pod  # by few

        pods: list[tuple[str, ViewedPod]] = []

        def put(read: "tuple[str, ViewedPod | None]") -> None:
            key, pod = read
            if pod is not None:
                pods.append(("default" + key if key.startswith("/") else key, pod))

        take_files(self._pods, {UNFINISHED_PODS: TableEntry(read_viewed_pod, put)}, titles=True)
        return pods if self._pods else None

    def _without_pods(self, found: Iterable[FileObject], *, others: bool) -> Iterator[FileObject]:
        for file_object in found:
            if file_object.kind == "Pod":
                self._pods.append(file_object)
            elif others or file_object.kind in _KINDS:
                yield file_object
            else:
                kinds = f"{', '.join(_KINDS)} or Pod"
                raise InvalidInput(f"{file_object.where}: kind {file_object.kind or '(none)'} is no {kinds}")


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

    def _read(self) -> tuple[DescribedCluster, "_Pods"]:
        files = map(str, self._files.paths)
        found = (one for file in files for one in objects_in_text(read_file(file), file))
        described = DescribedCluster(found, self._keep)
        return described, None if self._transient is None else described.pods()

    def _use(self, described: DescribedCluster, pods: "_Pods") -> None:
        described.put_into(self.offers)
        described.dra.log_class_errors()
        put_pods(self.offers, pods, self._transient or (), self._clock.now())


def put_pods(offers: Offers, pods: "_Pods", transient: tuple[str, ...], now: float = 0.0) -> None:
    """Say what is free by the pods in files; without any it is not known."""
    if pods is None:
        offers.forget_pods()
    else:
        (offers.free or offers.follow_pods(transient)).replace_pods(pods, now)


def put_spaces(offers: Offers, found: Iterable[FileObject], namespace: str) -> None:
    """Add namespaces and quotas to those that offers have, of several with the same name the last.

    `namespace` is that of quotas that name none.
    """
    table = spaces_table(offers, namespace)
    added = {resource: replace(entry, replace=None, key=None) for resource, entry in table.items()}
    take_files(found, added, titles=True)
