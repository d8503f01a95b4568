"""A stand-in for the device plugins of a fleet. It has what it has cut, also when the API server loses what it wrote."""

import contextlib
import http.client
import random
import time
from collections.abc import Mapping
from typing import Final

from e2e.cluster.api import ApiError, Object
from e2e.cluster.client import Client
from e2e.layouts import CARDS, NODES
from e2e.stand_in_plugin import StandInPlugin, layout_of

from stress.chaos.looks import Cut
from tessera.core.resources import is_whole_or_mig
from tessera.protocol.mig import documents as mig

AWAY: Final = (ApiError, OSError, http.client.HTTPException)


class Plugins(StandInPlugin):
    """Cuts nodes as their annotation says, as soon as it looks at them and their time has come."""

    gone = None  # what a node does not have any more is removed

    def __init__(self, cluster: Client, chance: random.Random) -> None:
        super().__init__(CARDS)
        self.cuts = 0
        self.refusing: set[str] = set()  # nodes that take no layout
        self.refuses = lambda node, _: "no room" if node in self.refusing else ""
        self._cluster = cluster
        self._chance = chance
        self._due: dict[str, float] = {}  # when a node answers
        self._cut: dict[str, str] = {}  # the layouts that nodes have

    def take(self, node: Object) -> None:
        """Take a node's layout for one that its cards have."""
        self.remember(node)
        self._cut[node["metadata"]["name"]] = layout_of(node)

    def look(self, node: Object) -> Cut | None:
        """Look at a node; the cut that it makes now."""
        name, text = node["metadata"]["name"], layout_of(node)
        self.see(node)
        if name in self.absent:
            return None
        if self._due.get(name, float("inf")) <= time.monotonic():
            return self._carry_out(name, text)
        if name not in self._due and self._cut.get(name) == text and not _shows(node, self._resources(text)):
            with contextlib.suppress(*AWAY):
                self.answer(name)  # the API server has lost what was written
        return None

    def _carry_out(self, name: str, text: str) -> Cut | None:
        refused = bool(self.refuses(name, text))
        try:
            self.answer(name)
        except AWAY:
            return None  # tried again at the next look
        del self._due[name]
        before = self._cut.get(name, text)
        if refused or before == text:
            return None
        self._cut[name] = text
        self.cuts += 1
        return Cut(name, self._resources(before), self._resources(text))

    def _resources(self, text: str) -> Mapping[str, int]:
        return mig.read_layout(text, CARDS).resources()

    def answer_soon(self, name: str) -> None:
        self._due[name] = time.monotonic() + self._chance.uniform(0.2, 1.5)

    def come_back(self, name: str) -> None:
        """A plugin that was away is there again."""
        self.absent.discard(name)
        self.answer_soon(name)

    def read(self, name: str) -> Object | None:
        return self._cluster.api.find(f"{NODES}/{name}")

    def write(self, name: str, patch: Object) -> None:
        if "status" in patch:
            self._cluster.set_allocatable(name, patch["status"]["allocatable"])
        self._cluster.api.patch(f"{NODES}/{name}", {"metadata": patch["metadata"]})


def _shows(node: Object, resources: Mapping[str, int]) -> bool:
    """Whether a node says that it has exactly this, and that all is well."""
    allocatable = node["status"]["allocatable"]
    has = {name: int(number) for name, number in allocatable.items() if is_whole_or_mig(name)}
    state = node["metadata"]["labels"].get(mig.CONFIG_STATE)
    return has == dict(resources) and state == "success"
