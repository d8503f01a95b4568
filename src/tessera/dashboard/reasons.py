"""Why groups of pods wait, in the diagnosis' words: asked while a browser looks at the page, and seldom enough to cost little.

An answer reads all nodes and pods, as `tessera why` does, once for all groups. It stands until something changes in the cluster.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any, Final, NoReturn

from tessera.core.errors import TesseraError
from tessera.dashboard.board import Board
from tessera.diagnosis.gather import observe_cluster, read_plugins
from tessera.diagnosis.reading import Reader, read_controller, read_drivers
from tessera.diagnosis.waiting import Cause, WaitingPods
from tessera.inventory.presence import Presences
from tessera.kube.clock import SYSTEM_CLOCK
from tessera.kube.rest.client import Client
from tessera.kube.view.policy import PolicySource
from tessera.kube.watch.table import Key

Ask = Callable[
    [Collection[Key]], Coroutine[Any, Any, Mapping[Key, str]]
]  # pods → why each waits, in a sentence

_SHARE: Final = 0.02  # of one processor, at most
_REST: Final = 5.0  # seconds between two questions, at least
_MOST: Final = 50  # groups that are asked about: those that wait longest


class Reasons:
    """Asks why pods of a board wait, and puts the answers onto it."""

    def __init__(
        self,
        board: Board,
        ask: Ask,
        is_watched: Callable[[], bool],
        processor_time: Callable[[], float] = time.process_time,
    ) -> None:
        self._board, self._ask, self._is_watched = board, ask, is_watched
        self._processor_time = processor_time
        self._asked_at = -1  # the board's revision

    async def run(self) -> NoReturn:
        while True:
            await asyncio.sleep(await self.once())

    async def once(self) -> float:
        """Ask if something changed and someone looks; how long to rest, in seconds."""
        board, begun = self._board, self._processor_time()
        if self._asked_at == board.revision or not self._is_watched():
            return _REST
        self._asked_at, groups = board.revision, board.waiting(_MOST)
        try:
            found = await self._ask(set(groups.values())) if groups else {}
        except TesseraError:  # the page shows that the API server is silent, and the scheduler's words
            return _REST
        board.explain({alike: found[pod] for alike, pod in groups.items() if pod in found})
        return max(_REST, (self._processor_time() - begun) / _SHARE)


def asking(client: Client, decides_by: PolicySource) -> Ask:
    """Ask the diagnosis about pods of a cluster; of one that waits for no GPU it has less to say than the scheduler."""

    async def ask(pods: Collection[Key]) -> dict[Key, str]:
        reader, policy = Reader(client), (await decides_by.read(client)).policy
        seen = await observe_cluster(
            reader,
            policy.fallback,
            SYSTEM_CLOCK,
            wanted=lambda use, _: not use.node and Key(use.namespace, use.name) in pods,
        )
        bridge, nodes, dra = seen.is_bridge_used(policy), seen.inventory.capacity.values(), seen.dra
        presences = Presences(
            controller=await read_controller(reader, decides_by.namespace, SYSTEM_CLOCK) if bridge else None,
            drivers=await read_drivers(reader, nodes, dra.slices, dra.claims, seen.now),
        )
        judge = WaitingPods(seen.judged_by(reader, policy, presences, await read_plugins(reader)))
        reasons = {Key(one.pod.namespace, one.pod.name): judge.why(one) for one in seen.pods if one.waits}
        return {
            pod: why.answer
            for pod, why in reasons.items()
            if why.cause != Cause.UNSEEN and (why.request.gpus or why.obstacle)
        }

    return ask
