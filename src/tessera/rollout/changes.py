"""The nodes that are to be changed and what would change on each, computed before anything is written."""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tessera.core.devices.capacity import PodUse
from tessera.core.dra.slices import DRIVER
from tessera.core.errors import InvalidInput, InvalidInputs
from tessera.core.kubernetes.scheduling import LabelSelector
from tessera.core.mig.known import KnownLayout, UnknownLayout
from tessera.core.mig.layout import LayoutEntry, NodeLayout, going, places_going, resolve
from tessera.core.planning.changes import NodeChange, Way
from tessera.core.planning.configurations import configuration_name, named_for, parted_entries
from tessera.core.resources import SHARED, short
from tessera.core.text import first_of
from tessera.inventory.dra import DraInventory
from tessera.inventory.known import known_layout
from tessera.inventory.operator import read_mig_manager
from tessera.kube.errors import ApiError
from tessera.kube.rest.client import Client, path_of
from tessera.kube.watch.listing import list_all
from tessera.kube.watch.table import NODES, Resource
from tessera.protocol.kubernetes.nodes import NodeIn, decode_node, node_of
from tessera.protocol.mig import documents as mig
from tessera.protocol.mig.documents import convert
from tessera.protocol.mig.miglayout import API_VERSION, PLURAL, MigLayout, find_keepers
from tessera.protocol.mig.nodes import GpuNode, gpu_node
from tessera.protocol.mig.operator import MigManagerConfig
from tessera.rollout.change import Change, Changes, Wanted, begun_on, value_of
from tessera.rollout.in_use import NVIDIAS_DRIVER, cleared, holders, uses_of
from tessera.rollout.progress import offered_on, progress_of

_DRIVERS: Final = (DRIVER, NVIDIAS_DRIVER)  # DRA drivers that may cut cards on demand
_MOST_NAMED: Final = 8  # devices, or nodes; more are counted


@dataclass(slots=True)
class Surroundings:
    """What of a cluster concerns a node's change, besides the node and its pods."""

    manager: MigManagerConfig | None = None
    unread: str = ""  # why it is not known yet what mig-manager has
    dra: DraInventory = field(default_factory=DraInventory)
    claimed: Mapping[str, Collection[str]] = field(default_factory=dict)  # node → who has devices by claims
    layouts: Sequence[MigLayout] = ()  # that keep the layouts of nodes
    layouts_unseen: str = ""  # why these could not be read

    @classmethod
    async def read(
        cls, client: Client, nodes: Iterable[NodeIn], *, kept: bool = True, dra: DraInventory | None = None
    ) -> "Surroundings":
        """Read a cluster; `kept`: also which nodes MigLayouts keep, so that nobody else changes them. `dra`: where that has been read."""
        found = cls(dra=dra or DraInventory())
        if kept:
            await found._read_layouts(client)
        if any(gpu_node(node).by_mig_manager for node in nodes):
            found.manager = await read_mig_manager(client)
        if dra is None:
            await found.dra.read(client)
        found.claimed = {
            node: sorted({one.by for one in devices.values()})
            for node, devices in found.dra.holders().items()
        }
        return found

    async def _read_layouts(self, client: Client) -> None:
        try:
            self.layouts = await list_all(
                client, Resource(PLURAL, path_of(API_VERSION, PLURAL)), MigLayout.read
            )
        except ApiError as error:
            if not error.is_absent:
                raise
            if error.is_forbidden and await client.serves(API_VERSION):
                self.layouts_unseen = str(error)

    @property
    def warnings(self) -> list[str]:
        told = {
            "DRA drivers cut cards on demand": self.dra.unseen,
            "a MigLayout keeps the nodes": self.layouts_unseen,
        }
        return [f"not checked: whether {what}: {why}" for what, why in told.items() if why]

    def refusal(self, node: NodeIn, *, label: bool) -> str:
        """Why a node takes no layout; empty when it may."""
        if keepers := find_keepers(self.layouts, node.metadata.labels):
            name = keepers[0].name
            return f"MigLayout {name} keeps its layout: change that (kubectl edit miglayout {name})"
        found = node_of(node, lambda _: False)
        for driver in _DRIVERS:
            if self.dra.pools.is_cut_on_demand(found, driver):
                return f"the DRA driver {driver} cuts its cards on demand, so they take no layout"
        if label and (by := self.claimed.get(node.metadata.name)):
            return f"claims hold devices of it, which mig-manager may clear: {first_of([*by], _MOST_NAMED)}"
        return ""

    def not_written(self, change: Change) -> str:
        """Why mig-manager cannot be given the configuration of a change; empty where it can, or has it."""
        manager = self.manager
        if not change.entries or manager is None or not manager.owned:
            return ""
        return f"{manager} has no configuration that gives this layout, and the operator owns it: use one of your own"

    def configurations(self) -> Mapping[str, tuple[LayoutEntry, ...]]:
        """What mig-manager has; `InvalidInput` where that is not known."""
        if self.manager is None:
            raise InvalidInput(
                "mig-manager cuts its cards, and no ClusterPolicy names mig-manager's ConfigMap; "
                "name one of its configurations with --label"
            )
        if self.manager.document is None:
            raise InvalidInput(
                f"mig-manager cuts its cards, and its configurations are not known: {self.manager.error}"
            )
        return self.manager.document.configs


