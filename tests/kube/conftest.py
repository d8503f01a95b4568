"""Tests written as coroutines run in a loop of their own, with a deadline."""

import asyncio
import inspect

import pytest

from tessera.kube.clock import Backoff

DEADLINE = 20.0  # seconds; a test that is waited for longer hangs


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a coroutine test to its end."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}

    async def run() -> None:
        async with asyncio.timeout(DEADLINE):
            await pyfuncitem.obj(**arguments)

    asyncio.run(run())
    return True


@pytest.fixture
def soon(monkeypatch):
    """Who waits after a failure waits for a moment only, and tries again."""
    _, *others = Backoff.__init__.__defaults__ or ()
    monkeypatch.setattr(Backoff.__init__, "__defaults__", (0.02, *others))
