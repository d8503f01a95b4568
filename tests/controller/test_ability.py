"""What keeps a reconciler from its work."""

import asyncio

from tessera.controller.reconciler import Ability
from tests.kube.clock import FakeClock


def test_it_is_logged_once_for_as_long_as_it_lasts():
    """Each thing that is lacking is one line, however long it is waited for; what was over and is back is a line again."""

    async def main():
        said = iter(["", "no pods", "no pods", "", "no pods", "no nodes", ""])
        logged: list[str] = []
        ability = Ability(FakeClock(auto=True), lambda: next(said), logged.append)
        await ability.wait()
        assert logged == []
        await ability.wait()
        assert logged == ["no pods"]
        await ability.wait()
        assert logged == ["no pods", "no pods", "no nodes"]

    asyncio.run(main())


def test_a_wait_that_was_cancelled_goes_on():
    """The controller waits for the first that can work, and then has each wait for itself: what was logged is not logged again."""

    async def main():
        logged: list[str] = []
        ability = Ability(FakeClock(), lambda: "no pods", logged.append)
        for _ in range(2):
            waiting = asyncio.ensure_future(ability.wait())
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        assert logged == ["no pods"]

    asyncio.run(main())
