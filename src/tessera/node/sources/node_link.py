"""Our node in the API server: the layout that it asks for, and the report that we answer with.

A report is the labels and annotations that the node ought to have, computed from what its devices did.

The node is watched, and what it ought to say is compared with what it says; the difference is one merge patch. So a
label that a person removes comes back, and a patch that failed is sent again.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tessera.core.mig.layout import CardLayout, DoesNotFit, NodeLayout, Slot, Strategy
from tessera.core.mig.placement import every_place
from tessera.kube.clock import Backoff
from tessera.kube.rest.client import Client, path_of
from tessera.kube.watch.reflector import Reflector
from tessera.kube.watch.table import NODES, single_entry
from tessera.node.polling import reconciling
from tessera.node.sources.layout import NodeLayoutStatus, text_of
from tessera.protocol.kubernetes.objects import Metadata, decode_any
from tessera.protocol.mig.documents import CONFIG_REASON, CONFIG_STATE, RUNAI_CONFIG
from tessera.protocol.mig.nodes import (
    MAPPING,
    MappedDevice,
    encode_mapping,
    gpu_labels,
    mapping_of,
    stale_labels,
)

log = logging.getLogger(__name__)

_DISCOVERY: Final = "nvidia.com/gfd.timestamp"  # the label that it writes beside all others
_RETRY: Final = (1.0, 30.0)  # seconds, doubling from the first to the second
# Without a word from the API server for that long, what was good in the last run is better than nothing
_SILENT_AFTER: Final = 15.0


@dataclass(frozen=True, slots=True)
class Report:
    """Labels and annotations as they ought to be, None: not there; and the desired text that they answer."""

    desired: str | None = ""
    labels: Mapping[str, str | None] = field(default_factory=dict)
    annotations: Mapping[str, str | None] = field(default_factory=dict)

    def patch(self, labels: Mapping[str, str], annotations: Mapping[str, str]) -> dict[str, Any]:
        """The merge patch that makes a node say this; empty when it does. GPU feature discovery keeps its labels itself."""
        gone: dict[str, str | None] = dict.fromkeys(stale_labels(labels, self.labels))
        wanted = {**gone, **self.labels}
        if _DISCOVERY in labels:
            wanted = {name: value for name, value in wanted.items() if name == CONFIG_STATE}
        metadata = {
            "labels": _changes(wanted, labels),
            "annotations": _changes(self.annotations, annotations),
        }
        changed = {name: changes for name, changes in metadata.items() if changes}
        return {"metadata": changed} if changed else {}


def report_of(
    node: str,
    there: NodeLayout,
    leaving: Collection[str],
    strategy: Strategy,
    desired: str | None,
    status: NodeLayoutStatus,
) -> Report:
    """The report of a node whose cards are cut like this now; where no layout is desired there is no state either.

    `leaving` are the ids of devices of an earlier layout that stay for their pods: they are there, and are reported.
    """
    return report_with(mapping_of(there, node, leaving), gpu_labels(there, strategy), desired, status)


def report_with(
    mapping: dict[int, tuple[MappedDevice, ...]],
    labels: Mapping[str, str],
    desired: str | None,
    status: NodeLayoutStatus,
) -> Report:
    """The report of a node with these devices and labels; where no layout is desired there is no state either."""
    return Report(
        desired,
        labels={**labels, CONFIG_STATE: str(status.state) if desired else None},
        annotations={
            MAPPING: encode_mapping(mapping) if mapping else None,
            CONFIG_REASON: (status.reason if desired else "") or None,
        },
    )


def without(layout: NodeLayout, node: str, waiting: Collection[str]) -> NodeLayout:
    """A layout less the devices of these ids, which wait for others to leave."""
    if not waiting:
        return layout
    return NodeLayout(
        tuple(
            replace(
                card, instances=tuple(i for i in card.instances if Slot(number, i).uuid(node) not in waiting)
            )
            for number, card in enumerate(layout.cards)
        ),
        changing=True,
    )


def beside(layout: NodeLayout, node: str, leaving: Collection[str]) -> NodeLayout:
    """A layout and, where they lie, the devices of these ids, which stay for their pods."""
    if not leaving:
        return layout
    return NodeLayout(
        tuple(_with(card, node, number, leaving) for number, card in enumerate(layout.cards)), changing=True
    )


def _with(card: CardLayout, node: str, number: int, leaving: Collection[str]) -> CardLayout:
    if Slot(number).uuid(node) in leaving:
        return CardLayout(card.product)
    stay = tuple(one for one in every_place(card.product) if Slot(number, one).uuid(node) in leaving)
    if not stay:
        return card
    try:
        return CardLayout(card.product, mig_enabled=True, instances=(*stay, *card.instances))
    except DoesNotFit:  # two layouts may have more of an engine than a card has; what stays is what counts
        return CardLayout(card.product, mig_enabled=True, instances=stay)


def _changes(wanted: Mapping[str, str | None], present: Mapping[str, str]) -> dict[str, str | None]:
    return {name: value for name, value in wanted.items() if present.get(name) != value}


def _read(raw: bytes) -> Metadata:
    return decode_any(raw).metadata


class NodeLink:
    """Follows one node, and keeps its labels and annotations as they ought to be."""

    def __init__(self, client: Client, name: str, changed: asyncio.Event | None = None) -> None:
        """`changed` is set whenever there is something new to read here."""
        self.synced = False  # whether the node was read, so that `desired` is what it says
        self.desired: str | None = None  # the layout that its annotation asks for
        self.silent = False  # whether the API server has not answered for so long that waiting is no use
        self._client = client
        self._name = name
        self._changed = changed or asyncio.Event()
        self._seen: Metadata | None = None
        self._report: Report | None = None
        self._more: dict[str, str | None] = {}  # annotations that are no part of the report
        self._pending = asyncio.Event()  # set when the node may have to be written
        self._reflector = Reflector(client, NODES.named(name), single_entry(_read, self._take))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._reflector.run())
            tasks.create_task(self._waiting())
            tasks.create_task(
                reconciling(self._pending, self._write, self._failed, Backoff(*_RETRY), self._client.clock)
            )

    def report(self, report: Report) -> None:
        """From now on the node should have these labels and annotations."""
        if report != self._report:
            self._report = report
            self._pending.set()

    def annotate(self, name: str, value: str | None) -> None:
        """From now on the node should have this annotation besides; None: it should not."""
        if (name, value) not in self._more.items():
            self._more[name] = value
            self._pending.set()

    @property
    def labels(self) -> Mapping[str, str]:
        """The node's labels, as far as it was seen."""
        return (self._seen.labels if self._seen else None) or {}

    # what the reflector calls

    def _take(self, node: Metadata | None) -> None:
        """The node, or none at all."""
        if node is not None:
            self.upsert(node)
            return
        log.warning("the cluster has no node %s (yet); is --node-name right?", self._name)
        self._seen = None  # wait for it; its devices stay as they are

    def upsert(self, one: Metadata) -> None:
        before, self._seen = (self.synced, self.desired), one
        self.synced, self.desired = True, (one.annotations or {}).get(RUNAI_CONFIG)
        if (self.synced, self.desired) != before:  # most changes are heartbeats, or what we wrote ourselves
            self._changed.set()
        self._pending.set()

    async def _waiting(self) -> None:
        try:
            async with asyncio.timeout(_SILENT_AFTER):
                await self._reflector.synced()
        except TimeoutError:
            self.silent = True
            self._changed.set()

    def _failed(self, error: Exception) -> None:
        log.warning("node %s: cannot write the state of its layout, will try again: %s", self._name, error)

    async def _write(self) -> None:
        seen, report = self._seen, self._report
        # a report about an earlier text does not fit this one, which is about to be read
        if seen is None or report is None or report.desired != text_of(self.desired):
            return
        report = replace(report, annotations={**report.annotations, **self._more})
        patch = report.patch(seen.labels or {}, seen.annotations or {})
        if not patch:
            return
        answer = _read(await self._client.patch(path_of("v1", "nodes", name=self._name), patch))
        names = sorted(name for changes in patch["metadata"].values() for name in changes)
        log.info("node %s: state of its layout written: %s", self._name, ", ".join(names))
        if self._seen is seen:  # else the watch has brought something newer meanwhile
            self._seen = answer
