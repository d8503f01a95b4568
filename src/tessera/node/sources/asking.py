"""Questions to a driver that may never answer: asked in threads, and the caller goes on without the answer.

A call that hangs cannot be ended. Its thread is left alone, the same is not asked again before it has come back, and its answer
is taken then. Threads end with the process.
"""

import sys
import time
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from threading import get_ident
from typing import Final, TypeVar

_T = TypeVar("_T")

# Seconds for which one thread asks all questions, one after another, as is usual; then a second one goes on with the rest, and so on
_STAGGER: Final = 0.05
_SLOW: Final = 1.0  # that an answer is waited for; drivers take some milliseconds
# After that long without an answer it counts as hanging. So long the first answer is waited for: a driver that keeps no card open
# takes some seconds to open each
HANGS: Final = 10.0
_CALL: Final = "nvml"  # how the names of the driver's functions begin


class _Question:
    def __init__(self, ask: Callable[[], object], since: float) -> None:
        self.answer: Future[object] = Future()
        self.since = since
        self.void = False  # whether the answer is no longer wanted
        self._ask = ask
        self._thread = 0

    def ask(self) -> None:
        self._thread = get_ident()
        try:
            self.answer.set_result(self._ask())
        except BaseException as error:  # noqa: BLE001 # the caller that takes the answer gets it
            self.answer.set_exception(error)

    @property
    def call(self) -> str:
        """The driver's function that it is in."""
        frame = sys._current_frames().get(self._thread)  # noqa: SLF001 # documented, and there is no other way
        while frame is not None and not frame.f_code.co_name.startswith(_CALL):
            frame = frame.f_back
        return frame.f_code.co_name if frame else "a call of the driver"


class Asker:
    """Asks by keys, which say what a question concerns."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        wait_for: Callable[["Future[object]", float], object] = lambda answer, seconds: wait(
            [answer], seconds
        ),
    ) -> None:
        self._clock = clock
        self._wait_for = wait_for
        self._open: dict[str, _Question] = {}  # whose answer was not taken yet
        self._answered: set[str] = set()  # keys that have ever been answered

    @property
    def unanswered(self) -> dict[str, str]:
        """The questions whose answers were not taken yet; for one that hangs, the message that says so."""
        return {key: self._message(one) for key, one in self._open.items()}

    @property
    def at_work(self) -> bool:
        """Whether some call has not come back."""
        return not all(one.answer.done() for one in self._open.values())

    def _message(self, one: _Question) -> str:
        # the same text for as long as it lasts: it is written to the node
        if one.answer.done() or self._clock() - one.since < HANGS:
            return ""
        return f"has not answered for more than {HANGS:.0f} s, in {one.call}"

    def ask(
        self, questions: Mapping[str, Callable[[], _T]], *, first: bool = True
    ) -> "dict[str, Future[_T]]":
        """The answers that came in time, or came at last to what was asked before; the others come when they are asked again.

        `first`: whether a first answer is waited for until it counts as hanging.
        """
        new = {key: _Question(ask, self._clock()) for key, ask in questions.items() if key not in self._open}
        self._open |= new
        _start([*new.values()])
        for key in questions:
            self._wait(self._open[key], HANGS if first and key not in self._answered else _SLOW)
        answered = {key: self._open[key] for key in questions if self._open[key].answer.done()}
        for key in answered:
            del self._open[key]
        self._answered |= answered.keys()
        return {key: one.answer for key, one in answered.items() if not one.void}  # type: ignore[misc] # of that question

    def only(self, keys: Collection[str]) -> None:
        """Of what was asked before, nothing but this is wanted: other answers are void."""
        for key, one in [*self._open.items()]:
            one.void = one.void or key not in keys
            if one.void and one.answer.done():
                del self._open[key]

    def _wait(self, one: _Question, timeout: float) -> None:
        """Until it is answered, or was asked so long ago."""
        left = one.since + timeout - self._clock()
        if left > 0 and not one.answer.done():
            self._wait_for(one.answer, left)


def _start(new: Sequence[_Question]) -> None:
    """Have all of them asked."""
    todo = deque(new)
    while todo:
        start_new_thread(_ask_all, (todo,))  # as a Thread would, without waiting until it has started
        wait([new[-1].answer], _STAGGER)


def _ask_all(todo: deque[_Question]) -> None:
    with suppress(IndexError):  # all are asked
        while True:
            todo.popleft().ask()