async def changes_of(
    client: Client, wanted: Wanted, names: Sequence[str], selector: LabelSelector
) -> Changes:
    """What would happen to each node; the error names every node that cannot have it, with the reason."""
    changes, errors = [], []
    nodes = await (_named(client, names) if names else _selected(client, selector))
    around = await Surroundings.read(client, nodes)
    held = await asyncio.gather(*(uses_of(client, node.metadata.name) for node in nodes))
    offers = await asyncio.gather(*(offered_on(client, node) for node in nodes))
    for node, uses, offered in zip(nodes, held, offers, strict=True):
        try:
            changes.append(change_of(node, offered, uses, wanted, around))
        except InvalidInput as error:
            errors += [f"node {node.metadata.name}: {line}" for line in str(error).split("\n")]
    if errors:
        raise InvalidInputs(errors)
    return Changes(changes, around.manager, around.warnings)


def change_of(
    node: NodeIn,
    offered: Mapping[str, int],
    uses: Sequence[PodUse],
    wanted: Wanted,
    around: Surroundings | None = None,
) -> Change:
    """What would happen to a node; `InvalidInput` says why it cannot."""
    around = around or Surroundings()
    gpus = gpu_node(node)
    if wanted.label:
        manager = around.manager
        if wanted.document is None and manager is not None and manager.document is not None:
            wanted = replace(wanted, document=manager.document)
        if wanted.document is None:
            before, after = value_of(node, label=True), wanted.config or ""
            change = Change(gpus.name, before, after, gpus.state, offered, None, label=True)
            change = replace(change, refused=around.refusal(node, label=True), begun=begun_on(node))
            return change if change.written else replace(change, risks=_risks(change, uses, gpus))
    known = known_layout(gpus, around.manager)
    layout = _layout(gpus, wanted, known)
    change = layout_change(
        node, offered, uses, layout, known, around, config=wanted.config if wanted.label else None
    )
    if not change.label and not change.written:
        return replace(change, after=_text(wanted, gpus, layout))
    return change


def layout_change(
    node: NodeIn,
    offered: Mapping[str, int],
    uses: Sequence[PodUse],
    layout: NodeLayout,
    known: KnownLayout | UnknownLayout,
    around: Surroundings,
    *,
    config: str | None = None,  # mig-manager's configuration that is known to give the layout
    prefer: str | None = None,  # where several do, or none yet: its name
) -> Change:
    """What happens to a node that gets a layout, its own way."""
    gpus = gpu_node(node)
    label = gpus.by_mig_manager or config is not None
    before = value_of(node, label=label)
    present = known.layout if isinstance(known, KnownLayout) else None
    if present is not None and len(present.cards) != len(layout.cards):
        present = None
    entries: tuple[LayoutEntry, ...] = ()
    if not label:
        same = before is not None and _means(before, layout)
        after = before if same and before is not None else mig.write(mig.document_of(layout))
    elif config is not None:
        after = config
    else:
        after, entries = _configuration(layout, present, around, [prefer, gpus.config])
    expected = layout.resources(gpus.strategy)
    change = Change(gpus.name, before, after, gpus.state, offered, expected, label=label, entries=entries)
    cut = NodeChange(gpus.name, Way.MIG_MANAGER, present, layout) if present is not None else None
    shown = progress_of(gpus, offered, expected).shown or (cut is not None and not cut.changed)
    again = label and gpus.state == "success" and not shown  # it was cut by somebody else since
    refused = around.refusal(node, label=label)
    change = replace(change, refused=refused, again=again, begun=begun_on(node))
    if change.written:
        return replace(change, removed={})
    lost: Mapping[str, int] | None = None
    places = None
    if not label:
        placed = present if isinstance(known, KnownLayout) and known.placed else None
        lost = going(placed, layout, offered, gpus.strategy)
        places = places_going(placed, layout) if placed is not None else None
    elif cut is not None:
        lost = cleared(cut, gpus.strategy, uses)
    change = replace(change, removed=lost, places=places)
    return replace(change, risks=_risks(change, uses, gpus))


