"""Commands that run until they are told to end: ^C and signals end them in good order."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

from tessera.core.errors import TesseraError


def run_until_told(work: Coroutine[Any, Any, int]) -> int:
    """Run to the end, or until a signal; then everything is cleaned up. The exit code.

    A closed terminal and SIGTERM are taken as ^C is.
    """
    told: list[int] = []

    async def main() -> int:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 # we are in one

        def end(number: int) -> None:
            told.append(number)
            task.cancel()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, end, number)
        return await work

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        return 128 + told[0] if told else 1  # as shells report it
    except BaseExceptionGroup as group:
        raise _first(group) from None


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What a person is to be told, of several things that went wrong together."""
    leaves: list[BaseException] = []
    pending: list[BaseException] = [group]
    while pending:
        one = pending.pop(0)
        if isinstance(one, BaseExceptionGroup):
            pending.extend(one.exceptions)
        else:
            leaves.append(one)
    return next((one for one in leaves if isinstance(one, TesseraError)), leaves[0])
