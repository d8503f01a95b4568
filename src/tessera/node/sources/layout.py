"""Which layout a node's cards get: the last good one holds, whatever is desired.

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

from tessera.core.devices.device import Transition
from tessera.core.errors import InvalidInput
from tessera.core.mig.geometry import Product
from tessera.core.mig.layout import CardLayout, NodeLayout, Strategy
from tessera.core.resources import short
from tessera.node.files import put
from tessera.node.polling import NotPublished
from tessera.protocol.mig import documents as mig

log = logging.getLogger(__name__)

_MOST_REASON: Final = 1024  # characters: an annotation is read by people
_ON_DEMAND: Final = (
    "the cards of this node are cut as claims ask for it ({}.partitioning: dynamic); remove the layout, or set "
    "partitioning: static"
)


class State(StrEnum):
    """What became of a layout, in the words of `nvidia.com/mig.config.state`."""

    SUCCESS = "success"
    PENDING = "pending"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class NodeLayoutStatus:
    """What became of the layout that was asked for."""

    state: State
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Decided:
    """The layout that the cards are to have, and the text that it answers."""

    layout: NodeLayout
    desired: str | None  # as the node or the file says it, empty for nothing; None: it is not known yet
    refusal: str = ""  # why that text was refused, and an earlier layout holds

    def status(self, result: Transition | NotPublished) -> NodeLayoutStatus:
        """What became of the layout that was asked for, given what became of its devices."""
        if self.refusal:
            return NodeLayoutStatus(State.FAILED, self.refusal)
        if isinstance(result, NotPublished):
            reason = f"cannot be put in place, will be tried again: {result.reason}"
        elif result.complete:
            return NodeLayoutStatus(State.SUCCESS)
        else:
            reason = f"{len(result.waiting)} to come after {staying(result)}"
        return NodeLayoutStatus(State.PENDING, shortened(reason))


def text_of(desired: str | None) -> str:
    """What is desired; blank text desires nothing."""
    return desired if desired and desired.strip() else ""


class Layouts:
    """Decides what a node's cards are cut into, and keeps the last good text on disk."""

    def __init__(self, cards: Sequence[Product], strategy: Strategy, path: Path, default: str = "") -> None:
        """`default`: the layout where none is desired; without it the cards are whole."""
        self._cards = tuple(cards)
        self._strategy = strategy
        self._default = default
        self._path = path
        self._read("")  # a default that does not fit is a mistake in the configuration

    def decide(self, desired: str | None, before: Decided | None) -> Decided:
        """The layout from now on, where this text is desired; None or nothing: that of the configuration."""
        text = text_of(desired)
        if before is not None and before.desired == text:
            return before
        try:
            decided = Decided(self._read(text), text)
        except InvalidInput as error:
            refusal = shortened("; ".join(str(error).split("\n")))
            log.error("layout refused, the last good one stays: %s", refusal)  # noqa: TRY400 # one line
            good = before.layout if before else self._last_good() or self._read("")
            decided = Decided(good, text, refusal)
        else:
            self._keep(text)
        self._log(decided, before)
        return decided

    def refuse(self, desired: str | None) -> Decided:
        """The answer to any layout where slices are cut on demand: none; the cards are whole until a claim gets a slice."""
        return refused(desired, self._read(""), "simulated")

    def recall(self) -> Decided | None:
        """What was good in the last run, for a start at which it cannot be learned what is desired."""
        layout = self._last_good()
        if layout is None:
            return None
        log.warning("the API server does not answer, the last good layout is used")
        decided = Decided(layout, None)
        self._log(decided, None)
        return decided

    def _log(self, decided: Decided, before: Decided | None) -> None:
        if before is None or decided.layout != before.layout:
            resources = decided.layout.resources(self._strategy)
            counted = ", ".join(f"{name}: {count}" for name, count in resources.items())
            log.info("layout: %s", counted or "nothing")

    def _read(self, text: str) -> NodeLayout:
        if not text and not self._default:
            return NodeLayout(tuple(CardLayout(card) for card in self._cards))
        layout = mig.read_layout(text or self._default, self._cards)
        layout.slots(self._strategy)  # the strategy may not allow it
        return layout

    def _keep(self, text: str) -> None:
        try:
            put(self._path, text.encode())
        except OSError as error:
            log.warning("%s: a restart will not remember the layout: %s", self._path, error)

    def _last_good(self) -> NodeLayout | None:
        """The last good layout of an earlier run, if it still is one."""
        try:
            return self._read(self._path.read_bytes().decode())
        except (OSError, UnicodeDecodeError, InvalidInput):
            return None


def refused(desired: str | None, layout: NodeLayout, cards: str) -> Decided:
    """The answer to any layout where slices are cut on demand; `cards`: the part of the configuration that says so."""
    text = text_of(desired)
    return Decided(layout, text, _ON_DEMAND.format(cards) if text else "")


def staying(change: Transition) -> str:
    """What stays and for whom, resource by resource: a node may have hundreds of devices, and its pods are few."""
    pods: dict[str, list[str]] = {}
    for device in change.leaving:
        pods.setdefault(device.resource, []).append(change.holders[device.key])
    return "; ".join(
        f"{len(holders)} × {short(resource)}, kept for {', '.join(dict.fromkeys(holders))}"
        for resource, holders in pods.items()
    )


def shortened(reason: str) -> str:
    """The reason on one line; one that is too long ends after a word, and shows that it goes on."""
    return textwrap.shorten(reason, _MOST_REASON, placeholder=" …", break_on_hyphens=False)


def file_text(path: Path) -> str | None:
    """The layout that a file desires; None: there is no file."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return None
