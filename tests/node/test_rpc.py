"""gRPC over unix sockets: a server that is ended in the middle of its start."""

import asyncio
import gc
import logging
from pathlib import Path

import pytest

from tessera.core.errors import TesseraError
from tessera.node.rpc import serve


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("turns", range(4))
def test_fault_44_ended_while_it_starts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, turns: int, times: int
) -> None:
    """Whenever and however often it is cancelled, it ends without a complaint in the log, and leaves no socket."""
    path = tmp_path / "a.sock"

    async def story() -> None:
        task = asyncio.create_task(serve(path, []))
        for _ in range(turns):
            await asyncio.sleep(0)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        try:
            server = await task
        except asyncio.CancelledError:
            pass
        else:  # it was through before
            await server.stop(None)
        gc.collect()  # a task whose error nothing asked for says so when it goes

    with caplog.at_level(logging.WARNING):
        asyncio.run(asyncio.wait_for(story(), 30))
    assert [record.getMessage() for record in caplog.records] == []
    assert not path.exists()


def test_a_path_that_cannot_be_listened_on(tmp_path: Path) -> None:
    """A folder that is not there: one sentence that names the path."""
    path = tmp_path / "no" / "a.sock"
    with pytest.raises(TesseraError, match=f"{path}: cannot listen"):
        asyncio.run(serve(path, []))
