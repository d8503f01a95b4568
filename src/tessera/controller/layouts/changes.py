"""What `tessera mig apply` would change on each node, computed before anything is written."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tessera.cli.common.terminal import Style
from tessera.core.devices.capacity import PodUse, in_order
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.resources import short
from tessera.core.mig.geometry import Product
from tessera.core.mig.layout import Entry, NodeLayout, going, resolve
from tessera.protocol.kubernetes.objects import NodeIn
from tessera.protocol.mig import documents as mig
from tessera.protocol.mig import nodes as mig_nodes
from tessera.protocol.mig.conversion import convert
from tessera.protocol.mig.nodes import GpuNode

_CONTEXT: Final = 2  # lines around a change: a layout has few
_MOST_NAMED: Final = 8  # nodes that change alike are named up to here, and counted beyond


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be written: a layout for the annotation, or a configuration's name for the label."""

    document: mig.MigDocument | None  # None: only the name is known
    config: str | None
    label: bool
    product: Product | None = None  # said by a person, which goes before what a node says
    cards: int | None = None
    text: str = ""  # the document as somebody wrote it

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
    expected: Mapping[str, int] | None  # those that it will have; None: nobody knows
    risks: tuple[str, ...] = ()

    @property
    def written(self) -> bool:
        """Whether the node asks for it already; then there is nothing to do but to wait."""
        return self.before == self.after

    def patch(self, value: str | None, state: str | None, version: str | None = None) -> dict[str, Any]:
        """The merge patch that writes a value, and what is said of it: None takes away."""
        section = "labels" if self.wanted.label else "annotations"
        metadata: dict[str, Any] = {"labels": {mig.CONFIG_STATE: state}}
        metadata.setdefault(section, {})[self.wanted.key] = value
        return {"metadata": {**metadata, **({"resourceVersion": version} if version else {})}}


def change_of(node: NodeIn, offered: Mapping[str, int], claims: Sequence[PodUse], wanted: Wanted) -> Change:
    """What would happen to a node; `InvalidInput` says why it cannot."""
    gpus = mig_nodes.gpu_node(node)
    layout = _layout(gpus, wanted)
    before = wanted.value_of(node)
    after = _text(wanted, gpus)
    if not wanted.label and before is not None and _same(before, layout, wanted, gpus):
        after = before
    change = Change(gpus.name, wanted, before, after, gpus.state, offered, None)
    if layout is None:
        risks = [_risk(claim, resource, "") for claim in claims for resource in claim.amounts]
        return replace(change, risks=() if change.written else tuple(risks))
    expected = layout.resources(gpus.strategy)
    if change.written:
        return replace(change, expected=expected)
    lost = going(_present(gpus), layout, offered, gpus.strategy)
    risks = [
        # devices that stay for their pods are not offered, and are there
        _risk(claim, r, f", {lost[r]} of {max(lost[r], offered.get(r, 0))} go")
        for claim in claims
        for r in claim.amounts
        if r in lost
    ]
    return replace(change, expected=expected, risks=tuple(risks))


def _layout(gpus: GpuNode, wanted: Wanted) -> NodeLayout | None:
    """The layout of the node's own cards; None when nobody knows what the name stands for."""
    if wanted.document is None:
        return None
    product, cards = wanted.product or gpus.product, wanted.cards or gpus.cards
    if product is None:
        called = f'unknown product "{gpus.label}"' if gpus.label else f"no label {mig_nodes.PRODUCT}"
        raise InvalidInput(f"{called}; say it with --product")
    if cards is None:
        raise InvalidInput("its labels do not say how many cards it has; say it with --cards")
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
        entries: tuple[Entry, ...] = mig.read(text).select()
        return resolve(entries, [product] * cards) == layout
    except InvalidInput:
        return False


def _present(gpus: GpuNode) -> NodeLayout | None:
    try:
        return mig_nodes.present_layout(gpus)
    except InvalidInput:
        return None


def _risk(claim: PodUse, resource: str, lost: str) -> str:
    amount = claim.amounts[resource]
    return f"pod {claim.namespace}/{claim.name} holds {amount} × {short(resource)}{lost}"


def describe(changes: Sequence[Change], style: Style) -> Iterator[str]:
    """What would change, for people; nodes that change alike are told together."""
    alike: dict[tuple[Any, ...], list[Change]] = {}
    for change in changes:
        if not change.written:
            key = (change.before, change.after, tuple(_counts(change)))
            alike.setdefault(key, []).append(change)
    for same in alike.values():
        yield style.bold(_nodes([change.node for change in same]))
        for line in _diff(same[0]):
            paint = {"-": style.bad, "+": style.good}.get(line[:1], style.dim)
            yield "  " + paint(line)
        for resource, before, after in _counts(same[0]):
            yield f"  {resource}: {before} → {after}"
        for change in same:
            for risk in change.risks:
                yield "  " + style.note(f"warning: {change.node}: {risk}")
    already = [change.node for change in changes if change.written]
    if already:
        yield f"{_nodes(already)}: as wanted already"


def _diff(change: Change) -> Iterator[str]:
    before, after = change.before, change.after
    if change.wanted.label:
        if before is not None:
            yield f"- {change.wanted.key}={before}"
        yield f"+ {change.wanted.key}={after}"
        return
    yield change.wanted.key
    lines = difflib.unified_diff((before or "").splitlines(), after.splitlines(), n=_CONTEXT, lineterm="")
    for line in list(lines)[2:]:  # without names of files, of which there are none
        if not line.startswith("@@"):
            yield f"{line[:1]} {line[1:]}"


def _counts(change: Change) -> list[tuple[str, int, int]]:
    expected = change.expected
    if expected is None:
        return []
    both = in_order({**change.offered, **expected})
    found = [(resource, change.offered.get(resource, 0), expected.get(resource, 0)) for resource in both]
    return [(resource, before, after) for resource, before, after in found if before != after]


def _nodes(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MOST_NAMED])
    more = len(names) - _MOST_NAMED
    return f"node{'s' if len(names) > 1 else ''} {shown}{f' and {more} more' if more > 0 else ''}"
