"""What would change on each node, computed before anything is written."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tessera.core.devices.capacity import PodUse, in_order
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.node import GPU_PRODUCT_LABEL
from tessera.core.kubernetes.resources import short
from tessera.core.mig.geometry import Product
from tessera.core.mig.layout import LayoutEntry, NodeLayout, going, resolve
from tessera.protocol.kubernetes.nodes import NodeIn
from tessera.protocol.mig import documents as mig
from tessera.protocol.mig.documents import convert
from tessera.protocol.mig.nodes import GpuNode, gpu_node, present_layout

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
        """A name that the API server would refuse, or that the document does not have, is refused here."""
        if self.label and not _LABEL_VALUE.fullmatch(self.config or ""):
            raise InvalidInput(
                f'"{(self.config or "")[:70]}" cannot be the value of a label; --label takes the name of a configuration'
            )
        if self.document is not None:
            self.document.select(self.config)

    @property
    def key(self) -> str:
        """Where it stands on a node."""
        return mig.PARTED_CONFIG if self.label else mig.RUNAI_CONFIG

    def value_of(self, node: NodeIn) -> str | None:
        """What stands there now."""
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
        """The resources of which the node will have more or fewer: how many now, and how many then."""
        if self.expected is None:
            return []
        both = in_order({**self.offered, **self.expected})
        found = [
            (resource, self.offered.get(resource, 0), self.expected.get(resource, 0)) for resource in both
        ]
        return [(resource, before, after) for resource, before, after in found if before != after]

    def patch(self, value: str | None, state: str | None, version: str | None = None) -> dict[str, Any]:
        """The merge patch that writes a value, and what is said of it: None takes away."""
        section = "labels" if self.wanted.label else "annotations"
        metadata: dict[str, Any] = {"labels": {mig.CONFIG_STATE: state}}
        metadata.setdefault(section, {})[self.wanted.key] = value
        return {"metadata": {**metadata, **({"resourceVersion": version} if version else {})}}


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
    """The layout of the node's own cards; None when it is unknown what the name stands for."""
    if wanted.document is None:
        return None
    product, cards = wanted.product or gpus.product, wanted.cards or gpus.cards
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
    if (
        wanted.document.format is mig.Format.RUNAI
        and [*wanted.document.configs] == [mig.SELECTED]
        and all_named
    ):
        return wanted.text  # an annotation already: it stays as it was written, comments and all
    document = mig.MigDocument(wanted.document.format, {mig.SELECTED: entries})
    product = (wanted.product or gpus.product) if any(entry.device_filter for entry in entries) else None
    return mig.write(convert(document, mig.Format.RUNAI, wanted.cards or gpus.cards, product).document)


def _same(text: str, layout: NodeLayout | None, wanted: Wanted, gpus: GpuNode) -> bool:
    """Whether what stands there means the same, however it is written."""
    product, cards = wanted.product or gpus.product, wanted.cards or gpus.cards
    if layout is None or product is None or cards is None:
        return False
    try:
        entries: tuple[LayoutEntry, ...] = mig.read(text).select()
        return resolve(entries, [product] * cards) == layout
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
