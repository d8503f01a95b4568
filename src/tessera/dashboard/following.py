"""The cluster, followed by list and watch, onto the board. Only ever read."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

from tessera.dashboard.board import Board
from tessera.dashboard.observed import Denial, SeenNode, SeenPod, see_event, see_node, see_pod
from tessera.kube.rest.client import Client
from tessera.kube.rest.paths import path_of
from tessera.kube.watch.reflector import Reflector
from tessera.kube.watch.resource import Key, Resource

_UNFINISHED: Final = "status.phase!=Succeeded,status.phase!=Failed"  # the others hold nothing
_STALE: Final = 90.0  # seconds without a word; bookmarks come about every minute
_LOOK_SECONDS: Final = 5.0


class _Nodes:
    def __init__(self, board: Board) -> None:
        self._board = board

    def replace(self, objects: Iterable[SeenNode]) -> None:
        fresh = {one.node.name: one for one in objects}
        for name in self._board.nodes:
            if name not in fresh:
                self._board.remove_node(name)
        for one in fresh.values():
            self._board.put_node(one)

    def upsert(self, one: SeenNode) -> None:
        self._board.put_node(one)

    def delete(self, key: Key) -> None:
        self._board.remove_node(key.name)


class _Pods:
    def __init__(self, board: Board) -> None:
        self._board = board

    def replace(self, objects: Iterable[SeenPod]) -> None:
        fresh = {Key(one.claim.namespace, one.claim.name): one for one in objects}
        for key in self._board.pods:
            if key not in fresh:
                self._board.remove_pod(key)
        for one in sorted(fresh.values(), key=lambda one: one.claim.created):
            self._board.put_pod(one)

    def upsert(self, one: SeenPod) -> None:
        self._board.put_pod(one)

    def delete(self, key: Key) -> None:
        self._board.remove_pod(key)


class _Denials:
    """Events tell of pods that were never created; that one is forgotten changes nothing."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def replace(self, objects: Iterable[Denial | None]) -> None:
        for one in sorted((one for one in objects if one), key=lambda one: one.when):
            self._board.denied(one)

    def upsert(self, one: Denial | None) -> None:
        if one:
            self._board.denied(one)

    def delete(self, key: Key) -> None:
        pass


@asynccontextmanager
async def following(client: Client, board: Board, *, denials: bool = True) -> AsyncIterator[None]:
    """Keep a board right: complete when this begins, until it ends.

    Events are extra: whoever may not read them sees no denials, and everything else.
    """
    nodes, pods, events = (path_of("v1", plural) for plural in ("nodes", "pods", "events"))
    for path in (nodes, pods):  # a reflector would try for ever: whoever may not, hears it now
        await client.get(path, {"limit": 1})
    needed: list[Reflector[Any]] = [
        Reflector(client, Resource("nodes", nodes, see_node), _Nodes(board)),
        Reflector(client, Resource("pods", pods, see_pod, {"fieldSelector": _UNFINISHED}), _Pods(board)),
    ]
    extra: list[Reflector[Any]] = []
    if denials:
        chosen = {"fieldSelector": "reason=FailedCreate"}
        extra.append(Reflector(client, Resource("events", events, see_event, chosen), _Denials(board)))
    async with asyncio.TaskGroup() as tasks:
        running: list[asyncio.Task[Any]] = [tasks.create_task(one.run()) for one in (*needed, *extra)]
        running.append(tasks.create_task(_watch_over(needed, board)))
        try:
            for one in needed:
                await one.synced()
            yield
        finally:
            for task in running:
                task.cancel()


async def _watch_over(reflectors: list[Reflector[Any]], board: Board) -> None:
    """Say so on the page when the API server has gone silent."""
    while True:
        silent = [one for one in reflectors if one.age is not None and one.age > _STALE]
        board.trouble(
            "; ".join(
                f"{one.resource.name}: nothing heard for a while: {one.status.last_error}" for one in silent
            )
        )
        await asyncio.sleep(_LOOK_SECONDS)
