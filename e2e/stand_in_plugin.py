"""A stand-in for the device plugin on nodes that are only objects: it answers to their layouts as the plugin does.

It knows no transport: unit tests write into a store with it, and e2e through a real API server.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from tessera.core.mig.geometry import Product
from tessera.core.resources import WHOLE_GPU, is_whole_or_mig
from tessera.protocol.mig import documents as mig

Document = dict[str, Any]


def layout_of(node: Document) -> str:
    """The layout in a node's annotation, or nothing."""
    return str((node["metadata"].get("annotations") or {}).get(mig.RUNAI_CONFIG) or "")


def answer_to(
    node: Document, cards: Sequence[Product], refusal: str = "", gone: str | None = "0"
) -> Document:
    """The merge patch by which the plugin answers to a node's layout: it takes it, or says why not.

    `gone` is the amount of a resource that the node does not have any more. The kubelet leaves 0; None removes it.
    """
    state = "failed" if refusal else "success"
    said = {"labels": {mig.CONFIG_STATE: state}, "annotations": {mig.CONFIG_REASON: refusal or None}}
    if refusal:
        return {"metadata": said}
    text = layout_of(node)
    resources = mig.read_layout(text, cards).resources() if text else {WHOLE_GPU: len(cards)}
    before = {resource: gone for resource in node["status"]["allocatable"] if is_whole_or_mig(resource)}
    amounts = {resource: str(number) for resource, number in resources.items()}
    return {"metadata": said, "status": {"allocatable": {**before, **amounts}}}


class StandInPlugin(ABC):
    """Answers to each new layout of each node. A subclass reads and writes nodes, and says when it answers."""

    gone: str | None = "0"

    def __init__(self, cards: Sequence[Product]) -> None:
        self.refuses: Callable[[str, str], str] = lambda node, text: ""  # why it does not take this one
        self.absent: set[str] = set()  # nodes where nobody answers
        self.on_layout: Callable[[str, str], object] = lambda node, text: None  # called with each new one
        self.seen: list[tuple[str, str]] = []
        self._cards = cards
        self._layouts: dict[str, str] = {}

    def remember(self, node: Document) -> None:
        """Take a node's layout for one that it has."""
        self._layouts[node["metadata"]["name"]] = layout_of(node)

    def see(self, node: Document) -> None:
        """Look at a node that has changed. It may have another layout now."""
        name, text = node["metadata"]["name"], layout_of(node)
        if self._layouts.get(name, "") == text:
            return
        self._layouts[name] = text
        self.seen.append((name, text))
        self.on_layout(name, text)
        if name not in self.absent:
            self.answer_soon(name)

    def answer(self, name: str) -> None:
        """Do what the node's layout says now, or say why not."""
        node = self.read(name)
        if node is not None:
            refusal = self.refuses(name, layout_of(node))
            self.write(name, answer_to(node, self._cards, refusal, self.gone))

    @abstractmethod
    def answer_soon(self, name: str) -> None:
        """Have `answer` called."""

    @abstractmethod
    def read(self, name: str) -> Document | None:
        """A node as it is now, or None where it is gone."""

    @abstractmethod
    def write(self, name: str, patch: Document) -> None:
        """Patch a node, its status too."""
