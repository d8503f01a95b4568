"""Slices of real cards that are cut for claims: there before a claim is answered, gone when it has ended.

What a card is to have is what the claims on disk hold of it. So a process that was killed at any point has left nothing to undo
but slices that no claim holds, and these go when the next one cleans up the card.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from tessera.core.devices.device import Device
from tessera.core.mig.placement import Instance
from tessera.core.mig.profile import MigProfile
from tessera.node.dra.prepared_claims import HeldDevice, Phase, PreparedClaim, PreparedClaims
from tessera.node.sources import SourceFailed
from tessera.node.sources.cutting.on_demand import OnDemandSource
from tessera.node.sources.cutting.reading import CardClaims
from tessera.node.state import Key

log = logging.getLogger(__name__)

# seconds that the end of a claim waits for its slices to go; after that they go by themselves
_END: Final = 10.0
_GONE: Final = "its slice is gone: another program removed it, or the card was reset; end the pod"


def wanted_of(entries: Iterable[PreparedClaim], boot: str) -> defaultdict[str, CardClaims]:
    """What the claims of this boot hold of each card, by the card's UUID."""
    devices = [one for entry in entries if entry.boot == boot for one in entry.devices if not one.admin]
    ids = frozenset(one.id for one in devices)
    found = defaultdict[str, CardClaims](lambda: CardClaims(ids=ids))
    for one in devices:
        if one.parent:
            held, whole = found[one.parent], one.id == one.parent
            found[one.parent] = replace(
                held, instances=(*held.instances, *_instance(one)), whole=held.whole or whole
            )
    return found


def _instance(one: HeldDevice) -> tuple[Instance, ...]:
    profile = MigProfile.of_resource(one.resource)
    return (Instance(profile, one.start, one.size),) if profile else ()


class ClaimSlices:
    """The slices that claims have on real cards. Callers are alone on the cards of the claim."""

    def __init__(self, source: OnDemandSource, store: PreparedClaims) -> None:
        self._source = source
        self._store = store
        self._made: set[tuple[str, str]] = set()  # claim and card: its slices there were made by us
        self._gone: set[Key] = (
            set()
        )  # at the last call of `gone`; a claim that is just ending is not reported

    async def missing(self, entry: PreparedClaim, devices: Mapping[str, Device]) -> bool:
        """Whether a slice of a prepared claim is known to be gone: its card was reset, or another program removed it."""
        mine = _on_demand(entry, devices)
        try:
            await self._source.refresh(force=bool(mine))
        except SourceFailed:
            return False
        gone = [
            one.device
            for one, device in mine
            if not (one.admin or self._source.found(device)) and self._source.answers(one.parent)
        ]
        if gone:
            log.warning("%s: gone from its card, and cut again: %s", entry, ", ".join(gone))
        return bool(gone)

    def gone(self, entries: Iterable[PreparedClaim], devices: Mapping[str, Device]) -> dict[Key, str]:
        """Devices of prepared claims that two calls in a row did not find on their cards: what is wrong with them."""
        before, self._gone = self._gone, {
            device.key
            for entry in entries
            if entry.phase is Phase.COMPLETED and entry.boot == self._store.boot
            for one, device in _on_demand(entry, devices)
            if not (one.admin or self._source.found(device)) and self._source.answers(one.parent)
        }  # fmt: skip
        return dict.fromkeys(before & self._gone, _GONE)

    async def make(
        self, entry: PreparedClaim, devices: Mapping[str, Device], timeout: float
    ) -> dict[str, Device] | str:
        """The claim's devices as they are on their cards, cut now; or why not."""
        mine, ends = _on_demand(entry, devices), time.monotonic() + timeout
        try:
            await self._source.refresh(force=bool(mine))
            messages = [
                await self._cut(card, entry, ends)
                for card in sorted({one.parent for one, _ in mine if not one.admin})
            ]
        except SourceFailed as error:
            return str(error)
        made = {}
        for one, device in mine:
            there = self._source.found(device)
            if one.admin:
                there = there or replace(device, id=one.parent)  # what is not cut is seen as its card
            elif (entry.uid, one.parent) not in self._made:
                there = None  # it is not the claim's: some program uses it
            if there is None:
                why = "; ".join(filter(None, messages)) or "another slice is in its place"
                return f"{one.device} cannot be cut: {why}"
            made[one.device] = there
        return made

    async def _cut(self, card: str, entry: PreparedClaim, ends: float) -> str:
        """Cut the claim's slices on a card; what was in their places belongs to no known claim."""
        others, everything = await self._wanted(card, without=entry.uid), await self._wanted(card)
        ours = [one for one in everything.instances if one not in others.instances]
        there = [one for one in ours if self._source.has(card, one)]
        if there and (entry.uid, card) not in self._made:
            message = await self._source.cut(card, others, _left(ends))
            if any(self._source.has(card, one) for one in there):
                return message
        message = await self._source.cut(card, everything, _left(ends), make=ours)
        if all(self._source.has(card, one) for one in ours):
            self._made.add((entry.uid, card))
        return message

    async def remove(self, entry: PreparedClaim) -> None:
        """Remove the claim's slices; one that some program still uses goes later, and keeps its place until then."""
        for card, held in wanted_of([entry], self._store.boot).items():
            ours = entry.phase is Phase.COMPLETED or (entry.uid, card) in self._made
            self._made.discard((entry.uid, card))
            if not (ours and held.instances and self._source.knows(card)):
                continue  # what is not known to be ours goes when the card is cleaned up, if it may
            try:
                others = await self._wanted(card, without=entry.uid)
                message = await self._source.cut(card, others, _END, only=held.instances)
            except SourceFailed as error:
                message = str(error)
            if message:
                log.warning("%s has ended, and its slices go later: %s", entry, message)

    async def tidy(self, card: str) -> None:
        """Remove what no claim holds."""
        try:
            await self._source.cut(card, await self._wanted(card), _END)
        except SourceFailed as error:
            log.warning("card %s will be cleaned up later: %s", card, error)

    def untidy(self, entries: Sequence[PreparedClaim]) -> list[str]:
        """The cards that have something that no claim holds."""
        return self._source.untidy(wanted_of(entries, self._store.boot))

    async def _wanted(self, card: str, without: str = "") -> CardClaims:
        entries = await asyncio.to_thread(self._store.readable)
        some = [entry for entry in entries if entry.uid != without]
        return wanted_of(some, self._store.boot)[card]


def _on_demand(entry: PreparedClaim, devices: Mapping[str, Device]) -> list[tuple[HeldDevice, Device]]:
    """Those of a claim's devices that are there only when they are cut, or when their card is whole."""
    found = [(one, devices[one.device]) for one in entry.devices if one.device in devices]
    return [(one, device) for one, device in found if not device.model.cut or one.id == one.parent]


def _left(ends: float) -> float:
    return max(0.0, ends - time.monotonic())
