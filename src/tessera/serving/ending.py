"""Signals, and how to end: the first one ends in good order, the second hurries."""

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from tessera.core.errors import TesseraError

T = TypeVar("T")


class Signalled(Exception):  # not an error: how a process is ended
    """The work was ended by a signal."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number


@contextmanager
def on_signals(act: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Call this in the event loop for every signal that asks the process to end."""
    loop, handled = asyncio.get_running_loop(), []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
            continue  # nohup: a closed terminal is to change nothing
        try:
            loop.add_signal_handler(number, act, number)
        except (ValueError, RuntimeError):
            break  # not the main thread: signals are another's business
        handled.append(number)
    try:
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)


async def until_signalled(work: Coroutine[Any, Any, T]) -> T:
    """What the work comes to. The first signal cancels it, so that it cleans up, and is raised as `Signalled`."""
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 # we are in one
    received: list[signal.Signals] = []

    def act(number: signal.Signals) -> None:
        received.append(number)
        if len(received) > 1:
            raise KeyboardInterrupt  # leaves the event loop at once
        task.cancel()

    with on_signals(act):
        try:
            return await work
        except asyncio.CancelledError:
            if not received:
                raise
            raise Signalled(received[0]) from None


def run_until_signalled(work: Coroutine[Any, Any, int]) -> int:
    """Run a command that goes on until it is ended; the exit code. ^C raises KeyboardInterrupt, as ever."""
    try:
        return asyncio.run(until_signalled(work))
    except Signalled as ended:
        if ended.number == signal.SIGINT:
            raise KeyboardInterrupt from None
        return 128 + ended.number  # as shells report it
    except BaseExceptionGroup as group:
        raise _first(group) from None


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error to report, of several that happened together."""
    found: BaseException = group.subgroup(TesseraError) or group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
