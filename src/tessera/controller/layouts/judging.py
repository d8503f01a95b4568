"""One node and its MigLayout: it has the layout, is to get it, or cannot have it."""

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tessera.core.devices.capacity import PodUse
from tessera.core.errors import InvalidInput
from tessera.protocol.kubernetes.nodes import NodeIn
from tessera.protocol.mig.miglayout import LayoutIn, MigLayout
from tessera.protocol.mig.nodes import gpu_node
from tessera.protocol.mig.rollouts import target_of
from tessera.rollout.change import Change, Wanted
from tessera.rollout.changes import Surroundings, change_of
from tessera.rollout.progress import offered_by, progress_of

_MOST_ALIKE: Final = 1024
_OPTIONS: Final = "; set it with --"  # advice for the command line


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a node stands to its layout."""

    current: bool = False
    change: Change | None = None  # what it is to get
    invalid: str = ""  # why it cannot have it
    # it was written, and the node does not show it, or it is not known yet what it is to get: why
    waits: str = ""

    @property
    def target(self) -> str:
        return target_of(self.change.key, self.change.after) if self.change else ""


def judge(
    node: NodeIn,
    layout: MigLayout,
    around: Surroundings,
    offered: Mapping[str, int],
    uses: Sequence[PodUse] = (),
) -> Verdict:
    """Compare a node with the first layout that is for its product."""
    gpus = gpu_node(node)
    if around.unread and gpus.by_mig_manager:
        return Verdict(waits=around.unread)
    choice = next((one for one in layout.spec.layouts if one.fits(gpus)), None)
    if choice is None:
        return Verdict(invalid=f"no layout is for its product {gpus.label or '(not known)'}")
    if choice.configuration and not gpus.by_mig_manager:
        return Verdict(invalid=f"configuration {choice.configuration}: mig-manager does not cut its cards")
    try:
        change = change_of(node, offered, uses, _wanted(choice), around)
    except InvalidInput as error:
        return Verdict(invalid=str(error).partition(_OPTIONS)[0])
    if why := around.not_written(change):
        return Verdict(invalid=why)
    if not change.written:
        return Verdict(change=change)
    progress = progress_of(gpus, offered, change.expected)
    if progress.shown:
        return Verdict(current=True)
    reason = progress.refused or progress.waits
    return Verdict(
        waits=f"{reason}: {progress.reason}" if progress.reason and not progress.refused else reason
    )


class Verdicts:
    """Verdicts that were worked out before: thousands of nodes are alike, and most of them do not change."""

    def __init__(self) -> None:
        self._of_nodes: dict[str, tuple[Hashable, Verdict]] = {}
        self._alike: dict[Hashable, Verdict] = {}

    def of(
        self, node: NodeIn, layout: MigLayout, around: Surroundings, sliced: Mapping[str, int] | None = None
    ) -> Verdict:
        """How a node stands to a MigLayout. The change is perhaps of another node that is alike: only what it writes counts."""
        metadata, manager = node.metadata, around.manager
        configured = around.unread or (manager and (manager.resource_version, manager.error))
        what = layout.uid, layout.metadata.generation, configured
        by_slices = tuple(sorted((sliced or {}).items()))
        key = metadata.resource_version, metadata.uid, what, by_slices
        known = self._of_nodes.get(metadata.name)
        if known is not None and known[0] == key:
            return known[1]
        gpus = gpu_node(node)
        # which device lies where is each node's own, and does not count where its labels say how many cards it has
        same = replace(
            gpus,
            name="",
            mapping=None if gpus.cards and not gpus.by_mig_manager else gpus.mapping,
            in_use=None,
        )
        offered = offered_by(node) or dict(by_slices)
        alike = same, tuple(sorted(offered.items())), what
        found = self._alike.get(alike)
        if found is None:
            if len(self._alike) >= _MOST_ALIKE:
                self._alike.clear()
            found = self._alike[alike] = judge(node, layout, around, offered)
        self._of_nodes[metadata.name] = key, found
        return found

    def keep(self, names: Collection[str]) -> None:
        """Forget all other nodes."""
        for gone in self._of_nodes.keys() - names:
            del self._of_nodes[gone]


def _wanted(choice: LayoutIn) -> Wanted:
    if choice.configuration:
        return Wanted(None, choice.configuration, label=True)
    return Wanted(choice.read(), None, label=False, text=choice.text)