def _configuration(
    layout: NodeLayout, present: NodeLayout | None, around: Surroundings, prefer: Sequence[str | None]
) -> tuple[str, tuple[LayoutEntry, ...]]:
    """The configuration that gives the layout, and its entries where mig-manager does not have it yet."""
    configs = around.configurations()
    name = named_for(layout, present, configs, [one for one in prefer if one])
    if name is not None:
        return name, ()
    entries = parted_entries(layout)
    name = configuration_name(entries)
    if name in configs:
        raise InvalidInput(f"{around.manager} has {name} with another content; remove that entry")
    return name, entries


def _layout(gpus: GpuNode, wanted: Wanted, known: KnownLayout | UnknownLayout) -> NodeLayout:
    """The layout of the node's own cards."""
    product, cards = wanted.cards_of(gpus)
    if cards is None and isinstance(known, KnownLayout):
        cards = len(known.layout.cards)
    if product is None:
        raise InvalidInput(f"{gpus.no_product}; set it with --product")
    if cards is None:
        raise InvalidInput("its labels do not say how many cards it has; set it with --cards")
    document = wanted.document
    if document is None:
        raise InvalidInput("no layout given")
    layout = resolve(document.select(wanted.config), [product] * cards)
    layout.slots(gpus.strategy)  # the strategy may not allow it
    return layout


def _text(wanted: Wanted, gpus: GpuNode, layout: NodeLayout) -> str:
    """The annotation's text for a layout that a person gave."""
    document = wanted.document
    if document is None:
        return mig.write(mig.document_of(layout))
    entries = document.select(wanted.config)
    all_named = all(entry.cards is not None for entry in entries)
    if document.format is mig.Format.RUNAI and [*document.configs] == [mig.SELECTED] and all_named:
        return wanted.text  # an annotation already: it stays as it was written, comments and all
    chosen = mig.MigDocument(document.format, {mig.SELECTED: entries})
    product, _ = wanted.cards_of(gpus)
    filters = any(entry.device_filter for entry in entries)
    product = product if filters else None
    return mig.write(convert(chosen, mig.Format.RUNAI, len(layout.cards), product).document)


def _means(text: str, layout: NodeLayout) -> bool:
    """Whether the text on the node means the same layout, however it is written."""
    try:
        return mig.read_layout(text, [card.product for card in layout.cards]) == layout
    except InvalidInput:
        return False


def _risks(change: Change, uses: Sequence[PodUse], gpus: GpuNode) -> tuple[str, ...]:
    """The pods that may hold devices which go."""
    lost, offered = change.removed, change.offered

    def removed(resource: str) -> str:
        if lost is None:
            return ""
        device = resource.removesuffix(SHARED)
        # devices that stay for their pods are not offered, and are there
        return f"; {lost[device]} of {max(lost[device], offered.get(device, 0))} are removed"

    return tuple(
        f"pod {one.pod} holds {one.number} × {short(one.resource)}{removed(one.resource)}"
        for one in holders(uses, change.going, gpus)
    )


async def _selected(client: Client, selector: LabelSelector) -> list[NodeIn]:
    found = await list_all(client, replace(NODES, labels=selector.text), decode_node)
    if not found:
        raise InvalidInput(f'the cluster has no nodes that match "{selector.text}"')
    return found


async def named_nodes(client: Client, names: Iterable[str]) -> dict[str, NodeIn]:
    """The nodes of these names that there are."""

    async def read(name: str) -> NodeIn | None:
        raw = await client.find(path_of("v1", "nodes", name=name))
        return None if raw is None else decode_node(raw)

    found = await asyncio.gather(*map(read, dict.fromkeys(names)))
    return {node.metadata.name: node for node in found if node is not None}


async def _named(client: Client, names: Sequence[str]) -> list[NodeIn]:
    found = await named_nodes(client, names)
    if missing := [name for name in dict.fromkeys(names) if name not in found]:
        raise InvalidInput(f"the cluster has no node {', '.join(missing)}")
    return list(found.values())
