"""Waiting for the first of several things; how two clocks differ."""

import asyncio

import pytest

from tessera.kube.clock import first_of, offset_between, offset_in_words


def test_the_first_ends_the_wait_and_the_others():
    """The wait ends with the first that is done, or with the time; nothing goes on behind the caller's back, also where the caller is cancelled."""

    async def main():
        cancelled = []

        async def forever(name):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(name)
                raise

        await first_of(forever("one"), asyncio.sleep(0))
        await first_of(forever("two"), timeout=0.001)
        waiting = asyncio.ensure_future(first_of(forever("three")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.sleep(0)
        assert cancelled == ["one", "two", "three"]

    asyncio.run(main())


def test_how_two_clocks_differ():
    """By no more than is certain: a slow answer proves nothing."""
    assert [offset_between(date, 100, 110) for date in (90, 99, 100, 105, 110, 120)] == [-10, -1, 0, 0, 0, 10]


@pytest.mark.parametrize(
    ("offset", "words"),
    [
        (90.0, "90 seconds behind"),
        (-7200.0, "2 hours ahead of"),
        (1860.0, "31 minutes behind"),
        (-400 * 86400.0, "400 days ahead of"),
        (0.5, "0 seconds behind"),
    ],
)
def test_the_difference_in_words(offset, words):
    """In the unit that people would say it in."""
    assert offset_in_words(offset) == f"this machine's clock is {words} the API server's"
