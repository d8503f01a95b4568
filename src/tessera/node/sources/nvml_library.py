"""NVIDIA's management library, as far as a device plugin needs it: cards, their MIG devices, what went wrong.

`Nvml` is the port; `NvmlLibrary` is the real thing. It only reads, card by card: one that does not answer is unhealthy, and takes no
other with it; nor does a call that hangs. A driver that is not loaded, or is reloaded while we run, is no crash: the next poll starts again.
"""

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from tessera.node.sources import SourceFailed
from tessera.node.sources.asking import Asker
from tessera.node.sources.nvml_card import NO_DRIVER, NvmlCard, is_one_of, optional, read_card, unless

if TYPE_CHECKING:
    from concurrent.futures import Future

_T = TypeVar("_T")

_WHOLE_CARD: Final = 0xFFFFFFFF  # NVML's "no GPU instance" in an event
_MOST_EVENTS: Final = 256  # taken at one poll
_NOT_YET: Final = "has not answered yet"


@dataclass(frozen=True, slots=True)
class NvmlEvent:
    """Something that went wrong on a card, or on one GPU instance of it."""

    card: str  # UUID
    gpu_instance: int | None
    xid: int | None  # None: an uncorrectable memory error

    def __str__(self) -> str:
        return "uncorrectable memory error" if self.xid is None else f"XID {self.xid}"


class Nvml(Protocol):
    """What is asked of the driver."""

    def cards(self, busy: Collection[str] = ()) -> Sequence[NvmlCard]:
        """Every GPU, one that does not answer with its problem; raises `SourceFailed` when the driver does not answer.

        Cards of the UUIDs in `busy` are being cut: they are not asked, and are reported as they were seen last.
        """
        ...

    def events(self) -> Sequence[NvmlEvent]:
        """What went wrong since the last call; does not wait."""
        ...

    def close(self) -> None:
        """Let go of the driver, until something is asked again; not possible while a call has not come back."""
        ...

    @property
    def unanswered(self) -> Mapping[str, str]:
        """What was not answered at the last poll, such as `card 1`; for what hangs, the message that says so."""
        ...


