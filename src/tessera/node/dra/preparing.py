"""Claims, prepared and ended: for one card in order, for different cards at the same time.

The kubelet tries a failed prepare again only after a minute or more, so whatever passes soon is waited for inside the call.
The scheduler gives a device away as soon as its pod is gone from the API, even while the pod's container still runs: what
is not ended here is held, and the next claim waits.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

from tessera.core.devices.device import Device
from tessera.core.errors import InvalidInput, TesseraError
from tessera.kube.clock import either
from tessera.kube.errors import ApiError, KubeError
from tessera.node.cdi import ClaimFiles
from tessera.node.dra.claim_cutting import ClaimSlices
from tessera.node.dra.claim_objects import GivenDevice, WrongClaim, held_by, obstacle_to
from tessera.node.dra.prepared_claims import (
    HeldDevice,
    Phase,
    PreparedClaim,
    PreparedClaims,
    UnreadableEntry,
    in_the_way,
)
from tessera.node.metrics import DraMetrics
from tessera.node.state import Key
from tessera.protocol.kubelet.dra_messages import ClaimName, PreparedDevice

log = logging.getLogger(__name__)

T = TypeVar("T")

TIMEOUT: Final = 40.0  # seconds inside one call; the kubelet gives up after 45
_POLL: Final = 0.25  # seconds: another process of the driver may end what is in the way
_READ_AGAIN: Final = 2.0  # seconds after which a claim that waits is read again: it may be gone


class CannotPrepare(TesseraError):
    """A claim that could not be prepared in time; the text is an event of its pod."""


@dataclass(frozen=True, slots=True)
class _Blocked:
    """Not now, and why; it may pass."""

    reason: str


def reached(step: str) -> None:
    """A step of preparing or ending is done; tests end the process here."""


class Claims:
    """Prepares and ends claims on this node."""

    def __init__(
        self,
        *,
        pool: str,
        store: PreparedClaims,
        files: ClaimFiles,
        read: Callable[[ClaimName], Awaitable[Sequence[GivenDevice]]],
        offered: Callable[[], Mapping[str, Device]],
        metrics: DraMetrics,
        slices: ClaimSlices | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`read` says what the API server gave to a claim, `offered` which devices there are now, by name.

        `slices` cuts real cards; None: every device that is offered is there.
        """
        self.changing = asyncio.Lock()  # held while it is decided which devices there are, and which are held
        self._pool = pool
        self._store = store
        self._files = files
        self._read = read
        self._offered = offered
        self._metrics = metrics
        self._slices = slices
        self._tidying: set[str] = set()  # cards
        self._clock = clock
        self._cards: dict[str, asyncio.Lock] = {}
        self._one_by_one: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by the claim's uid
        # by the claim's uid: set when the kubelet ends a claim for which a call of its own still waits
        self._ended: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()
        self._freed = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def prepare(self, claim: ClaimName, timeout: float = TIMEOUT) -> list[PreparedDevice]:
        """Make a claim's devices ready for its containers; doing it twice is doing it once."""
        began = self._clock()
        deadline, logged = began + timeout, False
        ended = self._ended.setdefault(claim.uid, asyncio.Event())
        given, read_at = await self._read_until(claim, deadline), self._clock()
        if not given:  # other drivers have devices in it, and we have none
            return []
        while True:
            result = await self._attempted(claim, given, ended, max(0.0, deadline - self._clock()))
            if ended.is_set():
                raise CannotPrepare(f"claim {claim} was ended while it waited")
            if not isinstance(result, _Blocked):
                self._metrics.prepared("prepared", self._clock() - began)
                return [PreparedDevice(one.request, self._pool, one.device, one.cdi_names) for one in result]
            if self._clock() >= deadline:
                raise CannotPrepare(result.reason)
            if not logged:
                log.info("claim %s waits: %s", claim, result.reason)
                logged = True
            await self._wait_for_change()
            if self._clock() - read_at > _READ_AGAIN:
                given, read_at = await self._read_until(claim, deadline), self._clock()

    async def unprepare(self, claim: ClaimName) -> None:
        """End a claim; one that is not known has ended. What still waits for its devices does not get them."""
        if (ended := self._ended.pop(claim.uid, None)) is not None:
            ended.set()
        await self._to_the_end(self._end(claim.uid))
        self._metrics.unprepared()

    async def drained(self) -> None:
        """Wait until what was begun is done."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def notify(self) -> None:
        """Wake the claims that wait: something changed that they may wait for."""
        self._freed.set()

    # preparing

    async def _read_until(self, claim: ClaimName, deadline: float) -> Sequence[GivenDevice]:
        """Read the claim, again and again while the API server does not answer."""
        while True:
            try:
                return await self._read(claim)
            except ApiError as error:
                if error.is_not_found:
                    raise WrongClaim(f"claim {claim} is gone") from error
                if self._clock() >= deadline:
                    raise
            except (KubeError, InvalidInput):
                if self._clock() >= deadline:
                    raise
            await asyncio.sleep(_POLL)

    async def _attempted(
        self, claim: ClaimName, given: Sequence[GivenDevice], ended: asyncio.Event, timeout: float
    ) -> tuple[HeldDevice, ...] | _Blocked:
        """An attempt that goes on to its end, and knows when no caller waits for the answer any more."""
        abandoned = asyncio.Event()
        try:
            return await self._to_the_end(self._attempt(claim, given, ended, abandoned, timeout))
        except asyncio.CancelledError:
            abandoned.set()
            raise

    async def _attempt(
        self,
        claim: ClaimName,
        given: Sequence[GivenDevice],
        ended: asyncio.Event,
        abandoned: asyncio.Event,
        timeout: float,
    ) -> tuple[HeldDevice, ...] | _Blocked:
        reached("prepare: claim read")
        offered = self._offered()
        keys = {held_by(one, offered[one.device], claim).card for one in given if one.device in offered}
        try:
            async with AsyncExitStack() as stack:
                await self._lock_claim(stack, claim.uid)
                if ended.is_set():
                    return _Blocked("it was ended")
                await self._lock_cards(stack, keys)
                async with self.changing:
                    devices = self._offered()
                    begun = await asyncio.to_thread(self._begin, claim, given, devices)
                if isinstance(begun, _Blocked):
                    return begun
                if begun.phase is Phase.COMPLETED and not await self._gone(begun, devices):
                    return begun.devices
                reached("prepare: started is on disk")
                # a simulated slice is there as soon as it is written down
                made = await self._slices.make(begun, devices, timeout) if self._slices else {}
                if isinstance(made, str):
                    return _Blocked(made)
                reached("prepare: slices are cut")
                there = {**devices, **made}
                files = [(one.request, one.device, there[one.device]) for one in begun.devices]
                await asyncio.to_thread(self._files.write, claim.uid, files)
                reached("prepare: CDI spec is on disk")
                if abandoned.is_set():
                    # The kubelet was not answered, so no container has it. Another process of ours may have ended the claim
                    # meanwhile: only what is not completed is cleaned up then.
                    return begun.devices
                await asyncio.to_thread(self._complete, begun)
                reached("prepare: completed is on disk")
        except OSError as error:
            self._metrics.failed("disk")
            return _Blocked(f"what is prepared cannot be written: {error}")
        log.info("claim %s prepared: %s", claim, ", ".join(one.device for one in begun.devices) or "nothing")
        return begun.devices

    async def _gone(self, entry: PreparedClaim, devices: Mapping[str, Device]) -> bool:
        return self._slices is not None and await self._slices.missing(entry, devices)

    def _begin(
        self, claim: ClaimName, given: Sequence[GivenDevice], devices: Mapping[str, Device]
    ) -> PreparedClaim | _Blocked:
        """Write down that a claim is begun, if its devices are there and free."""
        with self._store.locked():
            entries, unreadable = self._store.read()
            known = next((entry for entry in entries if entry.uid == claim.uid), None)
            if known and known.boot == self._store.boot and known.phase is Phase.COMPLETED:
                if {one.device for one in known.devices} != {one.device for one in given}:
                    return _Blocked(f"claim {claim} is prepared with other devices, and has not been ended")
                if self._files.there(claim.uid):
                    return known
            if obstacle := obstacle_to(given, devices, known):
                return _Blocked(obstacle)
            held = tuple(held_by(one, devices[one.device], claim) for one in given)
            for device, other in in_the_way(entries, claim.uid, held, self._store.boot):
                return _Blocked(
                    f"{device.device} is still in use by {other}, and is prepared as soon as that has ended"
                )
            # its own entry is written again here; another's may hold any device, until it is repaired or its claim ends
            others = [error for error in unreadable if error.uid != claim.uid]
            if others and not all(one.admin for one in held):
                return _Blocked(str(others[0]))
            entry = PreparedClaim(
                claim.uid, claim.namespace, claim.name, self._store.boot, Phase.STARTED, held
            )
            self._store.write(entry)
            return entry

    def _complete(self, entry: PreparedClaim) -> None:
        with self._store.locked():
            self._store.write(
                PreparedClaim(
                    entry.uid, entry.namespace, entry.name, entry.boot, Phase.COMPLETED, entry.devices
                )
            )

    # ending

    async def _end(self, uid: str) -> None:
        async with AsyncExitStack() as stack:
            await self._lock_claim(stack, uid)
            try:
                entry = await asyncio.to_thread(self._store.get, uid)
            except UnreadableEntry as error:
                log.warning("the claim ends: %s", error)
                entry = None
            await self._lock_cards(stack, {one.card for one in entry.devices} if entry else set())
            reached("unprepare: begun")
            await asyncio.to_thread(self._files.remove, uid)
            reached("unprepare: CDI spec is gone")
            if self._slices and entry:
                await self._slices.remove(entry)
                reached("unprepare: slices are gone")
            await asyncio.to_thread(self._forget, uid)
            reached("unprepare: entry is gone")
        if entry:
            log.info("%s ended: %s", entry, ", ".join(one.device for one in entry.devices) or "nothing")
        self.notify()

    def _forget(self, uid: str) -> None:
        with self._store.locked():
            self._store.remove(uid)

    # slices of real cards

    def tidy(self, entries: Sequence[PreparedClaim]) -> None:
        """Begin to remove slices that no claim holds, each card for itself; `entries` are all claims there are."""
        for card in self._slices.untidy(entries) if self._slices else ():
            if card not in self._tidying:
                self._tidying.add(card)
                self._spawn(self._tidy(card))

    def gone(self, entries: Sequence[PreparedClaim]) -> dict[Key, str]:
        """Devices of claims that are no longer on their cards, and what is wrong with them."""
        return self._slices.gone(entries, self._offered()) if self._slices else {}

    async def _tidy(self, card: str) -> None:
        try:
            async with AsyncExitStack() as stack:
                await self._lock_cards(stack, {card})
                if self._slices:
                    await self._slices.tidy(card)
        finally:
            self._tidying.discard(card)

    # waiting

    async def _lock_claim(self, stack: AsyncExitStack, uid: str) -> None:
        """Alone on this claim, and before any card.

        When a pod is deleted the kubelet cancels its call and ends the claim at once; of a pod that was deleted by force it ends
        the claim, and may not cancel the call. What is still under way for the claim is
        done first: what it wrote after the end would hold the devices for ever.
        """
        await stack.enter_async_context(self._one_by_one.setdefault(uid, asyncio.Lock()))

    async def _lock_cards(self, stack: AsyncExitStack, keys: set[str]) -> None:
        """Alone on these cards; always in the same order, so that two claims never wait for each other."""
        for key in sorted(keys):
            await stack.enter_async_context(self._cards.setdefault(key, asyncio.Lock()))

    async def _wait_for_change(self) -> None:
        self._freed.clear()
        await either(self._freed, _POLL)

    async def _to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        """The work, which goes on to its end even if the call for it is cancelled: half of it would be worse."""
        return await asyncio.shield(self._spawn(work))

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
