"""The nodes that are to be changed and what would change on each, computed before anything is written."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tessera.core.devices.capacity import PodUse, in_order
from tessera.core.errors import InvalidInput, InvalidInputs
from tessera.core.kubernetes.node import GPU_PRODUCT_LABEL
from tessera.core.kubernetes.resources import is_any_gpu, short
from tessera.core.mig.geometry import Product
from tessera.core.mig.layout import NodeLayout, going, resolve
from tessera.kube.errors import ApiError
from tessera.kube.rest.client import Client
from tessera.kube.rest.paths import path_of
from tessera.kube.watch.listing import list_all
from tessera.kube.watch.resource import NODES, UNFINISHED_PODS
from tessera.protocol.kubernetes.nodes import NodeIn, decode_node
from tessera.protocol.kubernetes.pod import decode_pod_use
from tessera.protocol.kubernetes.selector import LabelSelector
from tessera.protocol.mig import documents as mig
from tessera.protocol.mig.documents import convert
from tessera.protocol.mig.nodes import GpuNode, gpu_node, present_layout
from tessera.rollout.progress import offered_by

# values of labels, as k8s.io/apimachinery/pkg/util/validation has it
_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be written: a layout for the annotation, or a configuration's name for the label."""

    document: mig.MigDocument | None  # None: only the name is known
    config: str | None
    label: bool
    product: Product | None = None  # said by the operator, which goes before what a node says
    cards: int | None = None
    text: str = ""  # the document as the operator wrote it

    def __post_init__(self) -> None:
        """Refuse a name that the API server would refuse, or that the document does not have."""
        if self.label and not _LABEL_VALUE.fullmatch(self.config or ""):
            raise InvalidInput(
                f'"{(self.config or "")[:70]}" cannot be the value of a label; --label takes the name of a configuration'
            )
        if self.document is not None:
            self.document.select(self.config)

    @property
    def key(self) -> str:
        return mig.PARTED_CONFIG if self.label else mig.RUNAI_CONFIG

    def cards_of(self, gpus: GpuNode) -> tuple[Product | None, int | None]:
        """The product of a node's cards and their number: as the operator says, else as the node does."""
        return self.product or gpus.product, self.cards or gpus.cards

    def value_of(self, node: NodeIn) -> str | None:
        """The node's present value."""
        metadata = node.metadata
        return ((metadata.labels if self.label else metadata.annotations) or {}).get(self.key)


@dataclass(frozen=True, slots=True)
class Change:
    """What happens to one node."""

    node: str
    wanted: Wanted
    before: str | None
    after: str
    state: str  # what the node says of the layout it has
    offered: Mapping[str, int]  # GPUs and MIG devices that it has now
    expected: Mapping[str, int] | None  # those that it will have; None: unknown
    risks: tuple[str, ...] = ()

    @property
    def written(self) -> bool:
        """Whether the node asks for it already; then there is nothing to do but to wait."""
        return self.before == self.after

    @property
    def counts(self) -> list[tuple[str, int, int]]:
        """The resources whose number changes: how many the node has now, and how many it will have."""
        if self.expected is None:
            return []
        now, then = self.offered, self.expected
        found = [
            (resource, now.get(resource, 0), then.get(resource, 0)) for resource in in_order({**now, **then})
        ]
        return [(resource, before, after) for resource, before, after in found if before != after]

    def patch(self, value: str | None, state: str | None, version: str | None = None) -> dict[str, Any]:
        """The merge patch that writes a value and its state; None removes one."""
        section = "labels" if self.wanted.label else "annotations"
        metadata: dict[str, Any] = {"labels": {mig.CONFIG_STATE: state}}
        metadata.setdefault(section, {})[self.wanted.key] = value
        return {"metadata": {**metadata, **({"resourceVersion": version} if version else {})}}


async def changes_of(
    client: Client, wanted: Wanted, names: Sequence[str], selector: LabelSelector
) -> list[Change]:
    """What would happen to each node; the error names every node that cannot have it, with the reason."""
    changes, errors = [], []
    for node in await (_named(client, names) if names else _selected(client, selector)):
        uses = await _uses(client, node.metadata.name)
        try:
            changes.append(change_of(node, offered_by(node), uses, wanted))
        except InvalidInput as error:
            errors += [f"node {node.metadata.name}: {line}" for line in str(error).split("\n")]
    if errors:
        raise InvalidInputs(errors)
    return changes


