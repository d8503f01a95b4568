"""Signals: the first ends in good order, the second hurries, and every command ends alike."""

import asyncio
import os
import signal
import threading

import pytest

from tessera.core.errors import InvalidInput, TesseraError
from tessera.serving.ending import Signalled, run_until_signalled, until_signalled

NUMBERS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]


@pytest.fixture(autouse=True)
def _no_signal_is_ignored():
    """As in a terminal; `nohup` and some job runners start programs with signals ignored, and these stay so."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Work:
    """Work that gets signals while it runs, and more while it cleans up."""

    def __init__(self, *numbers):
        self.numbers = list(numbers)
        self.cleaned = False

    async def run(self):
        try:
            os.kill(os.getpid(), self.numbers.pop(0))
            await asyncio.Event().wait()
        finally:
            for number in self.numbers:
                os.kill(os.getpid(), number)
                await asyncio.Event().wait()
            self.cleaned = True


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_a_command_in_good_order(number, code):
    """What was begun is cleaned up, and the exit code is the shell's for that signal."""
    work = Work(number)
    assert run_until_signalled(work.run()) == code
    assert work.cleaned


def test_an_interrupt_stays_one():
    """^C cleans up, and is KeyboardInterrupt to the caller."""
    work = Work(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run_until_signalled(work.run())
    assert work.cleaned


@pytest.mark.parametrize("number", NUMBERS)
def test_a_second_signal_does_not_wait_for_cleaning_up(number):
    """Cleaning up that hangs is left."""
    work = Work(number, number)
    with pytest.raises(KeyboardInterrupt):
        run_until_signalled(work.run())
    assert not work.cleaned


@pytest.mark.parametrize("number", NUMBERS)
def test_the_signal_has_a_name(number):
    """A part that ends with a signal can read which it was; afterwards signals do what they did before."""
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Signalled, match=number.name):
        asyncio.run(until_signalled(Work(number).run()))
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_closed_terminal_changes_nothing_under_nohup():
    """SIGHUP that was ignored stays ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:

        async def work():
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.sleep(0)
            return 7

        assert run_until_signalled(work()) == 7
    finally:
        signal.signal(signal.SIGHUP, before)


def test_in_another_thread_it_only_runs():
    """Signals go to the main thread; work elsewhere runs to its end."""
    codes = []

    async def work():
        return 3

    thread = threading.Thread(target=lambda: codes.append(run_until_signalled(work())))
    thread.start()
    thread.join()
    assert codes == [3]


def test_being_cancelled_from_within_is_no_signal():
    """Cancellation that no signal caused stays what it is."""

    async def work():
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run_until_signalled(work())


@pytest.mark.parametrize(
    ("errors", "first"),
    [
        ([ValueError("bug"), InvalidInput("a sentence")], "a sentence"),
        ([ExceptionGroup("inner", [TesseraError("deep")]), ValueError("bug")], "deep"),
        ([ValueError("bug"), KeyError("other")], "bug"),
    ],
)
def test_of_several_errors_the_sentence_is_told(errors, first):
    """Parts fail together; a person reads the one error that they can repair."""

    async def work():
        raise ExceptionGroup("together", errors)

    with pytest.raises(Exception, match=f"^{first}$") as caught:
        run_until_signalled(work())
    assert not isinstance(caught.value, ExceptionGroup)
