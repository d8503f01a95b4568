"""The layout of a node's simulated cards: the last good one holds, whatever is asked for.

A layout comes as text, from the node's annotation or from a file. One that cannot be read or does not fit is refused
with its reason; the cards stay as they are. The last good text is kept on disk, so that a restart in front of a bad
annotation does not empty the node.
"""

import logging
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from tessera.core.devices.transition import Transition
from tessera.core.errors import InvalidInput
from tessera.core.kubernetes.resources import short
from tessera.core.mig.geometry import Product
from tessera.core.mig.layout import CardLayout, NodeLayout, Strategy
from tessera.kube.files import WatchedFiles
from tessera.node.files import write_whole
from tessera.protocol.mig import documents as mig

log = logging.getLogger(__name__)

_MOST_REASON: Final = 1024  # characters: an annotation is read by people


class State(StrEnum):
    """What became of a layout, in the words of `nvidia.com/mig.config.state`."""

    SUCCESS = "success"
    PENDING = "pending"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the layout that was asked for."""

    state: State
    reason: str = ""


class LayoutKeeper:
    """What the cards are cut into, and what became of the last wish."""

    def __init__(
        self, cards: Sequence[Product], strategy: Strategy, *, default: str = "", memory: Path
    ) -> None:
        self.strategy = strategy
        self.layout: NodeLayout | None = None  # None: nobody has said yet
        self.asked: str | None = None  # the text that was asked for last
        self._cards = tuple(cards)
        self._default = default
        self._memory = memory
        self._failure = ""
        self._read("")  # a default that does not fit is a mistake in the configuration

    def ask(self, text: str | None) -> None:
        """Somebody wants this layout; None or nothing: that of the configuration."""
        text = text if text and text.strip() else ""
        if text == self.asked:
            return
        self.asked = text
        try:
            self._change(self._read(text))
        except InvalidInput as error:
            self._failure = _shortened("; ".join(str(error).split("\n")))
            log.error("layout refused, the last good one stays: %s", self._failure)  # noqa: TRY400 # one line
            if self.layout is None:
                self._change(self._remembered() or self._read(""))
        else:
            self._failure = ""
            self._remember(text)

    def recall(self) -> None:
        """Nobody says what is wanted: go on with what was good in the last run, if there was one."""
        if self.layout is None and (remembered := self._remembered()):
            log.warning("nobody says which layout is wanted, the last good one holds")
            self._change(remembered)

    def outcome(self, change: Transition) -> Outcome:
        """What became of the last wish, given what the devices did."""
        if self._failure:
            return Outcome(State.FAILED, self._failure)
        if change.complete:
            return Outcome(State.SUCCESS)
        return Outcome(State.PENDING, _shortened(f"{len(change.waiting)} to come after {_staying(change)}"))

    def _change(self, layout: NodeLayout) -> None:
        if layout != self.layout:
            log.info("layout: %s", _counted(layout, self.strategy))
        self.layout = layout

    def _read(self, text: str) -> NodeLayout:
        if not text and not self._default:
            return NodeLayout(tuple(CardLayout(card) for card in self._cards))
        layout = mig.read_layout(text or self._default, self._cards)
        layout.slots(self.strategy)  # the strategy may not allow it
        return layout

    def _remember(self, text: str) -> None:
        try:
            if self._memory.exists() and self._memory.read_text() == text:
                return
            self._memory.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._memory, text.encode())
        except OSError as error:
            log.warning("%s: a restart will not remember the layout: %s", self._memory, error)

    def _remembered(self) -> NodeLayout | None:
        """The last good layout of an earlier run, if it still is one."""
        try:
            return self._read(self._memory.read_text())
        except (OSError, InvalidInput):
            return None


def _staying(change: Transition) -> str:
    """What stays and for whom, resource by resource: a node may have hundreds of devices, and its pods are few."""
    pods: dict[str, list[str]] = {}
    for device in change.leaving:
        pods.setdefault(device.resource, []).append(change.holders[device.key])
    return "; ".join(
        f"{len(holders)} × {short(resource)}, kept for {', '.join(dict.fromkeys(holders))}"
        for resource, holders in pods.items()
    )


def _shortened(reason: str) -> str:
    """The reason on one line; one that is too long ends after a word, and shows that it goes on."""
    return textwrap.shorten(reason, _MOST_REASON, placeholder=" …", break_on_hyphens=False)


def _counted(layout: NodeLayout, strategy: Strategy) -> str:
    return ", ".join(f"{name}: {count}" for name, count in layout.resources(strategy).items()) or "nothing"


class LayoutFile:
    """A layout in a file, followed; without the file there is no wish."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._watched = WatchedFiles(path)
        self._text: str | None = None

    def read(self) -> str | None:
        """What the file says now."""
        if self._watched.changed():
            try:
                self._text = self._path.read_text(errors="replace")
            except OSError:
                self._text = None
        return self._text