def change_of(node: NodeIn, offered: Mapping[str, int], uses: Sequence[PodUse], wanted: Wanted) -> Change:
    """What would happen to a node; `InvalidInput` says why it cannot."""
    gpus = gpu_node(node)
    layout = _layout(gpus, wanted)
    before = wanted.value_of(node)
    after = _text(wanted, gpus)
    if not wanted.label and before is not None and _same(before, layout, wanted, gpus):
        after = before
    change = Change(gpus.name, wanted, before, after, gpus.state, offered, None)
    if layout is None:
        risks = [_risk(use, resource, "") for use in uses for resource in use.amounts]
        return replace(change, risks=() if change.written else tuple(risks))
    expected = layout.resources(gpus.strategy)
    if change.written:
        return replace(change, expected=expected)
    lost = going(_present(gpus), layout, offered, gpus.strategy)
    risks = [
        # devices that stay for their pods are not offered, and are there
        _risk(use, r, f"; {lost[r]} of {max(lost[r], offered.get(r, 0))} are removed")
        for use in uses
        for r in use.amounts
        if r in lost
    ]
    return replace(change, expected=expected, risks=tuple(risks))


def _layout(gpus: GpuNode, wanted: Wanted) -> NodeLayout | None:
    """The layout of the node's own cards; None when only the configuration's name is known."""
    if wanted.document is None:
        return None
    product, cards = wanted.cards_of(gpus)
    if product is None:
        called = f'unknown product "{gpus.label}"' if gpus.label else f"no label {GPU_PRODUCT_LABEL}"
        raise InvalidInput(f"{called}; set it with --product")
    if cards is None:
        raise InvalidInput("its labels do not say how many cards it has; set it with --cards")
    layout = resolve(wanted.document.select(wanted.config), [product] * cards)
    layout.slots(gpus.strategy)  # the strategy may not allow it
    return layout


def _text(wanted: Wanted, gpus: GpuNode) -> str:
    if wanted.label or wanted.document is None:
        return wanted.config or ""
    entries = wanted.document.select(wanted.config)
    all_named = all(entry.cards is not None for entry in entries)
    selected = [*wanted.document.configs] == [mig.SELECTED]
    if wanted.document.format is mig.Format.RUNAI and selected and all_named:
        return wanted.text  # an annotation already: it stays as it was written, comments and all
    document = mig.MigDocument(wanted.document.format, {mig.SELECTED: entries})
    product, cards = wanted.cards_of(gpus)
    filters = any(entry.device_filter for entry in entries)
    return mig.write(convert(document, mig.Format.RUNAI, cards, product if filters else None).document)


def _same(text: str, layout: NodeLayout | None, wanted: Wanted, gpus: GpuNode) -> bool:
    """Whether the text on the node means the same layout, however it is written."""
    product, cards = wanted.cards_of(gpus)
    if layout is None or product is None or cards is None:
        return False
    try:
        return resolve(mig.read(text).select(), [product] * cards) == layout
    except InvalidInput:
        return False


def _present(gpus: GpuNode) -> NodeLayout | None:
    try:
        return present_layout(gpus)
    except InvalidInput:
        return None


def _risk(use: PodUse, resource: str, lost: str) -> str:
    amount = use.amounts[resource]
    return f"pod {use.namespace}/{use.name} holds {amount} × {short(resource)}{lost}"


async def _selected(client: Client, selector: LabelSelector) -> list[NodeIn]:
    found = await list_all(client, NODES.path, {"labelSelector": selector.text}, decode_node)
    if not found:
        raise InvalidInput(f'the cluster has no nodes that match "{selector.text}"')
    return found


async def _named(client: Client, names: Sequence[str]) -> list[NodeIn]:
    found, missing = [], []
    for name in dict.fromkeys(names):
        try:
            found.append(decode_node(await client.get(path_of("v1", "nodes", name=name))))
        except ApiError as error:
            if not error.is_not_found:
                raise
            missing.append(name)
    if missing:
        raise InvalidInput(f"the cluster has no node {', '.join(missing)}")
    return found


async def _uses(client: Client, node: str) -> list[PodUse]:
    query = {"fieldSelector": f"spec.nodeName={node},{UNFINISHED_PODS.fields}"}
    uses = await list_all(client, UNFINISHED_PODS.path, query, lambda raw: decode_pod_use(raw, is_any_gpu))
    return [use for use in uses if use.amounts]