class NvmlLibrary:
    """NVML through nvidia-ml-py."""

    def __init__(self, sysfs: Path = Path("/sys"), asker: Callable[[], Asker] = Asker) -> None:
        self._sysfs = sysfs
        self._lib: Any = None
        self._event_set: Any = None
        self._registered: set[str] = set()
        self._seen: dict[int, NvmlCard] = {}  # as each card answered last
        self._last_cards: Sequence[NvmlCard] = ()  # as they were returned last
        self._silent = False  # whether some card did not answer at the last poll
        self._driver, self._readers = asker(), asker()  # questions to the driver as a whole, and to cards

    def cards(self, busy: Collection[str] = ()) -> Sequence[NvmlCard]:
        if self._silent:
            self.close()  # a card that was reset or replaced may be seen only after the library is opened again
        self._driver.only(("open", "driver", "events"))
        found = self._answer("driver", lambda lib: lib.nvmlDeviceGetCount())
        if found is not None:
            self._last_cards = self._cards(*found, busy)
            return self._last_cards
        waits = self._driver.unanswered
        message = waits.get("open") or waits.get("driver")
        if not self._last_cards:
            raise SourceFailed(f"NVML {message or _NOT_YET}")
        return [replace(card, problem=message or card.problem) for card in self._last_cards]

    def events(self) -> Sequence[NvmlEvent]:
        found = self._answer("events", self._events)
        return found[1] if found else ()

    @property
    def unanswered(self) -> Mapping[str, str]:
        return self._driver.unanswered | self._readers.unanswered

    def close(self) -> None:
        if self._lib is None or self._driver.at_work or self._readers.at_work:
            return
        lib, event_set, self._lib, self._event_set = self._lib, self._event_set, None, None
        self._registered.clear()
        self._driver.only(())
        self._driver.ask({"close": partial(_close, lib, event_set)}, first=False)

    def _answer(self, what: str, ask: Callable[[Any], _T]) -> tuple[Any, _T] | None:
        """The library and what it answers, opened if it is not; None: no answer yet."""
        import pynvml

        try:
            if self._lib is None:
                opened = self._driver.ask({"open": partial(_open, pynvml)}).get("open")
                if opened is None:
                    return None
                self._event_set = opened.result()
                self._lib = pynvml
            answer = self._driver.ask({what: partial(ask, self._lib)}).get(what)
            return (self._lib, answer.result()) if answer else None
        except pynvml.NVMLError as error:
            self.close()
            raise SourceFailed(f"NVML: {error}") from error

    def _cards(self, lib: Any, count: int, busy: Collection[str]) -> list[NvmlCard]:
        resting = {index for index, card in self._seen.items() if card.uuid in busy}
        questions = {
            f"card {index}": partial(self._card, lib, index) for index in range(count) if index not in resting
        }
        self._readers.only(questions.keys())
        answers = self._readers.ask(questions)
        try:
            found = {index: self._found(lib, index, answers.get(f"card {index}")) for index in range(count)}
        except lib.NVMLError as error:
            self.close()
            raise SourceFailed(f"NVML: {error}") from error
        answered = {index: card for index, card in found.items() if isinstance(card, NvmlCard)}
        self._silent = len(answered) < len(found)
        uuids = {card.uuid for card in answered.values()}  # numbers shift when a card is gone
        known = {index: card for index, card in self._seen.items() if card.uuid not in uuids} | answered
        self._seen = {index: card for index, card in known.items() if index in found}
        return [
            card
            if isinstance(card, NvmlCard)
            else replace(self._seen.get(index) or NvmlCard(index, "", "", 0, minor=index), problem=card)
            for index, card in found.items()
        ]

    def _found(self, lib: Any, index: int, answer: "Future[NvmlCard] | None") -> NvmlCard | str:
        """A card, as it answered now or last; or what is wrong with it."""
        if answer is None:
            message = self._readers.unanswered.get(f"card {index}")
            return message or self._seen.get(index) or _NOT_YET
        try:
            return answer.result()
        except lib.NVMLError as error:
            if is_one_of(lib, error, NO_DRIVER):
                raise
            return f"does not answer: {error}"

    def _card(self, lib: Any, index: int) -> NvmlCard:
        handle = lib.nvmlDeviceGetHandleByIndex(index)
        self._register(lib, handle, lib.nvmlDeviceGetUUID(handle))
        return read_card(lib, handle, index, self._sysfs)

    def _register(self, lib: Any, handle: Any, uuid: str) -> None:
        """Subscribe to the card's errors; for cards that have no such events the poll is enough."""
        if uuid not in self._registered:
            wanted = lib.nvmlEventTypeXidCriticalError | lib.nvmlEventTypeDoubleBitEccError
            wanted &= optional(lib, lib.nvmlDeviceGetSupportedEventTypes, handle) or 0
            if wanted:
                optional(lib, lib.nvmlDeviceRegisterEvents, handle, wanted, self._event_set)
            self._registered.add(uuid)

    def _events(self, lib: Any) -> list[NvmlEvent]:
        found: list[NvmlEvent] = []
        for _ in range(_MOST_EVENTS):
            try:
                data = lib.nvmlEventSetWait_v2(self._event_set, 0)
            except lib.NVMLError as error:
                if is_one_of(lib, error, ("TIMEOUT",)):
                    break
                if is_one_of(
                    lib, error, ("GPU_IS_LOST",)
                ):  # the others' events come again after the next poll
                    self._silent = True
                    break
                raise
            xid = data.eventData if data.eventType == lib.nvmlEventTypeXidCriticalError else None
            instance = None if data.gpuInstanceId == _WHOLE_CARD else data.gpuInstanceId
            card = unless(("GPU_IS_LOST",), lib, lib.nvmlDeviceGetUUID, data.device)
            found.append(NvmlEvent(card or "", instance, xid))
        return found


def _open(lib: Any) -> Any:
    """Open the library; a set of events."""
    lib.nvmlInit()
    try:
        return lib.nvmlEventSetCreate()
    except lib.NVMLError:
        lib.nvmlShutdown()
        raise


def _close(lib: Any, event_set: Any) -> None:
    for call in (partial(lib.nvmlEventSetFree, event_set), lib.nvmlShutdown):
        with contextlib.suppress(lib.NVMLError):  # it may be gone already
            call()
