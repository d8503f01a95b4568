"""The cluster, followed by list and watch, onto the board. Only ever read."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from operator import attrgetter
from typing import Any, Final

from tessera.dashboard.board import Board
from tessera.dashboard.history import Admission, read_denial
from tessera.dashboard.observed import DashboardPod, read_node, read_pod
from tessera.inventory.operator import MigManagerFiles, read_mig_manager
from tessera.kube.errors import KubeError
from tessera.kube.object_files import FileObject
from tessera.kube.rest.client import Client, path_of
from tessera.kube.watch.file_feed import take_files
from tessera.kube.watch.follow import Follower
from tessera.kube.watch.table import (
    FAILED_CREATES,
    NODES,
    RESOURCE_SLICES,
    UNFINISHED_PODS,
    Key,
    Resource,
    Table,
    TableEntry,
    entry_by_name,
    replace_all,
)
from tessera.protocol.mig.miglayout import API_VERSION, KIND, PLURAL, MigLayout

_MIG_LAYOUTS: Final = Resource(PLURAL, path_of(API_VERSION, PLURAL), optional=True, kind=KIND)
_POLL_SECONDS: Final = 5.0
_AGAIN_SECONDS: Final = 60.0  # mig-manager's own copy of its ConfigMap is as old as this, too


@asynccontextmanager
async def following(client: Client, board: Board, *, denials: bool = True) -> AsyncIterator[None]:
    """Keep a board right: complete when this begins, until it ends.

    Events are extra: a client that may not read them sees everything but denials. So are mig-manager's configurations.
    """
    follower = Follower(client, _table(board, denials=denials))
    board.dra.follow(board.dra_changed, lambda: follower.relist(RESOURCE_SLICES))
    async with follower.following():
        await _learn(client, follower, board)
        work = _poll(follower, board), _relearn(client, follower, board)
        tasks = [asyncio.create_task(one) for one in work]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


def show_objects(board: Board, found: Sequence[FileObject]) -> None:
    """Put objects of files onto a board, as kubectl saved them. Other kinds of objects are passed over."""
    mig_manager = MigManagerFiles()
    board.dra.follow(board.dra_changed, lambda: None)
    take_files(found, {**_table(board, denials=False), **mig_manager.table()})
    board.put_mig_manager(mig_manager.config())
    board.sample()


def _table(board: Board, *, denials: bool) -> Table:
    def replace_pods(seen: Iterable[DashboardPod]) -> None:
        oldest_first = sorted(seen, key=lambda one: one.use.created)
        replace_all(board.pods, {_key(one): one for one in oldest_first}, board.put_pod, board.remove_pod)

    def deny(denials: Iterable[tuple[str, Admission] | None]) -> None:
        for event, admission in sorted(filter(None, denials), key=lambda denial: denial[1].when):
            board.denied(event, admission)

    table: dict[Resource, TableEntry[Any]] = {
        NODES: entry_by_name(
            read_node,
            board.put_node,
            board.remove_node,
            key=lambda seen: seen.node.name,
            known=lambda: board.nodes,
        ),
        UNFINISHED_PODS: TableEntry(
            read_pod, board.put_pod, board.remove_pod, replace=replace_pods, key=_key
        ),
        _MIG_LAYOUTS: entry_by_name(
            MigLayout.read,
            board.put_mig_layout,
            board.remove_mig_layout,
            key=attrgetter("name"),
            known=lambda: board.mig_layouts,
        ),
        **board.dra.table(),
    }
    if denials:  # of pods that were never created; when the API server forgets an event, nothing changes
        table[FAILED_CREATES] = TableEntry(read_denial, lambda denial: deny([denial]), replace=deny)
    return table


def _key(pod: DashboardPod) -> Key:
    return Key(pod.use.namespace, pod.use.name)


async def _poll(follower: Follower, board: Board) -> None:
    """Now and then: remember the numbers, and show it when the API server is silent."""
    while True:
        board.set_error(follower.stale())
        board.sample()
        if not follower.absent(_MIG_LAYOUTS):
            board.set_mig_layouts_unseen("")
        await asyncio.sleep(_POLL_SECONDS)


async def _relearn(client: Client, follower: Follower, board: Board) -> None:
    while True:
        await asyncio.sleep(_AGAIN_SECONDS)
        await _learn(client, follower, board)


async def _learn(client: Client, follower: Follower, board: Board) -> None:
    """What is not followed; what is known of it stays while the API server is silent."""
    with suppress(KubeError):
        # who may not read them is told the same where the cluster does not know them
        if unseen := follower.absent(_MIG_LAYOUTS):
            known = await client.find(f"/apis/{API_VERSION}")
            board.set_mig_layouts_unseen(unseen if known is not None else "")
        if board.has_mig_manager:
            board.put_mig_manager(await read_mig_manager(client))
