"""Nothing leaks: no descriptor, no thread, no socket, no task."""

import asyncio
import threading
from pathlib import Path

from tests.node.running import GPU, ListSource, mock_devices, offers, run, running, slices


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_hundred_changes_of_a_thousand_devices() -> None:
    """A hundred layouts in a row, a thousand devices each: descriptors and threads stay as many as they were."""

    async def story(root: Path) -> None:
        devices = mock_devices(1000)
        source = ListSource(devices)
        async with running(source, root=root, tick=1.0) as node:
            await node.kubelet.until(lambda kubelet: kubelet.allocatable == {GPU: 1000})
            before = (descriptors(), threading.active_count(), len(asyncio.all_tasks()))
            for change in range(100):
                source.list = [*devices[: 999 - change], *slices(1 + change % 3, [0])]
                node.poke()
                await node.kubelet.until(offers(GPU, 999 - change))
            source.list = devices
            node.poke()
            await node.kubelet.until(lambda kubelet: kubelet.allocatable[GPU] == 1000)
            assert node.kubelet.plugins[GPU].lists == 103, "one per change, and one to learn what is free"
            after = (descriptors(), threading.active_count(), len(asyncio.all_tasks()))
            # three resources came: a listening socket, a connection at each end, and the tasks that serve them
            assert after[0] - before[0] <= 3 * 4
            assert after[1] == before[1]
            assert after[2] - before[2] <= 3 * 6

    run(story)


def test_kubelet_restarts_leave_nothing_behind() -> None:
    """Thirty restarts of the kubelet: as many descriptors, threads and sockets as after the first."""

    async def story(root: Path) -> None:
        async with running(ListSource(mock_devices()), root=root, tick=0.01) as node:
            seen = []
            for _ in range(30):
                await node.kubelet.restart()
                await node.kubelet.until(lambda kubelet: kubelet.allocatable == {GPU: 8})
                seen.append(
                    (descriptors(), threading.active_count(), len(list(node.kubelet.folder.iterdir())))
                )
            first, last = seen[2], seen[-1]
            assert last[0] - first[0] <= 2
            assert last[1:] == first[1:]

    run(story)
