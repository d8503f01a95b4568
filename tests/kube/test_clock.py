"""Waiting for the first of several things."""

import asyncio

import pytest

from tessera.kube.clock import first_of


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
